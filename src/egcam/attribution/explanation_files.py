"""An explanation as files in a folder: numbers, facts and pictures, and the batches of a stream side by side.

The batch that starts at image 64 of a stream is `explanation_64.npz` and `explanation_64.json`; the first one, and an
explanation that belongs to no stream, is `explanation.npz` and `explanation.json`. Pictures are numbered as the images.
The record (json) names the pictures that were written with it: nothing else is ever deleted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
import torch
from torch import Tensor

from egcam._version import __version__
from egcam.attribution.derived import checksums_of_images
from egcam.attribution.explanation import Completeness, Explanation
from egcam.errors import InputError
from egcam.models.crops import Crop
from egcam.models.layer_output import loaded_reshape, saved_reshape

_TENSORS = ("maps", "error", "targets", "scores", "predictions")
_CLASSES = ("targets", "predictions")
_SIDES = ("total", "expected", "around", "exact", "attributions")
_COMPLETE = "completeness_"
_ALIKE = ("method", "layer", "reference", "size", "options", "classes", "weights_checksum", "crop")
_KNOWN = (*_TENSORS, *(f"{_COMPLETE}{name}" for name in _SIDES))
# Of the explained images, and of what the numbers of one file unpack to: the files may be somebody else's.
_LARGEST_IMAGE = 2**28
_UNPACKED, _TIMES_AS_LARGE = 2**28, 100
_RECORD = re.compile(r"explanation(?:_([1-9][0-9]*))?\.json")
_PICTURE = re.compile(r"(?:heatmap|overlay)_[0-9]+\.(?:png|gif)")


def save(explanation: Explanation, folder: str | Path, pictures: bool = True) -> Path:
    """Write an explanation into a folder; see `Explanation.save`."""
    folder = Path(folder)
    if folder.is_file():
        raise InputError(f"{folder} is a file; an explanation is saved as a folder of files")
    folder.mkdir(parents=True, exist_ok=True)
    for start in _starts(folder):
        # The first batch begins a new stream: what an earlier one left would be mixed up with it.
        if explanation.start in (0, start):
            _remove(folder, start)
    stem = _stem(explanation.start)
    arrays = {name: _to_numpy(tensor) for name, tensor in _tensors(explanation).items()}
    with _new(folder / f"{stem}.npz") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    numbers = range(explanation.start, explanation.start + len(explanation))
    kinds = [] if not pictures else ["heatmap"] if explanation.images is None else ["heatmap", "overlay"]
    names = [f"{kind}_{number}.png" for kind in kinds for number in numbers]
    is_animated = pictures and len(explanation.size) == 3
    moving = [f"{kinds[-1]}_{number}.gif" for number in numbers] if is_animated else []
    facts = _facts(explanation, names + moving)
    # Before the pictures, so that those of a save that was interrupted are accounted for.
    text = json.dumps(facts, indent=2, ensure_ascii=False, default=_plain_number)
    with _new(folder / f"{stem}.json") as file:
        file.write(f"{text}\n".encode())
    for kind in kinds:
        drawn = explanation._heat_pictures() if kind == "heatmap" else explanation.overlay()
        for number, picture in zip(numbers, drawn, strict=True):
            with _new(folder / f"{kind}_{number}.png") as file:
                picture.save(file, "PNG")
    for name, written in zip(moving, _animations(explanation) if moving else [], strict=True):
        with _new(folder / name) as file:
            file.write(written)
    return folder


def _new(path: Path) -> BinaryIO:
    """A file in the place of whatever lies there; where that is a link, what it leads to is left alone."""
    path.unlink(missing_ok=True)
    return path.open("xb")


def load(folder: str | Path, start: int | None = None) -> Explanation:
    """Read the explanation in a folder; see `Explanation.load`."""
    folder = Path(folder)
    starts = _starts(folder)
    if not starts:
        raise InputError(f"{folder} holds no saved explanation: explanation.json and explanation.npz are missing")
    if start is not None:
        if start not in starts:
            there = ", ".join(map(str, starts))
            raise InputError(f"{folder} holds no batch that starts at {start}; there are {there}")
        starts = [start]
    batches = [_read(folder, one) for one in starts]
    return batches[0] if len(batches) == 1 else _joined(folder, batches)


def _stem(start: int) -> str:
    return "explanation" if start == 0 else f"explanation_{start}"


def _starts(folder: Path) -> list[int]:
    """The numbers of the first images of all batches in a folder, rising."""
    if not folder.is_dir():
        return []
    found = (_RECORD.fullmatch(path.name) for path in folder.iterdir() if path.is_file())
    starts = [int(match[1] or 0) for match in found if match]
    return sorted(start for start in starts if start == 0 or _is_ours(folder, start))


def _is_ours(folder: Path, start: int) -> bool:
    """Whether a record was written by `save`; one that cannot be read may have been, if its numbers are there."""
    try:
        return "egcam" in _record(folder, start)
    except Exception:
        return (folder / f"{_stem(start)}.npz").is_file()


def _record(folder: Path, start: int) -> dict[str, Any]:
    facts = json.loads((folder / f"{_stem(start)}.json").read_text(encoding="utf-8"))
    if not isinstance(facts, dict):
        raise ValueError(f"{_stem(start)}.json holds no record")
    return facts


def _remove(folder: Path, start: int) -> None:
    """Take away a batch: its record, its numbers, and of its pictures those the record names."""
    try:
        facts = _record(folder, start)
    except Exception:  # not a readable record: it does not list the files written with it
        return
    if "egcam" not in facts:
        return
    listed = facts.get("pictures")
    for name in listed if isinstance(listed, list) else []:
        # Only names that egcam itself writes: a foreign record must not touch any other file.
        if isinstance(name, str) and _PICTURE.fullmatch(name):
            (folder / name).unlink(missing_ok=True)
    for kind in ("npz", "json"):
        (folder / f"{_stem(start)}.{kind}").unlink(missing_ok=True)


def _tensors(explanation: Explanation) -> dict[str, Tensor]:
    everything = {name: getattr(explanation, name) for name in _TENSORS}
    if explanation.completeness is not None:
        everything.update({f"{_COMPLETE}{name}": getattr(explanation.completeness, name) for name in _SIDES})
    return {name: tensor for name, tensor in everything.items() if tensor is not None}


def _facts(explanation: Explanation, pictures: list[str]) -> dict[str, Any]:
    checksums = checksums_of_images(explanation)
    return {
        "egcam": __version__,
        "method": explanation.method,
        "layer": explanation.layer,
        "reference": explanation.reference,
        "size": list(explanation.size),
        "start": explanation.start,
        "passes": explanation.passes,
        "tails": explanation.tails,
        "labels": [explanation.label(index) for index in range(len(explanation))],
        "options": explanation.options,
        "classes": None if explanation.classes is None else list(explanation.classes),
        "dtypes": {name: str(one.dtype).removeprefix("torch.") for name, one in _tensors(explanation).items()},
        "pictures": pictures,
        "weights_checksum": explanation.weights_checksum,
        "image_checksums": None if checksums is None else list(checksums),
        "reshape": saved_reshape(explanation.reshape),
        "crop": None if explanation.crop is None else asdict(explanation.crop),
    }


def _animations(explanation: Explanation) -> list[bytes]:
    from egcam.drawing.montages import animation

    known = explanation.images is not None
    volumes = list(explanation._tensors(None)) if known else [None] * len(explanation)
    return [
        animation(volume, heat, signed=explanation._is_drawn_signed)
        for volume, heat in zip(volumes, explanation._arrays(), strict=True)
    ]


def _plain_number(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"an option of type {type(value).__name__} cannot be saved")


def _to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor).numpy()


def _read(folder: Path, start: int) -> Explanation:
    try:
        return _read_batch(folder, start)
    except (
        Exception
    ) as problem:  # a file may hold anything: zlib, json, zipfile and torch each have errors of their own
        said = str(problem) or type(problem).__name__
        raise InputError(f"the explanation in {folder} cannot be read: {_stem(start)}: {said}") from problem


def _read_batch(folder: Path, start: int) -> Explanation:
    facts = _record(folder, start)
    _check_facts(facts)
    tensors: dict[str, Tensor | None] = dict.fromkeys(_KNOWN)
    _check_unpacked(folder / f"{_stem(start)}.npz")
    with np.load(folder / f"{_stem(start)}.npz", allow_pickle=False) as arrays:
        for name in arrays.files:
            array = arrays[name]
            kinds = "iu" if name in _CLASSES else "b" if name == f"{_COMPLETE}exact" else "f"
            if name not in _KNOWN or array.dtype.kind not in kinds:
                raise ValueError(f"{name} of {array.dtype} are no part of an explanation")
            tensors[name] = torch.from_numpy(array).to(getattr(torch, facts["dtypes"][name]))
    _check_tensors(tensors, len(facts["size"]))
    checksums = facts.get("image_checksums")
    sides = {name: tensors.pop(f"{_COMPLETE}{name}") for name in _SIDES}
    needed = [side for name, side in sides.items() if name != "attributions"]
    completeness = None if any(side is None for side in needed) else Completeness(**sides)  # type: ignore[arg-type]
    return Explanation(
        size=tuple(facts["size"]),
        layer=facts["layer"],
        method=facts["method"],
        reference=facts["reference"],
        passes=facts["passes"],
        tails=facts["tails"],
        completeness=completeness,
        options=facts["options"],
        classes=None if facts["classes"] is None else tuple(facts["classes"]),
        start=start,
        described=tuple(facts["labels"]) if tensors["targets"] is None else None,
        weights_checksum=facts.get("weights_checksum"),
        image_checksums=None if checksums is None else tuple(checksums),
        reshape=loaded_reshape(facts.get("reshape")),
        crop=_loaded_crop(facts.get("crop")),
        **tensors,  # type: ignore[arg-type]
    )


def _loaded_crop(saved: Any) -> Crop | None:
    if saved is None:
        return None
    box, size = tuple(map(float, saved["box"])), tuple(saved["size"])
    if len(box) != 4 or not (box[0] < box[2] and box[1] < box[3]):
        raise ValueError(f"its crop cannot be {saved!r}")
    if len(size) != 2 or not all(type(side) is int and side > 0 for side in size):
        raise ValueError(f"its crop cannot be {saved!r}")
    return Crop(box, size)


def _check_unpacked(file: Path) -> None:
    """Refuse what takes far more memory than file, before it is unpacked."""
    with ZipFile(file) as archive:
        unpacked, packed = sum(one.file_size for one in archive.infolist()), file.stat().st_size
    if unpacked > max(_UNPACKED, _TIMES_AS_LARGE * packed):
        raise ValueError(f"{packed:,} bytes unpack to {unpacked:,}, which egcam did not write")


def _check_facts(facts: dict[str, Any]) -> None:
    size, classes = facts["size"], facts["classes"]
    # Those written before there were checksums have none.
    weights, images = facts.get("weights_checksum"), facts.get("image_checksums")
    right = {
        "method": isinstance(facts["method"], str),
        "layer": isinstance(facts["layer"], str),
        "reference": isinstance(facts["reference"], str | None),
        "size": isinstance(size, list)
        and 1 <= len(size) <= 3
        and all(type(side) is int and side > 0 for side in size)
        and prod(size) <= _LARGEST_IMAGE,
        "passes": type(facts["passes"]) is int,
        "tails": type(facts["tails"]) is int,
        "options": isinstance(facts["options"], dict),
        "labels": isinstance(facts["labels"], list) and all(isinstance(label, str) for label in facts["labels"]),
        "classes": classes is None or (isinstance(classes, list) and all(isinstance(name, str) for name in classes)),
        "weights_checksum": isinstance(weights, str | None),
        "image_checksums": images is None or (isinstance(images, list) and all(isinstance(one, str) for one in images)),
    }
    for name, is_right in right.items():
        if not is_right:
            raise ValueError(f"its {name} cannot be {facts[name]!r}")


def _check_tensors(tensors: dict[str, Tensor | None], axes: int) -> None:
    maps = tensors["maps"]
    if maps is None or maps.ndim not in (axes, axes + 1) or not maps.numel() or not maps.is_floating_point():
        raise ValueError("it holds no maps, (N, h, w) or (h, w), of as many axes as its size")
    if tensors["scores"] is None:
        raise ValueError("it holds no scores")
    for name, tensor in tensors.items():
        wanted = maps.shape if name in ("maps", "error", f"{_COMPLETE}attributions") else maps.shape[:-axes]
        if tensor is not None and tensor.shape != wanted:
            raise ValueError(f"its {name} are {tuple(tensor.shape)}, its maps {tuple(maps.shape)}")


def _joined(folder: Path, batches: Sequence[Explanation]) -> Explanation:
    """The batches of a stream as one explanation."""
    for one, following in pairwise(batches):
        if one.start + len(one) > following.start:
            raise InputError(
                f"the explanations in {folder} cannot be joined: the batches that start at {one.start} and "
                f"{following.start} overlap, so they are of different streams; save each stream to a folder of its own"
            )
    first = batches[0]
    for other in batches[1:]:
        different = _difference(first, other)
        if different is not None:
            raise InputError(
                f"the explanations in {folder} cannot be joined: the batches that start at {first.start} and "
                f"{other.start} differ in {different}; load them one by one, Explanation.load(folder, start=…)"
            )
    joined: dict[str, Any] = {name: _together(batches, name) for name in _tensors(first)}
    if first.completeness is not None:
        joined["completeness"] = Completeness(**{name: joined.pop(f"{_COMPLETE}{name}", None) for name in _SIDES})
    passes, tails = sum(one.passes for one in batches), sum(one.tails for one in batches)
    if first.described is not None:
        joined["described"] = tuple(label for one in batches for label in one.described or ())
    checksums = [one.image_checksums for one in batches]
    joined["image_checksums"] = None if None in checksums else tuple(sum((one or () for one in checksums), ()))
    return replace(first, passes=passes, tails=tails, **joined)


def _together(batches: Sequence[Explanation], name: str) -> Tensor:
    tensors = [(one, _tensors(one)[name]) for one in batches]
    return torch.cat([tensor[None] if one.is_single else tensor for one, tensor in tensors])


def _difference(one: Explanation, other: Explanation) -> str | None:
    """What keeps two explanations from being one, or None."""
    for name in _ALIKE:
        if getattr(one, name) != getattr(other, name):
            return f"{name} ({getattr(one, name)} and {getattr(other, name)})"
    left, right = _tensors(one), _tensors(other)
    for name in _KNOWN:
        if (name in left) != (name in right):
            return f"{name}, which one has and the other has not"
        if name in left and left[name].dtype != right[name].dtype:
            return f"{name} ({left[name].dtype} and {right[name].dtype})"
    sizes = [tuple(each.maps.shape[-len(each.size) :]) for each in (one, other)]
    if sizes[0] != sizes[1]:
        return f"maps ({sizes[0]} and {sizes[1]})"
    return None
