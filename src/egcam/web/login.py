"""The password before the page: the browser asks for it in its own window, and a cookie stands for it afterwards.

Gradio's `auth` also asks for a user's name, takes guesses without end, from other web pages too, and serves parts of
the page to strangers.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
import time
from base64 import b64decode
from collections import deque
from collections.abc import Mapping
from enum import Enum
from hashlib import sha256

from egcam.errors import InputError

WRONG_PER_MINUTE = 30


class Answer(Enum):
    """What becomes of a password."""

    RIGHT = "right"
    WRONG = "wrong"
    LATER = "later"


class Login:
    """Decides who may use the page: whoever sends its cookie, or the password as HTTP's Basic authentication does.

    Args:
        password: what to ask for.
    """

    def __init__(self, password: str) -> None:
        if not password:
            raise InputError("the password is empty: choose one that is hard to guess")
        self._password = sha256(password.encode()).digest()
        # Cookies do not tell ports apart: two pages on one machine need two names.
        self._pair = f"egcam-{secrets.token_hex(4)}={secrets.token_urlsafe(32)}"
        self._wrong: deque[float] = deque()
        # Until the page is served its own server requests it once, without a password.
        self.is_started = False

    @property
    def cookie(self) -> str:
        """What a browser is given to keep. It forgets it when it is closed; scripts cannot read it."""
        return f"{self._pair}; Path=/; HttpOnly; SameSite=Lax"

    def has_cookie(self, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a request has the cookie; its headers are named in lower case."""
        sent = headers.get(b"cookie", b"").split(b";")
        return any(hmac.compare_digest(pair.strip(), self._pair.encode()) for pair in sent)

    def try_headers(self, headers: Mapping[bytes, bytes]) -> Answer:
        """What becomes of the password in a request; one without any is no guess."""
        password = _basic_password(headers.get(b"authorization", b""))
        return Answer.WRONG if password is None else self.try_password(password)

    def try_password(self, password: str) -> Answer:
        """Compare in the same time whatever is given; nobody may guess more than some thirty times a minute.

        Example:
            >>> login = Login("open sesame")
            >>> login.try_password("open says me").value, login.try_password("open sesame").value
            ('wrong', 'right')
        """
        now = time.monotonic()
        while self._wrong and now - self._wrong[0] > 60:
            self._wrong.popleft()
        # All guesses count together: an address is too easily changed to count by it.
        if len(self._wrong) >= WRONG_PER_MINUTE:
            return Answer.LATER
        if hmac.compare_digest(sha256(password.encode(errors="replace")).digest(), self._password):
            return Answer.RIGHT
        self._wrong.append(now)
        return Answer.WRONG


def _basic_password(header: bytes) -> str | None:
    """The password in an Authorization header.

    >>> _basic_password(b"Basic OnNlc2FtZQ=="), _basic_password(b"Bearer x")
    ('sesame', None)
    """
    kind, _, content = header.partition(b" ")
    if kind.lower() != b"basic":
        return None
    try:
        return b64decode(content, validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return None
