"""A heat map has one look: the same colours and the same opacity wherever it is drawn."""

from __future__ import annotations

import inspect
from base64 import b64decode
from io import BytesIO
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib import colormaps
from PIL import Image

from egcam import Explanation, figures
from egcam.drawing.overlays import heatmap_image, overlay_image
from egcam.drawing.palette import HEAT_COLORS, OPACITY, checked_sharpness, heat_layer, sharpened, signed_colors
from egcam.pages import part
from egcam.photos.comparison import Result
from egcam.studies.report.view import _overlay as overlay_of_report
from egcam.web import fragments

# Grey: nothing to take the colours from, so a pixel is (1 - alpha) grey + alpha colour in every drawing.
GREY = 128
PHOTOGRAPH = Image.new("RGB", (12, 12), (GREY,) * 3)
PLAIN = np.linspace(0, 1, 144, dtype=np.float32).reshape(12, 12)
SIGNED = np.linspace(-1, 1, 144, dtype=np.float32).reshape(12, 12)
MAPS = pytest.mark.parametrize("values", [PLAIN, SIGNED], ids=["plain", "signed"])


def explanation(values: np.ndarray) -> Explanation:
    none = torch.zeros(1)
    options = {"signed": bool((values < 0).any())}
    maps = torch.from_numpy(values)[None]
    return Explanation(maps, (12, 12), none, none, none, "layer", "grad-cam", options=options)


def truth(values: np.ndarray, opacity: float, sharpness: float = 1.0) -> np.ndarray:
    """(H, W, 3) in [0, 255], pixel by pixel."""
    signed = bool((values < 0).any())
    colors = signed_colors() if signed else colormaps["viridis"]
    found = np.empty((*values.shape, 3))
    for place in np.ndindex(values.shape):
        value = np.sign(values[place]) * abs(values[place]) ** sharpness
        color = 255 * np.array(colors((value + 1) / 2 if signed else value)[:3])
        found[place] = (1 - opacity * abs(value)) * GREY + opacity * abs(value) * color
    return found


def composed(axes: Any) -> np.ndarray:
    below, layer = (np.asarray(image.get_array(), dtype=np.float64) for image in axes.get_images())
    return 255 * ((1 - layer[..., 3:]) * below[..., :3] + layer[..., 3:] * layer[..., :3])


@MAPS
@pytest.mark.parametrize("sharpness", [1.0, 2.0])
def test_overlay_figure_and_report_show_one_picture(values: np.ndarray, sharpness: float) -> None:
    wanted = truth(values, OPACITY, sharpness)
    one = explanation(values)
    figure = figures.method_grid({"grad-cam": one}, [PHOTOGRAPH])
    [in_figure] = [composed(axes) for axes in figure.axes if len(axes.get_images()) == 2]
    pictures = {
        "explanation": one.overlay(PHOTOGRAPH, sharpness=sharpness)[0],
        "plots": overlay_image(PHOTOGRAPH, values, sharpness=sharpness),
        "report": overlay_of_report(PHOTOGRAPH, values, sharpness),
    }
    # A sharpened picture is the eye's alone: papers show maps as they are.
    pictures |= {"figure": in_figure} if sharpness == 1 else {}
    for name, picture in pictures.items():
        assert np.abs(np.asarray(picture, dtype=np.float64) - wanted).max() < 2, name


@MAPS
def test_a_photograph_loses_its_colours_alike_in_overlays_and_figures(values: np.ndarray) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    photograph = Image.fromarray(pixels)
    one = explanation(values)
    figure = figures.method_grid({"grad-cam": one}, [photograph])
    [in_figure] = [composed(axes) for axes in figure.axes if len(axes.get_images()) == 2]
    in_overlay = np.asarray(one.overlay(photograph)[0], dtype=np.float64)
    assert np.abs(in_figure - in_overlay).max() < 2
    colors = signed_colors() if (values < 0).any() else colormaps[HEAT_COLORS]
    for place in [(0, 0), (3, 7), (6, 6), (11, 11)]:
        value, pixel = values[place], pixels[place].astype(float)
        faded = (1 - abs(value)) * pixel + abs(value) * (pixel @ [0.299, 0.587, 0.114])
        color = 255 * np.array(colors((value + 1) / 2 if (values < 0).any() else value)[:3])
        wanted = (1 - OPACITY * abs(value)) * faded + OPACITY * abs(value) * color
        assert in_overlay[place] == pytest.approx(wanted, abs=2)


def test_scattered_dots_are_softened_alike() -> None:
    dots = np.zeros((60, 60), np.float32)
    dots[np.random.default_rng(1).integers(0, 60, 40), np.random.default_rng(2).integers(0, 60, 40)] = 1
    none = torch.zeros(1)
    one = Explanation(torch.from_numpy(dots)[None], (60, 60), none, none, none, "", "input-gradient")
    grey = Image.new("RGB", (60, 60), (GREY,) * 3)
    [in_figure] = [
        composed(axes)
        for axes in figures.method_grid({"input-gradient": one}, [grey]).axes
        if len(axes.get_images()) == 2
    ]
    assert np.abs(in_figure - np.asarray(one.overlay(grey)[0], dtype=np.float64)).max() < 2


@MAPS
def test_the_web_page_has_the_same_colours(values: np.ndarray) -> None:
    one = explanation(values)
    plain = fragments._coarse(one)
    assert np.array_equal(np.asarray(plain), np.asarray(heatmap_image(values)))
    colors = signed_colors() if (values < 0).any() else colormaps[HEAT_COLORS]
    position = (values + 1) / 2 if (values < 0).any() else values
    assert np.abs(np.asarray(plain, dtype=np.float64) - 255 * colors(position)[..., :3]).max() <= 1
    shown = Result("grad-cam", one, PHOTOGRAPH, 0.1)
    page = part("parts.html", "card", image=shown.overlay(), alt="described", title="title", detail="detail")
    encoded = page.split("base64,")[1].split('"')[0]
    with Image.open(BytesIO(b64decode(encoded))) as decoded:
        # JPEG is not exact.
        assert np.abs(np.asarray(decoded, dtype=np.float64) - truth(values, OPACITY)).mean() < 12


def test_every_default_opacity_is_the_palette_s() -> None:
    drawing = [figures.method_grid, figures.mask_comparison, figures.class_contrast]
    found = {one.__name__: inspect.signature(one).parameters["opacity"].default for one in drawing}
    found |= {
        one.__name__: inspect.signature(one).parameters["alpha"].default for one in (overlay_image, Explanation.overlay)
    }
    assert set(found.values()) == {OPACITY}, found


def test_a_layer_by_hand() -> None:
    layer = heat_layer(np.array([[0.0, 0.5, 1.0]]), opacity=0.6, sharpness=2)
    assert layer[0, :, 3] == pytest.approx([0.0, 0.15, 0.6])
    assert layer[0, 1, :3] == pytest.approx(colormaps["viridis"](0.25)[:3])
    assert sharpened(np.array([-0.5, 0.0, 0.5]), 3).tolist() == [-0.125, 0.0, 0.125]
    same = np.array([0.3])
    assert sharpened(same) is same
    assert checked_sharpness(1) == 1.0
