"""What the command says and how it ends. Answers go to stdout; progress, notes and errors to stderr."""

from __future__ import annotations

import errno
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console

from egcam.errors import EgcamError, MissingExtraError, NonFiniteMapWarning, ZeroMapWarning

DONE, SOME_FAILED, WRONG_USE, MISSING_EXTRA, NO_SPACE = 0, 1, 2, 3, 4
EXIT_CODES = (
    "Exit codes: 0 all done; 1 some images failed, the others are done; "
    "2 wrong use (unknown model, method, layer, class, …); 3 an extra is not installed."
)

Share = Callable[[float], None]


def part_of(share: Share, number: int, count: int) -> Share:
    """Progress within piece `number` of `count`, as progress within all of them."""
    return lambda done: share((number + min(done, 1.0)) / count)


def out() -> Console:
    """Where answers go; made anew so that a redirected stdout is honoured."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def say(text: str) -> None:
    """A line for people, beside the answer."""
    print(text, file=sys.stderr)


def note(text: str) -> None:
    """Something to know that is no error."""
    say(f"egcam: note: {text}")


def print_error(error: BaseException) -> None:
    """One clear line about an error."""
    say(f"egcam: error: {' '.join(str(error).split())}")


def readable(text: str) -> str:
    """`text` as UTF-8 can hold it: bytes of a file name that are not UTF-8 become escapes, which JSON reads back.

    Example:
        >>> print(readable("bad\\udcff.png"))
        bad\\udcff.png
    """
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def print_json(document: Mapping[str, Any]) -> None:
    """The one JSON document of `--json`."""
    print(readable(json.dumps(document, indent=2, ensure_ascii=False)))


def failed_list(failed: Mapping[str, str]) -> list[dict[str, str]]:
    """Files that could not be read, and why, for JSON."""
    return [{"file": file, "error": error} for file, error in failed.items()]


@contextmanager
def clear_errors(as_json: bool = False) -> Iterator[None]:
    """Turn errors into one line and an exit code: no traceback for a wrong call."""
    try:
        yield
    except EgcamError as error:
        # A script must be able to tell a full disk or a lost network, where trying again helps, from a wrong call.
        usual = MISSING_EXTRA if isinstance(error, MissingExtraError) else WRONG_USE
        _end(error, getattr(error, "exit_code", usual), as_json)
    except OSError as error:
        # Files that cannot be written: a full disk, a folder that is not ours.
        _end(error, NO_SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else WRONG_USE, as_json)


Command = TypeVar("Command", bound=Callable[..., Any])


def answering(command: Command) -> Command:
    """A command that ends with the code it returns (none is 0), its errors in one line."""

    @wraps(command)
    def answered(*arguments: Any, **options: Any) -> None:
        with clear_errors(bool(options.get("as_json"))):
            raise typer.Exit(command(*arguments, **options) or DONE)

    return answered  # type: ignore[return-value]


def _end(error: BaseException, code: int, as_json: bool) -> NoReturn:
    print_error(error)
    if as_json:
        print_json({"error": str(error), "exit_code": code})
    raise typer.Exit(code) from error


@contextmanager
def short_warnings(about: object) -> Iterator[list[str]]:
    """Say egcam's warnings in one line each, with the file they are about; the list holds them when the block ends."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        for category in (ZeroMapWarning, NonFiniteMapWarning):
            warnings.simplefilter("always", category)
        yield said
    for warning in caught:
        # What Python calls signed=True is --signed here.
        text = " ".join(str(warning.message).split()).replace("signed=True", "--signed")
        said.append(text)
        say(f"egcam: warning: {about}: {text}")


@contextmanager
def progress_bar(what: str, wanted: bool = True) -> Iterator[Share]:
    """A bar with the time left, on stderr; a function that takes the share done, from 0 to 1.

    There is no bar where nobody would see it: when stderr is not a terminal, or with `--json`.
    """
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("· left"),
        TimeRemainingColumn(),
    )
    hidden = not (wanted and console.is_terminal)
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)
