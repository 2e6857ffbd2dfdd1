"""Real photographs: a network agrees with the labels, and masks lie on what they should."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from egcam.models import zoo
from egcam.models.preprocessing import Preprocessing
from egcam.studies.datasets import Dataset
from egcam.studies.geometry import prepared, reference_pool
from support.data_sets import opened

DATA = Path(os.environ.get("EGCAM_DATA", Path(__file__).parents[4] / "shared" / "data"))

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no real data in {DATA}: set EGCAM_DATA to their folder"),
]
SHARES = Preprocessing(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def imagenet(**options) -> Dataset:
    return opened("imagenet", str(DATA / "imagenet"), annotations=str(DATA / "imagenet.csv"), **options)


@pytest.fixture(scope="module")
def mobilenet() -> zoo.Classifier:
    pytest.importorskip("torchvision")
    return zoo.load("mobilenet_v2", DATA / "weights" / "mobilenet_v2-b0353104.pth", device="cpu")


def predicted(network: zoo.Classifier, images: list[torch.Tensor]) -> list[int]:
    with torch.no_grad():
        return network.model(torch.stack(images)).argmax(1).tolist()


@pytest.mark.slow
def test_a_network_agrees_with_imagenets_labels(mobilenet):
    """MobileNetV2 is right on 70 % of the validation set; labels of another order would make it 0.1 %."""
    data = imagenet(images=30, part="explain")
    pictures = [data[index] for index in range(30)]
    assert len({picture.label for picture in pictures}) == 30
    found = predicted(mobilenet, [prepared(picture, mobilenet.preprocessing)[0] for picture in pictures])
    right = sum(guess == picture.label for guess, picture in zip(found, pictures, strict=True))
    assert right > 0.6 * 30


@pytest.mark.slow
def test_a_network_agrees_with_the_labels_of_coco_and_pets(mobilenet):
    zebras = opened("coco", str(DATA / "coco"), classes=("zebra",))
    pets = opened("folder", str(DATA / "pets"), images=20, labels=str(DATA / "pets.json"), mask_values=(1,))
    for data, least in ((zebras, 0.8), (pets, 0.6)):
        pictures = [data[index] for index in range(len(data))]
        found = predicted(mobilenet, [prepared(picture, mobilenet.preprocessing)[0] for picture in pictures])
        right = sum(guess == picture.label for guess, picture in zip(found, pictures, strict=True))
        assert right >= least * len(pictures)


def test_boxes_of_the_list_are_the_masks():
    with (DATA / "imagenet.csv").open(newline="") as file:
        rows = {row["file"]: row for row in csv.DictReader(file)}
    data = imagenet(images=20)
    for picture in (data[index] for index in range(20)):
        row = rows[picture.name]
        assert picture.label == int(row["class_index"])
        assert picture.image.size == (int(row["width"]), int(row["height"]))
        boxes = [tuple(map(int, box.split())) for box in row["boxes_xmin_ymin_xmax_ymax"].split(";")]
        down, across = np.nonzero(picture.mask)
        assert (across.min(), down.min()) == (min(box[0] for box in boxes), min(box[1] for box in boxes))
        assert (across.max() + 1, down.max() + 1) == (max(box[2] for box in boxes), max(box[3] for box in boxes))


def test_zebras_are_striped_where_their_mask_is():
    """Stripes are jumps of brightness between neighbours: far more of them on a zebra than around it."""
    data = opened("coco", str(DATA / "coco"), classes=("zebra",))
    ratios = []
    for picture in (data[index] for index in range(len(data))):
        image, mask = prepared(picture, SHARES)
        assert mask.any()
        jumps = image.mean(0).diff(dim=1).abs()
        ratios.append(float(jumps[mask[:, 1:]].mean() / jumps[~mask[:, 1:]].mean()))
    assert np.median(ratios) > 1.3


def test_coco_masks_have_the_area_coco_says():
    import json

    content = json.loads((DATA / "coco" / "instances.json").read_text())
    names = {category["id"]: category["name"] for category in content["categories"]}
    files = {image["id"]: image["file_name"] for image in content["images"]}
    single: dict[str, list[float]] = {}
    for one in content["annotations"]:
        single.setdefault(f"{files[one['image_id']]}#{names[one['category_id']]}", []).append(one["area"])
    data = opened("coco", str(DATA / "coco"), classes=("zebra", "stop sign", "dog", "elephant"))
    for picture in (data[index] for index in range(len(data))):
        area = sum(single[picture.name])
        # Instances overlap a little, and polygons are rounded to pixels along their edge.
        assert 0.93 * area - 40 < picture.mask.sum() < 1.03 * area + 40


def test_masks_of_pets_are_the_share_the_list_says():
    import json

    shares = {row["image"]: row["fg_fraction"] for row in json.loads((DATA / "pets.json").read_text())}
    spec = {"labels": str(DATA / "pets.json"), "images": 10}
    inner = opened("folder", str(DATA / "pets"), mask_values=(1,), **spec)
    for picture in (inner[index] for index in range(10)):
        # The list's share was counted before the trimap was scaled down.
        assert picture.mask.mean() == pytest.approx(shares[picture.name], abs=3e-3)
    outer = opened("folder", str(DATA / "pets"), mask_values=(1, 3), **spec)
    assert outer.names == inner.names
    assert (outer[0].mask & inner[0].mask).sum() == inner[0].mask.sum() < outer[0].mask.sum()


def test_cifar_enlarged():
    data = opened("cifar10", str(DATA / "cifar10_test_2000.npz"), images=20)
    assert sorted(set(map(data.groups.count, set(data.groups)))) == [2]
    image, _ = prepared(data[0], SHARES, 96)
    assert image.shape == (3, 96, 96)
    small = np.asarray(data[0].image, dtype=np.float32).transpose(2, 0, 1) / 255
    # Averaged back over 3 x 3 pixels it is the picture again: nothing was cut off or shifted.
    assert np.abs(image.numpy().reshape(3, 32, 3, 32, 3).mean((2, 4)) - small).mean() < 0.02


def test_references_of_imagenet_are_not_the_explained_images():
    data = imagenet(images=20, part="explain")
    pool = reference_pool(data, SHARES, 64, 16)
    assert pool.shape == (16, 3, 64, 64)
    for picture in (data[index] for index in range(20)):
        image, _ = prepared(picture, SHARES, 64)
        assert not any(torch.equal(image, one) for one in pool)
