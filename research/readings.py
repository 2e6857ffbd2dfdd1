"""Which reading of Expected Grad-CAM's formula gives the sparseness and complexity that its paper prints.

    EGCAM_DATA=… python research/heads.py vgg16 --teacher --images 700 --epochs 30 --out heads
    EGCAM_DATA=… python research/heads.py alexnet --teacher --epochs 40 --out heads
    EGCAM_DATA=… EGCAM_HEADS=heads EGCAM_HALVES=halves.csv python research/readings.py --network vgg16_classes
    python research/readings.py --table                                  # docs/expected-grad-cam.md anew

Neither score depends on a map's scale, so both can be held against the paper's, which are of VGG-16. One thing at a
time is varied around the reading by location with the input difference, U(0, 1) and images of the data as references.
Beside it stand the paper's rivals by their formulas, and as two packages code them. Explained are the predictions on
images of part "confirm" (EGCAM_HALVES: what `research/halves.py` wrote), which the heads have not seen; references are
images of part "reference". Each image's scores are kept as soon as they are there, and a run goes on where it stopped.

Each map is scored twice: as it is after the ReLU, and "stretched", with its smallest cell taken off first, as
pytorch-grad-cam and torchcam do before they give a map away.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pandas
import torch
from torch import Tensor, nn
from torch.nn import functional

import egcam
from egcam.attribution.registry import create
from egcam.metrics import Complexity, Sparseness
from egcam.photos.files import read_image

RESEARCH = Path(__file__).parent
SCORES = RESEARCH / "scores" / "readings.parquet"
PAGE = RESEARCH.parent / "docs" / "expected-grad-cam.md"
REFERENCES = 64


NETWORKS = {
    "vgg16_classes": "VGG-16",
    "alexnet_classes": "AlexNet",
    "vgg16_groups": "VGG-16, 16 groups",
    "alexnet_groups": "AlexNet, 16 groups",
}
LAYER = "features"  # all of it: up to features.30 of VGG-16 and features.12 of AlexNet
FINER = {"vgg16": "features.inner.29", "alexnet": "features.11"}  # before the last pooling
PAPER = {
    "grad-cam": (0.38, 10.56), "hires-cam": (0.40, 10.54), "integrated-grad-cam": (0.36, 10.59),
    "smooth-grad-cam++": (0.35, 10.60), "xgrad-cam": (0.38, 10.56), "layer-cam": (0.38, 10.56),
    "grad-cam++": (0.40, 10.53), "expected-grad-cam": (0.47, 10.43),
}  # fmt: skip
RIVALS = {
    "grad-cam": "Grad-CAM", "hires-cam": "HiResCAM", "integrated-grad-cam": "Integrated Grad-CAM",
    "integrated-grad-cam, authors": "– as its authors coded it", "xgrad-cam": "XGrad-CAM", "layer-cam": "LayerCAM",
    "grad-cam++": "Grad-CAM++", "grad-cam++, pytorch-grad-cam": "– as pytorch-grad-cam 1.5.7 codes it",
    "grad-cam++, torchcam": "– as torchcam 0.5.0 codes it", "smooth-grad-cam++": "Smooth Grad-CAM++",
    "smooth-grad-cam++, torchcam": "– as torchcam 0.5.0 codes it",
}  # fmt: skip
STRETCHED = ("layer-cam", "grad-cam++", "smooth-grad-cam++")
BEFORE_POOLING = ("grad-cam", "hires-cam")
CENTRE = "by location, input difference, U(0, 1), data, 16 samples"
READINGS: dict[str, dict[str, Any]] = {
    CENTRE: {},
    "pooled": {"weighting": "mean"},
    "pooled, no noise": {"weighting": "mean", "kernel": None},
    "latent difference": {"difference": "latent"},
    "no difference": {"difference": "none"},
    "no noise": {"kernel": None},
    "Gaussian noise, .15": {"kernel": egcam.Kernel("gaussian", 0.15)},
    "Gaussian noise, .15 of the range": {"kernel": egcam.Kernel("gaussian", 0.15, relative=True)},
    "U(0, 1) on pixels": {"kernel": egcam.Kernel("uniform", 1 / 0.226)},
    "with k": {"kernel": egcam.Kernel("uniform", 1.0, normaliser=True)},
    "pooled, with k": {"weighting": "mean", "kernel": egcam.Kernel("uniform", 1.0, normaliser=True)},
    "black": {"reference": "black"},
    "blurred": {"reference": "blurred"},
    "photographs": {"reference": "photographs"},
    "photographs, no noise": {"reference": "photographs", "kernel": None},
    "8 samples": {"samples": 8},
    "32 samples": {"samples": 32},
}


class Remembered(nn.Module):
    """Feature maps, each computed once: most readings look at the same points, references and noise."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self._known: dict[bytes, Tensor] = {}

    def forward(self, images: Tensor) -> Tensor:
        """(n, K, h, w), of which only what is new is computed."""
        keys = [blake2b(image.detach().numpy().tobytes()).digest() for image in images]
        rows = [row for row, key in enumerate(keys) if key not in self._known and key not in keys[:row]]
        if rows:
            with torch.no_grad():
                found = self.inner(images[rows])
            self._known.update({keys[row]: maps for row, maps in zip(rows, found, strict=True)})
        maps = torch.stack([self._known[key] for key in keys])
        # A gradient reaches them and ends there.
        return maps.requires_grad_() if torch.is_grad_enabled() else maps


def reading(model: nn.Module, layer: str, data: Tensor, **changed: Any) -> egcam.Explainer:
    """The reading in the centre, with what is changed."""
    usual = {"reference": data, "samples": 16, "kernel": egcam.Kernel("uniform", 1.0), "difference": "input"}
    options = {**usual, **changed}
    weighting = options.pop("weighting", "elementwise")
    return egcam.GradientCAM(model, layer, gradient=egcam.Expected(**options), weighting=weighting)


def explainers(name: str, plain: nn.Module, model: nn.Module, data: Tensor) -> dict[str, egcam.Explainer]:
    """All of egcam's; `model` remembers its feature maps, and `plain` is the same without."""
    options = {"integrated-grad-cam": {"samples": 16}, "smooth-grad-cam++": {"samples": 16}}
    found = {
        method: create(method, model, layer=LAYER, **options.get(method, {})) for method in RIVALS if "," not in method
    }
    found["integrated-grad-cam, authors"] = create("integrated-grad-cam", model, layer=LAYER, samples=16, authors=True)
    found |= {label: reading(model, LAYER, data, **changed) for label, changed in READINGS.items()}
    finer = FINER[name.split("_")[0]]
    return found | {f"{method}, before the pooling": create(method, plain, layer=finer) for method in BEFORE_POOLING}


def packages(model: nn.Module) -> dict[str, Callable[[Tensor], Tensor]]:
    """Rivals as other packages code them: an image to its map as the package gives it, (1, h, w)."""
    import pytorch_grad_cam
    from torchcam.methods import GradCAMpp, SmoothGradCAMpp

    def by_pytorch_grad_cam(image: Tensor) -> Tensor:
        with pytorch_grad_cam.GradCAMPlusPlus(model, [model.features]) as cam:
            return torch.from_numpy(cam(image, None))

    def by_torchcam(kind: type[Any], image: Tensor) -> Tensor:
        torch.manual_seed(0)
        with kind(model, LAYER) as cam:
            scores = model(image.requires_grad_())
            return cam(int(scores.argmax()), scores)[0].detach()

    return {
        "grad-cam++, pytorch-grad-cam": by_pytorch_grad_cam,
        "grad-cam++, torchcam": partial(by_torchcam, GradCAMpp),
        "smooth-grad-cam++, torchcam": partial(by_torchcam, SmoothGradCAMpp),
    }


def scores_of(cells: Tensor, size: torch.Size) -> dict[str, float]:
    """Of a map (1, h, w) after the ReLU, at the size of the image."""
    found: dict[str, float] = {}
    for prefix, some in (("", cells), ("stretched ", cells - cells.amin())):
        # Away from tiny values, whose products would vanish; neither score depends on the scale.
        peak = some.amax()
        some = some / peak if peak > 0 else some
        maps = functional.interpolate(some[None].float(), size, mode="bilinear", align_corners=False)[0]
        found[f"{prefix}sparseness"] = float(Sparseness()(maps))
        found[f"{prefix}complexity"] = float(Complexity()(maps))
    return found


def images_of(part: str, count: int) -> list[str]:
    """Files of that part in an order by chance, the same for any count."""
    with open(os.environ["EGCAM_HALVES"], newline="") as file:
        names = [row["file"] for row in csv.DictReader(file) if row["part"] == part]
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0)).tolist()
    return [names[place] for place in order[:count]]


def measure(name: str, count: int, samples: list[int] | None, without: list[str], out: Path) -> None:
    """Append what is missing, image by image."""
    torch.set_num_threads(1)
    where = f"{RESEARCH / 'networks.py'}:{name}"
    classifier, plain = egcam.zoo.load(where), egcam.zoo.load(where).model
    model = classifier.model
    model.features = Remembered(model.features)
    folder = Path(os.environ["EGCAM_DATA"]) / "imagenet"

    def picture(file: str) -> Tensor:
        return classifier.preprocess(read_image(folder / file))

    data = torch.stack([picture(file) for file in images_of("reference", REFERENCES)])
    own = explainers(name, plain, model, data)
    others = packages(model)
    wanted = [
        label
        for label in (*own, *others)
        if label not in without and (samples is None or _samples(label) in (None, *samples))
    ]
    for number, file in enumerate(images_of("confirm", count)):
        known = pandas.read_parquet(out) if out.exists() else pandas.DataFrame(columns=["network", "image", "reading"])
        done = set(known[(known.network == name) & (known.image == file)].reading)
        image = picture(file)[None]
        rows = []
        for label in (label for label in wanted if label not in done):
            cells = own[label](image).maps if label in own else others[label](image.clone())
            rows.append({"network": name, "image": file, "reading": label, **scores_of(cells.relu(), image.shape[-2:])})
        if rows:
            out.parent.mkdir(parents=True, exist_ok=True)
            table = pandas.concat([known, pandas.DataFrame(rows)], ignore_index=True)
            table.to_parquet(out, index=False, compression="zstd")
        print(f"{number + 1} of {count} images", flush=True)


def _samples(label: str) -> int | None:
    """Of a reading that differs in their number alone."""
    found = re.fullmatch(r"(\d+) samples", label)
    return int(found[1]) if found else None


def interval(values: pandas.Series) -> str:
    """A mean with its 95 % interval."""
    return f"{_short(values.mean())} ± {_short(1.96 * values.sem())}"


def _short(number: float) -> str:
    return f"{number:.3f}".replace("0.", ".", 1)


def tables(scores: pandas.DataFrame) -> dict[str, str]:
    """The page's two tables: the paper's rivals; and the readings, each with what it has more than its calibration."""
    networks = [name for name in NETWORKS if name in set(scores.network)]
    by_image = {
        name: scores[scores.network == name].pivot(index="image", columns="reading").dropna(axis="columns", how="all")
        for name in networks
    }

    def cell(name: str, reading: str, prefix: str = "") -> str:
        found = by_image[name]
        if ("sparseness", reading) not in found:
            return "–"
        return f"{interval(found[f'{prefix}sparseness', reading])} / {found[f'{prefix}complexity', reading].mean():.2f}"

    def more(name: str, reading: str) -> str:
        found, beside = by_image[name], "grad-cam" if reading.startswith("pooled") else "hires-cam"
        if ("sparseness", reading) not in found:
            return "–"
        rise = found["sparseness", reading] - found["sparseness", beside]
        return ("+" if rise.mean() > 0 else "") + interval(rise)

    def of_paper(method: str) -> str:
        sparse, complex_ = PAPER[method]
        return f"{sparse:.2f} / {complex_:.2f}".removeprefix("0")

    titles = [f"{NETWORKS[name]}, {len(by_image[name])} images" for name in networks]
    rivals = [["", "paper", *titles]]
    for method, label in RIVALS.items():
        paper = of_paper(method) if method in PAPER else ""
        rivals.append([label, paper, *(cell(name, method) for name in networks)])
        if method in STRETCHED:
            rivals.append(["– less its smallest cell", "", *(cell(name, method, "stretched ") for name in networks)])
    for method in BEFORE_POOLING:
        label = f"{RIVALS[method]}, before the last pooling"
        rivals.append([label, "", *(cell(name, f"{method}, before the pooling") for name in networks)])
    readings = [["", *(part for title in titles for part in (title, "more"))]]
    for reading in READINGS:
        label = f"**{reading}**" if reading == CENTRE else reading
        readings.append([label, *(part(name, reading) for name in networks for part in (cell, more))])
    return {"rivals": _markdown(rivals), "readings": _markdown(readings)}


def _markdown(rows: list[list[str]]) -> str:
    head, *body = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def with_tables(page: str, made: dict[str, str]) -> str:
    """The page with what stands between `<!-- name -->` and `<!-- end -->` replaced."""
    for name, table in made.items():
        block = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page, replaced = re.subn(block, lambda m, t=table: f"{m[1]}{t}\n{m[2]}", page, flags=re.DOTALL)
        if replaced != 1:
            raise ValueError(f"the page has {replaced} places for the table of {name}, and needs one")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=list(NETWORKS))
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--samples", type=int, nargs="*", help="besides 16; 8 and 32 unless named")
    parser.add_argument("--without", nargs="*", default=[], help="readings and rivals to leave out")
    parser.add_argument("--out", type=Path, default=SCORES)
    parser.add_argument("--table", action="store_true", help="write the tables of docs/expected-grad-cam.md anew")
    given = parser.parse_args()
    if given.network is not None:
        measure(given.network, given.images, given.samples, given.without, given.out)
    if given.table:
        page = with_tables(PAGE.read_text(encoding="utf-8"), tables(pandas.read_parquet(given.out)))
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
