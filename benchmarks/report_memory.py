"""Time and peak memory of `egcam study status` and `egcam study report` against the number of scores.

    python benchmarks/report_memory.py                          # 1 and 3 million scores, about five minutes
    python benchmarks/report_memory.py --scores 9.5             # more, in millions
    python benchmarks/report_memory.py --keep /tmp/studies      # keep the folders, or use those that are there

The scores are made up and written with the store that studies write with: two models, ten methods with a control, ten
metrics, curves of insertion and deletion, pictures of a few examples. Every command runs in a process of its own. What
a study of four images takes counts as start-up and is taken off before memory is divided by the number of scores.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from peak_memory import peak_memory
from PIL import Image

from egcam.studies.manifest import DataRecord, Manifest, ModelRecord
from egcam.studies.plan import planned
from egcam.studies.records import Outcome
from egcam.studies.specs import DataSpec, MethodSpec, MetricSpec, ModelSpec, Study
from egcam.studies.store import Store

MODELS = ("resnet50", "vgg16")
METHODS = (
    *("grad-cam", "grad-cam++", "hires-cam", "layer-cam", "xgrad-cam", "score-cam", "eigen-cam"),
    *("slope-cam", "integrated-gradients", "random"),
)
METRICS = (
    *("insertion", "deletion", "pixel-flipping", "irof", "sparseness", "complexity", "average-drop"),
    *("increase-in-confidence", "faithfulness-estimate", "max-sensitivity"),
)
CURVES, CURVE_POINTS = METRICS[:2], 51
PER_IMAGE = len(MODELS) * len(METHODS) * len(METRICS)
UNITS_IN_A_PART = 2000
# Of the scores, how many are undefined; and of the units, how many failed.
UNDEFINED, FAILED = 0.002, 0.0002


def study() -> Study:
    return Study(
        name="synthetic",
        models=tuple(ModelSpec(label, label) for label in MODELS),
        data=DataSpec("folder", "photos", size=224),
        methods=tuple(MethodSpec(name, name) for name in METHODS),
        metrics=tuple(MetricSpec(name) for name in METRICS),
    )


def outcomes(of: Study, images: int) -> Iterator[Outcome]:
    """Made-up outcomes, in the order in which a run brings them in."""
    source = np.random.default_rng(0)
    picture = _picture()
    rise = np.linspace(0, 1, CURVE_POINTS, dtype=np.float32)
    for unit in planned(of, images):
        values = source.random(len(METRICS)) + 0.01 * METHODS.index(unit.method)
        undefined = source.random(len(METRICS)) < UNDEFINED
        has_failed = source.random() < FAILED
        yield Outcome(
            unit=unit,
            name=_name(unit.image),
            target=unit.image % 1000,
            prediction=unit.image % 1000,
            seconds=float(source.random()),
            scores=tuple(
                unit.score(metric, float("nan"), 0.01, "the map is zero everywhere")
                if missing or has_failed
                else unit.score(metric, float(value), float(value) / 50)
                for metric, value, missing in zip(METRICS, values, undefined, strict=True)
            ),
            error=f"RuntimeError: no luck with image {unit.image}" if has_failed else None,
            curves={metric: rise * np.float32(values[place]) for place, metric in enumerate(CURVES)},
            coarse=source.random((7, 7), np.float32) if unit.image < of.examples else None,
            picture=picture if unit.image < of.examples and unit.method == METHODS[0] else None,
        )


def _name(image: int) -> str:
    return f"ILSVRC2012_val_{image:08}.JPEG"


def _picture() -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)).save(file, "JPEG")
    return file.getvalue()


def make(folder: Path, scores: int) -> int:
    """A folder of results with about so many scores; how many there are."""
    of, images = study(), max(4, round(scores / PER_IMAGE))
    if (folder / "complete").exists():
        return images * PER_IMAGE
    names = {_name(image): f"{image:024x}" for image in range(images)}
    keys = {model: {method: f"{model} {method}" for method in METHODS} for model in MODELS}
    models = {label: ModelRecord("0" * 64, 25_000_000, "layer4", (224, 224)) for label in MODELS}
    store = Store(folder)
    units, settings = images * len(MODELS) * len(METHODS), dict(zip(METRICS, METRICS, strict=True))
    store.begin(Manifest(of.model_dump(), DataRecord("made up", names), models, units, keys, settings))
    waiting: list[Outcome] = []
    with store.lock():
        for outcome in outcomes(of, images):
            waiting.append(outcome)
            if len(waiting) == UNITS_IN_A_PART:
                store.write(waiting)
                waiting = []
        store.write(waiting)
    (folder / "complete").touch()
    return images * PER_IMAGE


def child(command: str, folder: str) -> None:
    """Run one command as the shell would, and print what it took as JSON."""
    from egcam.cli.main import app

    arguments = {"status": ["status", folder], "report": ["report", folder, "--out", f"{folder}-report"]}[command]
    start = time.perf_counter()
    app(["study", *arguments, "--json"], standalone_mode=False)
    print()
    print(json.dumps({"seconds": time.perf_counter() - start, "bytes": peak_memory()}))


def measured(command: str, folder: Path) -> dict[str, float]:
    run = [sys.executable, __file__, "--child", command, str(folder)]
    done = subprocess.run(run, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scores", nargs="+", type=float, default=[1.0, 3.0], help="in millions")
    parser.add_argument("--keep", type=Path, help="a folder for the studies; a temporary one if not given")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    with tempfile.TemporaryDirectory() as temporary:
        place = options.keep or Path(temporary)
        print("| command | scores | seconds | peak, GB | above start-up, GB per million |\n|---|---|---|---|---|")
        start: dict[str, float] = {}
        for millions in (0.0, *options.scores):
            scores = make(place / f"{millions:g}", int(millions * 1e6))
            for command in ("status", "report"):
                found = measured(command, place / f"{millions:g}")
                more = (found["bytes"] - start.setdefault(command, found["bytes"])) / scores * 1e6
                taken = f"{found['seconds']:.1f} | {found['bytes'] / 1e9:.2f} | {more / 1e9:.3f}"
                print(f"| {command} | {scores:,} | {taken} |", flush=True)


if __name__ == "__main__":
    main()
