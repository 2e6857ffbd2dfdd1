"""How many passes SlopeCAM takes to settle, for each sampling scheme.

    export EGCAM_DATA=…  EGCAM_HEADS=…                    # images and weights; what research/heads.py made
    python research/convergence.py --cache grids --out research/reports

For some images, sum_k dy/dA_k * A_k is measured on a grid of references and path points, and beside it along the path
from the blurred image. A map of n samples is a mean over n places of that grid (linear between its points), whichever
scheme chose them, so thousands of runs cost no more passes. The truth is the mean over the whole grid. The error is
||map_n - truth|| / ||truth||, maps after the ReLU, averaged over seeds; shown is the median over images.

`lattice`, `stratified` and `monte-carlo` are the package's own code; the others are what was tried besides. At the end
the package itself explains some images, to see whether the grid told the truth.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

import egcam
from egcam.attribution.averaging import replicate_sizes
from egcam.attribution.references import Visit, blurred
from egcam.attribution.sampling import SAMPLINGS, Sampling, scheme
from egcam.models import zoo
from egcam.photos.files import read_image

HERE = Path(__file__).parent
DATA = Path(os.environ.get("EGCAM_DATA", "."))
LEVEL = 0.05
COUNTS = {
    "images": (4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536),
    "blurred": (2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
}
SHOWN = {"images": (4, 8, 16, 32, 64, 128, 256, 512), "blurred": (4, 8, 16, 32, 64)}


@dataclass(frozen=True)
class Subject:
    """A network and where it is explained."""

    label: str
    model: str
    layer: str
    weights: str | None = None

    def load(self) -> zoo.Classifier:
        """The network with its preprocessing."""
        return zoo.load(self.model, weights=None if self.weights is None else DATA / "weights" / self.weights)


SUBJECTS = {
    "alexnet": Subject("AlexNet, features.12", f"{HERE / 'networks.py'}:alexnet", "features.12"),
    "squeezenet": Subject(
        "SqueezeNet 1.1, features.9", "squeezenet1_1", "features.9", "squeezenet1_1-deepscale-d97e37ae.pth"
    ),
    "mobilenet": Subject("MobileNetV2, features.14", "mobilenet_v2", "features.14", "mobilenet_v2-b0353104.pth"),
    "efficientnet": Subject("EfficientNet-Lite0, block 10", "efficientnet-lite0", "_blocks.10"),
}


# -- the grid ------------------------------------------------------------------------------------


def chosen_images(classifier: zoo.Classifier, images: int, references: int) -> tuple[Tensor, Tensor]:
    """Images to explain, of the even places of part "explain", and others of part "reference"."""
    with (DATA / "imagenet.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    parts = {part: [row["file"] for row in rows if row["part"] == part] for part in ("explain", "reference")}
    chance = torch.Generator().manual_seed(0)

    def some(files: Sequence[str], count: int) -> Tensor:
        order = torch.randperm(len(files), generator=chance)[:count].tolist()
        return torch.stack([classifier.preprocess(read_image(DATA / "imagenet" / files[place])) for place in order])

    return some(parts["explain"][::2], images), some(parts["reference"], references)


class Products:
    """sum_k dy/dA_k(z) * A_k(x) for points z, which is what a map by location averages."""

    def __init__(self, model: nn.Module, layer: str, image: Tensor) -> None:
        self.model, self.layer, self.image = model, dict(model.named_modules())[layer], image
        with torch.no_grad():
            self.target = int(self._run(image[None])[0].argmax())
        self.activations = self.seen.detach()

    def _run(self, points: Tensor) -> Tensor:
        def take(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
            self.seen = output.detach().requires_grad_()
            return self.seen.clone()

        handle = self.layer.register_forward_hook(take)
        try:
            return self.model(points.contiguous(memory_format=torch.channels_last))
        finally:
            handle.remove()

    def at(self, points: Tensor) -> Tensor:
        """(B, h, w)."""
        with torch.enable_grad():
            score = self._run(points)[:, self.target].sum()
        gradient = torch.autograd.grad(score, self.seen)[0]
        return (gradient * self.activations).sum(1)

    def along(self, reference: Tensor, count: int) -> Tensor:
        """(count, h, w) at the middles of `count` stretches of the line from the reference."""
        shares = (torch.arange(count) + 0.5) / count
        points = self.image - (1 - shares)[:, None, None, None] * (self.image - reference)
        return torch.cat([self.at(some) for some in points.split(16)])


def grids(subject: Subject, arguments: argparse.Namespace) -> dict[str, list[Tensor]]:
    """For each image (references, points, cells), from images as references and from the blurred image."""
    kept = arguments.cache / f"{subject.model.split(':')[-1]}.pt" if arguments.cache else None
    if kept is not None and kept.exists():
        return torch.load(kept, weights_only=True)
    classifier = subject.load()
    model = classifier.model.eval().requires_grad_(False).to(memory_format=torch.channels_last)
    images, references = chosen_images(classifier, arguments.images, arguments.references)
    found: dict[str, list[Tensor]] = {"images": [], "blurred": []}
    for number, image in enumerate(images):
        products = Products(model, subject.layer, image)
        many = torch.stack([products.along(reference, arguments.points) for reference in references])
        one = products.along(blurred().draw(image[None], [0], 0, 0).images[0], arguments.line_points)
        found["images"].append(many.flatten(2).double())
        found["blurred"].append(one[None].flatten(2).double())
        print(f"{subject.label}: image {number + 1} of {len(images)}", flush=True)
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        torch.save(found, kept)
    return found


# -- the schemes ---------------------------------------------------------------------------------

Places: TypeAlias = tuple[Tensor, Tensor, Tensor | float]
"""Which reference, which a, and which weight, for each sample."""


def own(name: Sampling) -> Callable[[int, int, int], Places]:
    """A scheme of the package."""

    def places(samples: int, references: int, seed: int) -> Places:
        plan = scheme(name, replicate_sizes(samples), seed)
        numbers = [plan.draw_number(sample) for sample in range(samples)]
        visits = [Visit(number % references, number // references) for number in numbers]
        shares = torch.tensor([plan.share(sample, visit) for sample, visit in enumerate(visits)])
        return _order(references, seed)[[visit.reference for visit in visits]], shares, 1.0

    return places


def antithetic(samples: int, references: int, seed: int) -> Places:
    """Pairs a, 1 - a with one reference."""
    chance = _chance(seed)
    half = torch.rand(samples // 2, generator=chance)
    order = _order(references, seed)[torch.arange(samples // 2) % references]
    return order.repeat_interleave(2), torch.stack([half, 1 - half], 1).flatten(), 1.0


def whole_run_strata(samples: int, references: int, seed: int) -> Places:
    """As many strata of a as samples, in random order."""
    chance = _chance(seed)
    strata = torch.randperm(samples, generator=chance)
    shares = (strata + torch.rand(samples, generator=chance)) / samples
    return _order(references, seed)[torch.arange(samples) % references], shares, 1.0


def sobol(samples: int, references: int, seed: int) -> Places:
    """Scrambled Sobol points over (reference, a)."""
    points = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed).draw(samples, dtype=torch.float64)
    return _order(references, seed)[(points[:, 0] * references).long().clamp(max=references - 1)], points[:, 1], 1.0


def importance(samples: int, references: int, seed: int) -> Places:
    """Strata of each replicate, narrow near the reference and wide near the image, where references agree.

    Edges a = T(j / n_r), T the inverse of 3/2 a - a^2 / 2: a density of 3/2 - a, with the strata's widths as weights.
    """
    chance = _chance(seed)
    shares, weights = [], []
    for size in replicate_sizes(samples):
        strata = torch.randperm(size, generator=chance)
        low, high = (1.5 - (2.25 - 2 * edge / size).sqrt() for edge in (strata, strata + 1))
        shares.append(low + torch.rand(size, generator=chance) * (high - low))
        weights.append(size * (high - low))
    order = _order(references, seed)[torch.arange(samples) % references]
    return order, torch.cat(shares), torch.cat(weights)[:, None]


def _chance(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * seed + 17)


def _order(references: int, seed: int) -> Tensor:
    return torch.randperm(references, generator=torch.Generator().manual_seed(seed))


SCHEMES: dict[str, Callable[[int, int, int], Places]] = {
    **{name: cache(own(name)) for name in reversed(SAMPLINGS)},
    "antithetic pairs": cache(antithetic),
    "strata over the whole run": cache(whole_run_strata),
    "importance along a": cache(importance),
    "scrambled Sobol": cache(sobol),
}


# -- the errors ----------------------------------------------------------------------------------


def looked_up(grid: Tensor, references: Tensor, shares: Tensor) -> Tensor:
    """(n, cells) between the points of the grid; the mean over a of this is exactly that of the grid."""
    points = grid.shape[1]
    place = (shares.double() * points - 0.5).clamp(0, points - 1)
    low = place.long().clamp(max=points - 2)
    part = (place - low)[:, None]
    return (1 - part) * grid[references, low] + part * grid[references, low + 1]


def distance(found: Tensor, truth: Tensor) -> float:
    return float((found.relu() - truth.relu()).norm() / truth.relu().norm())


def errors(images: Sequence[Tensor], name: str, counts: Sequence[int], seeds: int) -> list[float]:
    """For each number of samples, the median over images of the mean error over seeds."""
    found = torch.zeros(len(counts), len(images))
    for row, samples in enumerate(counts):
        for seed in range(seeds):
            references, shares, weights = SCHEMES[name](samples, images[0].shape[0], seed)
            for column, grid in enumerate(images):
                mean = (weights * looked_up(grid, references, shares)).mean(0)
                found[row, column] += distance(mean, grid.mean((0, 1))) / seeds
    return found.quantile(0.5, dim=1).tolist()


def reported(images: Sequence[Tensor], name: Sampling, samples: int, seeds: int) -> float:
    """The replicates' standard error over the true one, each the root of the mean square; the median over images."""
    sizes = replicate_sizes(samples)
    ratios = []
    for grid in images:
        said = true = 0.0
        for seed in range(seeds):
            references, shares, _ = SCHEMES[name](samples, grid.shape[0], seed)
            found = looked_up(grid, references, shares)
            means = torch.stack([some.mean(0) for some in found.split(sizes)])
            said += float(means.var(0).sum()) / len(sizes)
            true += float((found.mean(0) - grid.mean((0, 1))).square().sum())
        ratios.append((said / true) ** 0.5)
    return float(torch.tensor(ratios).quantile(0.5))


def passes_to(level: float, counts: Sequence[int], found: Sequence[float]) -> float | None:
    """The samples at which the error falls to `level` for good, between the measured ones by their logarithms."""
    above = [place for place, error in enumerate(found) if error > level]
    last = above[-1] if above else -1
    if last + 1 == len(counts):
        return None
    if last < 0:
        return float(counts[0])
    part = math.log(found[last] / level) / math.log(found[last] / found[last + 1])
    return counts[last] * (counts[last + 1] / counts[last]) ** part


def confirmed(subject: Subject, grid: Sequence[Tensor], arguments: argparse.Namespace) -> Iterable[str]:
    """The package's own maps against the grid's truth, beside what the grid says of the same number of samples."""
    classifier = subject.load()
    count, samples = arguments.confirm, 64
    images, references = chosen_images(classifier, arguments.images, arguments.references)
    for name in reversed(SAMPLINGS):
        total = 0.0
        for seed in range(2):
            gradient = egcam.Expected(references, samples, sampling=name, seed=seed)
            options = {"weighting": "elementwise", "negative": "agreed"}
            cam = egcam.GradientCAM(classifier.model, subject.layer, gradient=gradient, **options)
            maps = cam(images[:count]).maps.flatten(1).double()
            total += sum(distance(one, truth.mean((0, 1))) for one, truth in zip(maps, grid, strict=False))
        simulated = [errors([one], name, [samples], 64)[0] for one in grid[:count]]
        yield f"| {subject.label} | {name} | {total / 2 / count:.3f} | {sum(simulated) / count:.3f} |"


# -- the page ------------------------------------------------------------------------------------

Results: TypeAlias = dict[str, dict[str, dict[str, list[float]]]]
"""By kind of reference, network and scheme: the error for each of COUNTS."""


def tables(results: Results) -> Iterable[str]:
    for kind, networks in results.items():
        counts = COUNTS[kind]
        yield f"\n### References: {kind}\n"
        yield "| network | scheme | " + " | ".join(f"n = {n}" for n in SHOWN[kind]) + " | n at 5 % | of Monte Carlo's |"
        yield "| --- | --- |" + " --- |" * (len(SHOWN[kind]) + 2)
        for label, schemes in networks.items():
            plain = passes_to(LEVEL, counts, schemes["monte-carlo"])
            for name, found in schemes.items():
                reached = passes_to(LEVEL, counts, found)
                share = "" if plain is None or reached is None else f"{reached / plain:.2f}"
                cells = " | ".join(f"{found[counts.index(n)]:.3f}" for n in SHOWN[kind])
                at = f"> {counts[-1]}" if reached is None else f"{reached:.0f}"
                yield f"| {label} | {name} | {cells} | {at} | {share} |"


def draw(results: Results, file: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, NullFormatter

    from egcam.figures import style

    looks = {
        "monte-carlo": (style.FAINT, ":", "Monte Carlo"),
        "stratified": (style.BLUE, "--", "stratified"),
        "lattice": (style.EMPHASIS, "-", "lattice (default)"),
    }
    with style.context():
        figure = Figure(figsize=(style.PAGE_WIDTH, 3.8), layout="constrained")
        axes = figure.subplots(2, len(SUBJECTS), sharey=True, squeeze=False)
        for row, (kind, networks) in zip(axes, results.items(), strict=True):
            for axis, (label, schemes) in zip(row, networks.items(), strict=False):
                for name, (color, line, text) in looks.items():
                    axis.plot(COUNTS[kind], schemes[name], line, color=color, label=text, linewidth=1.3)
                axis.axhline(LEVEL, color=style.RULE, linewidth=0.8, zorder=0)
                axis.set(xscale="log", yscale="log", ylim=(0.01, 1), title=label if kind == "images" else "")
                axis.set_xlabel("samples")
                axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
                for both in (axis.xaxis, axis.yaxis):
                    both.set_minor_formatter(NullFormatter())
            row[0].set_ylabel("64 images\nerror of the map" if kind == "images" else "blurred\nerror of the map")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)
        figure.savefig(file, dpi=200)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(SUBJECTS), default=list(SUBJECTS))
    parser.add_argument("--images", type=int, default=6)
    parser.add_argument("--references", type=int, default=64)
    parser.add_argument("--points", type=int, default=12, help="of the path, for each reference")
    parser.add_argument("--line-points", type=int, default=128, help="of the path from the blurred image")
    parser.add_argument("--seeds", type=int, default=32)
    parser.add_argument("--confirm", type=int, default=2, help="images the package itself explains at the end")
    parser.add_argument("--cache", type=Path, help="folder in which the grids are kept")
    parser.add_argument("--out", type=Path, help="folder for convergence.png")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    results: Results = {"images": {}, "blurred": {}}
    calibration: list[str] = []
    checks: list[str] = []
    for subject in (SUBJECTS[name] for name in arguments.networks):
        found = grids(subject, arguments)
        for kind, counts in COUNTS.items():
            results[kind][subject.label] = {
                name: errors(found[kind], name, counts, arguments.seeds) for name in SCHEMES
            }
            for name in ("stratified", "lattice"):
                ratios = [reported(found[kind], name, samples, arguments.seeds) for samples in (16, 32, 64, 128)]
                calibration.append(f"| {subject.label} | {kind} | {name} | {' | '.join(f'{r:.1f}' for r in ratios)} |")
        if arguments.confirm:
            checks += confirmed(subject, found["images"], arguments)
    print("\n".join(tables(results)))
    print("\n### The standard error reported, as a multiple of the true one\n")
    print("| network | references | scheme | n = 16 | n = 32 | n = 64 | n = 128 |\n" + "| --- " * 7 + "|")
    print("\n".join(calibration))
    print("\n### The package itself, 64 samples\n")
    print("| network | scheme | measured | from the grid |\n" + "| --- " * 4 + "|")
    print("\n".join(checks))
    if arguments.out:
        draw(results, arguments.out / "convergence.png")


if __name__ == "__main__":
    main()
