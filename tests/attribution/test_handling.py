"""What people do with explanations: take one, make tables, masks, boxes, differences, means, pictures."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import egcam
from egcam import Explanation
from egcam.attribution.regions import boxes_around
from egcam.drawing.palette import signed_colors
from egcam.errors import InputError, InputWarning
from egcam.models.preprocessing import FlippedPreprocessing, Preprocessing
from egcam.models.session import weights_of
from support.small_models import pictures, small_net

pytestmark = pytest.mark.usefixtures("one_thread")
PER_IMAGE = ("maps", "targets", "scores", "predictions", "error", "images", "outputs", "heatmaps")
SIDES = ("total", "expected", "attributions")


@pytest.fixture(scope="module")
def expected() -> Explanation:
    images = pictures(3)
    return egcam.SlopeCAM(small_net(), "conv2", reference=pictures(4, seed=9), samples=4, signed=True)(
        images, [0, 2, 1]
    )


def made(maps: Tensor, targets: list[int] | None = None, size: tuple[int, int] = (2, 2)) -> Explanation:
    count = len(maps)
    numbers = torch.tensor(targets or list(range(count)))
    return Explanation(maps, size, numbers, torch.arange(count) + 0.5, numbers + 1, "layer4", "grad-cam", passes=count)


# -- by index --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("index", "row"), [(0, 0), (2, 2), (-1, 2), (np.int64(1), 1)])
def test_an_index_takes_everything_of_one_image(expected: Explanation, index: int, row: int) -> None:
    one = expected[index]
    assert one.is_single
    assert one.label() == expected.label(row)
    assert one.start == row
    for name in PER_IMAGE:
        assert torch.equal(getattr(one, name), getattr(expected, name)[row]), name
    assert one.completeness is not None
    assert expected.completeness is not None
    for name in SIDES:
        assert torch.equal(getattr(one.completeness, name), getattr(expected.completeness, name)[row]), name
    assert one.worth() == expected.worth(row)


def test_a_slice_is_a_batch_and_so_is_that_of_one(expected: Explanation) -> None:
    some, one = expected[1:], expected[1][:]
    assert some.start == one.start == 1
    assert (len(some), len(one), one.is_single) == (2, 1, False)
    for name in PER_IMAGE:
        assert torch.equal(getattr(some, name), getattr(expected, name)[1:]), name
        assert torch.equal(getattr(one, name), getattr(expected, name)[1:2]), name
    assert some.passes == round(expected.passes * 2 / 3)


def test_iteration_gives_each_image_once(expected: Explanation) -> None:
    assert [int(one.targets) for one in expected] == [0, 2, 1]
    assert [int(one.targets) for one in expected[1]] == [2]


def test_words_go_with_their_images() -> None:
    found = egcam.explain(small_net(), pictures(2), "hires-cam", target=[lambda y: y[0], lambda y: y[1]], signed=True)
    assert [one.label() for one in found] == [found.label(0), found.label(1)]


def test_what_is_not_there_is_refused(expected: Explanation) -> None:
    for index in (3, -4):
        with pytest.raises(IndexError, match="3 are explained"):
            expected[index]
    with pytest.raises(InputError, match="holds no image"):
        expected[5:]
    with pytest.raises(InputError, match="step of 1"):
        expected[::2]


# -- tables ----------------------------------------------------------------------------------------


def test_a_table_has_the_numbers_of_each_image(expected: Explanation) -> None:
    pytest.importorskip("pandas")
    table = expected.to_frame()
    assert table["target"].tolist() == [0, 2, 1]
    assert table["prediction"].tolist() == expected.outputs.argmax(1).tolist()
    np.testing.assert_allclose(table["score"], expected.scores.double())
    np.testing.assert_allclose(table["total"], expected.completeness.total.double())
    np.testing.assert_allclose(table["expected"], expected.completeness.expected.double())
    assert (table["passes"] == expected.passes / 3).all()
    for row, heat in zip(table.itertuples(), expected.heatmaps, strict=True):
        assert float(heat[row.y, row.x]) == float(heat.max())
    assert expected[2].to_frame()["image"].tolist() == [2]
    assert expected[1:].to_frame()["image"].tolist() == [1, 2]


def test_a_map_of_zeros_has_no_hottest_point() -> None:
    pd = pytest.importorskip("pandas")
    maps = torch.zeros(2, 2, 3)
    maps[1, 0, 2] = 5.0
    table = made(maps, size=(2, 3)).to_frame()
    assert table["x"].isna().tolist() == [True, False]
    assert (table["x"][1], table["y"][1]) == (2, 0)
    assert table["x"].dtype == pd.Int64Dtype()
    assert table["total"].isna().all()


# -- masks and boxes -------------------------------------------------------------------------------


def test_masks_are_shares_of_the_maximum_of_each_map() -> None:
    maps = torch.tensor([[[1.0, 2.0], [3.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], [[-8.0, 1.0], [2.0, 0.9]]])
    found = made(maps).mask(0.5)
    assert found.tolist() == [
        [[False, True], [True, True]],
        [[False, False], [False, False]],
        [[False, True], [True, False]],
    ]
    assert torch.equal(made(maps)[0].mask(0.75), maps[0] >= 3)
    for threshold in (0.0, 1.1, float("nan")):
        with pytest.raises(InputError, match="share"):
            made(maps).mask(threshold)


@pytest.mark.parametrize("seed", range(6))
def test_boxes_are_those_of_scipy(seed: int) -> None:
    ndimage = pytest.importorskip("scipy.ndimage")
    mask = np.random.default_rng(seed).random((17, 23)) < 0.3 + 0.1 * seed
    labels, _ = ndimage.label(mask)
    sizes = np.bincount(labels.ravel())[1:]
    wanted = [(columns.start, rows.start, columns.stop, rows.stop) for rows, columns in ndimage.find_objects(labels)]
    found = boxes_around(mask)
    assert sorted(found) == sorted(wanted)
    of_box = {}
    for box, size in zip(wanted, sizes, strict=True):
        of_box.setdefault(box, []).append(int(size))
    largest = max(range(len(wanted)), key=lambda number: sizes[number])
    assert max(of_box[found[0]]) == sizes[largest]
    assert min(of_box[found[-1]]) == sizes.min()


def test_boxes_hold_their_regions_and_can_be_shared_out(expected: Explanation) -> None:
    assert boxes_around(np.zeros((3, 4), bool)) == []
    maps = torch.zeros(1, 4, 6)
    maps[0, 0, 0], maps[0, 1:4, 2:4] = 0.9, 1.0
    assert made(maps, size=(4, 6)).boxes() == [[(2, 1, 4, 4), (0, 0, 1, 1)]]
    assert made(maps, size=(4, 6))[0].boxes(0.95) == [[(2, 1, 4, 4)]]
    for one, boxes in zip(expected, expected.boxes(0.8), strict=True):
        covered = torch.zeros(expected.size, dtype=torch.bool)
        for left, top, right, bottom in boxes:
            covered[top:bottom, left:right] = True
        assert bool(covered[one.mask(0.8)].all())
        left, top, right, bottom = boxes[0]
        inside = torch.zeros(expected.size, dtype=torch.bool)
        inside[top:bottom, left:right] = True
        torch.testing.assert_close(one.share(boxes[0]), one.share(inside))


# -- means and differences -------------------------------------------------------------------------


def test_the_mean_of_a_class_is_that_of_its_heat_maps() -> None:
    heat = made(torch.rand(4, 2, 2), [3, 1, 3, 3])
    means = heat.class_means()
    assert list(means) == [1, 3]
    torch.testing.assert_close(means[3], (heat.heatmaps[0] + heat.heatmaps[2] + heat.heatmaps[3]) / 3)
    assert torch.equal(means[1], heat.heatmaps[1])
    with pytest.raises(InputError, match="no explanations of classes"):
        heat.difference(heat).class_means()


def explained(target: int, net: nn.Module | None = None, **more: object) -> Explanation:
    options = {"reference": pictures(4, seed=9), "samples": 4, "signed": True, **more}
    return egcam.SlopeCAM(net or small_net(), "conv2", **options)(pictures(2), target)


def test_a_difference_is_one_minus_the_other() -> None:
    this, that = explained(0), explained(1)
    found = this.difference(that)
    raw = this.maps - that.maps
    assert torch.equal(found.maps, raw)
    assert torch.equal(found.scores, this.scores - that.scores)
    large = nn.functional.interpolate(raw[:, None], (12, 12), mode="bilinear")[:, 0]
    torch.testing.assert_close(found.heatmaps, large / large.abs().amax((1, 2), keepdim=True))
    assert found.label() == "class 0 rather than class 1"
    box = (2.0, 0.0, 9.0, 7.0)
    torch.testing.assert_close(found.share(box), this.share(box) - that.share(box))
    assert torch.equal(found.error, this.error + that.error)


def test_a_difference_is_drawn_in_signed_colours_also_where_it_is_positive(tmp_path: Path) -> None:
    one, nothing = made(torch.ones(1, 2, 2)), made(torch.zeros(1, 2, 2))
    red = tuple(round(255 * value) for value in signed_colors()(1.0)[:3])
    found = one.difference(nothing)
    grey = Image.new("RGB", (2, 2))
    assert found.overlay(grey, alpha=1.0)[0].getpixel((0, 0)) == red
    assert one.overlay(grey, alpha=1.0)[0].getpixel((0, 0)) != red
    again = Explanation.load(found.save(tmp_path))
    assert again.overlay(grey, alpha=1.0)[0].getpixel((0, 0)) == red
    assert Image.open(tmp_path / "heatmap_0.png").getpixel((0, 0)) == red


def test_what_does_not_compare_is_not_subtracted() -> None:
    this = explained(0)
    others = {
        "signed": explained(0, signed=False),
        "score": explained(0, score="probability"),
        "method": egcam.HiResCAM(small_net(), "conv2", signed=True)(pictures(2), 0),
        "different images": egcam.SlopeCAM(small_net(), "conv2", reference=pictures(4, seed=9), samples=4, signed=True)(
            pictures(2, seed=5), 0
        ),
    }
    for said, other in others.items():
        with pytest.raises(InputError, match=said):
            this.difference(other)


# -- colours ---------------------------------------------------------------------------------------

MEAN, STD = (torch.tensor(one).reshape(3, 1, 1) for one in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))


def bare(explanation: Explanation, *args: Tensor, **more: object) -> np.ndarray:
    return np.stack([np.asarray(one) for one in explanation.overlay(*args, alpha=0.0, **more)]) / 255


def of_images(images: Tensor, **more: object) -> Explanation:
    empty = made(torch.zeros(len(images), 2, 2), size=(8, 8))
    return replace(empty, images=images, **more)


def test_normalised_images_are_shown_in_their_own_colours() -> None:
    plain = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    wanted = plain.permute(0, 2, 3, 1).numpy()
    odd = (plain - 0.1) / 0.01
    ways = {
        "as they are": bare(of_images(plain)),
        "ImageNet's": bare(of_images((plain - MEAN) / STD)),
        "a half": bare(of_images(2 * plain - 1)),
        "told": bare(of_images(odd), mean=0.1, std=0.01),
        "told by channel": bare(of_images(odd), mean=[0.1] * 3, std=(0.01,) * 3),
        "passed": bare(of_images(plain), (plain - MEAN) / STD),
        "by the classifier": bare(of_images(odd, preprocessing=Preprocessing(mean=(0.1,), std=(0.01,)))),
        "blue first": bare(of_images(odd.flip(1), preprocessing=FlippedPreprocessing(mean=(0.1,), std=(0.01,)))),
    }
    for way, shown in ways.items():
        assert np.abs(shown - wanted).max() <= 0.5 / 255 + 1e-4, way
    low, high = odd.amin((1, 2, 3), keepdim=True), odd.amax((1, 2, 3), keepdim=True)
    stretched = ((odd - low) / (high - low)).permute(0, 2, 3, 1).numpy()
    assert np.abs(bare(of_images(odd)) - stretched).max() <= 0.5 / 255 + 1e-4


def test_a_classifier_says_how_its_images_were_normalised() -> None:
    preprocessing = Preprocessing((12, 12), 12, mean=(0.1, 0.2, 0.3), std=(2.0, 3.0, 4.0))
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8))
    found = egcam.zoo.Classifier(small_net(), preprocessing=preprocessing).explain(photo, "hires-cam", signed=True)
    found = replace(found, maps=torch.zeros_like(found.maps))  # a hot place would be grey
    assert np.abs(bare(found)[0] * 255 - np.asarray(photo)).max() <= 1


def test_bad_colours_are_refused() -> None:
    found = of_images(torch.rand(1, 3, 8, 8))
    with pytest.raises(InputError, match="go together"):
        found.overlay(mean=0.5)
    with pytest.raises(InputError, match="2 numbers"):
        found.overlay(mean=[0.5, 0.5], std=1.0)
    with pytest.raises(InputError, match="own colours already"):
        found.overlay(Image.new("RGB", (8, 8)), mean=0.5, std=0.5)


def test_another_colour_map() -> None:
    from matplotlib import colormaps

    found = made(torch.ones(1, 2, 2)).overlay(Image.new("RGB", (2, 2)), alpha=1.0, colormap="magma")[0]
    assert found.getpixel((0, 0)) == tuple(round(255 * value) for value in colormaps["magma"](1.0)[:3])


# -- checksums -------------------------------------------------------------------------------------


def test_files_say_which_weights_and_images_they_are_of(tmp_path: Path) -> None:
    net, images = small_net(), pictures(2)
    cam = egcam.HiResCAM(net, "conv2", signed=True)
    found = cam(images, 0)
    facts = json.loads((found.save(tmp_path / "a", pictures=False) / "explanation.json").read_text())
    assert facts["weights_checksum"] == weights_of(small_net()).checksum == found.weights_checksum
    assert len(set(facts["image_checksums"])) == 2
    loaded = Explanation.load(tmp_path / "a")
    assert list(loaded.image_checksums or ()) == facts["image_checksums"]
    again = json.loads((loaded[1].save(tmp_path / "b", pictures=False) / "explanation_1.json").read_text())
    assert again["image_checksums"] == facts["image_checksums"][1:]
    other = images.clone()
    other[1, 0, 3, 4] += 1e-3
    changed = json.loads((cam(other, 0).save(tmp_path / "c", pictures=False) / "explanation.json").read_text())
    assert changed["image_checksums"][0] == facts["image_checksums"][0]
    assert changed["image_checksums"][1] != facts["image_checksums"][1]
    with torch.no_grad():
        net.conv1.bias[0] += 1e-3
    assert cam(images, 0).weights_checksum != found.weights_checksum
    with pytest.raises(InputError, match="different images"):
        found.difference(Explanation.load(tmp_path / "c"))


def test_files_without_checksums_still_load(tmp_path: Path) -> None:
    made(torch.ones(1, 2, 2)).save(tmp_path)
    facts = json.loads((tmp_path / "explanation.json").read_text())
    del facts["weights_checksum"], facts["image_checksums"]
    (tmp_path / "explanation.json").write_text(json.dumps(facts))
    assert Explanation.load(tmp_path).weights_checksum is None


# -- images that were not prepared -----------------------------------------------------------------


def test_images_as_in_a_file_are_warned_of() -> None:
    cam = egcam.HiResCAM(small_net(), "conv2", signed=True)
    plain = torch.rand(1, 3, 12, 12)
    with pytest.warns(InputWarning, match="images / 255"):
        cam(255 * plain, 0)
    with pytest.warns(InputWarning, match=r"permute\(0, 3, 1, 2\)"), pytest.raises(Exception):  # noqa: B017
        cam(plain.permute(0, 2, 3, 1), 0)
    with pytest.warns(InputWarning, match=r"permute\(2, 0, 1\)"), pytest.raises(Exception):  # noqa: B017
        cam(plain[0].permute(1, 2, 0), 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        for prepared in (plain, plain - 0.5, 5 * plain, 255 * plain - 100, plain[0]):
            cam(prepared, 0)
