"""What the command says and how it ends. Answers go to stdout; progress, notes and errors to stderr."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from egcam.errors import EgcamError, InputError, MissingExtraError, NonFiniteMapWarning, ZeroMapWarning
from egcam.interrupts import STOPPED as STOPPED
from egcam.interrupts import command_runs
from egcam.progress import Progress, piece_of

DONE, SOME_FAILED, WRONG_USE, MISSING_EXTRA, NO_SPACE = 0, 1, 2, 3, 4
EXIT_CODES = (
    "Exit codes: 0 all done; 1 some images failed, the others are done; "
    "2 wrong usage (unknown model, method, layer, class, …); 3 an extra is not installed; 4 the disk is full; "
    "130 stopped."
)


Read = TypeVar("Read")
Made = TypeVar("Made")

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def out() -> Console:
    """Where answers go; created on each call so that a redirected stdout is honoured."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def table(
    heads: Iterable[str], rows: Iterable[Iterable[str]], right: Collection[str] = (), whole: Collection[str] = ()
) -> Table:
    """Plain texts in rows for a terminal; columns of `right` stand to the right, those of `whole` are never wrapped."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for head in heads:
        wrap = {"no_wrap": True} if head in whole else {"overflow": "fold"}
        made.add_column(head, justify="right" if head in right else "left", **wrap)
    for row in rows:
        made.add_row(*map(escape, row))
    return made


def say(text: str) -> None:
    """A line for people, beside the answer."""
    print(readable(text), file=sys.stderr)


def note(text: str) -> None:
    """Something to know that is no error."""
    say(f"egcam: note: {text}")


def print_error(error: BaseException) -> None:
    """One clear line about an error; a list it ends in keeps its lines."""
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    for line in (f"egcam: error: {' '.join(lines[0].split())}", *lines[1:]):
        say(line)


def readable(text: str) -> str:
    """`text` as UTF-8 and a terminal can take it, with escapes that JSON reads back for all else.

    Bytes of a file name that are not UTF-8, and what a terminal would obey rather than show.

    Example:
        >>> print(readable("bad\\udcff.png"), readable("\\x1b[31mred.png"))
        bad\\udcff.png \\u001b[31mred.png
    """
    shown = _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
    return shown.encode("utf-8", "backslashreplace").decode("utf-8")


def print_json(document: Mapping[str, Any]) -> None:
    """The one JSON document of `--json`."""
    print(readable(json.dumps(document, indent=2, ensure_ascii=False)))


def failed_list(failed: Mapping[str, str]) -> list[dict[str, str]]:
    """Files that could not be read, and why, for JSON."""
    return [{"file": file, "error": error} for file, error in failed.items()]


def read_each(files: Iterable[Path], read: Callable[[Path], Read], failed: dict[str, str]) -> list[Read]:
    """What `read` makes of each file; one that cannot be read is named on stderr, and `failed` says why."""
    found = []
    for file in files:
        try:
            found.append(read(file))
        except InputError as error:
            failed[str(file)] = str(error)
            print_error(error)
    return found


def explained_each(
    files: Sequence[Path], explain: Callable[[Path, Progress], Made], failed: dict[str, str], as_json: bool
) -> Iterator[tuple[Path, Made, list[str]]]:
    """Each file with what `explain` makes of it and the warnings it gave; for those that fail, `failed` says why."""
    with progress_bar(f"explaining {len(files)} image(s)", wanted=not as_json) as share:
        for number, file in enumerate(files):
            progress = piece_of(share, number, len(files))
            try:
                with short_warnings(file) as warned:
                    made = explain(file, progress)
            except InputError as error:
                failed[str(file)] = str(error)
                print_error(error)
            else:
                yield file, made, warned
            progress(1.0)


def none_read(failed: Mapping[str, str], as_json: bool) -> int:
    """The answer where no image could be read, and its exit code."""
    if as_json:
        print_json({"error": "no image could be read", "exit_code": SOME_FAILED, "failed": failed_list(failed)})
    return SOME_FAILED


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
        command_runs()
        as_json = bool(options.get("as_json"))
        try:
            with clear_errors(as_json), plain_warnings():
                code = command(*arguments, **options) or DONE
                _flush(as_json)
                raise typer.Exit(code)
        except KeyboardInterrupt:
            say("egcam: stopped")
            raise typer.Exit(STOPPED) from None

    return answered  # type: ignore[return-value]


def _flush(as_json: bool) -> None:
    """See to it that the answer has arrived: what is still in a buffer would fail once nobody can say so."""
    if sys.stdout is None:
        if as_json:
            raise OSError(errno.EBADF, "the answer cannot be written: standard output is closed")
        return
    sys.stdout.flush()


def _end(error: BaseException, code: int, as_json: bool) -> NoReturn:
    print_error(error)
    try:
        if as_json:
            print_json({"error": str(error), "exit_code": code})
        _flush(False)
    except OSError:
        # Standard output takes nothing any more, and Python would try again when it ends.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    raise typer.Exit(code) from error


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP, which end a service or a terminal, do as Ctrl-C does, for the length of a `with` block.

    The second one is ignored, so that nothing disturbs the cleaning up; a third Ctrl-C ends it at once. What was
    ignored before, as under `nohup`, stays so. For the main thread only.
    """
    ending = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in ending}
    heard = {number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)}

    came: list[int] = []

    def end(number: int, frame: object) -> None:
        came.append(number)
        if len(came) == 1:
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            if came.count(number) > 2:
                os._exit(STOPPED)
            # Not print, which may be interrupted in the middle of a write.
            os.write(2, b"egcam: saving finished work; press again to end at once\n")

    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        # After the first signal the process is about to end; a second must not turn its exit code into a crash's.
        for number in heard:
            signal.signal(number, signal.SIG_IGN if came else before[number])


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print egcam's own warnings once, in one line each, without Python's prefix; others as usual."""
    said: set[str] = set()
    with warnings.catch_warnings():
        usual = warnings.showwarning

        def show(message: Any, category: Any, *place: Any, **more: Any) -> None:
            text = " ".join(str(message).split())
            if not category.__module__.startswith("egcam"):
                usual(message, category, *place, **more)
            elif text not in said:
                said.add(text)
                say(f"egcam: warning: {text}")

        warnings.showwarning = show
        yield


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
def progress_bar(what: str, wanted: bool = True) -> Iterator[Progress]:
    """A bar with the time left, on stderr; a function that takes the share done, from 0 to 1.

    There is no bar where nobody would see it: when stderr is not a terminal, or with `--json`.
    """
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("· left"),
        TimeRemainingColumn(),
    )
    hidden = not (wanted and console.is_terminal)
    with Bar(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share: bar.update(task, completed=share)
