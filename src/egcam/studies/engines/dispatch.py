"""The driver's side of every engine: who works on what, and what becomes of the units of a worker that died."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from egcam.errors import EgcamError
from egcam.studies.engines.job import Job, Shard
from egcam.studies.engines.messages import Died, Message, Opened, Refused
from egcam.studies.engines.retrying import Tries
from egcam.studies.outcomes import Outcome, Unit

# A worker that dies while it opens the job did not die of a unit; so often in a row is no accident.
MOST_FALSE_STARTS = 3


class Crew(Protocol):
    """Workers in numbered places, wherever they run."""

    def hire(self, place: int) -> None:
        """Start a worker in a place that is free or whose worker died."""

    def give(self, place: int, shard: Shard) -> None:
        """Hand a shard to a worker that has opened the job. Its death on the way is news, not an exception."""

    def news(self) -> Sequence[tuple[int, Message]]:
        """Wait until there is something to tell; each worker's messages in order, `Died` last."""

    def dismiss(self) -> None:
        """End all workers, whatever they are doing."""


class Backlog:
    """Shards still to be handed out: those given back first, then the study's, fetched one by one as needed."""

    def __init__(self, shards: Iterator[Shard]) -> None:
        self._shards = shards
        self._ready: deque[Shard] = deque()

    def holds(self, count: int) -> int:
        """How many shards there are, up to `count`."""
        while len(self._ready) < count and (shard := next(self._shards, None)) is not None:
            if len(shard) > 0:
                self._ready.append(shard)
        return min(len(self._ready), count)

    def take(self) -> Shard:
        """The next shard, where `holds(1)`."""
        return self._ready.popleft()

    def give_back(self, shard: Shard) -> None:
        """Put a shard in front of all others."""
        if len(shard) > 0:
            self._ready.appendleft(shard)


@dataclass
class Place:
    """A worker's place.

    Attributes:
        hired: whether a worker is there.
        opened: whether it has opened the job, and so may be given units.
        units: what it has been given and not yet answered, oldest first; the first is the one in work.
        false_starts: how often in a row a worker died here without opening the job.
    """

    hired: bool = False
    opened: bool = False
    units: dict[Unit, None] = field(default_factory=dict)
    false_starts: int = 0

    @property
    def given_up(self) -> bool:
        """Whether that was too often."""
        return self.false_starts >= MOST_FALSE_STARTS


def dispatch(job: Job, shards: Iterator[Shard], crew: Crew, most_workers: int) -> Iterator[Sequence[Outcome]]:
    """Outcomes as they come in, each unit's exactly once. The crew is dismissed at the end, however it comes."""
    driver = _Driver(job, Backlog(shards), crew, most_workers)
    try:
        while driver.has_work():
            outcomes = driver.step()
            if outcomes:
                yield outcomes
    finally:
        crew.dismiss()


class _Driver:
    def __init__(self, job: Job, backlog: Backlog, crew: Crew, most_workers: int) -> None:
        self._crew, self._backlog, self._tries = crew, backlog, Tries(job)
        self._places = [Place() for _ in range(most_workers)]

    def has_work(self) -> bool:
        return any(place.units for place in self._places) or self._backlog.holds(1) > 0

    def step(self) -> list[Outcome]:
        """Hand out what can be handed out, wait for news, and take it in."""
        self._hand_out()
        self._fill_places()
        outcomes: list[Outcome] = []
        for number, message in self._crew.news():
            outcomes += self._heard(self._places[number], message)
        # Before the caller gets its outcomes, which may take it a while: no worker should wait for that.
        self._hand_out()
        return outcomes

    def _hand_out(self) -> None:
        """A shard for every worker that is down to its last unit, which keeps it busy until the next news."""
        for number, place in enumerate(self._places):
            while place.opened and len(place.units) <= 1 and self._backlog.holds(1):
                shard = self._backlog.take()
                place.units.update(dict.fromkeys(shard))
                self._crew.give(number, shard)

    def _fill_places(self) -> None:
        """Workers for the shards nobody has: not one more than there are shards."""
        free = [number for number, place in enumerate(self._places) if not (place.hired or place.given_up)]
        if not free:
            return
        on_their_way = sum(place.hired and not place.opened for place in self._places)
        wanted = self._backlog.holds(len(self._places)) - on_their_way
        for number in free[: max(0, wanted)]:
            self._places[number].hired = True
            self._crew.hire(number)

    def _heard(self, place: Place, message: Message) -> list[Outcome]:
        match message:
            case Outcome():
                del place.units[message.unit]
                return [message]
            case Opened():
                place.opened, place.false_starts = True, 0
                return []
            case Refused():
                raise EgcamError(message.cause)
            case Died():
                return self._mourn(place, message)

    def _mourn(self, place: Place, death: Died) -> list[Outcome]:
        """Give back what the worker leaves; the unit it was at goes alone, so that it can harm no other."""
        opened, units = place.opened, list(place.units)
        place.hired, place.opened = False, False
        place.units.clear()
        if not opened:
            self._count_false_start(place, death)
            return []
        self._backlog.give_back(units[1:])
        if not units:
            return []
        failure = self._tries.died(units[0], death.how)
        if failure is None:
            self._backlog.give_back(units[:1])
            return []
        return [failure]

    def _count_false_start(self, place: Place, death: Died) -> None:
        """Leave a place empty where workers keep dying at the start: with others at work it may be one too many."""
        place.false_starts += 1
        if place.given_up and not any(other.hired for other in self._places):
            raise EgcamError(_false_start_text(death))


def _false_start_text(death: Died) -> str:
    text = f"workers die before they have opened the study, {MOST_FALSE_STARTS} times in a row ({death.how})"
    if death.last_words:
        return f"{text}. The last of them said:\n{death.last_words}"
    return f"{text}. With too little memory, fewer workers would help"
