"""What the truth itself scores: the Shapley values of the layer's cells, judged by the metrics as if they were a map.

    EGCAM_DATA=… python research/truth_as_map.py research/networks.py:alexnet features.12 --images 60 --permutations 128

Takes the values that `research/cell_shapley.py` has kept of the same images (others are left out), and scores them
beside maps of the same layer. A metric by which a map is better than the truth rewards something else than being right.
Writes research/scores/truth-as-map/NAME.parquet: model, method, image, metric, value.
"""

from __future__ import annotations

import argparse

import pandas
import torch
from cell_shapley import KeptValues, checksum, pictures
from score_tables import SCORES, TRUTH

import egcam
from egcam.attribution.registry import create
from egcam.imageops import heatmaps
from egcam.metrics import Complexity, InsertionDeletion, Metric, Sparseness
from egcam.metrics.case import Case

METHODS = ("slope-cam", "hires-cam", "layer-cam", "grad-cam")
_STEPS = 12


def metrics_for(side: int) -> dict[str, Metric]:
    """Those of the studies."""
    return {
        "insertion-deletion": InsertionDeletion(-(-side * side // _STEPS)),
        "sparseness": Sparseness(),
        "complexity": Complexity(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="as `egcam.zoo.load` takes it")
    parser.add_argument("layer")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--permutations", type=int, default=64)
    given = parser.parse_args()
    classifier = egcam.zoo.load(given.model)
    model, name = classifier.model, f"{classifier.name}-{given.layer}"
    kept = KeptValues(SCORES / "shapley-precise" / f"{name}.npz")
    explainers = {method: create(method, model, layer=given.layer) for method in METHODS}
    rows = []
    for number, image in enumerate(pictures(classifier, "confirm", given.images)):
        found = {method: explainer(image[None]) for method, explainer in explainers.items()}
        first = found[METHODS[0]]
        key = f"{first.weights_checksum}-{checksum(image)}-{given.permutations}-0"
        if key not in kept.known:
            continue
        truth = torch.from_numpy(kept.known[key])
        heat = {method: one.heatmaps for method, one in found.items()}
        heat[TRUTH] = heatmaps(truth.reshape(first.maps.shape).relu().to(first.maps), first.size)
        case = Case(model, image[None], target=first.targets)
        for method, maps in heat.items():
            of_map = case.explained(maps)
            for metric, measure in metrics_for(image.shape[-1]).items():
                value = float(measure(of_map))
                where = {"model": classifier.name, "method": method, "image": number, "metric": metric}
                rows.append({**where, "value": value})
        print(f"{number + 1} images", flush=True)
    table = pandas.DataFrame(rows)
    folder = SCORES / "truth-as-map"
    folder.mkdir(parents=True, exist_ok=True)
    table.to_parquet(folder / f"{name}.parquet", index=False, compression="zstd")
    print(table.pivot_table(index="method", columns="metric", values="value").round(3).to_string())


if __name__ == "__main__":
    main()
