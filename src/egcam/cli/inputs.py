"""From what was typed to what egcam takes: targets, class names, method lists, reference images."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egcam.cli.console import note
from egcam.errors import InputError, MethodError, SamplingError, near_misses
from egcam.models.class_names import read_classes as read_classes

if TYPE_CHECKING:
    from torch import Tensor

    from egcam.models.zoo import Classifier

_MOST_REFERENCES = 256


def read_target(text: str | None) -> int | str | None:
    """A class by number or by name.

    Example:
        >>> read_target("207"), read_target("tabby")
        (207, 'tabby')
    """
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        return text


def read_reshape(text: str | None) -> str | tuple[int, ...] | None:
    """What a layer outputs: a name, or the grid of its tokens, height x width.

    Example:
        >>> read_reshape("14x16"), read_reshape("channels-last")
        ((14, 16), 'channels-last')
    """
    if text is None:
        return None
    sides = text.split("x")
    return tuple(map(int, sides)) if all(side.isdecimal() for side in sides) else text


def read_methods(text: str) -> list[str]:
    """The methods of a comma-separated list, each once; "all" is every one but those of other packages."""
    from egcam.attribution.registry import methods, records

    known = methods()
    if text.strip() == "all":
        return [one.name for one in records() if not one.package]
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise MethodError("no method is named: pass --methods a,b,c or --methods all; `egcam methods` lists them")
    for name in names:
        check_method(name, known)
    return names


def check_folder(folder: Path) -> None:
    """Raise `InputError` where a file is in the way of the folder for results, before any work is done."""
    in_the_way = next((path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()), None)
    if in_the_way is not None:
        raise InputError(f"{in_the_way} is a file: pass --out with a folder for the results")


def check_method(name: str, known: Sequence[str] | None = None) -> None:
    """Raise `MethodError` with near misses for an unknown name, before any model is loaded."""
    from egcam.attribution.registry import methods

    known = methods() if known is None else known
    if name not in known:
        raise MethodError(f"unknown method {name!r}; {near_misses(name, known)}; `egcam methods` lists all")


def read_reference(text: str | None, classifier: Classifier) -> Any:
    """The references named on the command line: a folder or file of images, or the name of one of egcam's own.

    Images are prepared as the network wants them.
    """
    from egcam.attribution import references

    if text is None:
        return None
    path = Path(text)
    if path.exists():
        return _reference_images(path, classifier)
    if text in references.MADE_BY_NAME:
        return text
    names = ", ".join(references.MADE_BY_NAME)
    hint = near_misses(text, references.MADE_BY_NAME)
    hint = f"{hint} " if hint.startswith("did") else ""
    raise SamplingError(f"no folder {text!r}, nor a reference of that name; {hint}pass a folder of images, or {names}")


def _reference_images(path: Path, classifier: Classifier) -> Tensor:
    import torch

    from egcam.photos.files import images_in, read_image

    files = images_in(path, recursive=True) if path.is_dir() else [path]
    if len(files) > _MOST_REFERENCES:
        note(f"{path} holds {len(files)} images; {_MOST_REFERENCES} of them, evenly spread, are the reference")
        files = [files[index * len(files) // _MOST_REFERENCES] for index in range(_MOST_REFERENCES)]
    images = []
    for file in files:
        try:
            images.append(classifier.preprocess(read_image(file)))
        except InputError as error:
            if path == file:
                raise SamplingError(f"the reference {error}") from error
            note(f"left out of the reference: {error}")
    if not images:
        raise SamplingError(f"no image in {path} can be read: pass a folder of images as the reference")
    return torch.stack(images).to(classifier.device)
