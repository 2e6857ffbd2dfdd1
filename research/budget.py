"""Quality against cost: every method with more and more samples, its cost in forward passes.

    EGCAM_DATA=… EGCAM_HALVES=… python research/budget.py research/networks.py:mobilenet_v2

Images of part "confirm", every method at its usual layer, references already seen. A run of what follows the layer
counts by its share of the network's multiplications, forward and backward each, even if it skips a part of it; a
gradient of a whole pass counts the backward run. `--plot FILE` draws what is kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas
import torch
from cell_shapley import pictures

import egcam
from egcam import metrics
from egcam.attribution.references import photographs
from egcam.figures import style
from egcam.models.layers import feature_layers
from egcam.models.trace import dry_run

FORMS = {  # method: the numbers of samples
    "slope-cam": (2, 4, 8, 16, 32, 64),
    "latent path": (2, 4, 8, 16, 32, 64),
    "expected, along images": (4, 8, 16, 32),
    "integrated-grad-cam": (4, 16, 32),
    "smooth-grad-cam++": (4, 16, 32),
    "expected-grad-cam": (4, 16, 32),
    "grad-cam": (1,),
    "grad-cam++": (1,),
    "hires-cam": (1,),
    "layer-cam": (1,),
}
QUALITIES = {"insertion-deletion": "insertion − deletion ↑", "infidelity": "infidelity ↓"}


def explainers(classifier: egcam.models.zoo.Classifier) -> dict[tuple[str, int], egcam.Explainer]:
    model = classifier.model
    seen = photographs(classifier.preprocessing.mean, classifier.preprocessing.std)
    found: dict[tuple[str, int], egcam.Explainer] = {}
    for method, counts in FORMS.items():
        for count in counts:
            if method == "expected, along images":
                cam = egcam.SlopeCAM(model, layer="inner", reference=seen, samples=count, path="linear")
            elif method in ("slope-cam", "latent path"):
                path = "latent" if method == "latent path" else None
                cam = egcam.SlopeCAM(model, reference=seen, samples=count, path=path)
            else:
                number = {} if count == 1 else {"samples": count}
                reference = {"reference": seen} if method.endswith("paper") else {}
                cam = egcam.attribution.registry.create(method, model, **number, **reference)
            found[method, count] = cam
    return found


def measure(name: str, count: int, out: Path, only: list[str]) -> None:
    """All methods, or some of them again on the images that are kept."""
    classifier = egcam.zoo.load(name)
    model = classifier.model
    methods = {key: cam for key, cam in explainers(classifier).items() if not only or key[0] in only}
    every = pictures(classifier, "confirm", count)
    kept = pandas.DataFrame()
    if only:
        kept = pandas.read_parquet(out / f"{classifier.name}.parquet")
        every = every[: kept.image.nunique()]
        kept = kept[~kept.method.isin(only)]
    shares = {layer.name: layer.tail for layer in feature_layers(model, dry_run(model, every[:1]))}
    step = -(-every.shape[-1] * every.shape[-2] // 12)
    for cam in methods.values():
        cam(every[-1:])  # the references are seen
    rows = []
    for number, image in enumerate(every[:, None]):
        with torch.inference_mode():
            target = model(image).argmax(1)
        for (method, samples), cam in methods.items():
            found = cam(image, target)
            runs = 2 * found.tails if found.tails else samples
            values = {
                "cost": found.passes + runs * shares[found.layer],
                "insertion-deletion": metrics.InsertionDeletion(step=step)(model, image, found.heatmaps, target),
                "infidelity": metrics.Infidelity()(model, image, found.heatmaps, target),
            }
            values = {key: float(value) for key, value in values.items()}
            rows.append({"model": classifier.name, "image": number, "method": method, "samples": samples, **values})
        print(f"{number + 1} of {len(every)} images", flush=True)
        out.mkdir(parents=True, exist_ok=True)
        if not only or number + 1 == len(every):
            found = pandas.concat([pandas.DataFrame(rows), kept], ignore_index=True)
            found.to_parquet(out / f"{classifier.name}.parquet", compression="zstd")


def plot(folder: Path, file: Path) -> None:
    import matplotlib.pyplot as plt

    tables = [pandas.read_parquet(one) for one in sorted(folder.glob("*.parquet"))]
    looks = {method: look.options() for method, look in style.lines(FORMS).items()}
    looks["latent path"] = looks["slope-cam"] | {"linestyle": "--", "linewidth": 1.5}
    looks["expected, along images"] = looks["slope-cam"] | {"linestyle": ":", "linewidth": 1.5}
    costs = (1, 2, 4, 8, 16, 32, 64)
    with style.context():
        size = (max(6.5, 4.2 * len(tables)), 6.5)
        figure, axes = plt.subplots(len(QUALITIES), len(tables), figsize=size, squeeze=False, sharex=True)
        for column, table in enumerate(tables):
            average = table.drop(columns=["model", "image"]).groupby(["method", "samples"], sort=False).mean()
            for axis, (metric, label) in zip(axes[:, column], QUALITIES.items(), strict=True):
                for method, part in average.groupby(level="method", sort=False):
                    part = part.sort_values("cost")
                    axis.plot(part.cost, part[metric], label=style.label(str(method)), **looks[str(method)])
                axis.set(xscale="log", ylabel=label)
                axis.minorticks_off()
                axis.set_xticks(costs, [str(cost) for cost in costs])
            axes[0][column].set_title(f"{table.model.iloc[0]}, {table.image.nunique()} images")
            axes[-1][column].set_xlabel("cost of one map, forward passes")
        figure.legend(*axes[0][0].get_legend_handles_labels(), loc="lower center", ncols=3, frameon=False)
        figure.tight_layout(rect=(0, 0.12, 1, 1))
        figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="as `egcam.zoo.load` takes it")
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "scores" / "budget")
    parser.add_argument("--only", action="append", default=[], help="measure this method again, with the same --images")
    parser.add_argument("--plot", type=Path)
    given = parser.parse_args()
    if given.model:
        measure(given.model, given.images, given.out, given.only)
    if given.plot:
        plot(given.out, given.plot)


if __name__ == "__main__":
    main()
