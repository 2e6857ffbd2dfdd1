"""How far the default map is from its limit after n samples, with the lattice and with plain Monte Carlo.

    EGCAM_DATA=… EGCAM_HEADS=heads EGCAM_HALVES=halves.csv python research/default_error.py --images 4

`convergence.py` simulates many schemes on a grid of references; this runs the package as users get it: the default
reference (blurred copies and colours in turn) and the default map. The error is ||map_n - map|| / ||map|| of raw maps,
the mean over seeds and then the median over images; `map` is a run of 1,024 lattice samples with another seed.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path
from statistics import median

import networks
import torch

from egcam import ExpectedGradCAM
from egcam.models import zoo
from egcam.photos.files import read_image

SAMPLES = (8, 16, 32, 64, 128)
SCHEMES = ("monte-carlo", "lattice")


def loaded() -> dict[str, tuple[zoo.Classifier, str]]:
    """Networks with the layer explained."""
    weights = Path(os.environ["EGCAM_DATA"]) / "weights" / "squeezenet1_1-deepscale-d97e37ae.pth"
    return {
        "AlexNet, three-layer head": (networks.alexnet(), "features.12"),
        "SqueezeNet 1.1, features.9": (zoo.load("squeezenet1_1", weights=str(weights)), "features.9"),
    }


def pictures(count: int) -> list[Path]:
    """Images of the half that defaults are chosen on."""
    with open(os.environ["EGCAM_HALVES"], newline="") as file:
        chosen = [row["file"] for row in csv.DictReader(file) if row["part"] == "choose"]
    return [Path(os.environ["EGCAM_DATA"]) / "imagenet" / name for name in chosen[:: len(chosen) // count][:count]]


def errors(classifier: zoo.Classifier, layer: str, file: Path, seeds: int) -> dict[tuple[str, int], float]:
    """The mean relative error of one image's map, by scheme and number of samples."""
    image = classifier.preprocessing(read_image(file))[None]

    def made(samples: int, seed: int, sampling: str) -> torch.Tensor:
        cam = ExpectedGradCAM(classifier.model, layer, samples=samples, seed=seed, sampling=sampling)  # type: ignore[arg-type]
        return cam(image).maps

    limit = made(1024, 999, "lattice")
    return {
        (scheme, samples): sum(
            float((made(samples, seed, scheme) - limit).norm() / limit.norm()) for seed in range(seeds)
        )
        / seeds
        for scheme in SCHEMES
        for samples in SAMPLES
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print("| network | scheme | " + " | ".join(f"n = {samples}" for samples in SAMPLES) + " |")
    print("| --- " * (len(SAMPLES) + 2) + "|")
    for name, (classifier, layer) in loaded().items():
        found = [errors(classifier, layer, file, options.seeds) for file in pictures(options.images)]
        for scheme in SCHEMES:
            cells = [f"{median(one[scheme, samples] for one in found):.3f}" for samples in SAMPLES]
            print(f"| {name} | {scheme} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
