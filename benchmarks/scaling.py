"""Time and peak memory of SlopeCAM against samples, batch and image size.

    python benchmarks/scaling.py --plot docs/scaling.png --table docs/scaling.md

Every point runs in a process of its own, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from peak_memory import peak_memory

BASE = {"samples": 16, "batch": 1, "size": 224}
SWEEPS = {"samples": [4, 8, 16, 32, 64, 128], "batch": [1, 2, 4, 8, 16], "size": [96, 160, 224, 320, 448]}


def child(samples: int, batch: int, size: int) -> None:
    """Measure one point and print it as JSON."""
    import psutil
    import torch
    import torchvision

    import egcam

    torch.set_num_threads(2)
    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).eval()
    images = torch.rand(batch, 3, size, size)
    explainer = egcam.SlopeCAM(model, "layer4", path="linear", reference="black", samples=samples)
    with torch.no_grad():
        model(images[:1])
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    explainer(images, target=5)
    seconds = time.perf_counter() - start
    peak = peak_memory()
    print(json.dumps({"seconds": seconds, "megabytes": (peak - before) / 2**20}))


def measure(point: dict[str, int]) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", *(str(point[key]) for key in ("samples", "batch", "size"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def draw(results: dict[str, list[dict[str, float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = {"samples": "samples", "batch": "images in the batch", "size": "thousand pixels in the image"}
    figure, axes = pyplot.subplots(2, 3, figsize=(9, 4.8), sharey="row")
    for column, (axis, values) in enumerate(SWEEPS.items()):
        for row, (key, label) in enumerate((("seconds", "seconds"), ("megabytes", "peak memory, MB"))):
            place = axes[row, column]
            along = [value**2 / 1000 for value in values] if axis == "size" else values
            place.plot(along, [point[key] for point in results[axis]], marker="o", color="#2a6f97")
            highest = max(point[key] for sweep in results.values() for point in sweep)
            place.set_ylim(0, 1.1 * highest)
            place.set_xlim(0, 1.05 * max(along))
            place.grid(alpha=0.3)
            place.spines[["top", "right"]].set_visible(False)
            if column == 0:
                place.set_ylabel(label)
        axes[1, column].set_xlabel(labels[axis])
    figure.suptitle(
        "SlopeCAM along a path of images on ResNet-50 (16 samples, one image, 224 px unless varied)",
        fontsize=10,
    )
    figure.tight_layout()
    figure.savefig(path, dpi=150, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--child", nargs=3, type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    results: dict[str, list[dict[str, float]]] = {}
    lines = ["| varied | value | seconds | peak memory, MB |", "|---|---|---|---|"]
    for axis, values in SWEEPS.items():
        results[axis] = []
        for value in values:
            found = measure({**BASE, axis: value})
            results[axis].append(found)
            lines.append(f"| {axis} | {value} | {found['seconds']:.2f} | {found['megabytes']:.0f} |")
            print(lines[-1], flush=True)
    if arguments.table:
        arguments.table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if arguments.plot:
        draw(results, arguments.plot)


if __name__ == "__main__":
    main()
