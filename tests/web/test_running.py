"""Work is followed, finished, and stopped at its next step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from egcam.web.running import Stopped, Turn, shares


def _follow(running: Generator[float, None, Any]) -> tuple[list[float], Any]:
    seen = []
    while True:
        try:
            seen.append(next(running))
        except StopIteration as end:
            return seen, end.value


def _steps(count: int, made: list[int]) -> Callable[[Callable[[float], None]], str]:
    """Work of some steps, each longer than a look at it."""
    pause = threading.Event()

    def work(progress: Callable[[float], None]) -> str:
        for step in range(count):
            progress(step / count)
            pause.wait(0.2)
            made.append(step)
        return "done"

    return work


def test_shares_rise_and_the_result_comes_back() -> None:
    seen, result = _follow(shares(_steps(3, []), Turn()))
    assert result == "done"
    assert seen == sorted(seen)
    assert seen[-1] > 0


def test_an_error_comes_out_where_it_is_awaited() -> None:
    def fails(progress: Callable[[float], None]) -> None:
        raise ZeroDivisionError("zero")

    with pytest.raises(ZeroDivisionError, match="zero"):
        _follow(shares(fails, Turn()))


def test_when_the_turn_passes_on_the_work_ends_at_its_next_step() -> None:
    turn, made = Turn(), []
    running = shares(_steps(1000, made), turn)
    next(running)
    turn.next()
    with pytest.raises(Stopped):
        _follow(running)
    _wait_for_threads()
    assert len(made) <= 2


def test_a_visitor_who_leaves_ends_the_work() -> None:
    made: list[int] = []
    running = shares(_steps(1000, made), Turn())
    next(running)
    running.close()
    _wait_for_threads()
    assert len(made) <= 2


def test_work_begun_after_the_turn_passed_on_is_not_stopped_by_it() -> None:
    turn = Turn()
    turn.next()
    assert _follow(shares(_steps(1, []), turn))[1] == "done"


def _wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.endswith("(_run)"):
            thread.join(10)
            assert not thread.is_alive()
