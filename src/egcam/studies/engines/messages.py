"""What a worker tells the driver. Beside these it sends outcomes, each as soon as it is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from egcam.studies.outcomes import Outcome


@dataclass(frozen=True)
class Opened:
    """The worker has opened the job and waits for units."""


@dataclass(frozen=True)
class Refused:
    """The job cannot be opened, here or anywhere: weights are missing, a plugin is broken."""

    cause: str


@dataclass(frozen=True)
class Died:
    """The worker is gone, with all it was working on. Its engine says so in its stead.

    Attributes:
        how: a few words for the units that fail of it.
        last_words: the end of what the worker printed, where that is known.
    """

    how: str
    last_words: str = ""


Message: TypeAlias = Opened | Refused | Died | Outcome
