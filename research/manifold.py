"""How far the points of each path lie from real activations, on every network whose layer has a map.

    EGCAM_DATA=… EGCAM_HEADS=… EGCAM_HALVES=… EGCAM_CIFAR=… python research/manifold.py

Between 64 images of the confirming half and photographs of the package. Real are images of part "reference" (CIFAR-10:
the choosing half). Writes research/scores/manifold.parquet: model, path, share of the way, active, distance.
"""

from __future__ import annotations

import networks
import pandas
import torch
from cell_shapley import pictures
from score_tables import SCORES

import egcam
from egcam.attribution.references import crops_of_photographs

LAYERS = {
    "alexnet": "features",
    "vgg16": "features",
    "mobilenet_v2": "features.13",
    "squeezenet1_1": "features.11",
    "efficientnet_lite0": "_blocks.10",
    "resnet20": "layer2",
    "resnet56": "layer2",
}
IMAGES, REAL = 64, 250


def main() -> None:
    rows = []
    for name, layer in LAYERS.items():
        classifier = getattr(networks, name)()
        usual = classifier.preprocessing
        mean, std = (torch.tensor(one)[:, None, None] for one in (usual.mean, usual.std))
        references = (crops_of_photographs(*usual.size) - mean) / std
        images, real = pictures(classifier, "confirm", IMAGES), pictures(classifier, "reference", REAL)
        found = egcam.truth.off_manifold(classifier.model, images, layer, references, real)
        paths = {"real images": (found.real,) * len(found.shares), **found.by_path}
        for path, departures in paths.items():
            for share, one in zip(found.shares, departures, strict=True):
                where = {"model": classifier.name, "layer": layer, "path": path, "share": share}
                rows.append({**where, "active": one.active, "distance": one.distance})
        print(name, flush=True)
    table = pandas.DataFrame(rows)
    table.to_parquet(SCORES / "manifold.parquet", index=False, compression="zstd")
    print(table[table.share == 0.5].round(3).to_string())


if __name__ == "__main__":
    main()
