"""Which reference to use when no data is at hand: insertion-deletion of Expected Grad-CAM for each made reference.

    python research/references.py FOLDER [--model NAME --layer LAYER --weights FILE] [--images 24] [--samples 16]

FOLDER holds photographs. The first images are explained, the last serve as references from data. Values are means, with
the 95 % interval of the paired difference to Grad-CAM.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import egcam
from egcam.models import zoo
from egcam.photos.files import read_image

MADE = ("blurred", "black", "white", "constant", "noise", "uniform")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default=zoo.EMBEDDED)
    parser.add_argument("--layer")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--steps", type=int, default=28)
    arguments = parser.parse_args()

    torch.set_num_threads(2)
    classifier = zoo.load(arguments.model, weights=arguments.weights)
    files = sorted(path for path in arguments.folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
    count = arguments.images
    images = torch.stack([classifier.preprocess(read_image(path)) for path in files[:count]])
    others = torch.stack([classifier.preprocess(read_image(path)) for path in files[-max(32, arguments.samples) :]])
    model = classifier.model
    options = {"layer": arguments.layer, "batch_size": 16}

    def score(explanation: egcam.Explanation) -> torch.Tensor:
        size = images.shape[-1] * images.shape[-2]
        return egcam.metrics.insertion_deletion(
            model, images, explanation.heatmaps, explanation.targets, step=size // arguments.steps
        )

    plain = egcam.GradCAM(model, **options)(images)
    base = score(plain)
    print(f"{arguments.model} at {plain.layer}, {count} images, {arguments.samples} samples")
    print(f"| Grad-CAM | {base.mean():.4f} | |")
    for name in ("data", *MADE):
        reference = others if name == "data" else _made(name, classifier)
        cam = egcam.ExpectedGradCAM(model, reference=reference, samples=arguments.samples, **options)
        found = score(cam(images, target=plain.targets))
        gain = found - base
        half = 1.96 * float(gain.std()) / count**0.5
        print(f"| Expected, {name} | {found.mean():.4f} | {gain.mean():+.4f} ± {half:.4f} |", flush=True)


def _made(name: str, classifier: zoo.Classifier) -> egcam.attribution.references.Reference:
    if name in ("black", "white"):
        make = getattr(egcam.references, name)
        return make(classifier.preprocessing.mean, classifier.preprocessing.std)
    return egcam.attribution.references.as_reference(name)


if __name__ == "__main__":
    main()
