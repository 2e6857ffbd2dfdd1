"""Images with what is known of them: labels, masks, boxes."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module

from egcam.errors import near_misses
from egcam.studies.datasets.choice import chosen
from egcam.studies.datasets.dataset import DataError, Dataset, Mask, Picture
from egcam.studies.specs import DataSpec

__all__ = ["DataError", "Dataset", "Mask", "Picture", "kinds", "open_dataset"]

# What each kind takes of a `DataSpec`, besides what all take; the module of a kind is called like it.
_TAKES = {
    "imagenet": {"classes", "annotations", "part"},
    "cifar10": {"classes"},
    "coco": {"classes", "annotations"},
    "folder": {"classes", "labels", "masks", "mask_values", "part"},
}
_ALL_TAKE = {"kind", "path", "images", "size", "seed"}


def kinds() -> list[str]:
    """The kinds of data there are.

    Example:
        >>> kinds()
        ['imagenet', 'cifar10', 'coco', 'folder']
    """
    return list(_TAKES)


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
    if spec.kind not in _TAKES:
        raise DataError(f"unknown kind of data {spec.kind!r}; {near_misses(str(spec.kind), _TAKES)}")
    _check_settings(spec)
    whole: Dataset = import_module(f"egcam.studies.datasets.{spec.kind}").open_data(spec)
    return chosen(whole, spec.images, spec.seed, spec.part)


def _check_settings(spec: DataSpec) -> None:
    """A setting that would do nothing is a mistake, and most likely the wrong kind."""
    given = {field.name for field in fields(spec) if getattr(spec, field.name) != field.default}
    vain = sorted(given - _TAKES[spec.kind] - _ALL_TAKE)
    if vain:
        raise DataError(
            f"kind = {spec.kind!r} does not take {', '.join(vain)}; besides path, images, size and seed it takes "
            f"{', '.join(sorted(_TAKES[spec.kind]))}"
        )
