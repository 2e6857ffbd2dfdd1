"""Which of their eight kinds AlexNet and VGG-16 see in the images they were scored on, and in egcam's photographs.

    EGCAM_DATA=… EGCAM_HEADS=… python research/kinds.py

Writes research/scores/kinds.parquet. Two images of three are of the kind "other", which is no kind of thing:
`research/default_page.py` shows them apart.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import networks
import pandas
import torch
from torch import Tensor

from egcam.attribution.references import crops_of_photographs
from egcam.models.zoo import Classifier
from egcam.photos.files import read_image

SCORES = Path(__file__).parent / "scores"
SCORED = {"AlexNet": (networks.alexnet, "confirm-usual"), "VGG-16": (networks.vgg16, "confirm-vgg")}


def images_of(label: str, study: str, classifier: Classifier) -> Iterator[tuple[str, Tensor]]:
    """Their names, and the images as the network takes them."""
    table = pandas.read_parquet(SCORES / f"{study}.parquet")
    for name in sorted(table[table.model == label].image.unique()):
        yield name, classifier.preprocess(read_image(Path(os.environ["EGCAM_DATA"]) / "imagenet" / name))
    mean, std = (
        torch.tensor(one).reshape(-1, 1, 1) for one in (classifier.preprocessing.mean, classifier.preprocessing.std)
    )
    for number, photograph in enumerate(crops_of_photographs(224, 224)):
        yield f"photograph {number}", (photograph - mean) / std


def kind(classifier: Classifier, image: Tensor) -> str:
    """The class with the highest score."""
    assert classifier.classes is not None
    with torch.inference_mode():
        return classifier.classes[int(classifier.model(image[None]).argmax())]


def main() -> None:
    rows: list[dict[str, str]] = []
    for label, (load, study) in SCORED.items():
        classifier = load()
        rows += (
            {"model": label, "image": name, "kind": kind(classifier, image)}
            for name, image in images_of(label, study, classifier)
        )
    found = pandas.DataFrame(rows)
    found.to_parquet(SCORES / "kinds.parquet", index=False, compression="zstd")
    print(found.groupby("model").kind.value_counts().to_string())


if __name__ == "__main__":
    main()
