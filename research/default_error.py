"""How far the default's map of n samples is from its limit, and how far it says it is.

    EGCAM_DATA=… EGCAM_HEADS=heads EGCAM_HALVES=halves.csv python research/default_error.py --out research/scores

The error is ||map_n - truth|| / ||truth|| of signed maps, the truth being 2,048 samples of another seed with the same
references: the package's photographs, and 32 images of the data. Reported is ||explanation.error|| / ||map_n||. Plain
is the error of the samples' mean, and lacked what it lacks of the sum, before the map is made to add up.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import pandas
from cell_shapley import pictures
from torch import Tensor

import egcam
from egcam.models.zoo import Classifier

PLACES = {"alexnet": "features.12", "squeezenet1_1": "features.12", "mobilenet_v2": "features.13",
          "efficientnet_lite0": "_blocks.10"}  # fmt: skip
SAMPLES = (4, 8, 16, 32, 64, 128, 256)


def explained(
    classifier: Classifier, layer: str, images: Tensor, references: object, samples: int, seed: int
) -> egcam.Explanation:
    options = {"reference": references, "samples": samples, "seed": seed, "signed": True}
    return egcam.ExpectedGradCAM(classifier.model, layer, **options)(images)


def plain(classifier: Classifier, layer: str, images: Tensor, references: object, samples: int, seed: int) -> Tensor:
    """The mean of the same samples, not made to add up."""
    gradient = egcam.Expected(references, samples, path="latent", difference="latent", seed=seed)
    cam = egcam.GradientCAM(classifier.model, layer, gradient=gradient, weighting="summed", signed=True)
    return cam(images).maps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    rows = []
    for name, layer in PLACES.items():
        classifier = egcam.zoo.load(f"{Path(__file__).parent / 'networks.py'}:{name}")
        images = pictures(classifier, "confirm", given.images)
        for kind, references in {"photographs": "photographs", "data": pictures(classifier, "reference", 32)}.items():
            truth = explained(classifier, layer, images, references, 2048, 99).maps.flatten(1)
            for samples in SAMPLES:
                for seed in range(3):
                    found = explained(classifier, layer, images, references, samples, seed)
                    away = (found.maps.flatten(1) - truth).norm(dim=1) / truth.norm(dim=1)
                    mean = plain(classifier, layer, images, references, samples, seed).flatten(1)
                    without = (mean - truth).norm(dim=1) / truth.norm(dim=1)
                    reported = found.error.flatten(1).norm(dim=1) / found.maps.flatten(1).norm(dim=1)
                    lacked = (found.completeness.correction / found.completeness.expected).abs()
                    rows += [
                        {"model": f"{name}, {layer}", "references": kind, "samples": samples, "seed": seed,
                         "image": image, "error": float(error), "reported": float(said), "plain": float(other),
                         "lacked": float(one)}
                        for image, (error, said, other, one) in enumerate(
                            zip(away, reported, without, lacked, strict=True)
                        )
                    ]  # fmt: skip
            pandas.DataFrame(rows).to_parquet(given.out / "default-error.parquet", index=False)
            print(name, kind, flush=True)
    table = (
        pandas.DataFrame(rows)
        .groupby(["model", "references", "samples"])[["error", "reported", "plain", "lacked"]]
        .median()
    )
    print(table.unstack().round(3).to_string())


if __name__ == "__main__":
    main()
