"""Insertion-deletion that fills in pixels of other photographs: no method's references, and no blur or plain colour.

A plugin for studies; how images are normalised is told from their values. EGCAM_DATA: images and weights.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from egcam import metrics
from egcam.attribution.references import Normalisation, seeming_normalisation
from egcam.metrics.baselines import Baseline
from egcam.metrics.faithfulness import InsertionDeletion
from egcam.models.preprocessing import Preprocessing
from egcam.photos.files import read_image

COUNT = 16
FIRST = 11  # of part "reference"; those that maps are compared with begin elsewhere


@cache
def photographs(normalisation: Normalisation, side: int) -> Tensor:
    """(16, 3, side, side) of part "reference"."""
    data = Path(os.environ["EGCAM_DATA"])
    with open(data / "imagenet.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["part"] == "reference"]
    mean, std = normalisation
    preprocessing = Preprocessing((side, side), side * 8 // 7, mean=mean, std=std)
    chosen = rows[FIRST :: len(rows) // COUNT][:COUNT]
    return torch.stack([preprocessing(read_image(data / "imagenet" / row["file"])) for row in chosen])


def another_photograph(images: Tensor) -> Tensor:
    """For each image one of the photographs, always the same for the same image."""
    numbers = (images.double().sum((1, 2, 3)).abs() * 1000).long() % COUNT
    found = [
        photographs(seeming_normalisation(float(image.min()), float(image.max())), image.shape[-1])[number]
        for image, number in zip(images, numbers.tolist(), strict=True)
    ]
    return torch.stack(found).to(images)


@metrics.register(
    "insertion-deletion-data",
    group="faithfulness",
    better="higher",
    label="Ins-Del (data)",
    title="Insertion-deletion with another photograph",
    meaning="Insertion less deletion; what is not shown is another photograph.",
)
@dataclass(frozen=True)
class InsertionDeletionOfData(InsertionDeletion):
    """Insertion less deletion where removed pixels become those of another photograph."""

    insertion_baseline: Baseline = another_photograph
    deletion_baseline: Baseline = another_photograph
