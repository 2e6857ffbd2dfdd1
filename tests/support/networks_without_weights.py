"""Large networks for their structure alone: built without spending time on initial weights."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch.nn import init


@contextmanager
def no_initialisation() -> Iterator[None]:
    """Turn torch's in-place initialisers into no-ops: memory that is never written costs nothing."""
    names = [name for name in dir(init) if name.endswith("_") and not name.startswith("_")]
    saved = {name: getattr(init, name) for name in names}
    try:
        for name in names:
            setattr(init, name, lambda tensor, *args, **kwargs: tensor)
        yield
    finally:
        for name, function in saved.items():
            setattr(init, name, function)
