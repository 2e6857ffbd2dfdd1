"""ImageNet's validation set in the layouts people have it in, in small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from egcam.studies.datasets import DataError
from egcam.studies.datasets.wnids import imagenet_class, wnids
from support.data_sets import opened

TENCH, GOLDFISH, ZEBRA = "n01440764", "n01443537", "n02391049"
# Validation images 1, 2, 3 are zebra, tench, goldfish; ILSVRC ids are in an order of their own.
TRUTH = {1: ZEBRA, 2: TENCH, 3: GOLDFISH}
ILSVRC_IDS = {GOLDFISH: 1, ZEBRA: 2, TENCH: 3}
LABELS = {
    "ILSVRC2012_val_00000001.JPEG": 340,
    "ILSVRC2012_val_00000002.JPEG": 0,
    "ILSVRC2012_val_00000003.JPEG": 1,
}


def stem(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}"


def save(file: Path, size: tuple[int, int] = (10, 8)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "gray").save(file, format="JPEG")


def save_flat(folder: Path, numbers=(1, 2, 3)) -> None:
    for number in numbers:
        save(folder / f"{stem(number)}.JPEG")


def save_devkit(folder: Path) -> None:
    """meta.mat as in ILSVRC2012_devkit_t12: a struct array, (n, 1), with the classes and then groups of classes."""
    savemat = pytest.importorskip("scipy.io").savemat
    fields = ("ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height")
    synsets = np.zeros((4, 1), dtype=[(name, object) for name in (*fields, "num_train_images")])
    rows = sorted((number, wnid) for wnid, number in ILSVRC_IDS.items())
    for row, (number, wnid) in enumerate(rows):
        synsets[row, 0] = (float(number), wnid, "a word, another", "a gloss", 0.0, np.zeros((1, 0)), 0.0, 1300.0)
    synsets[3, 0] = (1001.0, "n00001740", "entity", "a gloss", 3.0, np.array([[1.0, 2.0, 3.0]]), 19.0, 0.0)
    folder.mkdir(parents=True)
    savemat(folder / "meta.mat", {"synsets": synsets})
    lines = [str(ILSVRC_IDS[TRUTH[number]]) for number in (1, 2, 3)]
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text("\n".join(lines) + "\n")


def save_boxes(folder: Path, number: int, objects, size=(10, 8)) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    inner = "".join(
        f"<object><name>{wnid}</name><bndbox><xmin>{x1}</xmin><ymin>{y1}</ymin><xmax>{x2}</xmax><ymax>{y2}</ymax>"
        "</bndbox></object>"
        for wnid, x1, y1, x2, y2 in objects
    )
    size_tag = f"<size><width>{size[0]}</width><height>{size[1]}</height><depth>3</depth></size>"
    (folder / f"{stem(number)}.xml").write_text(f"<annotation>{size_tag}{inner}</annotation>")


def pictures(path, **spec):
    data = opened("imagenet", str(path), **spec)
    return data, {picture.name: picture for picture in (data[index] for index in range(len(data)))}


def labels(path, **spec):
    return {name: picture.label for name, picture in pictures(path, **spec)[1].items()}


@pytest.mark.parametrize(
    ("images", "devkit"),
    [
        ("val", "ILSVRC2012_devkit_t12/data"),  # beside the images
        ("val", "val/ILSVRC2012_devkit_t12/data"),  # inside
        (".", "ILSVRC2012_devkit_t12/data"),
    ],
)
def test_official_layout(tmp_path, images, devkit):
    save_flat(tmp_path / images)
    save_devkit(tmp_path / devkit)
    assert labels(tmp_path) == LABELS
    assert labels(tmp_path / images) == LABELS


@pytest.mark.parametrize("given", ["kit", "kit/ILSVRC2012_validation_ground_truth.txt"])
def test_development_kit_elsewhere(tmp_path, given):
    save_flat(tmp_path / "images" / "val", numbers=(1, 3))
    save_devkit(tmp_path / "kit")
    found = labels(tmp_path / "images", annotations=str(tmp_path / given))
    assert found == {name: label for name, label in LABELS.items() if "2.JPEG" not in name}


def test_kaggle_layout(tmp_path):
    save_flat(tmp_path / "ILSVRC" / "Data" / "CLS-LOC" / "val")
    rows = [
        f"{stem(3)},{GOLDFISH} 0 0 2 1 {GOLDFISH} 5 4 10 8 ",
        f"{stem(1)},{ZEBRA} 1 2 4 3 ",
        f"{stem(2)},{TENCH} 0 0 10 8 ",
    ]
    (tmp_path / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *rows]) + "\n")
    (tmp_path / "LOC_synset_mapping.txt").write_text("\n".join(f"{wnid} some, words" for wnid in wnids()) + "\n")
    for path in (tmp_path, tmp_path / "ILSVRC", tmp_path / "ILSVRC" / "Data" / "CLS-LOC" / "val"):
        data, found = pictures(path)
        assert {name: picture.label for name, picture in found.items()} == LABELS
        assert data.has_masks
        assert np.argwhere(found[f"{stem(1)}.JPEG"].mask).tolist() == [[2, 1], [2, 2], [2, 3]]
        assert found[f"{stem(3)}.JPEG"].mask.sum() == 2 + 20
        assert found[f"{stem(2)}.JPEG"].mask.all()
    (tmp_path / "LOC_synset_mapping.txt").write_text(f"{GOLDFISH} goldfish\n{TENCH} tench\n")
    with pytest.raises(DataError, match="does not list ImageNet's classes in the order of the networks' outputs"):
        labels(tmp_path)


def test_one_folder_per_class(tmp_path):
    """With three of the 1,000 folders there, the rank of a folder is not its class."""
    for number, wnid in TRUTH.items():
        save(tmp_path / "val" / wnid / f"{stem(number)}.JPEG")
    (tmp_path / "val" / "lost+found").mkdir()
    assert labels(tmp_path) == LABELS
    assert labels(tmp_path / "val") == LABELS
    assert labels(tmp_path, classes=("zebra", TENCH)) == {k: v for k, v in LABELS.items() if v in (340, 0)}


def test_folders_named_by_class_index(tmp_path):
    save(tmp_path / "0340" / "a.JPEG")
    save(tmp_path / "7" / "a.JPEG")
    # Names that are not unique keep their folder.
    assert labels(tmp_path) == {"0340/a.JPEG": 340, "7/a.JPEG": 7}
    save(tmp_path / "1000" / "a.JPEG")
    with pytest.raises(DataError, match=r"1000: class folders are numbered from 0 to 999, .* ILSVRC ids \(1 to 1000\)"):
        labels(tmp_path)


def test_the_same_choice_in_every_layout(tmp_path):
    save_flat(tmp_path / "flat")
    save_devkit(tmp_path / "flat" / "data")
    for number, wnid in TRUTH.items():
        save(tmp_path / "folders" / wnid / f"{stem(number)}.JPEG")
    flat = opened("imagenet", str(tmp_path / "flat"), images=2, seed=5)
    folders = opened("imagenet", str(tmp_path / "folders"), images=2, seed=5)
    assert flat.names == folders.names
    assert flat.description == ("ImageNet validation (ILSVRC2012): 3 images, labels, no masks; 2 of them taken, seed 5")


@pytest.mark.parametrize("folder", ["bbox/val", "Annotation", "val/bbox/val", "ILSVRC2012_bbox_val_v3/val"])
def test_box_files(tmp_path, folder):
    for number, wnid in TRUTH.items():
        save(tmp_path / "val" / wnid / f"{stem(number)}.JPEG")
    save_boxes(tmp_path / folder, 1, [(ZEBRA, 0, 0, 2, 2), (ZEBRA, 8, 6, 10, 8), (TENCH, 0, 0, 10, 8)])
    save_boxes(tmp_path / folder, 2, [(TENCH, 4, 6, 12, 16)], size=(20, 16))  # drawn before the image was halved
    data, found = pictures(tmp_path)
    assert found[f"{stem(1)}.JPEG"].mask.sum() == 4 + 4
    assert np.argwhere(found[f"{stem(2)}.JPEG"].mask)[[0, -1]].tolist() == [[3, 2], [7, 5]]
    assert found[f"{stem(3)}.JPEG"].mask is None
    assert data.description == "ImageNet validation (ILSVRC2012): 3 images, labels, masks for 2"
    with pytest.raises(
        DataError, match=r"no boxes for some; looked at .*bbox/val, .*expected are files ILSVRC2012_val"
    ):
        data.require_masks()


def test_boxes_turn_with_an_image_that_a_camera_turned(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / ZEBRA).mkdir()
    pixels = np.zeros((64, 96, 3), np.uint8)
    pixels[8:24, 64:96] = 255
    Image.fromarray(pixels).save(tmp_path / ZEBRA / f"{stem(1)}.JPEG", exif=exif, quality=100, subsampling=0)
    save_boxes(tmp_path / "bbox", 1, [(ZEBRA, 0, 0, 2, 2)], size=(20, 10))
    with pytest.raises(DataError, match="is 64 x 96 pixels, its boxes were drawn on 20 x 10"):
        pictures(tmp_path)
    save_boxes(tmp_path / "bbox", 1, [(ZEBRA, 64, 8, 96, 24)], size=(96, 64))
    _, found = pictures(tmp_path)
    picture = found[f"{stem(1)}.JPEG"]
    assert picture.image.size == (64, 96)
    assert np.array_equal(picture.mask, np.asarray(picture.image)[..., 0] > 127)


def test_a_list(tmp_path):
    save_flat(tmp_path / "images")
    table = tmp_path / "list.csv"
    table.write_text(
        "file,part,class_index,wnid,width,height,boxes_xmin_ymin_xmax_ymax\n"
        f"{stem(1)}.JPEG,explain,340,{ZEBRA},10,8,0 0 2 2;1 1 3 3\n"
        f"{stem(2)}.JPEG,reference,0,{TENCH},10,8,0 0 10 8\n"
        f"images/{stem(3)}.JPEG,explain,,{GOLDFISH},10,8,9 7 10 8\n"
    )
    data, found = pictures(tmp_path / "images", annotations=str(table))
    assert {name: picture.label for name, picture in found.items()} == LABELS
    assert found[f"{stem(1)}.JPEG"].mask.sum() == 7
    assert np.argwhere(found[f"{stem(3)}.JPEG"].mask).tolist() == [[7, 9]]
    assert data.has_masks
    part, _ = pictures(tmp_path / "images", annotations=str(table), part="explain")
    assert sorted(part.names) == [f"{stem(1)}.JPEG", f"{stem(3)}.JPEG"]
    assert len(part.whole) == 3


@pytest.mark.parametrize(
    ("row", "text"),
    [
        (f"{stem(1)}.JPEG,2,{ZEBRA}", f"class index 2, but {ZEBRA} is 340; .* not the ILSVRC id"),
        (f"{stem(1)}.JPEG,1000,", "class index 1000, but ImageNet's are 0 to 999"),
        (f"{stem(1)}.JPEG,,", "has no class: a column class_index or wnid is needed"),
        (f"{stem(1)}.JPEG,,n02391040", "'n02391040' is none of ImageNet's 1,000 classes; did you mean 'n02391049'"),
        (f"{stem(9)}.JPEG,1,", r"1 of 1 files listed in .*list.csv are missing, the first is .*9.JPEG; looked in"),
    ],
)
def test_wrong_lists(tmp_path, row, text):
    save_flat(tmp_path)
    (tmp_path / "list.csv").write_text(f"file,class_index,wnid\n{row}\n")
    with pytest.raises(DataError, match=text):
        labels(tmp_path, annotations="list.csv")


def test_missing_labels_say_where_was_looked(tmp_path):
    save_flat(tmp_path / "data" / "val")
    with pytest.raises(DataError) as error:
        labels(tmp_path / "data")
    text = str(error.value)
    assert f"the labels of the images in {tmp_path / 'data' / 'val'} are missing; looked at " in text
    truth = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
    for base in (tmp_path, tmp_path / "data", tmp_path / "data" / "val"):
        assert str(base / truth) in text
        assert str(base / "LOC_val_solution.csv") in text
    assert "one folder per class named by WordNet id (n01440764)" in text
    assert "for images without labels use kind = 'folder'" in text


def test_missing_images_say_where_was_looked(tmp_path):
    with pytest.raises(
        DataError, match=r"there are no ImageNet images in .*; looked at .*/val, .*CLS-LOC/val, .*expect"
    ):
        labels(tmp_path)
    with pytest.raises(DataError, match=r"the data's folder .*nowhere does not exist.*; expected is ILSVRC2012_val_\*"):
        labels(tmp_path / "nowhere")
    (tmp_path / TENCH).mkdir()
    with pytest.raises(DataError, match=r"the 1 class folders in .* hold no image"):
        labels(tmp_path)


def test_wrong_development_kits(tmp_path):
    save_flat(tmp_path)
    kit = tmp_path / "ILSVRC2012_devkit_t12" / "data"
    save_devkit(kit)
    save_flat(tmp_path, numbers=(4,))
    with pytest.raises(DataError, match=r"ground_truth.txt has 3 lines, but there is an image ILSVRC2012_val_00000004"):
        labels(tmp_path)
    (tmp_path / f"{stem(4)}.JPEG").rename(tmp_path / "cat.JPEG")
    with pytest.raises(DataError, match=r"cat is not called ILSVRC2012_val_00000001 and the like"):
        labels(tmp_path)
    (tmp_path / "cat.JPEG").unlink()
    (kit / "ILSVRC2012_validation_ground_truth.txt").write_text("2\n1001\n1\n")
    with pytest.raises(DataError, match=r"line 2: no class in .*meta.mat has the ILSVRC id 1001"):
        labels(tmp_path)
    (kit / "meta.mat").write_bytes(b"broken")
    with pytest.raises(DataError, match=r"is not the development kit's meta.mat"):
        labels(tmp_path)
    (kit / "meta.mat").unlink()
    with pytest.raises(
        DataError, match=r"meta.mat is missing: without it the ILSVRC ids .* ILSVRC2012_devkit_t12/data"
    ):
        labels(tmp_path)


def test_wrong_solutions_and_box_files(tmp_path):
    save_flat(tmp_path, numbers=(1,))
    (tmp_path / "LOC_val_solution.csv").write_text(f"ImageId,PredictionString\n{stem(1)},{ZEBRA} 1 2 3\n")
    with pytest.raises(DataError, match="is not wnid x1 y1 x2 y2, once or more often"):
        labels(tmp_path)
    (tmp_path / "LOC_val_solution.csv").write_text(f"ImageId,PredictionString\n{stem(2)},{ZEBRA} 1 2 3 4\n")
    with pytest.raises(DataError, match=rf"does not list {stem(1)} \(1 of 1 images"):
        labels(tmp_path)
    save(tmp_path / "classes" / ZEBRA / f"{stem(1)}.JPEG")
    (tmp_path / "classes" / "bbox").mkdir()
    (tmp_path / "classes" / "bbox" / f"{stem(1)}.xml").write_text("<annotation><object>")
    with pytest.raises(DataError, match=r"\.xml is not a box file of ILSVRC"):
        labels(tmp_path / "classes")


def test_class_names_and_near_misses():
    assert imagenet_class("street sign") == 919
    with pytest.raises(DataError, match="classes: no class is called 'zebrra'; did you mean 'zebra'"):
        imagenet_class("zebrra")
    with pytest.raises(DataError, match="classes: no class is called '1000'"):
        imagenet_class("1000")


def test_a_class_without_images(tmp_path):
    save(tmp_path / ZEBRA / "a.JPEG")
    with pytest.raises(DataError, match="no image of class 'tench'; there are 1 classes"):
        labels(tmp_path, classes=("tench",))


def test_the_list_of_wordnet_ids():
    assert len(wnids()) == len(set(wnids())) == 1000
    assert list(wnids()) == sorted(wnids())


@pytest.mark.peers
def test_the_list_of_wordnet_ids_beside_timm():
    data = pytest.importorskip("timm.data")
    from egcam.models.class_scores import imagenet_classes

    info = data.ImageNetInfo("imagenet-1k")
    assert list(wnids()) == info.label_names()
    # Our class names are in the same order: nearly all are a synonym timm gives for the id.
    synonyms = [info.index_to_description(index).lower() for index in range(1000)]
    alike = sum(ours.split(",")[0].lower() in theirs for ours, theirs in zip(imagenet_classes(), synonyms, strict=True))
    assert alike > 950
