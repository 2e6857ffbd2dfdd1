"""What the tests of both engines ask of what an engine gave, and of processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import psutil

from egcam.studies.records import Outcome
from support import engine_factories as factories

SLEEPY = 0.05


def flat(batches: Iterable[Sequence[Outcome]]) -> list[Outcome]:
    return [outcome for batch in batches for outcome in batch]


def assert_each_once(outcomes: Sequence[Outcome], count: int, but: Sequence[int] = ()) -> None:
    """Every unit once, with its number; those of `but` may be anything."""
    assert sorted(outcome.unit.image for outcome in outcomes) == list(range(count))
    for outcome in outcomes:
        if outcome.unit.image not in but:
            assert outcome.error is None
            assert [score.value for score in outcome.scores] == [factories.number(outcome.unit)] * 2


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def gone(pids: Iterable[int]) -> bool:
    """Whether none of these processes is left; one that is dead and not yet collected by its parent counts as gone."""
    return not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def start_driver(engine: str, diary: Path, address: str = "") -> subprocess.Popen[bytes]:
    """A driver process with an engine of two workers on slow units."""
    here = Path(__file__).parent
    command = [sys.executable, str(here / "engine_driver.py"), engine, str(diary), *([address] if address else [])]
    start = f"import runpy, sys; sys.path.insert(0, {str(here.parent)!r}); sys.argv = sys.argv[1:]; "
    start += "runpy.run_path(sys.argv[0], run_name='__main__')"
    return subprocess.Popen(
        [sys.executable, "-c", start, *command[1:]],
        stdout=subprocess.DEVNULL,
        # Tests that run in the background of a shell inherit that Ctrl-C is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
