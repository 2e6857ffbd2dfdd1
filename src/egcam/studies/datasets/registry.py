"""The kinds of data, each registered where it is written: what `kind` in a study's file is looked up in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_type_hints

from egcam.errors import near_misses, require
from egcam.registry import Registry
from egcam.studies.datasets.dataset import DataError, Dataset

Opener: TypeAlias = Callable[..., Dataset]
AnyOpener = TypeVar("AnyOpener", bound=Opener)

_COMMON = ("path", "images", "size", "part", "seed")


@dataclass(frozen=True)
class Kind:
    """A kind of data."""

    open: Opener  # `open(path, **options)` gives all there is at `path`; its keyword parameters are the options
    title: str  # what sentences call it
    # What the labels stand for, where the data have classes of their own; None if labels are the network's.
    class_names: tuple[str, ...] | None = None
    masks: bool = True  # whether such data can have masks

    @property
    def has_path(self) -> bool:
        """Whether such data lie somewhere; those that do not are made when they are opened."""
        return "path" in signature(self.open).parameters


_kinds = Registry[Kind]("kind of data", DataError)


def register_dataset(
    name: str, *, title: str | None = None, class_names: tuple[str, ...] | None = None, masks: bool = True
) -> Callable[[AnyOpener], AnyOpener]:
    """Make the function below it the one that opens data of a kind, for `kind = name` in a study's file.

    The function is called with `path`, a `pathlib.Path`, and the options the file gives; it returns an
    `egcam.studies.Dataset`. Its keyword parameters are the options: their types are checked, those of type `Path` count
    from the file's folder, and those without a default must be given. `images`, `size`, `part` and `seed` need no
    attention: which images are taken is decided here. A function without `path`
    makes its images itself.

    Args:
        name: what it is asked for by.
        title: what sentences call it; the name unless given.
        class_names: what the labels stand for, where the data have classes of their own, not the network's.
        masks: False where such data never have masks, so that metrics that need some are refused at once.

    Example:
        >>> @register_dataset("stripes")
        ... def open_stripes(path, *, width: int = 4):
        ...     ...
        >>> options_of("stripes")
        {'width': 4}
        >>> unregister_dataset("stripes")
    """

    def register(opener: AnyOpener) -> AnyOpener:
        _kinds.register(name, Kind(opener, title or name, class_names, masks))
        return opener

    return register


def unregister_dataset(name: str) -> None:
    """Take a kind of data out of the registry again."""
    _kinds.unregister(name)


def kinds() -> list[str]:
    """The kinds of data there are.

    Example:
        >>> from egcam.studies import datasets
        >>> datasets.kinds()[:4]
        ['cifar10', 'coco', 'folder', 'imagenet']
    """
    return _kinds.names()


def kind_of(name: str) -> Kind:
    """What is known of a kind of data; an error with the near misses if there is none."""
    return _kinds.get(name)


def options_of(name: str) -> dict[str, Any]:
    """The options of a kind besides those all kinds take, with their defaults (`inspect.Parameter.empty` is none).

    Example:
        >>> from egcam.studies import datasets
        >>> datasets.options_of("coco")
        {'classes': (), 'annotations': None}
    """
    parameters = signature(kind_of(name).open).parameters.values()
    return {one.name: one.default for one in parameters if one.kind is Parameter.KEYWORD_ONLY}


def files_of(name: str) -> set[str]:
    """The options of a kind that name files or folders: they count from the study's folder, and are known by content.

    Example:
        >>> from egcam.studies import datasets
        >>> sorted(datasets.files_of("folder"))
        ['labels', 'masks']
    """
    hints = get_type_hints(kind_of(name).open)
    return {option for option in options_of(name) if hints.get(option) in (Path, Path | None)}


def read_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as the opener takes them, each of its type, with the defaults filled in.

    Raises:
        DataError: for an option the kind does not have, of another type, or missing.

    Example:
        >>> from egcam.studies import datasets
        >>> datasets.read_options("folder", {"masks": "masks", "mask_values": [1]})["mask_values"]
        (1,)
    """
    require("pydantic", "study", "reading a study's data")
    from pydantic import ConfigDict, ValidationError, create_model

    _refuse_unknown(name, given)
    hints = get_type_hints(kind_of(name).open)
    fields: dict[str, Any] = {
        option: (hints.get(option, Any), ... if default is Parameter.empty else default)
        for option, default in options_of(name).items()
    }
    strict = ConfigDict(strict=True, protected_namespaces=())
    try:
        # As JSON, where a list is a tuple and a text a path, and yet 1 is not "1" and true is not 1.
        read = create_model(name, __config__=strict, **fields).model_validate_json(json.dumps(dict(given), default=str))
    except ValidationError as error:
        raise DataError(_said(error.errors()[0])) from error
    return {option: getattr(read, option) for option in fields}


def _refuse_unknown(name: str, given: Mapping[str, Any]) -> None:
    """A setting that would do nothing is a mistake, and most likely the wrong kind."""
    known = sorted(options_of(name))
    unknown = sorted(set(given) - set(known))
    if unknown:
        besides = f"besides {', '.join(_COMMON[:-1])} and {_COMMON[-1]} it takes {', '.join(known) or 'nothing'}"
        hint = near_misses(unknown[0], (*known, *_COMMON))
        raise DataError(f"kind = {name!r} does not take {', '.join(unknown)}; {besides}; {hint}")


def _said(error: Mapping[str, Any]) -> str:
    option = error["loc"][0]
    if error["type"] == "missing":
        return f"{option} is missing"
    return f"{option} {error['msg'].replace('Input should be', 'must be')}, not {error['input']!r}"
