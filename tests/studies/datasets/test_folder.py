"""Any folder of images, with labels, masks and boxes."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from egcam.errors import InputError
from egcam.studies.datasets import DataError
from egcam.studies.datasets.masks import Box, from_boxes
from support.data_sets import opened


def save(path: Path, width: int = 8, height: int = 6, colour: str = "red", **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height), colour).save(path, **options)


def save_mask(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(values.astype(np.uint8)).save(path)


def pictures(**spec):
    data = opened("folder", **{key: str(v) if isinstance(v, Path) else v for key, v in spec.items()})
    return data, {picture.name: picture for picture in (data[index] for index in range(len(data)))}


def test_images_in_sub_folders_without_labels(tmp_path):
    save(tmp_path / "b.png")
    save(tmp_path / "more" / "a.png", colour="blue")
    save(tmp_path / ".hidden" / "c.png")
    (tmp_path / "notes.txt").write_text("no image")
    data, found = pictures(path=tmp_path)
    assert sorted(found) == ["b.png", "more/a.png"]
    assert found["more/a.png"].image.getpixel((0, 0)) == (0, 0, 255)
    assert found["b.png"].label is None
    assert found["b.png"].mask is None
    assert not data.has_labels
    assert not data.has_masks
    assert data.description == f"folder {tmp_path.name}: 2 images, no labels, no masks"
    with pytest.raises(DataError, match="no labels, no masks: give labels = a CSV or JSON file, or name the sub-fold"):
        data.require_labels()
    with pytest.raises(DataError, match="some have no mask: give masks = a folder, or boxes"):
        data.require_masks()


def test_sub_folders_as_labels(tmp_path):
    save(tmp_path / "n02391049" / "a.png")
    save(tmp_path / "7" / "b.png")
    data, found = pictures(path=tmp_path)
    assert {name: picture.label for name, picture in found.items()} == {"n02391049/a.png": 340, "7/b.png": 7}
    assert data.has_labels
    data.require_labels()
    _, found = pictures(path=tmp_path, classes=("n02391049",))
    assert list(found) == ["n02391049/a.png"]
    with pytest.raises(DataError, match="no image is of class 'n0239104'; did you mean 'n02391049'"):
        pictures(path=tmp_path, classes=("n0239104",))


def test_masks_are_found_by_name(tmp_path):
    save(tmp_path / "images" / "a.jpg")
    save(tmp_path / "images" / "deep" / "b.jpg")
    values = np.zeros((6, 8))
    values[1:3, 2:5] = 200
    save_mask(tmp_path / "images" / "masks" / "a.png", values)
    save_mask(tmp_path / "images" / "masks" / "deep" / "b.tif", 200 - values)
    data, found = pictures(path=tmp_path / "images", masks="masks")
    assert data.has_masks
    assert sorted(found) == ["a.jpg", "deep/b.jpg"]  # the masks are no images
    assert np.array_equal(found["a.jpg"].mask, values == 200)
    assert np.array_equal(found["deep/b.jpg"].mask, values == 0)


def test_some_masks_are_missing(tmp_path):
    save(tmp_path / "images" / "a.png")
    save(tmp_path / "images" / "b.png")
    save_mask(tmp_path / "masks" / "b.png", np.eye(6, 8))
    data, found = pictures(path=tmp_path / "images", masks=tmp_path / "masks")
    assert not data.has_masks
    assert found["a.png"].mask is None
    assert found["b.png"].mask.sum() == 6
    assert data.description == "folder images: 2 images, no labels, masks for 1"
    with pytest.raises(DataError, match=r"some have no mask: add them to .*masks, named like the images"):
        data.require_masks()


def test_trimaps_need_to_be_told(tmp_path):
    save(tmp_path / "images" / "a.png")
    trimap = np.full((6, 8), 2)
    trimap[1:5, 1:7], trimap[2:4, 2:6] = 3, 1
    save_mask(tmp_path / "trimaps" / "a.png", trimap)
    folders = {"path": tmp_path / "images", "masks": tmp_path / "trimaps"}
    with pytest.raises(DataError, match=r"values 1, 2, 3 and no 0 .* mask_values = \[1\] for a trimap"):
        pictures(**folders)
    assert np.array_equal(pictures(**folders, mask_values=(1,))[1]["a.png"].mask, trimap == 1)
    assert pictures(**folders, mask_values=(1, 3))[1]["a.png"].mask.sum() == 24


def test_masks_with_a_palette_and_colours(tmp_path):
    save(tmp_path / "images" / "palette.png")
    save(tmp_path / "images" / "colour.png")
    save(tmp_path / "images" / "clear.png")
    numbers = np.zeros((6, 8), np.uint8)
    numbers[0, 0] = 1
    palette = Image.fromarray(numbers, mode="P")
    palette.putpalette([255, 255, 255, 0, 0, 0])  # number 0 is white: the colours would say the opposite
    (tmp_path / "masks").mkdir()
    palette.save(tmp_path / "masks" / "palette.png")
    colours = np.zeros((6, 8, 3), np.uint8)
    colours[5, 7, 2] = 9
    Image.fromarray(colours).save(tmp_path / "masks" / "colour.png")
    clear = np.zeros((6, 8, 4), np.uint8)
    clear[..., 3], clear[2, 2, 0] = 255, 1
    Image.fromarray(clear).save(tmp_path / "masks" / "clear.png")
    _, found = pictures(path=tmp_path / "images", masks=tmp_path / "masks")
    assert np.argwhere(found["palette.png"].mask).tolist() == [[0, 0]]
    assert np.argwhere(found["colour.png"].mask).tolist() == [[5, 7]]
    assert np.argwhere(found["clear.png"].mask).tolist() == [[2, 2]]


def test_jpeg_masks_are_cut_at_half(tmp_path):
    save(tmp_path / "images" / "a.png", 64, 64)
    values = np.zeros((64, 64))
    values[:, 32:] = 255
    save_mask(tmp_path / "masks" / "a.jpg", values)
    _, found = pictures(path=tmp_path / "images", masks=tmp_path / "masks")
    assert np.array_equal(found["a.png"].mask, values > 0)


def test_masks_of_another_size_or_none_at_all(tmp_path):
    save(tmp_path / "images" / "a.png")
    save_mask(tmp_path / "masks" / "a.png", np.eye(5, 8))
    with pytest.raises(DataError, match=r"is 8 x 5 pixels, its image .*a.png is 8 x 6: a mask must have the size"):
        pictures(path=tmp_path / "images", masks=tmp_path / "masks")
    (tmp_path / "masks" / "a.png").rename(tmp_path / "masks" / "a_mask.png")
    with pytest.raises(
        DataError, match=r"no mask in .*masks is named like an image: it holds a_mask, the images .* a "
    ):
        pictures(path=tmp_path / "images", masks=tmp_path / "masks")


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_masks_turn_with_their_image(tmp_path, orientation):
    """An image and a mask of the stored pixels: the white pixels stay the masked ones once the image is upright."""
    pixels = np.zeros((6, 8, 3), np.uint8)
    pixels[0:2, 5:8] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "images").mkdir()
    Image.fromarray(pixels).save(tmp_path / "images" / "a.png", exif=exif)
    save_mask(tmp_path / "masks" / "a.png", pixels[..., 0])
    _, found = pictures(path=tmp_path / "images", masks=tmp_path / "masks")
    assert found["a.png"].image.size == (6, 8)
    assert np.array_equal(found["a.png"].mask, np.asarray(found["a.png"].image)[..., 0] == 255)


def test_csv_with_labels_and_boxes(tmp_path):
    for name in ("a.png", "b.png", "not_listed.png"):
        save(tmp_path / "images" / name)
    table = tmp_path / "labels.csv"
    table.write_text("\ufefffile,label,x1,y1,x2,y2\na.png,3,1,0,4,2\nb.png,n02391049,0,0,8,6\na.png,3,6,4,8,6\n")
    data, found = pictures(path=tmp_path / "images", labels=table)
    assert {name: picture.label for name, picture in found.items()} == {"a.png": 3, "b.png": 340}
    expected = np.zeros((6, 8), bool)
    expected[0:2, 1:4] = expected[4:6, 6:8] = True
    assert np.array_equal(found["a.png"].mask, expected)
    assert found["b.png"].mask.all()
    assert data.description == "folder images: 2 images, labels, masks"


def test_csv_with_boxes_in_one_column_and_parts(tmp_path):
    save(tmp_path / "a.png")
    save(tmp_path / "b.png")
    (tmp_path / "t.csv").write_text("image,part,class_index,boxes_xyxy\na.png,x,1,0 0 1 1;2 2 4 3\nb.png,y,2,\n")
    data, found = pictures(path=tmp_path, labels=tmp_path / "t.csv")
    assert found["a.png"].mask.sum() == 1 + 2
    assert found["b.png"].mask is None
    assert sorted(data.parts) == ["x", "y"]
    assert list(pictures(path=tmp_path, labels=tmp_path / "t.csv", part="y")[1]) == ["b.png"]


@pytest.mark.parametrize(
    "content",
    [
        {"a.png": 3, "b.png": "n02391049"},
        {"a.png": {"label": 3}, "b.png": {"wnid": "n02391049"}},
        [{"file": "a.png", "label": "3"}, {"image": "b.png", "imagenet_index": 340, "wnid": "n02391049"}],
    ],
)
def test_json_with_labels(tmp_path, content):
    save(tmp_path / "a.png")
    save(tmp_path / "b.png")
    (tmp_path / "labels.json").write_text(json.dumps(content))
    _, found = pictures(path=tmp_path, labels="labels.json")  # found in the data's folder
    assert {name: picture.label for name, picture in found.items()} == {"a.png": 3, "b.png": 340}


def test_json_with_masks_and_boxes(tmp_path):
    save(tmp_path / "a.png")
    save(tmp_path / "b.png")
    trimap = np.full((6, 8), 2)
    trimap[2, 3:5] = 1
    save_mask(tmp_path / "a_trimap.png", trimap)
    content = [
        {"image": "a.png", "trimap": "a_trimap.png", "label": 1},
        {"image": "b.png", "boxes": [[0, 0, 2, 1], [7, 5, 8, 6]], "label": 2},
    ]
    (tmp_path / "labels.json").write_text(json.dumps(content))
    data, found = pictures(path=tmp_path, labels=tmp_path / "labels.json", mask_values=(1,))
    assert data.has_masks
    assert np.argwhere(found["a.png"].mask).tolist() == [[2, 3], [2, 4]]
    assert np.argwhere(found["b.png"].mask).tolist() == [[0, 0], [0, 1], [5, 7]]


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("t.csv", "file,label\na.png,zebra\n", "entry 1: the label 'zebra' is neither a class index .* nor a WordNet"),
        (
            "t.csv",
            "file,label\nb.png,1\n",
            r"1 of 1 files listed in .*t.csv are missing, the first is b.png; looked in",
        ),
        ("t.csv", "number,label\n1,1\n", "entry 1 names no image: it has 'number', 'label'; expected is a CSV with"),
        ("t.csv", "file,label\n", "lists no image"),
        ("t.csv", "file,label,x1,y1,x2\na.png,1,0,0,4\n", "a box is x1, y1, x2, y2, and y2 is missing"),
        ("t.csv", "file,label,boxes\na.png,1,0 0 4\n", "a box is four numbers, x1 y1 x2 y2, not"),
        ("t.csv", "file,label,boxes\na.png,1,0 0 90 4\n", "the box 0 0 90 4 is not a box in an image of 8 x 6 pixels"),
        ("t.csv", "file,label\na.png,1\na.png,2\n", "has conflicting entries for a.png: 1 and 2"),
        ("t.csv", "file,label,mask\na.png,1,m.png\n", "the first is m.png; looked in"),
        ("t.json", "[1, 2]", "neither an object nor a list of objects"),
        ("t.json", "{", "is not a JSON file"),
    ],
)
def test_wrong_labels_say_what_is_wrong(tmp_path, name, content, text):
    save(tmp_path / "a.png")
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=text):
        pictures(path=tmp_path, labels=tmp_path / name)


def test_missing_folders_say_where_was_looked(tmp_path):
    (tmp_path / "images").mkdir()
    with pytest.raises(DataError, match=r"imags does not exist \(did you mean 'images'\?\); expected is a folder with"):
        pictures(path=tmp_path / "imags")
    with pytest.raises(DataError, match=r"there is no image in .*images or its sub-folders"):
        pictures(path=tmp_path / "images")
    save(tmp_path / "images" / "a.png")
    with pytest.raises(DataError, match=r"masks does not exist; looked at masks, .*images/masks; expected is a folder"):
        pictures(path=tmp_path / "images", masks="masks")
    with pytest.raises(DataError, match=r"l.csv does not exist; looked at l.csv, .*images/l.csv; expected is a file"):
        pictures(path=tmp_path / "images", labels="l.csv")
    with pytest.raises(DataError, match=r"a.png is a file, not a folder"):
        pictures(path=tmp_path / "images" / "a.png")


def test_a_damaged_file_fails_when_it_is_read(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image at all")
    data = opened("folder", str(tmp_path))
    assert data.names == ["a.png"]
    with pytest.raises(InputError, match=r"a\.png is text, not an image"):
        data[0]


def test_data_can_be_sent_to_workers(tmp_path):
    save(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("file,label,x1,y1,x2,y2\na.png,3,1,0,4,2\n")
    data = opened("folder", str(tmp_path), labels="t.csv")
    sent = pickle.loads(pickle.dumps(data))[0]
    assert (sent.name, sent.label, sent.mask.sum()) == ("a.png", 3, 6)


def test_settings_of_another_kind_are_refused(tmp_path):
    with pytest.raises(
        DataError, match=r"kind = 'coco' does not take labels; besides path, images, size, part and seed it"
    ):
        opened("coco", str(tmp_path), labels="t.csv")
    with pytest.raises(
        DataError, match=r"kind = 'folder' does not take annotations; .* classes, labels, mask_values, m"
    ):
        opened("folder", str(tmp_path), annotations="t.csv")
    with pytest.raises(DataError, match=r"kind = 'cifar10' does not take mask_values, masks; .* it takes classes"):
        opened("cifar10", str(tmp_path), masks="m", mask_values=(1,))


def test_boxes_take_the_pixels_whose_centre_they_hold():
    mask = from_boxes([Box(0.6, 0.0, 2.5, 1.4)], 4, 2, "a")
    assert np.argwhere(mask).tolist() == [[0, 1]]
    # Boxes that end just over the edge, and boxes thinner than a pixel.
    assert from_boxes([Box(2, 1, 5, 3)], 4, 2, "a").sum() == 2
    assert np.argwhere(from_boxes([Box(1.6, 0.2, 1.9, 0.3)], 4, 2, "a")).tolist() == [[0, 2]]
