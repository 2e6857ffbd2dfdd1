"""What a method returns: heat maps as defined, pictures, and files that give the same explanation back."""

from __future__ import annotations

import json
from dataclasses import FrozenInstanceError
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from matplotlib import colormaps, pyplot
from PIL import Image
from torch import Tensor

import egcam
from egcam import Explanation
from egcam.drawing.palette import signed_colors
from support.small_models import AT_LAYER, METHODS, explainer, pictures, small_net

pytestmark = pytest.mark.usefixtures("one_thread")
TENSORS = ("maps", "error", "targets", "scores", "predictions")
FACTS = ("size", "layer", "method", "reference", "passes", "options", "classes")


def made(maps: Tensor, size: tuple[int, int] = (6, 8), **more: Any) -> Explanation:
    count = len(maps) if maps.ndim == 3 else 1
    shape = (count,) if maps.ndim == 3 else ()
    facts = {
        "targets": torch.arange(count).reshape(shape),
        "scores": torch.ones(shape),
        "predictions": torch.zeros(shape, dtype=torch.long),
        "layer": "layer4",
        "method": "grad-cam",
    }
    return Explanation(maps=maps, size=size, **{**facts, **more})


def bilinear(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Upsampling with corners not aligned, position by position: the centre of an output pixel, edges repeated."""
    height, width = values.shape
    large = np.zeros(size)
    for i in range(size[0]):
        for j in range(size[1]):
            y = min(max((i + 0.5) * height / size[0] - 0.5, 0), height - 1)
            x = min(max((j + 0.5) * width / size[1] - 0.5, 0), width - 1)
            top, left = int(y), int(x)
            low, right = min(top + 1, height - 1), min(left + 1, width - 1)
            above = (1 - (x - left)) * values[top, left] + (x - left) * values[top, right]
            below = (1 - (x - left)) * values[low, left] + (x - left) * values[low, right]
            large[i, j] = (1 - (y - top)) * above + (y - top) * below
    return large


# -- heat maps -------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(6, 8), (7, 5), (3, 4), (2, 9)])
def test_heatmaps_are_upsampled_then_divided_by_their_maximum(size):
    maps = torch.rand(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 5
    found = made(maps, size).heatmaps
    for heat, values in zip(found, maps, strict=True):
        large = bilinear(values.numpy(), size)
        np.testing.assert_allclose(heat.numpy(), large / large.max(), atol=1e-12)
    assert found.amax((1, 2)).tolist() == [1.0, 1.0]


def test_each_map_is_divided_by_its_own_maximum_and_zero_stays_zero():
    maps = torch.zeros(3, 2, 2)
    maps[0, 0, 0], maps[2, 1, 1] = 4.0, 1e-30
    found = made(maps, (2, 2)).heatmaps
    assert torch.equal(found[0], torch.tensor([[1.0, 0.0], [0.0, 0.0]]))
    assert not found[1].any()
    assert torch.equal(found[2], torch.tensor([[0.0, 0.0], [0.0, 1.0]]))


def test_signed_maps_are_divided_by_their_largest_absolute_value():
    maps = torch.tensor([[[1.0, -4.0]], [[2.0, -1.0]]])
    assert made(maps, (1, 2)).heatmaps.tolist() == [[[0.25, -1.0]], [[1.0, -0.5]]]


def test_maps_are_rectified_unless_signed():
    model, images = small_net(), pictures()
    for method in METHODS:
        if method in (
            "input-gradient",
            "smooth-grad",
            "integrated-grad-cam",
            "guided-backprop",
            "guided-grad-cam",
            "full-grad",
        ):
            continue  # signed, these add up other things
        signed = explainer(method, model, signed=True)(images, 1)
        shown = explainer(method, model)(images, 1)
        assert torch.equal(shown.maps, signed.maps.relu()), method
        assert signed.heatmaps.abs().amax((1, 2)).tolist() == [1.0, 1.0]
        assert shown.heatmaps.min() >= 0


def test_maps_are_at_the_layers_resolution_and_heatmaps_at_the_images():
    explanation = egcam.explain(small_net(), pictures(3)[..., :10], "grad-cam", 1, signed=True)
    assert explanation.maps.shape == (3, 6, 5)
    assert explanation.heatmaps.shape == (3, 12, 10)
    assert explanation.size == (12, 10)
    assert len(explanation) == 3


def test_explanations_are_frozen_and_compute_heatmaps_once():
    explanation = made(torch.ones(1, 2, 2))
    assert explanation.heatmaps is explanation.heatmaps
    for name in ("maps", "method", "heatmaps"):
        with pytest.raises(FrozenInstanceError):
            setattr(explanation, name, None)


# -- words -----------------------------------------------------------------------------------------


def test_what_it_says_of_itself():
    text = repr(made(torch.ones(2, 3, 4), reference="blurred"))
    said = "class 0 1.00; class 1 1.00, 2 maps (3, 4) at layer 'layer4', reference='blurred'"
    assert text == f"Explanation('grad-cam', {said})"
    single = repr(made(torch.ones(3, 4), targets=None))
    assert single == "Explanation('grad-cam', callable target 1.00, 1 map (3, 4) at layer 'layer4')"


def test_labels():
    assert made(torch.ones(2, 2, 2), classes=("cat", "dog")).label(1) == "dog"
    assert made(torch.ones(2, 2, 2)).label(1) == "class 1"
    assert made(torch.ones(2, 2, 2), classes=("cat",)).label(1) == "class 1"
    assert made(torch.ones(2, 2), classes=("cat",)).label() == "cat"
    assert made(torch.ones(2, 2, 2), targets=None).label(1) == "callable target"


@pytest.mark.parametrize("method", METHODS)
def test_what_was_done_is_in_the_result(method):
    explanation = explainer(method, small_net(), layer="relu2")(pictures(), 1)
    assert explanation.method == method
    sampled = method.startswith(("slope", "expected", "smooth", "rise"))
    compared = method.startswith(("slope", "expected", "integrated", "occlusion"))
    assert (explanation.error is not None) == sampled
    assert (explanation.reference is not None) == compared
    assert explanation.layer == ("relu2" if method in AT_LAYER else "input")
    assert json.loads(json.dumps(explanation.options)) == explanation.options


# -- pictures --------------------------------------------------------------------------------------


def test_overlays_of_the_explained_images_by_default():
    explanation = egcam.explain(small_net(), pictures(), "grad-cam", 1, signed=True)
    overlays = explanation.overlay()
    assert [overlay.size for overlay in overlays] == [(12, 12)] * 2
    assert [np.asarray(one).tolist() for one in overlays] == [
        np.asarray(one).tolist() for one in explanation.overlay(pictures())
    ]


@pytest.mark.parametrize("shape", [(3, 12, 12), (1, 3, 12, 12), (1, 1, 24, 24)])
def test_overlays_on_tensors(shape):
    explanation = made(torch.rand(1, 3, 3), (12, 12))
    (overlay,) = explanation.overlay(torch.rand(shape))
    assert overlay.mode == "RGB"
    assert overlay.size == (shape[-1], shape[-2])


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA"])
def test_overlays_on_pictures_of_another_size(mode):
    picture = Image.new(mode, (40, 40))
    explanation = made(torch.rand(2, 3, 3), (12, 12))
    for images in ([picture, picture], (picture, picture)):
        overlays = explanation.overlay(images)
        assert [(overlay.mode, overlay.size) for overlay in overlays] == [("RGB", (40, 40))] * 2
    (alone,) = made(torch.rand(3, 3), (12, 12)).overlay(picture)
    assert alone.size == (40, 40)


def test_an_overlay_shows_the_map():
    maps = torch.zeros(1, 2, 2)
    maps[0, 0, 0] = 1.0
    grey = Image.new("RGB", (20, 20), (128, 128, 128))
    pixels = np.asarray(made(maps, (20, 20)).overlay(grey)[0]).astype(int)
    changed = np.abs(pixels - 128).sum(-1)
    assert changed[:5, :5].min() > 60
    assert changed[:5, :5].min() > changed[-5:, -5:].max() + 30


def test_alpha_says_how_strongly_the_picture_is_covered():
    explanation, grey = made(torch.ones(1, 2, 2), (8, 8)), Image.new("RGB", (8, 8), (128, 128, 128))
    faint, strong = (np.asarray(explanation.overlay(grey, alpha=a)[0]).astype(int) for a in (0.1, 0.9))
    assert np.abs(strong - 128).sum() > 2 * np.abs(faint - 128).sum() > 0


@pytest.mark.parametrize("images", [Image.new("RGB", (4, 4)), [Image.new("RGB", (4, 4))] * 3, torch.rand(3, 3, 4, 4)])
def test_overlays_of_another_number_of_images(images):
    with pytest.raises(egcam.EgcamError, match=r"(1|3) images for 2 maps: pass one image for each map"):
        made(torch.ones(2, 2, 2)).overlay(images)


def test_overlays_without_images():
    with pytest.raises(egcam.EgcamError, match=r"explanation\.overlay\(images\)"):
        made(torch.ones(2, 2, 2)).overlay()


def test_overlays_of_images_that_require_gradients_and_of_half_precision():
    images = pictures().requires_grad_()
    assert len(egcam.explain(small_net(), images, "grad-cam", 1, signed=True).overlay()) == 2
    half = pictures(dtype=torch.bfloat16)
    assert len(egcam.explain(small_net().bfloat16(), half, "grad-cam", 1, signed=True).overlay()) == 2


@pytest.mark.parametrize("count", [None, 1, 5])
def test_a_notebook_gets_a_png(count):
    images = pictures(1)[0] if count is None else pictures(count)
    explanation = egcam.explain(small_net(), images, "grad-cam", 1, signed=True)
    figures = pyplot.get_fignums()
    data = explanation._repr_png_()
    assert pyplot.get_fignums() == figures
    with Image.open(BytesIO(data)) as picture:
        assert picture.format == "PNG"
        assert len(np.unique(np.asarray(picture.convert("RGB")).reshape(-1, 3), axis=0)) > 20


def test_show_draws_every_overlay_with_its_label(monkeypatch):
    pyplot.switch_backend("Agg")
    shown = []
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(pyplot.gcf()))
    explanation = egcam.explain(small_net(), pictures(3), "grad-cam", [1, 2, 0], classes=list("abcde"), signed=True)
    explanation.show()
    (figure,) = shown
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    pyplot.close(figure)
    assert titles == [f"{name} {score:.2f}" for name, score in zip("bca", explanation.scores.tolist(), strict=True)]
    assert figure.get_suptitle() == "grad-cam at relu2"


# -- files -----------------------------------------------------------------------------------------


def same(one: Explanation, other: Explanation) -> None:
    for name in TENSORS:
        left, right = getattr(one, name), getattr(other, name)
        assert (left is None) == (right is None), name
        if left is not None:
            assert left.dtype == right.dtype, name
            assert torch.equal(left, right), name
    for name in FACTS:
        assert getattr(one, name) == getattr(other, name), name
    assert torch.equal(one.heatmaps, other.heatmaps)


def test_sharpness_is_of_the_picture_alone():
    explanation = made(torch.tensor([[[0.25, 1.0], [0.5, 0.0]]]), (2, 2))
    before = explanation.heatmaps.clone()
    grey = Image.new("RGB", (2, 2), (128, 128, 128))
    shown = np.asarray(explanation.overlay(grey, alpha=0.6, sharpness=2)[0], float)
    plain = np.asarray(explanation.overlay(grey, alpha=0.6)[0], float)
    for row, column in np.ndindex(2, 2):
        value = float(before[0, row, column])
        for picture, strength in ((plain, value), (shown, value**2)):
            color = 255 * np.array(colormaps["viridis"](strength)[:3])
            wanted = (1 - 0.6 * strength) * 128 + 0.6 * strength * color
            assert np.abs(picture[row, column] - wanted).max() <= 1
    assert torch.equal(explanation.heatmaps, before)
    assert "sharpness" not in explanation.options


def test_sharpness_keeps_the_sign():
    explanation = made(torch.tensor([[[-0.5, 1.0]]]), (1, 2))
    black = Image.new("RGB", (2, 1))
    blue = np.asarray(explanation.overlay(black, alpha=1.0, sharpness=3)[0], float)[0, 0]
    color = 255 * np.array(signed_colors()((1 - 0.5**3) / 2)[:3])
    assert np.abs(blue - 0.5**3 * color).max() <= 1


@pytest.mark.parametrize("sharpness", [0.5, -1, float("nan"), float("inf"), "2", True])
def test_sharpness_is_checked(sharpness):
    with pytest.raises(egcam.EgcamError, match="sharpness is an exponent of at least 1"):
        made(torch.ones(1, 2, 2)).overlay(torch.rand(1, 3, 6, 8), sharpness=sharpness)


def test_a_method_has_no_sharpness():
    with pytest.raises(egcam.errors.MethodError, match=r"sharpness is an exponent of pictures.*overlay\(sharpness=2\)"):
        egcam.explain(small_net(), pictures(), sharpness=2)


@pytest.mark.parametrize("method", METHODS)
def test_saved_explanations_come_back_the_same(method, tmp_path):
    explanation = explainer(method, small_net(), signed=True, classes=("α", "b", "c", "d", "e"))(pictures(), [1, 2])
    same(Explanation.load(explanation.save(tmp_path / "a" / "b")), explanation)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_saved_tensors_keep_their_precision(dtype, tmp_path):
    maps = torch.rand(2, 3, 3).to(dtype)
    explanation = made(maps, scores=torch.tensor([0.1, 0.2]).to(dtype), error=maps / 7)
    loaded = Explanation.load(explanation.save(tmp_path))
    assert loaded.maps.dtype == dtype
    same(loaded, explanation)


def test_single_images_and_callable_targets_are_saved_too(tmp_path):
    explanation = egcam.explain(small_net(), pictures(1)[0], "grad-cam", lambda output: output[:, 1], signed=True)
    loaded = Explanation.load(str(explanation.save(str(tmp_path))))
    same(loaded, explanation)
    assert loaded.is_single
    assert loaded.targets is None
    assert loaded.images is None


def test_options_of_every_kind_are_saved(tmp_path):
    gradient = egcam.Expected(
        lambda images: images * 0,
        4,
        kernel=egcam.Kernel("uniform", normaliser=True),
        path=lambda references, images, share: images,
        difference="latent",
    )
    explanation = egcam.GradientCAM(small_net(), gradient=gradient, weighting="summed", signed=True)(pictures(), 1)
    same(Explanation.load(explanation.save(tmp_path)), explanation)


def test_the_files_hold_pictures_and_no_pickle(tmp_path):
    explanation = egcam.explain(small_net(), pictures(), "grad-cam", 1, signed=True)
    explanation.save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [
        "explanation.json",
        "explanation.npz",
        "heatmap_0.png",
        "heatmap_1.png",
        "overlay_0.png",
        "overlay_1.png",
    ]
    for path in tmp_path.glob("*.png"):
        with Image.open(path) as picture:
            picture.load()
            assert (picture.format, picture.size) == ("PNG", (12, 12))
    with ZipFile(tmp_path / "explanation.npz") as archive:
        for name in archive.namelist():
            header = archive.read(name)[:128]
            assert header.startswith(b"\x93NUMPY")
            assert b"'descr': '|O'" not in header
    facts = json.loads((tmp_path / "explanation.json").read_text(encoding="utf-8"))
    assert facts["method"] == "grad-cam"
    assert facts["labels"] == ["class 1", "class 1"]


def test_a_second_save_leaves_no_picture_of_the_first(tmp_path):
    made(torch.ones(3, 2, 2)).save(tmp_path)
    for name in ("notes.txt", "heatmap_of_mine.png"):
        (tmp_path / name).write_text("mine")
    made(torch.ones(1, 2, 2)).save(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir() if path.name[0] in "hno")
    assert names == ["heatmap_0.png", "heatmap_of_mine.png", "notes.txt"]


def test_folders_without_an_explanation(tmp_path):
    with pytest.raises(egcam.EgcamError, match=r"holds no saved explanation.*explanation\.json"):
        Explanation.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["explanation.json", "explanation.npz"])
@pytest.mark.parametrize("content", [b"", b"not one of ours", b"{}"])
def test_broken_files_are_named(name, content, tmp_path):
    folder = made(torch.ones(1, 2, 2)).save(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(egcam.EgcamError, match=f"{tmp_path.name}.*cannot be read"):
        Explanation.load(folder)


def test_a_file_in_the_place_of_the_folder(tmp_path):
    place = Path(tmp_path / "taken")
    place.write_text("")
    with pytest.raises(egcam.EgcamError, match=r"taken is a file"):
        made(torch.ones(1, 2, 2)).save(place)
