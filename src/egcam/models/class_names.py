"""Class names in the forms people have them in: lists, arrays, dictionaries, files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from egcam.errors import TargetError

Classes: TypeAlias = Iterable[str] | Mapping[Any, Any] | npt.NDArray[Any]
"""What class names may be given as; see `as_class_names`."""

_EXPECTED = "pass a list with one name for each output, in their order"


def as_class_names(classes: Any) -> list[str]:
    """The names in the order of the outputs.

    Args:
        classes: names, or numbers that serve as names, in a list, an array or anything else in order; or a dictionary
            from index to name (`id2label`) or from name to index (`class_to_idx`).

    Example:
        >>> as_class_names({"1": "dog", "0": "cat"}), as_class_names({"dog": 1, "cat": 0})
        (['cat', 'dog'], ['cat', 'dog'])
    """
    if isinstance(classes, str | bytes):
        raise TargetError(f"class names are given as one text, {classes!r}: {_EXPECTED}")
    if isinstance(classes, set | frozenset):
        raise TargetError(f"class names are given as a set, which has no order: {_EXPECTED}")
    if isinstance(classes, Mapping):
        classes = _in_order(classes)
    elif hasattr(classes, "tolist"):
        classes = classes.tolist()
    if not isinstance(classes, Iterable):
        raise TargetError(f"class names cannot be read from {type(classes).__name__}: {_EXPECTED}")
    names = [_name(name) for name in classes]
    if not names:
        raise TargetError(f"there is no name among the class names: {_EXPECTED}")
    return names


def _name(value: object) -> str:
    if isinstance(value, str):
        return str(value)
    number = _index(value)
    if number is None:
        raise TargetError(f"a class name is a text, not {value!r}: {_EXPECTED}")
    return str(number)


def _in_order(classes: Mapping[Any, Any]) -> list[Any]:
    """The names in a dictionary, whichever way it goes."""
    by_key = {_index(key, text=True): name for key, name in classes.items()}
    by_value = {_index(value): name for name, value in classes.items()}
    everyone = set(range(len(classes)))
    orders = [[names[index] for index in range(len(classes))] for names in (by_key, by_value) if set(names) == everyone]
    if not orders:
        raise TargetError(
            f"class names as a dictionary need the indices 0 to {len(classes) - 1}, either as keys (index to name) or "
            f"as values (name to index): {_EXPECTED}"
        )
    if len(orders) == 2 and [str(name) for name in orders[0]] != [str(name) for name in orders[1]]:
        raise TargetError(f"this dictionary of class names can be read either way, index to name or back: {_EXPECTED}")
    return orders[0]


def _index(value: Any, text: bool = False) -> int | None:
    """A whole number as Python's own, also from text if asked for; None for anything else."""
    if isinstance(value, str):
        return int(value) if text and value.isdecimal() else None
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    return int(value)


def read_classes(file: str | Path | None) -> list[str] | None:
    """Class names from a file: a JSON list or object (`id2label`), or text with one name on each line."""
    if file is None:
        return None
    file = Path(file)
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TargetError(f"{file} could not be read: --classes is a text file with one name on each line") from error
    try:
        return as_class_names(json.loads(text) if text.startswith(("[", "{")) else text.splitlines())
    except TargetError as error:
        raise TargetError(f"{file}: {error}") from error
    except (ValueError, RecursionError) as error:
        raise TargetError(
            f"{file} is not valid JSON: --classes is a JSON list or object, or one name on each line"
        ) from error
