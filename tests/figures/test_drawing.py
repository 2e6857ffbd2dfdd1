"""Figures show the numbers they are given: read back from the axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

import egcam
from egcam import figures
from egcam.drawing.palette import heat_layer
from egcam.errors import InputError
from egcam.evaluation.score import Score
from egcam.evaluation.stats import Mean
from egcam.evaluation.table import Table
from egcam.figures import style
from egcam.figures.pictures import as_rgb, draw_color_bar
from egcam.figures.scores import needs_log
from egcam.metrics import Curve

RED = Image.new("RGB", (16, 16), (255, 0, 0))
RAMP = np.linspace(0, 1, 256).reshape(16, 16)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 3))


def explained(method: str = "hires-cam", target: int = 0, count: int = 1, **options: Any) -> egcam.Explanation:
    pixels = torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    return egcam.explain(network(), pixels, method, target=target, signed=True, **options)


def drawn(axes: Axes) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for image in axes.get_images()]


def texts(figure: Figure) -> list[str]:
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


@pytest.mark.parametrize(
    "picture",
    [
        RED,
        np.asarray(RED),
        np.asarray(RED).astype(np.float64) / 255,
        torch.tensor([1.0, 0.0, 0.0])[:, None, None].expand(3, 16, 16),
    ],
)
def test_a_red_picture_is_red_and_the_alpha_of_an_overlay_is_the_heat(picture: Any) -> None:
    figure = figures.mask_comparison(picture, RAMP > 0.5, {"grad-cam": RAMP}, opacity=1.0)
    assert (drawn(figure.axes[0])[0][..., :3] == (1, 0, 0)).all()
    below, layer = drawn(figure.axes[2])
    # Where the map's colours come in, the picture's own go: red is as light as 0.299 of white.
    red, green = 1 - RAMP + 0.299 * RAMP, 0.299 * RAMP
    assert np.allclose(below[..., :3], np.stack([red, green, green], -1), atol=1e-6)
    assert np.allclose(layer[..., 3], RAMP, atol=1e-6)
    from matplotlib import colormaps

    assert np.allclose(layer[..., :3], colormaps["viridis"](RAMP)[..., :3], atol=0.01)


def test_opacity_scales_alpha_and_signed_maps_take_their_strength() -> None:
    signed = np.array([[-1.0, -0.5, 0.0, 0.25]], dtype=np.float32)
    assert np.allclose(heat_layer(signed, signed=True, opacity=0.6)[0, :, 3], [0.6, 0.3, 0.0, 0.15])
    assert np.allclose(heat_layer(np.abs(signed), opacity=0.5)[0, :, 3], [0.5, 0.25, 0.0, 0.125])


def test_the_colour_bar_shows_the_overlay_over_grey() -> None:
    axes = Figure().add_subplot()
    shown = np.asarray(draw_color_bar(axes, opacity=0.8).get_array())[:, 0]
    layer = heat_layer(np.linspace(0, 1, 256, dtype=np.float32)[:, None])[:, 0]
    alpha = layer[:, 3:]
    assert np.allclose(alpha[-1], 0.8)
    assert np.allclose(shown, alpha * layer[:, :3] + (1 - alpha) * 0.5, atol=1e-6)
    assert np.allclose(shown[0], 0.5)


def test_the_colour_bar_says_what_a_place_of_some_importance_looks_like() -> None:
    shown = np.asarray(draw_color_bar(Figure().add_subplot(), opacity=0.6).get_array())[:, 0]
    figure = figures.mask_comparison(RED, RAMP > 0.5, {"grad-cam": RAMP}, opacity=0.6)
    layer = drawn(figure.axes[2])[1]
    assert np.allclose(layer[..., 3], 0.6 * RAMP, atol=1e-6)
    # The ramp has 256 values and so has the bar.
    alpha = layer.reshape(256, 4)[:, 3:]
    assert np.allclose(shown, alpha * layer.reshape(256, 4)[:, :3] + (1 - alpha) * 0.5, atol=1e-6)


def test_pictures_that_are_none_are_refused() -> None:
    for bad in (np.zeros((4, 4, 2)), np.full((4, 4, 3), 2.0), torch.zeros(2, 3, 4, 4)):
        with pytest.raises(InputError):
            as_rgb(bad)
    with pytest.raises(InputError, match=r"pass explanation\.heatmaps"):
        figures.mask_comparison(RED, RAMP > 0.5, {"grad-cam": RAMP * 3})


def test_the_grid_shows_image_raw_map_and_overlay_of_each_method() -> None:
    names = ["grad-cam", "hires-cam", "slope-cam"]
    maps = {name: explained(name, count=2) for name in names}
    photographs = [RED, Image.new("RGB", (16, 16), (0, 0, 255))]
    figure = figures.method_grid(maps, photographs)
    tiles = [axes for axes in figure.axes if axes.get_images()][:-2]
    assert len(tiles) == 2 * (1 + 2 * len(names))
    for number in range(2):
        block = tiles[number * 7 : number * 7 + 7]
        assert (drawn(block[0])[0] == np.asarray(photographs[number]) / 255).all()
        for place, name in enumerate(names):
            raw = maps[name].maps[number].numpy()
            assert np.allclose(drawn(block[1 + 2 * place])[0], raw / np.abs(raw).max(), atol=1e-6)
            below, above = drawn(block[2 + 2 * place])
            heat = maps[name].heatmaps[number].abs().numpy()
            pixels = np.asarray(photographs[number]) / 255
            grey = pixels @ [0.299, 0.587, 0.114]
            faded = (1 - heat[..., None]) * pixels + (heat * grey)[..., None]
            assert np.allclose(below, faded, atol=1e-5)
            assert np.allclose(above[..., 3], 0.8 * heat, atol=1e-5)
    assert {"Grad-CAM", "HiResCAM", "coarse", "overlay"} <= set(texts(figure))
    with pytest.raises(InputError, match="2 images, but grad-cam explains 1"):
        figures.method_grid({"grad-cam": explained()}, photographs)


def test_many_methods_go_on_below_and_none_is_lost() -> None:
    one = explained()
    maps = {f"method {number}": one for number in range(12)}
    for width in ("column", "page"):
        figure = figures.method_grid(maps, width=width)
        assert len(figure.axes) == 1 + 24 + 2
        assert all(f"method {number}" in " ".join(texts(figure)).replace("\n", " ") for number in range(12))


def test_mask_scores_are_those_of_the_metric_and_stand_beneath() -> None:
    heat = torch.tensor(RAMP, dtype=torch.float32)
    mask = heat > 0.5
    expected = float(heat[mask].sum() / heat.sum())
    assert figures.mask_scores(mask, {"grad-cam": heat})["grad-cam"] == pytest.approx(expected)
    figure = figures.mask_comparison(RED, mask, {"grad-cam": heat, "slope-cam": heat**2})
    assert f"RMA {expected:.3f}" in texts(figure)
    assert np.array_equal(drawn(figure.axes[1])[0][..., 0], mask.numpy())
    with pytest.raises(InputError, match="in one size"):
        figures.mask_comparison(RED, np.ones((4, 4)), {"grad-cam": heat})


def test_curves_are_the_mean_with_its_interval_and_the_area() -> None:
    places = torch.tensor([[0.0, 0.5, 1.0]] * 3)
    heights = torch.tensor([[0.0, 0.2, 1.0], [0.1, 0.5, 0.9], [0.2, 0.8, 0.8]])
    curve = Curve(places, heights)
    found = figures.mean_curve(curve)
    assert np.allclose(found.mean, [0.1, 0.5, 0.9])
    drawn_images = np.random.default_rng(0).integers(0, 3, (2000, 3))
    low, high = np.quantile(heights.numpy()[drawn_images].mean(1), [0.025, 0.975], axis=0)
    assert np.allclose(found.low, low, atol=1e-6)
    assert np.allclose(found.high, high, atol=1e-6)
    assert found.low[1] == pytest.approx(0.2)
    assert found.high[1] == pytest.approx(0.8)
    assert found.area == pytest.approx(float(curve.area().mean()))
    better = Curve(places, heights.clamp(max=0.4))
    figure = figures.perturbation_curves({"deletion": {"grad-cam": curve, "slope-cam": better}})
    (axes,) = figure.axes
    first, second = axes.get_lines()
    assert np.allclose(first.get_ydata(), heights.clamp(max=0.4).mean(0), atol=1e-6)
    assert first.get_color() == style.EMPHASIS
    assert np.allclose(second.get_ydata(), [0.1, 0.5, 0.9], atol=1e-6)
    listed = [text.get_text() for text in figure.legends[0].get_texts()]
    assert listed[0].startswith("SlopeCAM (egcam)  ")
    assert listed[1] == f"Grad-CAM  {float(curve.area().mean()):.3f}"
    bands = [collection for collection in axes.collections if len(collection.get_paths())]
    assert len(bands) == 2


def test_curves_with_different_points_meet_on_all_of_them() -> None:
    curve = Curve(torch.tensor([[0.0, 0.5, 1.0], [0.0, 0.25, 1.0]]), torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))
    found = figures.mean_curve(curve)
    assert found.fractions.tolist() == [0, 0.25, 0.5, 1]
    assert found.mean.tolist() == [0, 0.75, 1, 1]


def table(values: dict[str, dict[str, list[float]]]) -> Table:
    """Scores by metric and method."""
    methods = tuple(dict.fromkeys(method for panel in values.values() for method in panel))
    rows = [
        Score(image, method, name, value, 0.0)
        for method in methods
        for name, panel in values.items()
        for image, value in enumerate(panel[method])
    ]
    return Table.of(rows, methods, tuple(values))


def test_bars_are_means_whiskers_are_intervals_and_the_best_has_a_star() -> None:
    scores = table(
        {
            "insertion": {"grad-cam": [0.2, 0.4, 0.3], "slope-cam": [0.5, 0.6, 0.7]},
            "deletion": {"grad-cam": [0.2, 0.1, 0.3], "slope-cam": [0.4, 0.3, 0.2]},
        }
    )
    summary = scores.summary(resamples=200)
    figure = figures.metric_bars(summary)
    for axes, name in zip(figure.axes, ("insertion", "deletion"), strict=True):
        lines = summary[summary.metric == name]
        assert [bar.get_width() for bar in axes.patches] == pytest.approx(list(lines["mean"]))
        spans = [collection.get_segments()[0][:, 0] for collection in axes.collections]
        assert np.allclose(spans, lines[["low", "high"]].to_numpy())
        assert axes.get_xscale() == "linear"
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Insertion ↑", "Deletion ↓"]
    starred = [[text.get_text() for text in axes.texts if "★" in text.get_text()] for axes in figure.axes]
    assert starred == [["0.600 ★"], ["0.200 ★"]]


@pytest.mark.parametrize(
    ("means", "logarithmic"),
    [((1, 100), False), ((1, 100.5), True), ((0, 1000), False), ((-1, 1000), False), ((1, float("nan"), 200), True)],
)
def test_an_axis_is_logarithmic_exactly_over_two_decades(means: tuple[float, ...], logarithmic: bool) -> None:
    lines = [{"metric": "infidelity", "method": f"m{place}", "mean": mean} for place, mean in enumerate(means)]
    (axes,) = figures.metric_bars(lines).axes
    assert (axes.get_xscale() == "log") is logarithmic
    assert needs_log([Mean("infidelity", "m", mean) for mean in means]) is logarithmic
    shown = [mean for mean in means if mean == mean]
    low, high = axes.get_xlim()
    assert low <= min(shown)
    assert high > max(shown)


def test_ranks_are_averaged_over_metrics_and_images_with_ties_shared() -> None:
    scores = table(
        {
            "insertion": {"a": [3, 1], "b": [2, 1], "c": [1, 0]},
            "deletion": {"a": [1, 5], "b": [2, float("nan")], "c": [3, 1]},
        }
    )
    found, images = figures.mean_ranks(scores)
    # First image: 1, 2, 3 by both. Second: 1.5, 1.5, 3 by insertion, and deletion does not count.
    assert images == 2
    assert {one.method: one.mean for one in found} == {"a": 1.25, "b": 1.75, "c": 3.0}
    assert (found[0].low, found[0].high) == (1.0, 1.5)
    figure = figures.rank_plot(scores)
    points = [line.get_xdata()[0] for line in figure.axes[0].get_lines() if line.get_marker() != "None"]
    assert points == [1.25, 1.75, 3.0]
    assert "mean rank over 2 metrics and 2 images (1 is best)" in texts(figure)


def test_the_contrast_is_this_minus_that_on_one_scale() -> None:
    this, that = explained(target=0), explained(target=1)
    found = figures.contrast_of(this, that)
    raw = [one.heatmaps[0].numpy() * np.abs(upsample(one)).max() for one in (this, that)]
    scale = max(np.abs(one).max() for one in raw)
    assert np.allclose(found.this, raw[0] / scale, atol=1e-5)
    assert np.allclose(found.difference, (raw[0] - raw[1]) / scale, atol=1e-5)
    figure = figures.class_contrast(this, that, RED, labels=("cat", "dog"), opacity=1.0)
    reach = np.abs(found.difference).max()
    layers = [drawn(axes) for axes in figure.axes[:4]]
    assert np.allclose(layers[1][1][..., 3], np.abs(found.this), atol=1e-5)
    assert np.allclose(layers[2][1][..., 3], np.abs(found.that), atol=1e-5)
    assert np.allclose(layers[3][1][..., 3], np.abs(found.difference) / reach, atol=1e-5)
    redder = layers[3][1][..., 0] > layers[3][1][..., 2]
    strong = np.abs(found.difference) > 0.1 * reach
    assert np.array_equal(redder[strong], (found.difference > 0)[strong])
    assert "why cat rather than dog?" in " ".join(texts(figure)).replace("\n", " ")
    with pytest.raises(InputError, match="different methods"):
        figures.class_contrast(this, explained("grad-cam", 1), RED)


def upsample(one: egcam.Explanation) -> np.ndarray:
    made = nn.functional.interpolate(one.maps[:, None], size=one.size, mode="bilinear", align_corners=False)
    return made[0, 0].numpy()


def test_rounding_makes_no_rank():
    from egcam.figures import mean_ranks

    values = {"a": [0.5, 0.25], "b": [0.5 + 2e-8, 0.25 + 1e-8], "c": [0.6, 0.35]}
    rows = [Score(image, name, "deletion", value, 0.0) for name in values for image, value in enumerate(values[name])]
    found, _ = mean_ranks(Table.of(rows, tuple(values), ("deletion",)))
    assert {one.method: one.mean for one in found} == {"a": 1.5, "b": 1.5, "c": 3.0}
