"""The images that methods compare with: which a study draws from data or folders, known by their pixels."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from egcam.attribution import references, registry
from egcam.attribution.shared_options import starts_from_one_image
from egcam.models.preprocessing import Preprocessing
from egcam.studies.datasets import open_dataset
from egcam.studies.datasets.dataset import Dataset, Picture
from egcam.studies.geometry import reference_pool
from egcam.studies.inputs import content_of
from egcam.studies.specs import DataSpec, MethodSpec, Study


def source_of(study: Study, method: MethodSpec) -> str:
    """Where a method's references come from: its own option, else the study's, if that is for it; else its default."""
    source = study.reference.source
    of_study = {} if is_drawn(source) and starts_from_one_image(method.method) else {"reference": source}
    return str({**registry.method(method.method).options(), **of_study, **method.options}["reference"])


def is_drawn(source: str) -> bool:
    """Whether a source is a collection of images: data, a folder, or photographs."""
    return source not in references.MADE_BY_NAME or references.by_name(source).is_collection


def pool_titles(study: Study) -> dict[str, str]:
    """What each source of images is called, whatever the folder's name on this machine: "data", "folder 1", …"""
    taking = [method for method in study.methods if "reference" in registry.takes(method.method)]
    sources = dict.fromkeys(source_of(study, method) for method in taking)
    folders = [source for source in sources if source != "data" and source not in references.MADE_BY_NAME]
    titles = {source: f"folder {number}" for number, source in enumerate(folders, 1)}
    return titles | ({"data": "data"} if "data" in sources else {})


def drawn_pool(study: Study, source: str, preprocessing: Preprocessing, data: Dataset) -> tuple[Tensor, dict[str, str]]:
    """(M, C, H, W) the references from a source, and the checksums of the images that decided them, by name."""
    others = data if source == "data" else open_dataset(DataSpec("folder", source))
    pixels: dict[str, str] = {}

    def note(picture: Picture) -> None:
        pixels[picture.name] = content_of(replace(picture, label=None, mask=None)).split()[0]

    pool = reference_pool(others, preprocessing, study.data.size, study.reference.count, study.data.seed, note)
    return pool, pixels


def pool_checksums(study: Study, preprocessings: list[Preprocessing], data: Dataset) -> dict[str, dict[str, str]]:
    """The checksums of all images that methods of the study compare with, by title and name."""
    found: dict[str, dict[str, str]] = {}
    for source, title in pool_titles(study).items():
        found[title] = {}
        for preprocessing in dict.fromkeys(preprocessings):
            found[title] |= drawn_pool(study, source, preprocessing, data)[1]
    return found
