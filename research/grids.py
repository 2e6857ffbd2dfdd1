"""Grids of four images of different classes, for the grid pointing game on real, unchanged networks.

    python research/grids.py grids/          # writes grids/imagenet and grids/cifar10

Images of the confirming half that all networks of a kind get right, and are sure of; one cell of each grid is
explained, and the mask is that cell. For the studies `confirm-grids*`, in which networks are named
`../grids.py:mobilenet_v2`: the same networks, which are shown the whole grid.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import networks
import numpy as np
import torch
from PIL import Image
from planted import pictures, seen
from torch import Tensor

import egcam
from egcam.models.zoo import Classifier


@dataclass(frozen=True)
class Kind:
    """Networks that tell the same classes apart, and how sure all of them must be of an image."""

    names: tuple[str, ...]
    side: int
    sure: float


KINDS = {
    "imagenet": Kind(("mobilenet_v2", "squeezenet1_1", "efficientnet_lite0"), 224, 0.5),
    "cifar10": Kind(("resnet20", "resnet56"), 32, 0.99),
}
CELLS = 2
COUNT = 200


def on_grids(name: str) -> Classifier:
    """A network that takes grids as they are written."""
    classifier = getattr(networks, name)()
    side = CELLS * classifier.preprocessing.size[0]
    return replace(classifier, preprocessing=replace(classifier.preprocessing, size=(side, side), resize=None))


NETWORKS: dict[str, Callable[[], Classifier]] = {
    name: partial(on_grids, name) for kind in KINDS.values() for name in kind.names
}
globals().update(NETWORKS)


def labels_of(kind: str) -> Tensor:
    """(N,) the classes of the images that `planted.pictures` gives."""
    if kind == "cifar10":
        with np.load(Path(os.environ["EGCAM_CIFAR"]) / "confirm.npz") as file:
            return torch.from_numpy(file["y"].astype(np.int64)).flatten()
    with open(os.environ["EGCAM_HALVES"], newline="") as file:
        return torch.tensor([int(row["class_index"]) for row in csv.DictReader(file) if row["part"] == "confirm"])


def write(kind: str, folder: Path) -> None:
    """Grids, masks and labels of one kind of networks."""
    facts, labels = KINDS[kind], labels_of(kind)
    images = pictures(facts.side, "confirm")
    usable = torch.ones(len(images), dtype=torch.bool)
    for name in facts.names:
        classifier = getattr(networks, name)()
        with torch.inference_mode():
            said = torch.cat([classifier.model(some) for some in seen(classifier, images).split(32)]).softmax(1)
        usable &= said.gather(1, labels[:, None])[:, 0] >= facts.sure
    pixels = torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in images.values()])
    grids = egcam.truth.make_grids(pixels[usable], labels[usable], CELLS, COUNT)
    (folder / "masks").mkdir(parents=True, exist_ok=True)
    with open(folder / "labels.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["file", "label"])
        for number, (grid, mask, label) in enumerate(zip(grids.images, grids.masks, grids.explained, strict=True)):
            name = f"{number:04d}.png"
            Image.fromarray(grid.permute(1, 2, 0).contiguous().numpy()).save(folder / name)
            Image.fromarray((mask * 255).byte().numpy()).save(folder / "masks" / name)
            writer.writerow([name, int(label)])
    print(f"{folder}: {COUNT} grids of {int(usable.sum())} images of {len(labels[usable].unique())} classes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    for kind in KINDS:
        write(kind, given.out / kind)


if __name__ == "__main__":
    main()
