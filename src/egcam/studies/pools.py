"""The images that methods compare with: which a study draws from data or folders, known by their pixels."""

from __future__ import annotations

from torch import Tensor

from egcam.attribution import references, registry
from egcam.attribution.registry import starts_from_one_image
from egcam.models.preprocessing import Preprocessing
from egcam.studies.datasets import open_dataset
from egcam.studies.datasets.dataset import Dataset, Picture
from egcam.studies.geometry import reference_pool
from egcam.studies.keys import pixels_of
from egcam.studies.specs import DataSpec, MethodSpec, Study


def source_of(study: Study, method: MethodSpec) -> str:
    """Where a method's references come from: its own option, else the study's, if that is for it; else its default."""
    source = study.reference.source
    of_study = {} if is_drawn(source) and starts_from_one_image(method.method) else {"reference": source}
    return str({**registry.method(method.method).options(), **of_study, **method.options}["reference"])


def is_drawn(source: str) -> bool:
    """Whether a source is a collection of images: data, a folder, or photographs."""
    return source not in references.MADE_BY_NAME or references.by_name(source).is_collection


def drawn_pool(study: Study, source: str, preprocessing: Preprocessing, data: Dataset) -> tuple[Tensor, dict[str, str]]:
    """(M, C, H, W) the references from a source, and the checksums of the images that decided them, by name."""
    others = data if source == "data" else open_dataset(DataSpec("folder", source))
    pixels: dict[str, str] = {}

    def note(picture: Picture) -> None:
        pixels[picture.name] = pixels_of(picture)

    return reference_pool(others, preprocessing, study.data.size, study.reference.count, study.data.seed, note), pixels
