"""Ctrl-C while a command is still being loaded: a line and exit code 130, no traceback.

Imported before all else, so it imports next to nothing itself.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

STOPPED = 130

_IMPORTS = "<frozen importlib._bootstrap>"
_is_running = False


def end_quietly() -> None:
    """From now on Ctrl-C ends the process at once, until a command runs; where it is ignored, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)


def command_runs() -> None:
    """From now on Ctrl-C is for the command to hear, but not in the midst of an import.

    Libraries that are interrupted there say so in words of their own, or crash when Python ends.
    """
    global _is_running
    _is_running = True


def _interrupted(number: int, frame: FrameType | None) -> None:
    if _is_running and not _is_importing(frame):
        raise KeyboardInterrupt
    # Not by print, which may be in the midst of something.
    os.write(2, b"egcam: stopped\n")
    os._exit(STOPPED)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            return True
        frame = frame.f_back
    return False
