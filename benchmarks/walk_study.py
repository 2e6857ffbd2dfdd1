"""How many functions of the package, in how many files, a study walks through from its file to its report.

python benchmarks/walk_study.py            # --list names them

A network of a few channels, four small pictures, three methods, five metrics; what workers do is counted, too.
"""

from __future__ import annotations

import inspect
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from PIL import Image

import egcam
from egcam.studies.engines.base import Job, Shard
from egcam.studies.records import Outcome

PACKAGE = str(Path(egcam.__file__).parent)

MODEL = """
import torch
from torch import nn
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

def make():
    torch.manual_seed(0)
    body = nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU()
    head = nn.Flatten(), nn.Linear(8 * 8 * 8, 4)
    return Classifier(nn.Sequential(*body, *head), "tiny", preprocessing=Preprocessing((16, 16), 16))
"""
STUDY = """
name = "walk"
methods = ["grad-cam", "slope-cam", "layer-cam"]
metrics = ["insertion", "deletion", "sparseness", "complexity", "max-sensitivity"]
[metric.max-sensitivity]
samples = 2
[data]
kind = "folder"
path = "photos"
[[models]]
name = "model.py:make"
"""


class InThisProcess:
    """An engine that works here, where it can be counted."""

    def outcomes(self, job: Job, shards: Iterator[Shard]) -> Iterator[Sequence[Outcome]]:
        """Unit after unit."""
        work = job.open()
        for shard in shards:
            for unit in shard:
                yield [work(unit)]


def main() -> None:
    functions: set[tuple[str, int]] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
        if event == "call" and is_function and code.co_filename.startswith(PACKAGE):
            functions.add((code.co_filename, code.co_firstlineno))

    from egcam.studies import run_study, write_report

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "model.py").write_text(MODEL)
        (folder / "study.toml").write_text(STUDY)
        (folder / "photos").mkdir()
        source = np.random.default_rng(0)
        for number in range(4):
            pixels = source.integers(0, 256, (24, 28, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
        threading.setprofile(note)
        sys.setprofile(note)
        try:
            run_study(folder / "study.toml", folder / "results", engine=InThisProcess())
            ran = len(functions), len({file for file, _ in functions})
            write_report(folder / "results", folder / "report")
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    print("| from the file | functions | files |\n| --- | --- | --- |")
    print(f"| to the results | {ran[0]} | {ran[1]} |")
    print(f"| to the report | {len(functions)} | {len({file for file, _ in functions})} |")
    if "--list" in sys.argv:
        for file, line in sorted(functions):
            print(Path(file).relative_to(PACKAGE), line)


if __name__ == "__main__":
    main()
