"""Images with what is known of them: labels, masks, boxes."""

from __future__ import annotations

from importlib import import_module

from egcam.errors import near_misses
from egcam.studies.datasets.choice import chosen
from egcam.studies.datasets.dataset import DataError, Dataset, Mask, Picture
from egcam.studies.specs import DataSpec

__all__ = ["DataError", "Dataset", "Mask", "Picture", "kinds", "open_dataset"]

_MODULES = {"imagenet": "imagenet", "cifar10": "cifar10", "coco": "coco", "folder": "folder"}


def kinds() -> list[str]:
    """The kinds of data there are.

    Example:
        >>> kinds()
        ['imagenet', 'cifar10', 'coco', 'folder']
    """
    return list(_MODULES)


def open_dataset(spec: DataSpec) -> Dataset:
    """The data set a study's file asks for: its listing is read, and `spec.images` images are chosen.

    The images come in the order of the choice, also where all are taken: `egcam.studies.datasets.choice`.

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
    if spec.kind not in _MODULES:
        raise DataError(f"unknown kind of data {spec.kind!r}; {near_misses(str(spec.kind), _MODULES)}")
    whole: Dataset = import_module(f"egcam.studies.datasets.{_MODULES[spec.kind]}").open_data(spec)
    return chosen(whole, spec.images, spec.seed, spec.part)
