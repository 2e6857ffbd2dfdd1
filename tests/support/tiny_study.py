"""A study that runs in a second: a network of a few channels on small pictures."""

from pathlib import Path

import numpy as np
from PIL import Image

MODEL = """
import torch
from torch import nn
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

def make():
    torch.manual_seed(0)
    first = nn.Conv2d(3, 6, 3, padding=1), nn.Sigmoid(), nn.MaxPool2d(2)
    body = nn.Sequential(*first, nn.Conv2d(6, 8, 3, padding=1), nn.Sigmoid())
    head = nn.Sequential(nn.Flatten(), nn.Linear(8 * 8 * 8, 12), nn.Sigmoid(), nn.Linear(12, 4))
    return Classifier(nn.Sequential(*body, *head), "tiny", preprocessing=Preprocessing((16, 16), 16))
"""

STUDY = """
name = "tiny"
title = "A study for tests"
methods = ["grad-cam", "expected", "layer-cam"]
metrics = ["insertion", "deletion", "sparseness", "sufficiency", "max-sensitivity"]

[method.expected]
method = "slope-cam"
samples = 4

[metric.max-sensitivity]
samples = 2

[data]
kind = "folder"
path = "photos"

[reference]
source = "data"
count = 4

[[models]]
name = "model.py:make"
label = "a"
layer = "4"

[[models]]
name = "model.py:make"
label = "b"
layer = "1"
"""


def write_study(folder: Path, images: int = 5, text: str = STUDY) -> Path:
    """Everything a study needs, in a folder; its file."""
    source = np.random.default_rng(0)
    (folder / "photos").mkdir(exist_ok=True)
    for number in range(images):
        pixels = source.integers(0, 256, (6, 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((28, 24), Image.Resampling.BICUBIC).save(folder / "photos" / f"{number:03}.png")
    (folder / "model.py").write_text(MODEL)
    file = folder / "study.toml"
    file.write_text(text)
    return file


def numbers(results) -> list:
    """What must be the same whatever happened on the way: everything but times."""
    rows = []
    for label, table in results.tables.items():
        rows += [(label, row.image, row.method, row.metric, row.value.hex(), row.cause) for row in table.rows]
    return rows


class InProcess:
    """An engine without processes."""

    def __init__(self, stop_after=None):
        self.stop_after = stop_after
        self.units = []

    def outcomes(self, job, shards):
        work = job.open()
        for shard in shards:
            for unit in shard:
                if self.stop_after is not None and len(self.units) == self.stop_after:
                    raise KeyboardInterrupt
                self.units.append(unit)
                yield [work(unit)]
