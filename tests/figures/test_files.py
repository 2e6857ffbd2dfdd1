"""Figures as files and as neighbours: readable, the same on every run, and leaving matplotlib as it was."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from egcam import Explanation, figures
from egcam.drawing import text_layout
from egcam.drawing.palette import signed_colors
from egcam.errors import InputError
from egcam.figures import style
from egcam.metrics import Curve

HOSTILE = "a_b $x^2$ <&> $ 100%"
HEAT = np.linspace(0, 1, 256).reshape(16, 16)
PICTURE = np.random.default_rng(0).random((16, 16, 3))


def explanation(method: str, target: int = 0) -> Explanation:
    maps = torch.from_numpy(HEAT[None, ::4, ::4].copy()).float() * (1 + target)
    return Explanation(
        maps, (16, 16), torch.tensor([target]), torch.ones(1), None, "layer", method, classes=(HOSTILE, "dog, hound")
    )


def lines(names: tuple[str, ...]) -> list[dict[str, object]]:
    return [
        {"metric": metric, "method": name, "mean": 10.0**place, "low": 10.0**place * 0.9, "high": 10.0**place * 1.1}
        for metric in ("insertion", "deletion", "infidelity", "sparseness")
        for place, name in enumerate(names)
    ]


NAMES = ("grad-cam", HOSTILE, "integrated-grad-cam", "slope-cam")
CURVE = Curve(torch.linspace(0, 1, 9).expand(3, -1), torch.rand(3, 9, generator=torch.Generator().manual_seed(0)))
MAKERS: dict[str, Callable[[str], Figure]] = {
    "grid": lambda width: figures.method_grid({name: explanation(name) for name in NAMES}, PICTURE, width=width),
    "mask": lambda width: figures.mask_comparison(
        PICTURE, HEAT > 0.5, dict.fromkeys(NAMES, HEAT), caption=HOSTILE, width=width
    ),
    "contrast": lambda width: figures.class_contrast(
        explanation("grad-cam"), explanation("grad-cam", 1), PICTURE, width=width
    ),
    "curves": lambda width: figures.perturbation_curves(
        {"insertion": dict.fromkeys(NAMES, CURVE), "deletion": dict.fromkeys(NAMES, CURVE)}, width=width
    ),
    "bars": lambda width: figures.metric_bars(lines(NAMES), width=width),
    "ranks": lambda width: figures.rank_plot(
        [figures.MeanRank(name, 1.0 + place, 1.0, 4.0) for place, name in enumerate(NAMES)], width=width
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_files_are_valid_and_the_same_for_two_runs(kind: str, tmp_path: Path) -> None:
    made = []
    for run in ("one", "two"):
        paths = figures.save(MAKERS[kind]("column"), tmp_path / run / "a.png", tmp_path / run / "a.svg", dpi=100)
        made.append([path.read_bytes() for path in paths])
    assert made[0] == made[1]
    with Image.open(tmp_path / "one" / "a.png") as picture:
        assert picture.width == 330
        assert set(picture.info) == {"dpi"}
        assert picture.convert("L").getextrema()[0] < 100
    root = ElementTree.parse(tmp_path / "one" / "a.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(3.3 * 72)
    assert b"<dc:date>" not in made[0][1]
    assert b"Matplotlib v" not in made[0][1]


def seen(figure: Figure) -> list[Text]:
    figure.canvas.draw()
    return [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]


@pytest.mark.parametrize("width", ["column", "page"])
@pytest.mark.parametrize("kind", MAKERS)
def test_letters_are_large_enough_and_stay_on_the_sheet(kind: str, width: style.Width) -> None:
    figure = MAKERS[kind](width)
    assert figure.get_size_inches()[0] == {"column": 3.3, "page": 6.9}[width]
    box = figure.bbox
    for text in seen(figure):
        assert text.get_fontsize() >= 7, text.get_text()
        if text.axes is not None and not _within_axis(text):
            continue
        extent = text.get_window_extent()
        assert extent.x0 >= box.x0 - 1, text.get_text()
        assert extent.x1 <= box.x1 + 1, text.get_text()
        assert extent.y0 >= box.y0 - 1, text.get_text()
        assert extent.y1 <= box.y1 + 1, text.get_text()


def _within_axis(text: Text) -> bool:
    """Whether a tick's text is at a place the axis shows: matplotlib keeps those beyond its ends, undrawn."""
    axes = text.axes
    for axis in (axes.xaxis, axes.yaxis):
        for tick in axis.get_major_ticks():
            if text in (tick.label1, tick.label2):
                low, high = sorted(axis.get_view_interval())
                return bool(low <= tick.get_loc() <= high)
    return True


@pytest.mark.parametrize("kind", MAKERS)
def test_labels_are_drawn_as_they_are(kind: str) -> None:
    figure = MAKERS[kind]("page")
    assert not any(text.get_parse_math() or text.get_usetex() for text in seen(figure))
    if kind not in ("convergence", "patches", "contrast"):
        shown = " ".join(text.get_text().replace("\n", " ") for text in seen(figure))
        assert "a_b $x^2$" in shown


def test_a_dollar_sign_is_ink_not_a_formula(tmp_path: Path) -> None:
    """With formulas on, matplotlib would set x squared and drop both dollar signs."""
    figure = figures.rank_plot([figures.MeanRank("$x$", 1.0, 1.0, 1.0)])
    (svg,) = figures.save(figure, tmp_path / "a.svg")
    assert b"<!-- $x$ -->" in svg.read_bytes()


def test_matplotlib_is_left_as_it_was(tmp_path: Path) -> None:
    from matplotlib import pyplot

    own = pyplot.figure()
    try:
        settings, open_figures = dict(matplotlib.rcParams), pyplot.get_fignums()
        for make in MAKERS.values():
            figures.save(make("column"), tmp_path / "a.png", dpi=50)
        assert pyplot.get_fignums() == open_figures
        assert dict(matplotlib.rcParams) == settings
        assert pyplot.gcf() is own
    finally:
        pyplot.close(own)


def test_the_users_own_settings_change_nothing(tmp_path: Path) -> None:
    plain = figures.save(MAKERS["curves"]("column"), tmp_path / "a.svg")[0].read_bytes()
    with matplotlib.rc_context({"font.size": 30, "text.usetex": False, "axes.grid": False, "lines.linewidth": 9}):
        figure = MAKERS["curves"]("column")
    with matplotlib.rc_context({"svg.hashsalt": "other", "savefig.bbox": "tight", "text.parse_math": True}):
        assert figures.save(figure, tmp_path / "b.svg")[0].read_bytes() == plain


def test_figures_need_no_display_and_no_pyplot(tmp_path: Path) -> None:
    code = (
        "import sys, torch, egcam; from torch import nn\n"
        "net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(144, 3))\n"
        "made = egcam.explain(net, torch.rand(1, 3, 8, 8), 'hires-cam', signed=True)\n"
        f"egcam.figures.save(egcam.figures.method_grid({{'a': made}}), {str(tmp_path / 'a.png')!r})\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"HOME": "/"})
    assert done.stdout.strip() == "False"


def test_wrong_files_and_sizes_are_refused(tmp_path: Path) -> None:
    figure = MAKERS["ranks"]("column")
    with pytest.raises(InputError, match=r"does not end in \.png, \.svg or \.pdf"):
        figures.save(figure, tmp_path / "a.tiff")
    with pytest.raises(InputError, match="no file"):
        figures.save(figure)
    with pytest.raises(InputError, match="dpi"):
        figures.save(figure, tmp_path / "a.png", dpi=5)
    with pytest.raises(InputError, match="unknown width 'wide'"):
        figures.metric_bars(lines(NAMES), width="wide")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="unknown colour map"):
        figures.method_grid({"grad-cam": explanation("grad-cam")}, PICTURE, colors="rainbowish")


def test_twelve_methods_look_different_and_ours_is_emphasised() -> None:
    import egcam

    looks = style.lines(egcam.methods())
    assert len({(look.color, look.style, look.marker) for look in looks.values()}) == len(looks) >= 12
    assert [method for method, look in looks.items() if look.color == style.EMPHASIS] == ["slope-cam"]
    assert looks["slope-cam"].width > max(look.width for method, look in looks.items() if method != "slope-cam")
    unknown = style.lines([f"new {number}" for number in range(20)])
    assert len(set(unknown.values())) == 20
    assert style.EMPHASIS not in {look.color for look in unknown.values()}


def test_the_diverging_colours_fall_evenly_in_lightness() -> None:
    color = pytest.importorskip("skimage.color")
    table = signed_colors()(np.linspace(0, 1, 41))[:, :3]
    lightness = color.rgb2lab(table[None])[0, :, 0]
    assert np.allclose(lightness, lightness[::-1], atol=0.2)
    assert np.allclose(np.diff(lightness[:21]), 3.0, atol=0.3)
    assert lightness[20] == pytest.approx(95, abs=0.5)


def test_texts_fit_the_width_they_are_given() -> None:
    for text in ("Expected Grad-CAM", "x" * 80, HOSTILE):
        made = text_layout.fitted(text, 0.7, 7, lines=2)
        assert made.count("\n") <= 1
        assert text_layout.width_of(made, 7) <= 0.7
    assert text_layout.fitted("Grad-CAM", 2, 7) == "Grad-CAM"


def test_pdf_holds_vectors_and_letters_and_is_the_same_file_twice(tmp_path):
    one, other = (
        figures.save(MAKERS["curves"]("column"), tmp_path / name)[0].read_bytes() for name in ("a.pdf", "b.pdf")
    )
    assert one == other
    assert one.startswith(b"%PDF-")
    assert b"/FontFile2" in one
    assert b"/CreationDate" not in one
    assert b"matplotlib" not in one.lower()
