"""How well the maps of every method agree with the Shapley values of the layer's cells.

    EGCAM_DATA=… python research/cell_shapley.py research/networks.py:mobilenet_v2 features.13 --images 8 --out scores/

Two referees fill empty cells with the activations of 64 images of part "reference" each, in orders of their own; maps
are compared with their mean, and "another referee" is the correlation of one with the other: how far the truth itself
is known. With `--references 4` a referee has four of its images for each image, others for the next: the truth of each
is known less well, that of all as well, in a sixteenth of the time. The maps' references are the package's photographs,
or other images of that part, so no map shares its references with a referee. Explained are the predictions on images of
part "confirm" (EGCAM_HALVES and EGCAM_CIFAR: what `research/halves.py` wrote; networks for CIFAR-10 have the other half
as references). Writes one Parquet file with the correlation of each image and method, and an npz file with the Shapley
values, which are not computed again: remove it if the images of part "reference" change.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas
import torch
from PIL import Image
from torch import Tensor

import egcam
from egcam.attribution.references import photographs
from egcam.attribution.registry import create
from egcam.models.zoo import Classifier
from egcam.photos.files import read_image

REFERENCES = 64
METHODS = ("grad-cam", "hires-cam", "xgrad-cam", "layer-cam", "grad-cam++", "ablation-cam", "expected-grad-cam")


def pictures(classifier: Classifier, part: str, count: int, begin: int = 0) -> Tensor:
    """`count` images of a part, spread evenly over the list, which for ImageNet is in the order of the classes."""
    if classifier.preprocessing.size == (32, 32):
        half = "confirm" if part == "confirm" else "choose"
        with np.load(Path(os.environ["EGCAM_CIFAR"]) / f"{half}.npz") as file:
            pixels = file["x"]
        return torch.stack(
            [classifier.preprocess(Image.fromarray(one)) for one in pixels[begin :: len(pixels) // count][:count]]
        )
    data = Path(os.environ["EGCAM_DATA"])
    with open(os.environ["EGCAM_HALVES"], newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == part]
    rows = rows[begin :: len(rows) // count][:count]
    return torch.stack([classifier.preprocess(read_image(data / "imagenet" / row["file"])) for row in rows])


def explainers(classifier: Classifier, layer: str, data: Tensor) -> dict[str, egcam.Explainer]:
    """Signed maps: the rivals as they are by default, SlopeCAM with more and fewer references."""
    model = classifier.model
    photos = photographs(classifier.preprocessing.mean, classifier.preprocessing.std)
    made = {name: create(name, model, layer=layer, signed=True) for name in METHODS}
    for source, reference, counts in (("", photos, (8, 16, 32)), ("data, ", data, (16, 64))):
        for count in counts:
            cam = egcam.SlopeCAM(model, layer, reference=reference, samples=count, signed=True)
            made[f"slope-cam, {source}{count}"] = cam
    return made


def checksum(image: Tensor) -> str:
    return sha256(image.numpy().tobytes()).hexdigest()[:12]


class KeptValues:
    """Values that take minutes, in a file: a map that has changed can be judged again in seconds."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.known = dict(np.load(file)) if file.exists() else {}

    def get(self, key: str, compute: Callable[[], Tensor]) -> Tensor:
        """Those kept under the key, else those computed."""
        if key not in self.known:
            self.known[key] = compute().numpy().astype(np.float32)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            np.savez_compressed(self.file, **self.known)
        return torch.from_numpy(self.known[key]).double()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="as `egcam.zoo.load` takes it")
    parser.add_argument("layer")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--permutations", type=int, default=64)
    parser.add_argument("--references", type=int, default=REFERENCES, help="of a referee for an image")
    parser.add_argument("--batch", type=int, help="how many are run at once; on some machines few are faster")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[""], help="how names begin; the kept rows of all others stay")
    given = parser.parse_args()
    classifier = egcam.zoo.load(given.model)
    model = classifier.model
    images = pictures(classifier, "confirm", given.images)
    shown = torch.randperm(len(images), generator=torch.Generator().manual_seed(0)).tolist()
    # Every seventh image of a list of 500 (CIFAR-10: every 15th of 1,000), from three beginnings: none is in two.
    referee, data, others = (pictures(classifier, "reference", REFERENCES, begin) for begin in (0, 3, 5))
    methods = {
        name: explainer
        for name, explainer in explainers(classifier, given.layer, data).items()
        if name.startswith(tuple(given.only))
    }
    file = given.out / f"{classifier.name}-{given.layer}.parquet"
    before = pandas.read_parquet(file) if given.only != [""] and file.exists() else pandas.DataFrame(columns=["method"])
    before = before[~before.method.str.startswith((*given.only, "another referee"))]
    kept = KeptValues(given.out / f"{classifier.name}-{given.layer}.npz")
    rows = []
    # By chance, so that a run that is stopped has images of all classes.
    for done, number in enumerate(shown):
        image = images[number]

        def values(references: Tensor, seed: int, image: Tensor = image, number: int = number) -> Tensor:
            # By chance for each image and referee: neighbours in the list are alike, and two referees that both have
            # dogs would agree more with each other than with the truth.
            own = seed if given.references == REFERENCES else 2 * number + seed
            source = torch.Generator().manual_seed(own)
            chosen = torch.randperm(REFERENCES, generator=source)[: given.references].sort().values
            return egcam.truth.cell_shapley(
                model,
                image[None],
                given.layer,
                references[chosen],
                given.permutations,
                seed=own,
                batch_size=given.batch,
            )

        maps = {name: explainer(image[None]) for name, explainer in methods.items()}
        first = next(iter(maps.values()))
        weights, explained = first.weights_checksum, classifier.classes[int(first.targets)]
        key = f"{weights}-{checksum(image)}-{given.permutations}"
        key += "" if given.references == REFERENCES else f"-with-{given.references}"
        one, another = (
            kept.get(f"{key}-{seed}", partial(values, references, seed))
            for seed, references in enumerate((referee, others))
        )
        pairs = {name: (found.maps, (one + another) / 2) for name, found in maps.items()}
        for name, (found, truth) in {**pairs, "another referee": (another, one)}.items():
            agreement = egcam.truth.cell_agreement(found, truth)
            scores = {kind: float(getattr(agreement, kind)) for kind in ("pearson", "rank", "cosine")}
            where = {"model": classifier.name, "layer": given.layer, "image": number, "class": explained}
            rows.append({**where, "method": name, **scores})
        table = pandas.concat([before, pandas.DataFrame(rows)], ignore_index=True)
        given.out.mkdir(parents=True, exist_ok=True)
        table.to_parquet(file)
        print(f"{done + 1} of {len(images)} images", flush=True)
    print(table.groupby("method")[["pearson", "rank", "cosine"]].mean().sort_values("pearson").round(3).to_string())


if __name__ == "__main__":
    main()
