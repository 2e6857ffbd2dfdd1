"""ImageNet's validation images (ILSVRC2012), in any of the layouts people have them in.

    official    ILSVRC2012_val_00000001.JPEG, … in a folder, and beside or inside it
                ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt with meta.mat
    Kaggle      ILSVRC/Data/CLS-LOC/val/*.JPEG, and LOC_val_solution.csv beside ILSVRC
    classes     one folder per class, named by WordNet id (n01440764) or class index (0 to 999); any number of them
    a list      `annotations`: a CSV or JSON with file, class_index (or wnid) and boxes, files beside it or in `path`

`annotations` may also name the development kit's folder or ground truth, or Kaggle's solution, where they lie
elsewhere. The label is the index networks use: the rank of the WordNet id among the 1,000, which is neither the ILSVRC
id nor, where some classes are missing, the rank of the folder.

Boxes become masks: the union of the boxes of the image's class. They come from the list, from Kaggle's solution, or
from box files (ILSVRC2012_val_00000001.xml, …) in a folder beside or inside the data: bbox/val, Annotation/val,
Annotations/CLS-LOC/val, ILSVRC2012_bbox_val_v3/val. Box files know the size of the image they were drawn on, so they
also fit images that were resized since.

An image is called by its file's name alone, so that the same images are chosen whatever the layout.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

from PIL import Image

from egcam.photos.files import images_in
from egcam.studies.datasets import ilsvrc
from egcam.studies.datasets.annotations import Annotation, located, read_annotations
from egcam.studies.datasets.dataset import (
    DataError,
    Dataset,
    Entry,
    FileDataset,
    Mask,
    MaskReader,
    Missing,
    first,
    folder_at,
    looked,
    named,
    of_classes,
)
from egcam.studies.datasets.ilsvrc import Boxes
from egcam.studies.datasets.masks import fitted, from_boxes, scaled
from egcam.studies.datasets.registry import register_dataset
from egcam.studies.datasets.wnids import imagenet_class, index_of, is_wnid, wnids

LAYOUT = (
    "ILSVRC2012_val_*.JPEG with ILSVRC2012_devkit_t12 beside them, Kaggle's ILSVRC/Data/CLS-LOC/val with "
    "LOC_val_solution.csv, one folder per class named by WordNet id (n01440764) or class index, or annotations = a CSV "
    "with the columns file and class_index"
)
_IMAGES = (".", "val", "ILSVRC2012_img_val", "Data/CLS-LOC/val", "ILSVRC/Data/CLS-LOC/val", "images")
_KAGGLE = ("Data", "CLS-LOC", "val")
_DEVKITS = ("ILSVRC2012_devkit_t12/data", "ILSVRC2012_devkit_t12", "devkit/data", "data", ".")
_BOXES = (
    "bbox/val",
    "ILSVRC2012_bbox_val_v3/val",
    "ILSVRC2012_bbox_val_v3",
    "Annotation/val",
    "Annotation",
    "Annotations/CLS-LOC/val",
    "ILSVRC/Annotations/CLS-LOC/val",
    "Annotations/val",
    "Annotations",
    "bbox",
)


@register_dataset("imagenet", title="ImageNet")
def open_imagenet(path: Path, *, classes: tuple[str, ...] = (), annotations: Path | None = None) -> Dataset:
    """ImageNet's images in or below a folder; only those of `classes`, if given."""
    path = folder_at(path, LAYOUT)
    given = None if annotations is None else named(annotations, [path], LAYOUT)
    if given is not None and given.suffix.lower() in (".csv", ".json") and not ilsvrc.is_solution(given):
        entries = _from_list(path, given)
    else:
        entries = _from_layout(path, given)
    wanted = [str(imagenet_class(word)) for word in classes]
    entries = of_classes(entries, classes, wanted, f"ImageNet in {path}")
    boxes = [base / place for base in _bases(path, path) for place in _BOXES]
    return FileDataset(
        "ImageNet validation (ILSVRC2012)",
        entries,
        Missing(
            labels="the list gives no class for some",
            masks=f"there are no boxes for some; {looked(boxes)}; expected are files ILSVRC2012_val_*.xml",
        ),
    )


def _from_list(path: Path, table: Path) -> list[Entry]:
    folders = [path, *(path / place for place in _IMAGES[1:]), table.parent]
    folders = [folder for folder in folders if folder.is_dir()]
    boxes = _box_files(path, path)
    listed = located(read_annotations(table), table, folders)
    return [_listed(annotation, file, table, boxes) for annotation, file in listed]


def _listed(annotation: Annotation, file: Path, table: Path, box_files: Mapping[str, Path]) -> Entry:
    label, where = annotation.label, f"{table}, {annotation.file}"
    if annotation.wnid is not None:
        index = index_of(annotation.wnid, where)
        if label is not None and label != index:
            raise DataError(
                f"{where}: class index {label}, but {annotation.wnid} is {index}; the index is the rank of the WordNet "
                "id, from 0, not the ILSVRC id"
            )
        label = index
    if label is None:
        raise DataError(f"{where} has no class: a column class_index or wnid is needed")
    if label >= len(wnids()):
        raise DataError(f"{where}: class index {label}, but ImageNet's are 0 to 999")
    known = Boxes(annotation.boxes) if annotation.boxes else None
    return _entry(file, label, known, box_files, Path(annotation.file).name, annotation.part)


def _from_layout(path: Path, given: Path | None) -> list[Entry]:
    places = list(dict.fromkeys(path / place for place in _IMAGES))
    for root in places:
        if not root.is_dir():
            continue
        folders = _class_folders(root)
        if folders and given is None:
            return _from_classes(path, root, folders)
        files = images_in(root, recursive=bool(folders))
        if files:
            return _from_files(path, root, files, given)
    raise DataError(f"there are no ImageNet images in {path}; {looked(places)}; expected is {LAYOUT}")


def _class_folders(root: Path) -> dict[Path, int]:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir())
    by_wnid = [folder for folder in folders if is_wnid(folder.name)]
    if by_wnid:
        return {folder: index_of(folder.name, f"the folder {folder}") for folder in by_wnid}
    numbered = {folder: int(folder.name) for folder in folders if folder.name.isdecimal()}
    if any(number >= len(wnids()) for number in numbered.values()):
        raise DataError(
            f"{root / str(max(numbered.values()))}: class folders are numbered from 0 to 999, in the order of the "
            "WordNet ids; ILSVRC ids (1 to 1000) are in another order"
        )
    return numbered


def _from_classes(path: Path, root: Path, folders: Mapping[Path, int]) -> list[Entry]:
    boxes = _box_files(path, root)
    files = [(file, label) for folder, label in folders.items() for file in images_in(folder)]
    if not files:
        raise DataError(f"the {len(folders)} class folders in {root} hold no image")
    # Some renumber the images of each class; then only the folder tells them apart.
    unique = len({file.name for file, _ in files}) == len(files)
    return [
        _entry(file, label, None, boxes, file.name if unique else file.relative_to(root).as_posix())
        for file, label in sorted(files)
    ]


def _from_files(path: Path, root: Path, files: list[Path], given: Path | None) -> list[Entry]:
    boxes = _box_files(path, root)
    stems = [file.stem for file in files]
    table = given if given is not None and given.suffix.lower() == ".csv" else None
    if given is None:
        table = first(base / ilsvrc.SOLUTION for base in _bases(path, root))
    if table is not None:
        known = ilsvrc.solution(table)
        unlisted = [stem for stem in stems if stem not in known]
        if unlisted:
            raise DataError(f"{table} does not list {unlisted[0]} ({len(unlisted)} of {len(stems)} images in {root})")
        return [_entry(file, known[file.stem][0], known[file.stem][1], boxes, file.name) for file in files]
    labels = ilsvrc.devkit_labels(_devkit(path, root, given), stems)
    return [_entry(file, labels[file.stem], None, boxes, file.name) for file in files]


def _devkit(path: Path, root: Path, given: Path | None) -> Path:
    if given is not None and given.is_file():
        return given.parent
    bases = _bases(path, root) if given is None else [given]
    places = [base / place for base in bases for place in _DEVKITS]
    there = first(place / ilsvrc.GROUND_TRUTH for place in places)
    if there is not None:
        return there.parent
    truths = [(base / place / ilsvrc.GROUND_TRUTH) for base in bases for place in _DEVKITS[:1]]
    solutions = [base / ilsvrc.SOLUTION for base in bases] if given is None else []
    raise DataError(
        f"the labels of the images in {root} are missing; {looked([*truths, *solutions])}; expected is {LAYOUT}; for "
        "images without labels use kind = 'folder'"
    )


def _bases(path: Path, root: Path) -> list[Path]:
    """Where things that belong to the images may lie: with them, beside them, or above an unpacked tree."""
    bases = [path.resolve(), path.resolve().parent, root.resolve(), root.resolve().parent]
    if root.resolve().parts[-3:] == _KAGGLE:
        bases += root.resolve().parents[2:4]
    return list(dict.fromkeys(bases))


def _box_files(path: Path, root: Path) -> dict[str, Path]:
    """Box files by stem, from the first folder that has some: in it, or in a folder per class in it."""
    for base in _bases(path, root):
        for place in _BOXES:
            folder = base / place
            if folder.is_dir():
                files = [*folder.glob("*.xml"), *folder.glob("n*/*.xml")]
                if files:
                    return {file.stem: file for file in sorted(files)}
    return {}


def _entry(
    file: Path, label: int, known: Boxes | None, box_files: Mapping[str, Path], name: str, part: str = ""
) -> Entry:
    mask: MaskReader | None = None
    if known is not None:
        mask = partial(_mask, known, file)
    elif file.stem in box_files:
        mask = partial(_mask_from, box_files[file.stem], wnids()[label], file)
    return Entry(name, file, label, str(label), mask, part)


def _mask_from(box_file: Path, wnid: str, file: Path, image: Image.Image) -> Mask | None:
    known = ilsvrc.read_boxes(box_file, wnid)
    return _mask(known, file, image) if known.boxes else None


def _mask(known: Boxes, file: Path, image: Image.Image) -> Mask:
    width, height = known.width or image.width, known.height or image.height
    if (width, height) in (image.size, image.size[::-1]):
        return fitted(from_boxes(known.boxes, width, height, str(file)), image, file, "the frame of its boxes")
    if (width - height) * (image.width - image.height) < 0:
        raise DataError(f"{file} is {image.width} x {image.height} pixels, its boxes were drawn on {width} x {height}")
    boxes = scaled(known.boxes, image.width / width, image.height / height)
    return from_boxes(boxes, image.width, image.height, str(file))
