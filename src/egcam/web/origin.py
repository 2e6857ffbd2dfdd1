"""Whether a request was made by another web page, in a browser that has this one's address."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def is_foreign(headers: Mapping[bytes, bytes]) -> bool:
    """Whether a browser says that a page from elsewhere asks.

    Browsers say so in Sec-Fetch-Site, which no page can forge and no proxy changes. They leave it out where nothing is
    encrypted, other than on the machine itself; there, Origin has to name the host and port that are asked. Programs
    that are no browsers send neither.

    Args:
        headers: the request's, with names in lower case.

    Example:
        >>> is_foreign({b"host": b"127.0.0.1:7860", b"origin": b"http://127.0.0.1:7860"})
        False
        >>> is_foreign({b"host": b"127.0.0.1:7860", b"origin": b"http://evil.example"})
        True
        >>> is_foreign({b"host": b"127.0.0.1:7860"})
        False
    """
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site not in (b"same-origin", b"none")
    origin = headers.get(b"origin")
    return origin is not None and not _is_at(origin.decode("latin-1"), headers.get(b"host", b"").decode("latin-1"))


def _is_at(origin: str, host: str) -> bool:
    """Whether an origin, such as http://127.0.0.1:7860, is the one of a Host header."""
    try:
        theirs, ours = urlsplit(origin), urlsplit(f"//{host}")
        usual = _PORTS[theirs.scheme]
        same_port = (theirs.port or usual) == (ours.port or usual)
    except (ValueError, KeyError):
        # "null", or no address at all.
        return False
    return bool(ours.hostname) and theirs.hostname == ours.hostname and same_port
