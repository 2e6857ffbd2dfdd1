"""Work is followed, finished, and stopped at its next step."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from typing import Any

import pytest

from egcam.web.jobs import Stopped, Turn, Unchanged, Waiting, end_all, shares

_PATIENCE = 60.0


def _follow(running: Generator[float, None, Any], seen: list[float] | None = None) -> tuple[list[float], Any]:
    seen = [] if seen is None else seen
    while True:
        try:
            seen.append(next(running))
        except StopIteration as end:
            return seen, end.value


class _Steps:
    """Work of many steps that waits in each one until the test lets it go on."""

    def __init__(self) -> None:
        self.made = 0
        self.is_inside, self.may_go = threading.Event(), threading.Event()

    def __call__(self, progress: Callable[[float], None]) -> None:
        for step in range(1000):
            progress(step / 1000)
            self.made += 1
            self.is_inside.set()
            assert self.may_go.wait(_PATIENCE)


def test_shares_rise_and_the_result_comes_back() -> None:
    seen: list[float] = []

    def work(progress: Callable[[float], None]) -> str:
        for share in (0.0, 0.25, 0.5):
            progress(share)
            # The next step comes when this one was seen, however seldom this machine lets anyone look.
            end = time.monotonic() + _PATIENCE
            while share not in seen:
                assert time.monotonic() < end
                time.sleep(0.001)
        return "done"

    _, result = _follow(shares(work, Turn()), seen)
    assert result == "done"
    assert seen == sorted(seen)
    assert set(seen) == {0.0, 0.25, 0.5}


def test_an_error_comes_out_where_it_is_awaited() -> None:
    def fails(progress: Callable[[float], None]) -> None:
        raise ZeroDivisionError("zero")

    with pytest.raises(ZeroDivisionError, match="zero"):
        _follow(shares(fails, Turn()))


def test_when_the_turn_passes_on_the_work_ends_at_its_next_step() -> None:
    turn, work = Turn(), _Steps()
    running = shares(work, turn)
    next(running)
    assert work.is_inside.wait(_PATIENCE)
    turn.next()
    with pytest.raises(Stopped):
        _follow(running)
    work.may_go.set()
    _wait_for_threads()
    assert work.made == 1


def test_a_visitor_who_leaves_ends_the_work() -> None:
    work = _Steps()
    running = shares(work, Turn())
    next(running)
    assert work.is_inside.wait(_PATIENCE)
    running.close()
    work.may_go.set()
    _wait_for_threads()
    assert work.made == 1


def test_work_begun_after_the_turn_passed_on_is_not_stopped_by_it() -> None:
    turn = Turn()
    turn.next()
    assert _follow(shares(lambda progress: progress(0.5) or "done", turn))[1] == "done"


def _wait_for_threads() -> None:
    for thread in threading.enumerate():
        if thread.name.endswith("(_run)"):
            thread.join(_PATIENCE)
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


def test_the_work_of_a_turn_is_begun_once():
    turn = Turn()
    with pytest.raises(Unchanged):
        turn.take(0)
    turn.next()
    for odd in (None, "1", 0, 2):
        with pytest.raises(Stopped):
            turn.take(odd)
    turn.take(1)
    with pytest.raises(Unchanged):
        turn.take(1)
    turn.next()
    with pytest.raises(Stopped):
        turn.take(1)
    turn.take(2)


def test_all_work_can_be_ended_before_the_process_does() -> None:
    steps = _Steps()
    running = shares(steps, Turn())
    next(running)
    assert steps.is_inside.wait(_PATIENCE)
    # Within a step it cannot be ended; as soon as that is over it is, and `end_all` waits for that.
    threading.Timer(0.3, steps.may_go.set).start()
    end_all(_PATIENCE)
    assert steps.made == 1
    assert not [thread for thread in threading.enumerate() if "_run" in thread.name and thread.is_alive()]
    running.close()
