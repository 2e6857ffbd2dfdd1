"""The page under load: many visitors at once, each with an own image and class whose right map is known beforehand.

    python benchmarks/app_load.py                          # 20 visitors for a minute
    python benchmarks/app_load.py --visitors 5 --seconds 20

The page runs in a process of its own (`egcam app` with the embedded network). Each visitor uploads an image, has it
explained, changes the class again and again, and downloads the raw map each time, which must agree with the one
computed for this image and class beforehand. Told are: answers, wrong or mixed-up maps (must be none), failures (must
be none), how long an answer took, the longest queue met, and the server's memory, which is flat when it does not grow
between the end of the first quarter and the end of the run.
"""

from __future__ import annotations

import argparse
import io
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import torch
from PIL import Image

from egcam.attribution.registry import create
from egcam.models.zoo import Classifier, load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.page_visitor import Visitor

CLASSES_EACH = 3


def image_of(number: int) -> Image.Image:
    """A pattern of its own for each visitor."""
    draw = np.random.default_rng(number)
    small = draw.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((240, 240), Image.Resampling.BICUBIC)


def right_maps(classifier: Classifier, number: int, method: str, samples: int) -> dict[int, np.ndarray]:
    """The map of each class the visitor will ask for."""
    images = classifier.preprocess(image_of(number))[None]
    options = classifier.options_for(method, {"samples": samples, "seed": 0})
    explainer = create(method, classifier.model, **options)
    with torch.inference_mode():
        classes = classifier.model(images)[0].topk(CLASSES_EACH).indices.tolist()
    return {target: explainer(images, target).maps[0].numpy() for target in classes}


class Load:
    """What all visitors met."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seconds: list[float] = []
        self.wrong: list[str] = []
        self.failed: list[str] = []
        self.longest_queue = 0

    def visit(self, url: str, number: int, right: dict[int, np.ndarray], choices: tuple, end: float) -> None:
        """One visitor, until the end."""
        try:
            visitor = Visitor(url, patience=300)
            buffer = io.BytesIO()
            image_of(number).save(buffer, "PNG")
            visitor.open(buffer.getvalue(), "photo.png", choices)
            turn = 0
            while time.monotonic() < end:
                target = list(right)[turn % len(right)]
                start = time.monotonic()
                visitor.explain(target, choices)
                found = visitor.maps()[f"maps/{choices[0]}"]
                self._note(number, target, found, right, time.monotonic() - start)
                turn += 1
            with self.lock:
                self.longest_queue = max([self.longest_queue, *(wait + 1 for wait in visitor.waits)])
            visitor.close()
        except Exception as error:
            with self.lock:
                self.failed.append(f"visitor {number}: {type(error).__name__}: {error}")

    def _note(self, number: int, target: int, found: np.ndarray, right: dict[int, np.ndarray], seconds: float) -> None:
        scale = float(np.abs(right[target]).max())
        same = found.shape == right[target].shape and np.allclose(found, right[target], rtol=1e-3, atol=1e-5 * scale)
        with self.lock:
            self.seconds.append(seconds)
            if not same:
                self.wrong.append(f"visitor {number}, class {target}")


def megabytes(process: psutil.Process) -> float:
    return process.memory_info().rss / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visitors", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--method", default="grad-cam")
    parser.add_argument("--samples", type=int, default=4)
    options = parser.parse_args()

    classifier = load()
    right = [right_maps(classifier, number, options.method, options.samples) for number in range(options.visitors)]
    distinct = {values.round(6).tobytes() for of_one in right for values in of_one.values()}
    assert len(distinct) == options.visitors * CLASSES_EACH, "two right maps are alike: a mix-up could not be seen"
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "egcam", "app", "--port", "0", "--no-open"]
        server = subprocess.Popen(command, stderr=log, text=True)
        try:
            url = address(log, server)
            run(url, psutil.Process(server.pid), right, options)
        finally:
            server.send_signal(2)
            server.wait(60)


def address(log: io.TextIOBase, server: subprocess.Popen[str]) -> str:
    while server.poll() is None:
        log.seek(0)
        for line in log.read().splitlines():
            if "is at http" in line:
                return line.split("is at ")[1].split()[0]
        time.sleep(0.2)
    raise SystemExit("the page did not start")


def run(url: str, process: psutil.Process, right: list[dict[int, np.ndarray]], options: argparse.Namespace) -> None:
    load_met, choices = Load(), (options.method, None, options.samples, "usual")
    end = time.monotonic() + options.seconds
    visitors = [
        threading.Thread(target=load_met.visit, args=(url, number, own, choices, end))
        for number, own in enumerate(right)
    ]
    memory = [megabytes(process)]
    start = time.monotonic()
    for visitor in visitors:
        visitor.start()
    while any(visitor.is_alive() for visitor in visitors):
        time.sleep(0.5)
        memory.append(megabytes(process))
    took = time.monotonic() - start
    quarter = memory[len(memory) // 4]
    middle, slowest = statistics.median(load_met.seconds), max(load_met.seconds)
    print(f"{options.visitors} visitors, {took:.0f} s, {options.method}")
    print(f"answers: {len(load_met.seconds)} ({len(load_met.seconds) / took:.1f} a second)")
    print(f"wrong or mixed-up maps: {len(load_met.wrong)} {load_met.wrong[:3]}")
    print(f"failures: {len(load_met.failed)} {load_met.failed[:3]}")
    print(f"an answer took {middle:.1f} s (median), {slowest:.1f} s (slowest)")
    print(f"longest queue met: {load_met.longest_queue}")
    print(f"memory: {memory[0]:.0f} MB at the start, {quarter:.0f} after a quarter, {memory[-1]:.0f} at the end")
    raise SystemExit(bool(load_met.wrong or load_met.failed))


if __name__ == "__main__":
    main()
