"""Make the pictures of the documentation with egcam itself: the embedded network, photographs of scikit-image.

python docs/tools/docs_pictures.py            # all, into docs/pictures/
python docs/tools/docs_pictures.py path bars  # some

Needs the extras demo and study, no network connection, and a few minutes of one core.
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
from torch import Tensor

import egcam
from egcam import figures
from egcam.figures.page import Page
from egcam.figures.pictures import as_rgb, draw_coarse, draw_overlay, draw_picture
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
LARGEST = 150_000


@dataclass
class Studio:
    """The network and its photographs."""

    classifier: Classifier

    @property
    def model(self) -> torch.nn.Module:
        """The network."""
        return self.classifier.model

    def photograph(self, name: str) -> Image.Image:
        """As the network sees it, before normalisation."""
        return self.classifier.crop(Image.fromarray(getattr(data, name)()).convert("RGB"))

    def input(self, name: str) -> Tensor:
        """(C, H, W) as the network gets it."""
        return self.classifier.preprocess(Image.fromarray(getattr(data, name)()).convert("RGB"))

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
    methods = ("grad-cam", "layer-cam", "expected-grad-cam")
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


def path(studio: Studio) -> Figure:
    """Points between three kinds of reference and the cat, and the plain CAM at each."""
    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    starts = {
        "blurred copy": egcam.attribution.references.blurred().draw(studio.cat, [0], 0, 0).images[0],
        "black": torch.tensor(normalised_black(*studio.pixel_statistics))[:, None, None].expand_as(studio.cat[0]),
        "other image": studio.input("coffee"),
    }
    target = int(studio.model(studio.cat).argmax())
    side, gap, left, top = 1.15, 0.06, 0.85, 0.25
    page = Page(left + len(shares) * (side + gap), top + 2 * len(starts) * (side + gap))
    width, height = page.get_size_inches()

    def axes(row: int, column: int) -> object:
        x, y = left + column * (side + gap), height - top - (row + 1) * (side + gap) + gap
        found = page.add_axes((x / width, y / height, side / width, side / height))
        found.axis("off")
        return found

    for number, (name, start) in enumerate(starts.items()):
        y = height - top - (2 * number + 0.5) * (side + gap)
        page.text(0.02, y / height, name.replace(" ", "\n"), fontsize=8, va="center")
        page.text(0.02, (y - side - gap) / height, "gradient\nhere, at\neach place", fontsize=7, va="center")
        points = torch.stack([start + share * (studio.cat[0] - start) for share in shares])
        maps = _hires_with_the_cats_activations(studio, points, target)
        for column, share in enumerate(shares):
            if number == 0:
                x = left + column * (side + gap) + side / 2
                page.text(x / width, 1 - 0.15 / height, f"a = {share:g}", fontsize=8, ha="center", va="center")
            draw_picture(axes(2 * number, column), studio.colours(points[column]))
            draw_coarse(axes(2 * number + 1, column), maps[column])
    return page


def _hires_with_the_cats_activations(studio: Studio, points: Tensor, target: int) -> list[np.ndarray]:
    """relu( sum_k g_k A_k ): the gradient at each point weighs the activations at the cat, as a sample of ours does."""
    kept: list[Tensor] = []
    module = studio.model.get_submodule(LAYER)
    hook = module.register_forward_hook(lambda _module, _input, output: kept.append(output))
    try:
        scores = studio.model(torch.cat([points, studio.cat]))[:, target]
        gradient = torch.autograd.grad(scores.sum(), kept[0])[0]
    finally:
        hook.remove()
    maps = (gradient[:-1] * kept[0][-1:]).sum(1).relu().detach()
    return [one.double().numpy() for one in maps]


def last_layer(studio: Studio) -> Figure:
    """The same two methods at the last layer, where they agree, and inside the network, where they do not."""
    picture = studio.photograph("chelsea")
    places = {"last layer": None, "_blocks.12": "_blocks.12", "_blocks.10": "_blocks.10", "_blocks.5": "_blocks.5"}
    methods = {"grad-cam": "Grad-CAM", "expected-grad-cam": "Expected\nGrad-CAM"}
    rows = [
        [egcam.explain(studio.model, studio.cat, method, layer=layer).heatmaps[0] for layer in places.values()]
        for method in methods
    ]
    return _overlays(picture, rows, list(methods.values()), list(places))


def weightings(studio: Studio) -> Figure:
    """The expected gradient pooled, by location, and with the difference terms."""
    picture = studio.photograph("chelsea")
    choices: dict[str, dict[str, object]] = {
        "by location\n(default)": {},
        "pooled": {"pooled": True},
        "summed,\nlatent difference": {"summed": True, "difference": "latent"},
        "by location,\ninput difference": {"difference": "input"},
        "as in the paper": {"method": "expected-grad-cam-paper"},
    }
    row = []
    for options in choices.values():
        method = str(options.pop("method", "expected-grad-cam"))
        row.append(studio.explain(studio.cat, method, reference=studio.others, **options).heatmaps[0])
    return _overlays(picture, [row], [""], list(choices))


def references(studio: Studio) -> Figure:
    """Expected Grad-CAM of one image with other references."""
    picture = studio.photograph("chelsea")
    kinds: dict[str, object] = {
        "other images": studio.others,
        "mixed (default)": "mixed",
        "blurred": "blurred",
        "colours": "colours",
        "black": egcam.attribution.references.black(*studio.pixel_statistics),
        "white": egcam.attribution.references.white(*studio.pixel_statistics),
    }
    row = [studio.explain(studio.cat, "expected-grad-cam", reference=kind).heatmaps[0] for kind in kinds.values()]
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


def convergence(studio: Studio) -> Figure:
    """How many samples a map needs."""
    found = figures.sampling_convergence(
        studio.model, studio.cat, (1, 2, 4, 8, 16, 32, 64), long=256, runs=3, layer=LAYER, reference=studio.others
    )
    for count, error in zip(found.samples, found.error, strict=True):
        print(f"{count:3d} samples, other images as references: relative error {error:.2f}")
    for name, reference in (("blurred copies", "blurred"), ("other images", studio.others)):
        settled = studio.explain(studio.cat, "expected-grad-cam", reference=reference, samples=32)
        print(f" 32 samples, {name}: standard error {float(settled.error.norm() / settled.maps.norm()):.2f} of the map")
    return figures.convergence(found, studio.photograph("chelsea"))


def curves(studio: Studio) -> Figure:
    """Insertion and deletion of two methods on the four photographs."""
    found: dict[str, dict[str, object]] = {"insertion": {}, "deletion": {}}
    for method in ("grad-cam", "layer-cam", "expected-grad-cam"):
        heat = studio.explain(studio.images, method)
        both = egcam.metrics.insertion_deletion_curves(studio.model, studio.images, heat, step=1568)
        found["insertion"][method], found["deletion"][method] = both
    return figures.perturbation_curves(found)


def bars(studio: Studio) -> Figure:
    """Means of four metrics, on four photographs: an example of the figure, no result."""
    table = egcam.evaluate(
        studio.model,
        studio.images,
        methods=["grad-cam", "layer-cam", "hires-cam", "expected-grad-cam"],
        metrics=["insertion", "deletion", "complexity", "sparseness"],
        layer=LAYER,
        metric_options={"insertion": {"step": 1568}, "deletion": {"step": 1568}},
    )
    return figures.metric_bars(table)


def contrast(studio: Studio) -> Figure:
    """Why a tiger cat rather than an Egyptian cat."""
    both = [
        studio.explain(studio.cat, "expected-grad-cam", target=name, signed=True, layer=None)
        for name in ("tiger cat", "Egyptian cat")
    ]
    return figures.class_contrast(*both, studio.photograph("chelsea"), labels=("tiger cat", "Egyptian cat"))


def patches(studio: Studio) -> Figure:
    """The parts of the picture that matter most."""
    heat = studio.explain(studio.cat, "expected-grad-cam").heatmaps[0]
    return figures.top_patches(studio.photograph("chelsea"), heat)


PICTURES: dict[str, Callable[[Studio], Figure]] = {
    "first": first,
    "saturation": saturation,
    "path": path,
    "last-layer": last_layer,
    "weightings": weightings,
    "references": references,
    "convergence": convergence,
    "curves": curves,
    "bars": bars,
    "contrast": contrast,
    "patches": patches,
}
DRAWINGS = ("saturation", "curves", "bars")


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
