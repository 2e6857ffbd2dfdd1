"""Work is followed, finished, and stopped at its next step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

import pytest

from egcam.web.jobs import Stopped, Turn, Waiting, shares


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


def test_a_turn_is_busy_until_its_own_work_ends():
    turn = Turn()
    assert not turn.is_busy
    turn.next()
    turn.next()
    turn.end(1)
    assert turn.is_busy
    turn.end("nonsense")
    turn.end(99)
    assert not turn.is_busy
    turn.next()
    assert turn.is_busy


def test_the_place_in_the_queue_counts_each_visitor_once():
    waiting, visitors = Waiting(), [Turn() for _ in range(3)]
    for turn in visitors:
        turn.next()
    assert [waiting.enter(turn) for turn in visitors] == [0, 1, 2]
    visitors[0].next()
    assert waiting.enter(visitors[0]) == 2
    # The end of what a newer turn has replaced does not count.
    waiting.leave(visitors[0], 1)
    other = Turn()
    assert waiting.enter(other) == 3
    waiting.leave(visitors[0], 2)
    waiting.leave(visitors[1])
    assert waiting.enter(Turn()) == 2
