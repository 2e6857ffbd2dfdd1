"""Where the units of a study are worked on: on this machine, or on a Ray cluster."""

from __future__ import annotations

from egcam.errors import EgcamError, near_misses
from egcam.studies.engines.job import Engine

ENGINES = ("local", "ray")


def make_engine(name: str, *, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine of that name: "local" or "ray".

    Args:
        name: which.
        workers: how many, None for as many as suit the machine or cluster.
        address: of an existing Ray cluster; None starts Ray on this machine for as long as the study runs.

    Example:
        >>> make_engine("local", workers=2).workers
        2
    """
    if name == "local":
        if address is not None:
            raise EgcamError(f"the engine 'local' takes no address ({address!r}); a cluster needs the engine 'ray'")
        from egcam.studies.engines.local import LocalEngine

        return LocalEngine(workers)
    if name == "ray":
        from egcam.studies.engines.ray_engine import RayEngine

        return RayEngine(address, workers)
    raise EgcamError(f"unknown engine {name!r}; {near_misses(name, ENGINES)}")
