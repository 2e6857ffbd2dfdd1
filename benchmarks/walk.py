"""How many functions of the package, in how many files, one explanation walks through in its steady state.

python benchmarks/walk.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torchvision import models

import egcam

PACKAGE = str(Path(egcam.__file__).parent)


def walked(call: Callable[[], object]) -> tuple[set[tuple[str, int]], int]:
    """The functions that ran, and how many calls there were."""
    functions: set[tuple[str, int]] = set()
    calls = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            functions.add((code.co_filename, code.co_firstlineno))
            calls += 1

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return functions, calls


def main() -> None:
    torch.manual_seed(0)
    model, image = models.resnet18().eval(), torch.rand(1, 3, 224, 224)
    print("| method | functions | files | calls |")
    print("| --- | --- | --- | --- |")
    for name in ("grad-cam", "slope-cam", "expected-grad-cam"):
        egcam.explain(model, image, name)
        functions, calls = walked(lambda name=name: egcam.explain(model, image, name))
        print(f"| {name} | {len(functions)} | {len({file for file, _ in functions})} | {calls} |")
        if "--list" in sys.argv:
            for file, line in sorted(functions):
                print(Path(file).relative_to(PACKAGE), line)


if __name__ == "__main__":
    main()
