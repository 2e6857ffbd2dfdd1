"""Tiny jobs for the engines' tests. A factory takes the job's config and returns what turns a unit into its outcome.

Without torch, which takes a worker seconds to import; jobs that compute with it are in `torch_factories`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from egcam.errors import EgcamError
from egcam.studies.engines.base import Job, Shard, Work
from egcam.studies.records import Outcome, Unit

METRICS = ("number", "other")


def job(factory: str, *, module: str = __name__, threads: int = 1, retries: int = 2, **config: Any) -> Job:
    return Job(f"{module}:{factory}", config, METRICS, threads, retries, device="cpu")


def units(count: int) -> list[Unit]:
    return [Unit("model", "method", image) for image in range(count)]


def shards(count: int, size: int = 4) -> Iterator[Shard]:
    everything = units(count)
    return iter([everything[start : start + size] for start in range(0, count, size)])


def outcome(unit: Unit, value: float, **more: Any) -> Outcome:
    scores = tuple(unit.score(metric, value) for metric in METRICS)
    return Outcome(unit, f"image {unit.image}", unit.image, unit.image, 0.0, scores, **more)


def number(unit: Unit) -> float:
    return unit.image**2 + 0.25


def numbers(config: Mapping[str, Any]) -> Work:
    return lambda unit: outcome(unit, number(unit))


def sleeping(config: Mapping[str, Any]) -> Work:
    """Says in a file which process is at which unit, then takes its time."""

    def work(unit: Unit) -> Outcome:
        _note(Path(config["diary"]), unit)
        time.sleep(config["seconds"])
        return outcome(unit, number(unit))

    return work


def _note(diary: Path, unit: Unit) -> None:
    with diary.open("a") as file:
        file.write(f"{os.getpid()} {unit.image}\n")


def read_diary(path: Path) -> list[tuple[int, int]]:
    """(process, image) as `sleeping` wrote them, a line being written left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [(int(process), int(image)) for process, image in (line.split() for line in lines)]


def deadly(config: Mapping[str, Any]) -> Work:
    """The units in `images` kill their process: as often as `times` says, counted in files of the folder `marks`."""

    def work(unit: Unit) -> Outcome:
        if unit.image in config["images"]:
            marks = Path(config["marks"])
            before = len(list(marks.glob(f"{unit.image}-*")))
            if before < config["times"]:
                (marks / f"{unit.image}-{before}").touch()
                os.kill(os.getpid(), config.get("signal", signal.SIGKILL))
                time.sleep(60)
        return outcome(unit, number(unit))

    return work


def hanging(config: Mapping[str, Any]) -> Work:
    """The units in `images` never end; they say in the diary that they were begun."""

    def work(unit: Unit) -> Outcome:
        if unit.image in config["images"]:
            _note(Path(config["diary"]), unit)
            while True:
                time.sleep(60)
        return outcome(unit, number(unit))

    return work


def crashing(config: Mapping[str, Any]) -> Work:
    """Image 1 reads where nothing is."""

    def work(unit: Unit) -> Outcome:
        if unit.image == 1:
            ctypes.string_at(0)
        return outcome(unit, number(unit))

    return work


def cut_off(config: Mapping[str, Any]) -> Work:
    """Image 1, in its first worker, dies in the midst of sending an outcome larger than any pipe holds."""

    def work(unit: Unit) -> Outcome:
        diary, first = Path(config["diary"]), unit.image == 1
        if first and not any(image == 1 for _, image in read_diary(diary)):
            threading.Thread(target=_kill_while_sending, daemon=True).start()
        _note(diary, unit)
        return outcome(unit, number(unit), picture=bytes(100_000_000 if first else 1))

    return work


def _kill_while_sending() -> None:
    main = threading.main_thread().ident
    assert main is not None
    while True:
        frame = sys._current_frames()[main]
        if frame.f_code.co_name == "_send":
            os.kill(os.getpid(), signal.SIGKILL)


def forking(config: Mapping[str, Any]) -> Work:
    """Image 1 leaves a process behind that holds all the worker had open, and dies."""

    def work(unit: Unit) -> Outcome:
        if unit.image == 1:
            if os.fork() == 0:
                for _ in range(600):
                    if Path(config["done"]).exists():
                        os._exit(0)
                    time.sleep(0.1)
                Path(config["late"]).touch()
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        return outcome(unit, number(unit))

    return work


def stubborn(config: Mapping[str, Any]) -> Work:
    """Does not listen to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return sleeping(config)


def raising(config: Mapping[str, Any]) -> Work:
    """Odd images raise, the third leaves, the fifth answers for another."""

    def work(unit: Unit) -> Outcome:
        if unit.image == 3:
            sys.exit("I leave")
        if unit.image == 5:
            return outcome(unit._replace(image=4), 0.0)
        if unit.image % 2:
            raise ZeroDivisionError(f"image {unit.image}")
        return outcome(unit, number(unit))

    return work


def printing(config: Mapping[str, Any]) -> Work:
    """Writes more than any pipe holds, to both streams and below Python, and reads its input to the end."""

    def work(unit: Unit) -> Outcome:
        print("x" * 300_000)
        print("y" * 300_000, file=sys.stderr)
        os.write(1, b"z" * 300_000)
        assert sys.stdin.read() == ""
        return outcome(unit, number(unit))

    return work


def leaving(config: Mapping[str, Any]) -> Work:
    """Starts a process that would run for minutes; on request dies then, or hangs."""

    def work(unit: Unit) -> Outcome:
        started = subprocess.Popen(["sleep", "300"])
        with Path(config["diary"]).open("a") as diary:
            diary.write(f"{started.pid}\n")
        if config.get("then") == "die":
            os._exit(3)
        return outcome(unit, number(unit))

    return work


def huge(config: Mapping[str, Any]) -> Work:
    def work(unit: Unit) -> Outcome:
        coarse = np.random.default_rng(unit.image).random((224, 224), dtype=np.float32)
        return outcome(unit, number(unit), coarse=coarse, picture=bytes([unit.image]) * 1_000_000)

    return work


def refusing(config: Mapping[str, Any]) -> Work:
    raise EgcamError("the weights 'no-such-file.pt' are not there; download them first")


def broken(config: Mapping[str, Any]) -> Work:
    raise KeyError("no such setting")


def stillborn(config: Mapping[str, Any]) -> Work:
    """Dies while it is made."""
    print("the library cannot be loaded", file=sys.stderr, flush=True)
    os._exit(7)
