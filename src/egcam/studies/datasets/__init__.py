"""Images with what is known of them: labels, masks, boxes.

A data set is one module of this folder: a function below `@register_dataset(kind)` that opens it.

May use files, pictures and the images of truth tests, and runs no network. Plans and workers of studies use it.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path

from egcam.studies.datasets.dataset import DataError as DataError
from egcam.studies.datasets.dataset import Dataset as Dataset
from egcam.studies.datasets.dataset import Entry as Entry
from egcam.studies.datasets.dataset import FileDataset as FileDataset
from egcam.studies.datasets.dataset import Mask as Mask
from egcam.studies.datasets.dataset import Picture as Picture
from egcam.studies.datasets.registry import files_of as files_of
from egcam.studies.datasets.registry import kind_of as kind_of
from egcam.studies.datasets.registry import kinds as kinds
from egcam.studies.datasets.registry import options_of as options_of
from egcam.studies.datasets.registry import read_options as read_options
from egcam.studies.datasets.registry import register_dataset as register_dataset
from egcam.studies.datasets.registry import unregister_dataset as unregister_dataset
from egcam.studies.datasets.subset import take
from egcam.studies.specs import DataSpec

# All modules here, so that a data set is known by lying in this folder.
for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def open_dataset(spec: DataSpec) -> Dataset:
    """The data set a study's file asks for: its listing is read, and `spec.images` images are chosen.

    The images come in the order of the choice, also where all are taken: `egcam.studies.datasets.subset`.

    Raises:
        DataError: when something is missing; the text says what, and where it was looked for.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = tempfile.mkdtemp()
        >>> Image.new("RGB", (8, 8)).save(f"{folder}/black.png")
        >>> open_dataset(DataSpec("folder", folder))[0].name
        'black.png'
    """
    options, kind = read_options(spec.kind, spec.options), kind_of(spec.kind)
    whole = kind.open(**options) if spec.path is None else kind.open(Path(spec.path).expanduser(), **options)
    return take(whole, spec.images, spec.seed, spec.part)
