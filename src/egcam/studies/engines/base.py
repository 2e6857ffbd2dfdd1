"""What an engine is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeAlias

from egcam.studies.records import Outcome, Unit

Shard: TypeAlias = Sequence[Unit]
Work: TypeAlias = Callable[[Unit], Outcome]


@dataclass(frozen=True)
class Job:
    """A study as a worker gets it: plain data that can be sent anywhere.

    Attributes:
        factory: "package.module:function"; called with `config` it returns what turns a unit into its outcome.
        config: plain data, as `json` could write it.
        metrics: names of the metrics, for units that fail without the worker's doing.
        threads: how many threads a worker computes with; it changes the last digits of results, so it is fixed.
        retries: how often a unit is tried again after its worker died.
        device: where the models run, as in the study; None is a GPU if there is one.
        timeout: seconds after which a unit is given up and counts as failed; None waits for ever.
    """

    factory: str
    config: Mapping[str, Any]
    metrics: tuple[str, ...]
    threads: int = 1
    retries: int = 2
    device: str | None = None
    timeout: float | None = None

    def imported(self) -> Callable[[Mapping[str, Any]], Work]:
        """The factory itself."""
        module, _, function = self.factory.partition(":")
        factory: Callable[[Mapping[str, Any]], Work] = getattr(import_module(module), function)
        return factory

    def open(self) -> Work:
        """What turns a unit into its outcome, made in the worker."""
        return self.imported()(self.config)


class Engine(Protocol):
    """Works on shards in whatever order suits it.

    A unit's failure is an outcome, never an exception. Leaving the iterator early (an interrupt, an error in the
    caller) must stop the workers.
    """

    def outcomes(self, job: Job, shards: Iterator[Shard]) -> Iterator[Sequence[Outcome]]:
        """Outcomes as they come in, each unit's exactly once."""
        ...
