"""Where the units of a study are worked on: on this machine, on a Ray cluster, or on an engine of your own.

An engine takes jobs and hands results back; it knows nothing of images, methods or metrics.
The runner of a study uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from egcam.errors import EgcamError
from egcam.registry import Registry
from egcam.studies.engines.base import Engine as Engine
from egcam.studies.engines.base import Job as Job
from egcam.studies.engines.base import Shard as Shard

EngineFactory: TypeAlias = Callable[..., Engine]


def _local(workers: int | None, address: str | None) -> Engine:
    from egcam.studies.engines.local import LocalEngine

    if address is not None:
        raise EgcamError(f"the engine 'local' takes no address ({address!r}); a cluster needs the engine 'ray'")
    return LocalEngine(workers)


def _ray(workers: int | None, address: str | None) -> Engine:
    from egcam.studies.engines.ray import RayEngine

    return RayEngine(address, workers)


_factories = Registry[EngineFactory]("engine", EgcamError)
_factories.register("local", _local)
_factories.register("ray", _ray)


def register_engine(name: str, factory: EngineFactory) -> None:
    """Add an engine under a name of its own, for `run_study(engine=name)` and `egcam study run --engine name`.

    Args:
        name: what it is asked for by.
        factory: called with the keywords `workers` and `address`, each None if the user gave none; must return an
            `Engine`. It should refuse what it cannot use.

    Example:
        >>> from egcam.studies.engines.local import LocalEngine
        >>> register_engine("one-process", lambda workers, address: LocalEngine(workers=1))
        >>> make_engine("one-process").workers
        1
        >>> unregister_engine("one-process")
    """
    _factories.register(name, factory)


def unregister_engine(name: str) -> None:
    """Take an engine out of the registry again."""
    _factories.unregister(name)


def engines() -> list[str]:
    """The names of all registered engines.

    >>> engines()[:2]
    ['local', 'ray']
    """
    return _factories.names()


def make_engine(name: str, *, workers: int | None = None, address: str | None = None) -> Engine:
    """The engine of that name.

    Args:
        name: one of `engines()`.
        workers: how many; None for one per available core or GPU.
        address: of an existing Ray cluster; None starts Ray on this machine for as long as the study runs.

    Example:
        >>> make_engine("local", workers=2).workers
        2
    """
    engine = _factories.get(name)(workers=workers, address=address)
    if not callable(getattr(engine, "outcomes", None)):
        raise EgcamError(f"the factory of engine {name!r} returned {engine!r}, which has no method 'outcomes'")
    return engine
