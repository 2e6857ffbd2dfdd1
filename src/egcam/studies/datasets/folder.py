"""Any folder of images, with masks, boxes and labels where there are some.

    photos/zebra_1.jpg, photos/more/zebra_2.png, …    every image file, also in sub-folders
    masks/zebra_1.png, masks/more/zebra_2.png, …      `masks`: named like the image, whatever the suffix
    labels.csv or labels.json                         `labels`: file,label[,x1,y1,x2,y2 or boxes][,mask][,part]

Without a labels file a sub-folder named by a class index (0, 1, …) or a WordNet id (n02391049) labels the images in
it. With one, the images it lists are the data, and no others. A mask file's object is where it is not 0; of a trimap
say which values mean the object: `mask_values = [1]` is the animal of an Oxford pet without its border, `[1, 3]` with
it. Where there are both, a mask file comes before boxes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from PIL import Image

from egcam.errors import near_misses
from egcam.photos.files import images_in, read_image
from egcam.studies.datasets.annotations import EXPECTED, Annotation, found, located, not_found, read_annotations
from egcam.studies.datasets.dataset import (
    DataError,
    Dataset,
    Entry,
    FileDataset,
    Mask,
    MaskReader,
    Missing,
    folder_at,
    named,
    of_classes,
)
from egcam.studies.datasets.masks import Box, fitted, from_boxes, from_file
from egcam.studies.datasets.registry import register_dataset
from egcam.studies.datasets.wnids import index_of, is_wnid

LAYOUT = "a folder with image files (PNG, JPEG, WebP, …), in sub-folders or not"


@register_dataset("folder", title="a folder of images")
def open_folder(
    path: Path,
    *,
    classes: tuple[str, ...] = (),
    labels: Path | None = None,
    masks: Path | None = None,
    mask_values: tuple[int, ...] = (),
) -> Dataset:
    """The data set in a folder of images.

    Args:
        path: the folder.
        classes: only images of these; none is all.
        labels: a CSV or JSON file with labels or boxes.
        masks: a folder with a mask for each image, named like it.
        mask_values: which values of a mask file mean the object; none is every value but 0.
    """
    root = folder_at(path, LAYOUT)
    mask_folder = None if masks is None else _mask_folder(masks, root)
    entries = _all(root, mask_folder) if labels is None else _listed(root, labels, mask_values)
    if mask_folder is not None:
        entries = _with_masks(entries, root, mask_folder, mask_values)
    entries = of_classes(entries, classes, [_group(word, entries) for word in classes], str(root))
    _check_first_mask(entries)
    return FileDataset(f"folder {root.name}", entries, _missing(root, masks))


def _all(root: Path, masks: Path | None) -> list[Entry]:
    files = [file for file in images_in(root, recursive=True) if masks is None or masks not in file.resolve().parents]
    if not files:
        raise DataError(f"there is no image in {root} or its sub-folders; expected is {LAYOUT}")
    return [_unlisted(file, root) for file in files]


def _unlisted(file: Path, root: Path) -> Entry:
    inside = file.relative_to(root)
    folder = inside.parts[0] if len(inside.parts) > 1 else ""
    label = None
    if is_wnid(folder):
        label = index_of(folder, f"the folder {root / folder}")
    elif folder.isdecimal():
        label = int(folder)
    return Entry(inside.as_posix(), file, label, folder)


def _listed(root: Path, labels: Path, mask_values: tuple[int, ...]) -> list[Entry]:
    table = named(labels, [root], f"a file with labels: {EXPECTED}")
    folders = [root, table.parent]
    listed = located(read_annotations(table), table, folders)
    return [_entry(annotation, file, table, folders, mask_values) for annotation, file in listed]


def _entry(annotation: Annotation, file: Path, table: Path, folders: list[Path], mask_values: tuple[int, ...]) -> Entry:
    label = annotation.label
    if label is None and annotation.wnid is not None:
        label = index_of(annotation.wnid, f"{table}, {annotation.file}")
    mask: MaskReader | None = None
    if annotation.mask is not None:
        there = found(annotation.mask, folders)
        if there is None:
            raise not_found([annotation.mask], 1, table, folders)
        mask = partial(_read_mask, there, file, mask_values)
    elif annotation.boxes:
        mask = partial(_draw_boxes, annotation.boxes, file)
    group = "" if label is None else str(label)
    return Entry(Path(annotation.file).as_posix(), file, label, group, mask, annotation.part)


def _with_masks(entries: list[Entry], root: Path, masks: Path, values: tuple[int, ...]) -> list[Entry]:
    by_path = {file.relative_to(masks).with_suffix("").as_posix(): file for file in images_in(masks, recursive=True)}
    together = []
    for entry in entries:
        # A mask lies in the same sub-folder as its image, or all masks lie in one folder.
        stem = Path(entry.name).with_suffix("")
        there = by_path.get(stem.as_posix(), by_path.get(stem.name))
        mask = entry.mask if there is None else partial(_read_mask, there, entry.file, values)
        together.append(Entry(entry.name, entry.file, entry.label, entry.group, mask, entry.part))
    if not any(entry.mask is not None for entry in together):
        raise DataError(
            f"no mask in {masks} is named like an image: it holds {_few(list(by_path))}, the images in {root} are "
            f"{_few([Path(entry.name).with_suffix('').as_posix() for entry in entries])} (without suffixes)"
        )
    return together


def _few(names: list[str]) -> str:
    if not names:
        return "no image file"
    return ", ".join(names[:3]) + (f", … ({len(names)} in all)" if len(names) > 3 else "")


def _mask_folder(path: Path, root: Path) -> Path:
    folder = named(path, [root], "a folder with a mask for each image, named like it")
    if not folder.is_dir():
        raise DataError(f"masks = '{path}' is a file; expected is a folder with a mask for each image, named like it")
    return folder.resolve()


def _group(word: str, entries: list[Entry]) -> str:
    groups = sorted({entry.group for entry in entries} - {""})
    group = str(index_of(word, "classes")) if is_wnid(word) and word not in groups else word
    if group not in groups:
        raise DataError(
            f"no image is of class {word!r}; "
            + (near_misses(word, groups) if groups else "no class is known: there are neither labels nor sub-folders")
        )
    return group


def _check_first_mask(entries: list[Entry]) -> None:
    """Fail when the data are opened, not at each image, where masks need `mask_values` or have the wrong size."""
    marked = next((entry for entry in entries if entry.mask is not None), None)
    if marked is not None and marked.mask is not None:
        marked.mask(read_image(marked.file))


def _missing(root: Path, masks: Path | None) -> Missing:
    return Missing(
        labels=f"give labels = a CSV or JSON file, or name the sub-folders of {root} by class index or WordNet id",
        masks="some have no mask: "
        + (f"add them to {masks}, named like the images" if masks else "give masks = a folder, or boxes"),
    )


def _read_mask(path: Path, file: Path, values: tuple[int, ...], image: Image.Image) -> Mask:
    return fitted(from_file(path, values), image, file, f"the mask {path}")


def _draw_boxes(boxes: tuple[Box, ...], file: Path, image: Image.Image) -> Mask:
    return from_boxes(boxes, image.width, image.height, str(file))
