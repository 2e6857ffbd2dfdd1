"""COCO in small: polygons, run lengths, crowds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from egcam.models.class_scores import imagenet_classes
from egcam.studies.datasets import DataError
from egcam.studies.datasets.coco import TO_IMAGENET
from support.data_sets import opened

pytest.importorskip("pycocotools")

WIDTH, HEIGHT = 10, 8
CATEGORIES = [{"id": 24, "name": "zebra"}, {"id": 13, "name": "stop sign"}, {"id": 18, "name": "dog"}]


def rectangle(left, top, right, bottom):
    """A polygon around whole pixels."""
    return [[left, top, right, top, right, bottom, left, bottom]]


def runs(mask):
    """Run lengths as COCO writes them: column by column, beginning with the zeros."""
    counts, last = [0], 0
    for value in mask.T.reshape(-1).astype(int):
        if value != last:
            counts.append(0)
            last = value
        counts[-1] += 1
    return {"size": list(mask.shape), "counts": counts}


def packed(mask):
    from pycocotools import mask as rle

    encoded = rle.encode(np.asfortranarray(mask.astype(np.uint8)))
    return {"size": encoded["size"], "counts": encoded["counts"].decode()}


def crowd_mask():
    mask = np.zeros((HEIGHT, WIDTH), bool)
    mask[0, 9] = mask[7, 0:3] = True
    return mask


@pytest.fixture
def coco(tmp_path):
    """Image 1: two zebras, a zebra crowd, a stop sign. Image 2: a dog. Image 3: nothing but a crowd. 4: not there."""
    images = [
        {"id": number, "file_name": f"{number:012d}.jpg", "width": WIDTH, "height": HEIGHT} for number in (4, 3, 2, 1)
    ]
    (tmp_path / "val2017").mkdir()
    for image in images[1:]:
        Image.new("RGB", (WIDTH, HEIGHT)).save(tmp_path / "val2017" / image["file_name"])
    annotations = [
        {"image_id": 2, "category_id": 18, "iscrowd": 0, "segmentation": packed(crowd_mask())},
        {"image_id": 1, "category_id": 24, "iscrowd": 0, "segmentation": rectangle(1, 1, 4, 3)},
        {"image_id": 1, "category_id": 24, "iscrowd": 0, "segmentation": rectangle(3, 2, 6, 5)},
        {"image_id": 1, "category_id": 24, "iscrowd": 1, "segmentation": runs(crowd_mask())},
        {"image_id": 1, "category_id": 13, "iscrowd": 0, "segmentation": rectangle(7, 0, 9, 2)},
        {"image_id": 3, "category_id": 24, "iscrowd": 1, "segmentation": runs(crowd_mask())},
        {"image_id": 4, "category_id": 24, "iscrowd": 0, "segmentation": rectangle(1, 1, 4, 3)},
    ]
    (tmp_path / "annotations").mkdir()
    content = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(content))
    return tmp_path


def pictures(path, **spec):
    data = opened("coco", str(path), **spec)
    return data, {picture.name: picture for picture in (data[index] for index in range(len(data)))}


def test_a_mask_is_the_union_of_the_instances(coco):
    data, found = pictures(coco, classes=("zebra", "stop sign"))
    assert sorted(found) == ["000000000001.jpg#stop sign", "000000000001.jpg#zebra"]
    zebra, sign = found["000000000001.jpg#zebra"], found["000000000001.jpg#stop sign"]
    expected = crowd_mask()
    expected[1:3, 1:4] = expected[2:5, 3:6] = True
    assert np.array_equal(zebra.mask, expected)
    assert np.argwhere(sign.mask).tolist() == [[0, 7], [0, 8], [1, 7], [1, 8]]
    assert (zebra.label, sign.label) == (340, 919)
    assert data.description == "COCO, zebra, stop sign (1 of 4 images are not there): 2 images, labels, masks"
    data.require_labels()
    data.require_masks()


def test_all_classes_and_labels_there_are_none_of(coco):
    data, found = pictures(coco)
    assert sorted(found) == ["000000000001.jpg#stop sign", "000000000001.jpg#zebra", "000000000002.jpg#dog"]
    assert found["000000000002.jpg#dog"].label is None
    assert np.array_equal(found["000000000002.jpg#dog"].mask, crowd_mask())
    assert sorted(data.groups) == ["dog", "stop sign", "zebra"]
    with pytest.raises(DataError, match="no class of ImageNet means the same as dog; take other classes, or use targ"):
        data.require_labels()


def test_the_image_folder_itself_finds_its_own_file(coco):
    other = coco / "annotations" / "instances_train2017.json"
    other.write_text("{}")
    assert len(pictures(coco / "val2017")[0]) == 3
    with pytest.raises(DataError, match=r"there are 2 files with instances: .*; set annotations to one of them"):
        pictures(coco)
    assert len(pictures(coco, annotations="annotations/instances_val2017.json")[0]) == 3


def test_what_is_missing(coco, tmp_path_factory):
    with pytest.raises(
        DataError, match=r"COCO has no class 'zebras' in .*instances_val2017.json; did you mean 'zebra'"
    ):
        pictures(coco, classes=("zebras",))
    empty = tmp_path_factory.mktemp("empty") / "here"
    empty.mkdir()
    with pytest.raises(DataError) as error:
        pictures(empty)
    assert f"COCO's instances are missing; looked at {empty / 'instances*.json'}, " in str(error.value)
    assert str(empty.parent / "annotations" / "instances*.json") in str(error.value)
    assert "annotations/instances_val2017.json from https://cocodataset.org" in str(error.value)
    file = str(coco / "annotations" / "instances_val2017.json")
    with pytest.raises(
        DataError, match=rf"none of the 4 images of {file}, such as 0+1.jpg is there; looked at {empty}"
    ):
        pictures(empty, annotations=file)
    (coco / "val2017" / "000000000002.jpg").unlink()
    with pytest.raises(DataError, match=r"no image in .*val2017 has an instance of dog in"):
        pictures(coco, classes=("dog",))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("[]", "is not in COCO's format: it has no list 'images', 'annotations', 'categories'"),
        ("{", "is not a JSON file"),
        ('{"images": [], "categories": [], "annotations": [{"caption": "a"}]}', "has no segmentations; the instances"),
    ],
)
def test_wrong_files(coco, content, text):
    (coco / "instances.json").write_text(content)
    with pytest.raises(DataError, match=text):
        pictures(coco, annotations="instances.json")


def test_a_segmentation_that_cannot_be_read(coco):
    file = coco / "annotations" / "instances_val2017.json"
    content = json.loads(file.read_text())
    content["annotations"][0]["segmentation"] = {"size": [3, 3], "counts": [9]}
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"a segmentation of 000000000002.jpg"):
        pictures(coco, classes=("dog",))


def test_the_mapping_means_what_it_says():
    """Names that are equal, or one of the few that ImageNet calls otherwise."""
    otherwise = {
        "stop sign": "street sign",
        "skis": "ski",
        "tennis racket": "racket",
        "hot dog": "hotdog",
        "toilet": "toilet seat",
        "remote": "remote control",
        "keyboard": "computer keyboard",
        "cell phone": "cellular telephone",
        "teddy bear": "teddy",
        "hair drier": "hand blower",
    }
    for name, index in TO_IMAGENET.items():
        assert imagenet_classes()[index].split(",")[0] == otherwise.get(name, name)
