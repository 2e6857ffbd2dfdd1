"""How far the default's map of n samples is from its limit, and how far it says it is.

    EGCAM_DATA=… EGCAM_HEADS=heads EGCAM_HALVES=halves.csv python research/default_error.py --out research/scores

The error is ||map_n - truth|| / ||truth|| of signed maps, the truth being 2,048 samples of another seed with the same
references: the package's photographs, and 32 images of the data. Reported is ||explanation.error|| / ||map_n||. The
same for the latent path, whose limit is another.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import pandas
from cell_shapley import pictures
from torch import Tensor

import egcam
from egcam.models.zoo import Classifier

PLACES = {"alexnet": "features.12", "squeezenet1_1": "features.11", "mobilenet_v2": "features.13",
          "efficientnet_lite0": "_blocks.10"}  # fmt: skip
SAMPLES = (4, 8, 16, 32, 64, 128, 256)
PATHS = ("stepwise", "latent")


def explained(
    classifier: Classifier, layer: str, images: Tensor, references: object, path: str, samples: int, seed: int
) -> egcam.Explanation:
    options = {"reference": references, "samples": samples, "seed": seed, "path": path, "signed": True}
    return egcam.SlopeCAM(classifier.model, layer, **options)(images)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--networks", nargs="*", default=list(PLACES), help="the kept rows of all others stay")
    given = parser.parse_args()
    file = given.out / "default-error.parquet"
    kept = pandas.read_parquet(file) if given.networks != list(PLACES) else pandas.DataFrame(columns=["model"])
    rows = kept[~kept.model.str.split(",").str[0].isin(given.networks)].to_dict("records")
    for name in given.networks:
        layer = PLACES[name]
        classifier = egcam.zoo.load(f"{Path(__file__).parent / 'networks.py'}:{name}")
        images = pictures(classifier, "confirm", given.images)
        known = {"photographs": "photographs", "data": pictures(classifier, "reference", 32)}
        for (kind, references), path in product(known.items(), PATHS):
            given_all = (classifier, layer, images, references, path)
            truth = explained(*given_all, 2048, 99).maps.flatten(1)
            for samples, seed in product(SAMPLES, range(3)):
                found = explained(*given_all, samples, seed)
                away = (found.maps.flatten(1) - truth).norm(dim=1) / truth.norm(dim=1)
                reported = found.error.flatten(1).norm(dim=1) / found.maps.flatten(1).norm(dim=1)
                where = {"model": f"{name}, {layer}", "references": kind, "path": path, "samples": samples}
                rows += [
                    {**where, "seed": seed, "image": image, "error": float(error), "reported": float(said)}
                    for image, (error, said) in enumerate(zip(away, reported, strict=True))
                ]
            pandas.DataFrame(rows).to_parquet(file, index=False)
            print(name, kind, path, flush=True)
    table = pandas.DataFrame(rows).groupby(["model", "references", "path", "samples"])[["error", "reported"]].median()
    print(table.unstack().round(3).to_string())


if __name__ == "__main__":
    main()
