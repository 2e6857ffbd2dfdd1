"""A first look at the latent path, at the last and at inner layers: how faithful, how sparse.

    EGCAM_DATA=… python research/latent_screen.py efficientnet-lite0 --layers _swish:2,_blocks.10 --images 12

Explained are the predictions on the first images of part "explain" in imagenet.csv; references are the first 32 images
of part "reference", or the photographs that come with the package. Curves have 12 steps; nothing is sharpened.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

import torch
from torch import Tensor, nn

import egcam
from egcam.models.zoo import Classifier
from egcam.photos.files import read_image


def pictures(classifier: Classifier, part: str, count: int) -> Tensor:
    data = Path(os.environ["EGCAM_DATA"])
    with open(data / "imagenet.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == part][:count]
    return torch.stack([classifier.preprocess(read_image(data / "imagenet" / row["file"])) for row in rows])


def explainers(model: nn.Module, layers: list[str], references: Tensor) -> dict[str, egcam.Explainer]:
    found: dict[str, egcam.Explainer] = {"grad-cam": egcam.GradCAM(model, layers[0])}
    for layer in layers:
        found[f"hires-cam, {layer}"] = egcam.HiResCAM(model, layer)
        for kind, reference in (("data", references), ("photographs", "photographs")):
            for difference, weighting in (("latent", "summed"), ("none", "elementwise")):
                options = {"path": "latent", "difference": difference, "weighting": weighting, "negative": 1}
                name = f"latent, {kind}, difference {difference}, {layer}"
                found[name] = egcam.ExpectedGradCAM(model, layer, reference=reference, **options)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--weights")
    parser.add_argument("--layers", required=True, help="the last layer first")
    parser.add_argument("--images", type=int, default=12)
    given = parser.parse_args()
    classifier = egcam.zoo.load(given.model, weights=given.weights)
    model = classifier.model
    images, references = (pictures(classifier, *part) for part in (("explain", given.images), ("reference", 32)))
    step = -(-images.shape[-1] * images.shape[-2] // 12)
    first = None
    print("| method | ins-del | to the first | infidelity | sparseness | complexity |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, explainer in explainers(model, given.layers.split(","), references).items():
        maps = explainer(images)
        scores = egcam.metrics.insertion_deletion(model, images, maps, step=step)
        first = scores if first is None else first
        away = scores - first
        others = [
            egcam.metrics.infidelity(model, images, maps),
            egcam.metrics.sparseness(maps),
            egcam.metrics.complexity(maps),
        ]
        figures = " | ".join(f"{float(values.mean()):.3f}" for values in others)
        half = 1.96 * float(away.std()) / len(away) ** 0.5
        print(
            f"| {name} | {float(scores.mean()):.3f} | {float(away.mean()):+.3f} ± {half:.3f} | {figures} |", flush=True
        )


if __name__ == "__main__":
    main()
