"""Make the pictures of the documentation with egcam itself: the embedded network, free photographs.

python docs/tools/docs_pictures.py            # all, into docs/pictures/
python docs/tools/docs_pictures.py first bars # some

The photographs come with scikit-image; src/egcam/data/README.md names their authors and licences. Needs the extras demo
and study, no network connection, and a quarter of an hour of one core.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image
from skimage import data
from torch import Tensor, nn

import egcam
from egcam import figures
from egcam.drawing.montages import montage
from egcam.drawing.overlays import stack
from egcam.figures.page import Page
from egcam.figures.pictures import as_rgb, draw_overlay
from egcam.models.zoo import Classifier
from egcam.saturation_check import figures as saturation_figures
from egcam.saturation_check.measure import normalised_black

OUT = Path(__file__).parents[1] / "pictures"
# At the network's last layer the head is linear and all gradients agree; inside it they do not.
LAYER = "_blocks.10"
PHOTOGRAPHS = ("chelsea", "coffee", "astronaut", "rocket")
# What an image is compared with: photographs of other things, grey ones among them.
OTHERS = (
    "coffee",
    "astronaut",
    "rocket",
    "camera",
    "brick",
    "grass",
    "gravel",
    "coins",
    "immunohistochemistry",
    "moon",
)
DPI = 140
LARGEST = 250_000


@dataclass
class Studio:
    """The network and its photographs."""

    classifier: Classifier

    @property
    def model(self) -> torch.nn.Module:
        """The network."""
        return self.classifier.model

    @staticmethod
    def whole(name: str) -> Image.Image:
        """The photograph as it came."""
        return Image.fromarray(getattr(data, name)()).convert("RGB")

    def photograph(self, name: str) -> Image.Image:
        """As the network sees it, before normalisation."""
        return self.classifier.crop(self.whole(name))

    def input(self, name: str) -> Tensor:
        """(C, H, W) as the network gets it."""
        return self.classifier.preprocess(self.whole(name))

    @cached_property
    def images(self) -> Tensor:
        """(4, C, H, W) the explained photographs."""
        return torch.stack([self.input(name) for name in PHOTOGRAPHS])

    @cached_property
    def cat(self) -> Tensor:
        """(1, C, H, W) the first of them."""
        return self.input("chelsea")[None]

    @cached_property
    def others(self) -> Tensor:
        """(M, C, H, W) the references."""
        return torch.stack([self.input(name) for name in OTHERS])

    def explain(self, images: Tensor, method: str, **options: object) -> egcam.Explanation:
        """At the inner layer unless told otherwise."""
        return egcam.explain(self.model, images, method, **({"layer": LAYER} | options))

    def colours(self, image: Tensor) -> np.ndarray:
        """(H, W, 3) a network's input as a picture."""
        mean, std = (torch.tensor(value)[:, None, None] for value in self.pixel_statistics)
        return (image.cpu() * std + mean).clamp(0, 1).permute(1, 2, 0).numpy().astype(np.float64)

    @property
    def pixel_statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation that pixels are normalised with."""
        return tuple(self.classifier.preprocessing.mean), tuple(self.classifier.preprocessing.std)


def first(studio: Studio) -> Figure:
    """The cat and the coffee by three methods at an inner layer."""
    images = studio.images[:2]
    methods = ("grad-cam", "layer-cam", "slope-cam")
    explained = {name: studio.explain(images, name) for name in methods}
    names = [studio.classifier.class_name(int(label)) for label in explained["grad-cam"].targets]
    return figures.method_grid(explained, [studio.photograph(name) for name in PHOTOGRAPHS[:2]], captions=names)


def saturation(studio: Studio) -> Figure:
    """Four photographs scaled up from black."""
    measured = egcam.saturation(
        studio.model, studio.images, layer=LAYER, steps=17, black=normalised_black(*studio.pixel_statistics)
    )
    print(measured.verdict.text)
    return saturation_figures.curves({"EfficientNet-Lite0": measured}, width="page")


def last_layer(studio: Studio) -> Figure:
    """Two methods at the last layer, where the gradient is the same everywhere, and inside the network."""
    picture = studio.photograph("chelsea")
    places = {
        "last layer": "_swish:2",
        "_blocks.12": "_blocks.12",
        "_blocks.10": "_blocks.10",
        "_blocks.5": "_blocks.5",
    }
    methods = {"grad-cam": "Grad-CAM", "slope-cam": "SlopeCAM"}
    rows = [
        [egcam.explain(studio.model, studio.cat, method, layer=layer).heatmaps[0] for layer in places.values()]
        for method in methods
    ]
    return _overlays(picture, rows, list(methods.values()), list(places))


def references(studio: Studio) -> Figure:
    """SlopeCAM of one image with other references."""
    picture = studio.photograph("chelsea")
    kinds: dict[str, object] = {
        "photographs (default)": egcam.attribution.references.photographs(*studio.pixel_statistics),
        "other images": studio.others,
        "blurred": "blurred",
        "mixed": "mixed",
        "black": egcam.attribution.references.black(*studio.pixel_statistics),
        "white": egcam.attribution.references.white(*studio.pixel_statistics),
    }
    row = [studio.explain(studio.cat, "slope-cam", reference=kind).heatmaps[0] for kind in kinds.values()]
    return _overlays(picture, [row[:3], row[3:]], ["", ""], list(kinds))


def _overlays(picture: Image.Image, rows: list[list[Tensor]], names: list[str], titles: list[str]) -> Figure:
    """Overlays in rows; titles above each picture where there is one for each, else above the columns."""
    columns = len(rows[0])
    own_titles = len(titles) == columns * len(rows) and len(rows) > 1
    left = 0.8 if any(names) else 0.05
    gap, head = 0.08, 0.36 if any("\n" in title for title in titles) else 0.24
    side = min(1.6, (6.9 - left) / columns - gap)
    heads = [head if number == 0 or own_titles else gap for number in range(len(rows))]
    page = Page(left + columns * (side + gap), sum(heads) + side * len(rows) + 0.04)
    width, height = page.get_size_inches()
    y = height
    colours = as_rgb(picture)
    for number, row in enumerate(rows):
        y -= heads[number] + side
        if names[number]:
            page.text(0.02, (y + side / 2) / height, names[number], fontsize=8, va="center")
        for column, heat in enumerate(row):
            x = left + column * (side + gap)
            axes = page.add_axes((x / width, y / height, side / width, side / height))
            axes.axis("off")
            draw_overlay(axes, colours, heat.double().numpy())
            if number == 0 or own_titles:
                title = titles[number * columns + column] if own_titles else titles[column]
                page.text(
                    (x + side / 2) / width, (y + side + 0.05) / height, title, fontsize=8, ha="center", va="bottom"
                )
    return page


def curves(studio: Studio) -> Figure:
    """Insertion and deletion of two methods on the four photographs."""
    found: dict[str, dict[str, object]] = {"insertion": {}, "deletion": {}}
    for method in ("grad-cam", "layer-cam", "slope-cam"):
        heat = studio.explain(studio.images, method)
        both = egcam.metrics.InsertionDeletion(step=1568).curves(egcam.metrics.Case(studio.model, studio.images, heat))
        found["insertion"][method], found["deletion"][method] = both
    return figures.perturbation_curves(found)


def bars(studio: Studio) -> Figure:
    """Means of four metrics, on four photographs: an example of the figure, no result."""
    table = egcam.evaluate(
        studio.model,
        studio.images,
        methods=["grad-cam", "layer-cam", "hires-cam", "slope-cam"],
        metrics=["insertion", "deletion", "complexity", "sparseness"],
        layer=LAYER,
        metric_options={"insertion": {"step": 1568}, "deletion": {"step": 1568}},
    )
    return figures.metric_bars(table)


def contrast(studio: Studio) -> Figure:
    """Why a tiger cat rather than an Egyptian cat."""
    both = [
        studio.explain(studio.cat, "slope-cam", target=name, signed=True, layer=None)
        for name in ("tiger cat", "Egyptian cat")
    ]
    return figures.class_contrast(*both, studio.photograph("chelsea"), labels=("tiger cat", "Egyptian cat"))


def dimensions(studio: Studio) -> Figure:
    """A heart beat that comes out of turn, found by a network that learnt it, and a bright spot in a ball."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        beats, irregular = _heart_beats(128)
        above = egcam.explain(_trained(beats, irregular), beats[int(irregular.argmax())], target=1).overlay()[0]
        explanation = egcam.explain(_seeks_bright_spots(), _spotted_ball(), target=1)
    below = montage(explanation.images, explanation.heatmaps, count=5, columns=5, side=165)
    whole = stack([above, Image.new("RGB", (1, 14), "white"), below])
    figure = Figure(figsize=(whole.width / DPI, whole.height / DPI))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(whole)
    axes.axis("off")
    return figure


def _trained(signals: Tensor, labels: Tensor) -> nn.Module:
    """A small network that tells the two kinds apart."""
    net = nn.Sequential(
        *(nn.Conv1d(2, 8, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(8, 16, 9, padding=4), nn.ReLU(), nn.MaxPool1d(2)),
        *(nn.Conv1d(16, 16, 9, padding=4), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(16, 2)),
    )
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(30):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(signals), labels).backward()
        optimiser.step()
    return net.eval()


def _heart_beats(count: int) -> tuple[Tensor, Tensor]:
    """(count, 2, 400) rows of beats, and whether one more comes out of turn."""
    time, labels = torch.arange(400), torch.randint(2, (count,))
    signals = torch.zeros(count, 400)
    for signal, label in zip(signals, labels, strict=True):
        start = int(torch.randint(20, 60, (1,)))
        for peak in range(start, 400, 80):
            for height, away, width in ((1, 0, 3), (-0.2, 7, 3), (0.15, -15, 6), (0.25, 30, 9)):
                signal += height * torch.exp(-(((time - peak - away) / width) ** 2))
        extra = start + 80 * int(torch.randint(1, 4, (1,))) - 35
        signal -= 0.8 * label * torch.exp(-(((time - extra) / 8) ** 2))
    both = torch.stack([signals, 0.6 * signals.roll(2, 1)], 1)
    return both + 0.03 * torch.randn(both.shape), labels


def _seeks_bright_spots() -> nn.Module:
    """A network of volumes whose class 1 is: somewhere the mean of 27 voxels is above 0.6."""
    mean, head = nn.Conv3d(1, 1, 3, padding=1), nn.Linear(1, 2)
    nn.init.constant_(mean.weight, 1 / 27)
    nn.init.constant_(mean.bias, -0.6)
    head.weight.data = torch.tensor([[-1.0], [1.0]])
    return nn.Sequential(mean, nn.ReLU(), nn.MaxPool3d(2), nn.AdaptiveAvgPool3d(1), nn.Flatten(), head).eval()


def _spotted_ball() -> Tensor:
    """(1, 20, 28, 28)."""
    depth, row, column = torch.meshgrid(*(torch.linspace(-1, 1, side) for side in (20, 28, 28)), indexing="ij")
    ball = 0.5 * ((depth**2 + row**2 + column**2) < 0.8)
    spot = 0.5 * torch.exp(-((depth - 0.1) ** 2 + (row + 0.2) ** 2 + (column - 0.3) ** 2) / 0.03)
    return (ball + spot + 0.03 * torch.randn(ball.shape))[None]


PICTURES: dict[str, Callable[[Studio], Figure]] = {
    "first": first,
    "saturation": saturation,
    "last-layer": last_layer,
    "references": references,
    "curves": curves,
    "bars": bars,
    "contrast": contrast,
    "dimensions": dimensions,
}
DRAWINGS = ("saturation", "curves", "bars", "dimensions")


def write(figure: Figure, name: str) -> Path:
    """Photographs as JPEG, drawings as PNG with few colours: small enough for a page of documentation."""
    raw = io.BytesIO()
    figure.savefig(raw, format="png", dpi=DPI, facecolor="white")
    picture = Image.open(raw).convert("RGB")
    if name in DRAWINGS:
        file = OUT / f"{name}.png"
        picture.quantize(128).save(file, optimize=True)
        return file
    file = OUT / f"{name}.jpg"
    for quality in (88, 80, 70, 60):
        picture.save(file, quality=quality, optimize=True, progressive=True)
        if file.stat().st_size <= LARGEST:
            break
    return file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="which pictures; all if none is named")
    names = parser.parse_args().names or list(PICTURES)
    OUT.mkdir(parents=True, exist_ok=True)
    studio = Studio(egcam.zoo.load())
    for name in names:
        began = time.perf_counter()
        file = write(PICTURES[name](studio), name)
        print(f"{file.name}: {file.stat().st_size // 1024} kB, {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
