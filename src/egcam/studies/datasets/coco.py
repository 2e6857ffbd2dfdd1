"""COCO's images with the masks of their instances.

    images/ or val2017/                  the images: `path`, or one of these in it
    annotations/instances_val2017.json   `annotations`, or found beside or inside `path`

A picture is an image and one of the classes in it, called "000000000139.jpg#chair"; an image with several of the
wanted classes is several pictures. Its mask is the union of the class's instances. A crowd ("iscrowd") is a region of
many that were not separated: it belongs to the class, so it is in the mask, but it is no instance, so a class of which
an image has nothing but a crowd makes no picture.

Labels are ImageNet's, for ImageNet networks, by `TO_IMAGENET`: COCO's classes for which ImageNet has one class that
means the same thing. Our mapping, not an official one: COCO's stop sign becomes ImageNet's street sign. Classes that
ImageNet splits (dog, cat, bear, elephant, laptop) or has no equivalent of (person, giraffe, kite: ImageNet's is a
bird) have no label.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from egcam.errors import near_misses, require
from egcam.studies.datasets.dataset import (
    DataError,
    Dataset,
    Entry,
    FileDataset,
    Mask,
    Missing,
    folder_at,
    looked,
    named,
)
from egcam.studies.datasets.masks import fitted
from egcam.studies.datasets.registry import register_dataset

TO_IMAGENET = {
    "traffic light": 920,
    "stop sign": 919,  # street sign
    "parking meter": 704,
    "zebra": 340,
    "backpack": 414,
    "umbrella": 879,
    "skis": 795,  # ski
    "tennis racket": 752,  # racket
    "banana": 954,
    "orange": 950,
    "broccoli": 937,
    "hot dog": 934,
    "pizza": 963,
    "toilet": 861,  # toilet seat
    "mouse": 673,  # the computer's
    "remote": 761,
    "keyboard": 508,  # computer keyboard
    "cell phone": 487,
    "microwave": 651,
    "toaster": 859,
    "refrigerator": 760,
    "vase": 883,
    "teddy bear": 850,
    "hair drier": 589,  # hand blower
}
LAYOUT = "COCO's images (val2017/*.jpg) and annotations/instances_val2017.json from https://cocodataset.org"
_IMAGES = (".", "images", "val2017", "train2017", "val2014", "train2014")

Annotation = Mapping[str, Any]


@register_dataset("coco", title="COCO")
def open_coco(path: Path, *, classes: tuple[str, ...] = (), annotations: Path | None = None) -> Dataset:
    """COCO's images in or below a folder; only those with an instance of `classes`, if given."""
    require("pycocotools", "study", "reading COCO's masks")
    root = folder_at(path, LAYOUT)
    file = _annotation_file(root, annotations)
    content = _read(file)
    categories = {int(category["id"]): str(category["name"]) for category in content["categories"]}
    wanted = _wanted(classes, categories, file)
    pairs = _by_picture(content["annotations"], set(wanted))
    images = {int(image["id"]): image for image in content["images"]}
    folder = _image_folder(root, [str(image["file_name"]) for image in images.values()], file)
    there = {path.name for path in folder.iterdir()}
    entries = [
        _entry(folder, images[image_id], categories[category], instances)
        for (image_id, category), instances in pairs.items()
        if image_id in images and Path(images[image_id]["file_name"]).name in there
    ]
    names = ", ".join(wanted.values()) if classes else "all classes"
    if not entries:
        raise DataError(f"no image in {folder} has an instance of {names} in {file}")
    missing = sum(Path(image["file_name"]).name not in there for image in images.values())
    note = f" ({missing:,} of {len(images):,} images are not there)" if missing else ""
    unmapped = sorted({entry.group for entry in entries} - set(TO_IMAGENET))
    return FileDataset(
        f"COCO, {names}{note}",
        sorted(entries, key=lambda entry: entry.name),
        Missing(labels=f"no class of ImageNet means the same as {_few(unmapped)}; take other classes"),
    )


def _annotation_file(root: Path, given: Path | None) -> Path:
    if given is not None:
        file = named(given, [root, root.parent], LAYOUT)
        if file.is_dir():
            raise DataError(f"annotations = '{given}' is a folder; name the instances file in it; expected is {LAYOUT}")
        return file
    folders = [root, root / "annotations", root.resolve().parent, root.resolve().parent / "annotations"]
    files = list(dict.fromkeys(file.resolve() for folder in folders for file in sorted(folder.glob("instances*.json"))))
    own = [file for file in files if file.stem == f"instances_{root.resolve().name}"]
    files = own or files
    if not files:
        places = [folder / "instances*.json" for folder in folders]
        raise DataError(f"COCO's instances are missing; {looked(places)}; expected is {LAYOUT}")
    if len(files) > 1:
        shown = ", ".join(str(file) for file in files)
        raise DataError(f"there are {len(files)} files with instances: {shown}; set annotations to one of them")
    return files[0]


def _read(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DataError(f"{file} is not a JSON file ({error})") from error
    keys = ("images", "annotations", "categories")
    missing = [key for key in keys if not isinstance(content, dict) or not isinstance(content.get(key), list)]
    if missing:
        raise DataError(f"{file} is not in COCO's format: it has no list {', '.join(map(repr, missing))}")
    if content["annotations"] and "segmentation" not in content["annotations"][0]:
        raise DataError(f"{file} has no segmentations; the instances file is needed, e.g. instances_val2017.json")
    return dict(content)


def _wanted(classes: Sequence[str], categories: Mapping[int, str], file: Path) -> dict[int, str]:
    by_name = {name: identifier for identifier, name in categories.items()}
    unknown = [name for name in classes if name not in by_name]
    if unknown:
        raise DataError(f"COCO has no class {unknown[0]!r} in {file}; {near_misses(unknown[0], by_name)}")
    return {by_name[name]: name for name in classes} if classes else dict(categories)


def _by_picture(annotations: Sequence[Annotation], wanted: set[int]) -> dict[tuple[int, int], list[Annotation]]:
    """The annotations of each image and class that have an instance that is no crowd."""
    pairs: dict[tuple[int, int], list[Annotation]] = {}
    for annotation in annotations:
        if annotation["category_id"] in wanted:
            pairs.setdefault((annotation["image_id"], annotation["category_id"]), []).append(annotation)
    return {pair: found for pair, found in pairs.items() if not all(one.get("iscrowd") for one in found)}


def _image_folder(root: Path, files: Sequence[str], listed_in: Path) -> Path:
    places = [root / name for name in _IMAGES]
    wanted = {Path(file).name for file in files}
    for place in places:
        if place.is_dir() and any(path.name in wanted for path in place.iterdir()):
            return place
    first = f", such as {sorted(wanted)[0]}" if wanted else ""
    raise DataError(f"none of the {len(wanted)} images of {listed_in}{first} is there; {looked(places)}")


def _entry(folder: Path, image: Mapping[str, Any], name: str, annotations: list[Annotation]) -> Entry:
    file = folder / Path(image["file_name"]).name
    mask = partial(_mask, [one["segmentation"] for one in annotations], int(image["width"]), int(image["height"]), file)
    return Entry(f"{file.name}#{name}", file, TO_IMAGENET.get(name), name, mask)


def _mask(segmentations: Sequence[Any], width: int, height: int, file: Path, image: Image.Image) -> Mask:
    union = np.zeros((height, width), dtype=bool)
    for segmentation in segmentations:
        union |= _decoded(segmentation, width, height, file)
    return fitted(union, image, file, "its frame in the instances file")


def _decoded(segmentation: Any, width: int, height: int, file: Path) -> Mask:
    """A segmentation as pixels: polygons, or run lengths, plain or packed."""
    from pycocotools import mask as rle

    try:
        if isinstance(segmentation, list):
            encoded = rle.merge(rle.frPyObjects(segmentation, height, width))
        elif isinstance(segmentation["counts"], list):
            encoded = rle.frPyObjects(segmentation, height, width)
        else:
            encoded = segmentation
        decoded: Mask = np.asarray(rle.decode(encoded), dtype=bool)
    # The C code behind it answers what it cannot read in many ways.
    except Exception as error:
        raise DataError(f"a segmentation of {file.name} cannot be read ({type(error).__name__}: {error})") from error
    if decoded.shape != (height, width):
        raise DataError(f"a segmentation of {file.name} has shape {decoded.shape}, not {(height, width)}")
    return decoded


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f", … ({len(names)} classes)" if len(names) > 5 else "")
