"""Things by name: methods, metrics, kinds of data, engines. Each is registered where it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from egcam.errors import EgcamError, near_misses

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """What is known by name, in the order it was registered.

    Args:
        kind: what an entry is called in sentences: "method".
        error: what is raised for a name that is taken or unknown.

    Example:
        >>> engines = Registry[int]("engine", EgcamError)
        >>> engines.register("local", 1)
        >>> engines.get("local"), engines.names(), "ray" in engines
        (1, ['local'], False)
        >>> engines.get("locale")
        Traceback (most recent call last):
        egcam.errors.EgcamError: there is no engine 'locale'; did you mean 'local'?
    """

    def __init__(self, kind: str, error: type[EgcamError]) -> None:
        self._kind, self._error = kind, error
        self._entries: dict[str, Entry] = {}

    def register(self, name: str, entry: Entry) -> None:
        """Add an entry under a name that is still free."""
        if name in self._entries:
            raise self._error(f"a {self._kind} called {name!r} is registered already")
        self._entries[name] = entry

    def get(self, name: str) -> Entry:
        """The entry of that name, or an error that names the nearest ones."""
        if name not in self._entries:
            raise self._error(f"there is no {self._kind} {name!r}; {near_misses(str(name), self._entries)}")
        return self._entries[name]

    def unregister(self, name: str) -> None:
        """Take an entry out again."""
        self.get(name)
        del self._entries[name]

    def names(self) -> list[str]:
        """All names."""
        return list(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())
