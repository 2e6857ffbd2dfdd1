"""What happens when a visitor does something: each action yields what to show while it runs.

An action takes the visitor's own state and the page's values, all unchecked, and yields one value for each of its
outputs; `KEEP` leaves one as it is. The first output is always the line that says what is going on: errors are
sentences there.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial, wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from egcam.errors import EgcamError, InputError, TargetError, near_misses
from egcam.evaluation.score import Score
from egcam.figures import style
from egcam.models.classifier import Prediction
from egcam.photos.comparison import Result
from egcam.photos.demo import PHOTOGRAPHS
from egcam.progress import Progress
from egcam.web import downloads, fragments
from egcam.web.choices import Choices, checked, named_class
from egcam.web.jobs import Stopped, Turn, Unchanged, Waiting, shares
from egcam.web.limits import Limits, read_upload, short_name, whole_name
from egcam.web.session import Photo, explain, measure, open_photo, saturate
from egcam.web.shared_model import SharedModel

KEEP: dict[str, Any] = {"__type__": "update"}
"""What Gradio takes for "no change"."""

STOPPED = "Stopped. What was ready by then is shown."
TOP = 5

Shown: TypeAlias = tuple[Any, ...]
Explained: TypeAlias = tuple[Prediction, tuple[Result, ...]]
Scores: TypeAlias = dict[str, Sequence[Score]]
T = TypeVar("T")

_log = logging.getLogger(__name__)


def _in_sentences(
    outputs: int, emptied: int | None = None
) -> Callable[[Callable[..., Iterator[Shown]]], Callable[..., Iterator[Shown]]]:
    """Turn what an action raises into a sentence in its first output; the others are kept, but for one `emptied`."""
    others = tuple(None if place == emptied else KEEP for place in range(1, outputs))

    def decorate(action: Callable[..., Iterator[Shown]]) -> Callable[..., Iterator[Shown]]:
        @wraps(action)
        def guarded(self: Actions, *arguments: Any) -> Iterator[Shown]:
            try:
                yield from action(self, *arguments)
            except Unchanged:
                yield (KEEP,) * outputs
            except Stopped:
                yield (fragments.message(STOPPED), *others)
            except EgcamError as error:
                yield (fragments.message(_sentence(str(error)), "error"), *others)
            except Exception:
                _log.exception("an action of the page failed")
                text = "Something went wrong here, and it is not your fault; the server's log says what."
                yield (fragments.message(text, "error"), *others)
            finally:
                self.over(*arguments)

        return guarded

    return decorate


class Actions:
    """The actions of the page, for all visitors."""

    def __init__(self, shared: SharedModel, limits: Limits, folder: Path) -> None:
        self.shared, self.limits, self.folder = shared, limits, folder
        self.waiting = Waiting()
        # Those of the demonstration, each once, where scikit-image is there.
        are_there = find_spec("skimage") is not None
        self.samples = {one.name: one for one in PHOTOGRAPHS} if are_there else {}

    def begin(self, turn: Turn) -> tuple[str, int, Any]:
        """End what is running for this visitor; the number of the new turn is the ticket for what comes next.

        The line says how many others wait or are served: all take turns.
        """
        turn.next()
        return fragments.message(_queued(self.waiting.enter(turn))), turn.number, _enabled(True)

    def begin_class(self, turn: Turn, photo: Photo | None, typed: object, chosen: int | None) -> Shown:
        """Begin with another class, chosen from the list or typed: what names none is told, and the former comes back.

        Shows what `begin` does, and then the class in the list of all, as the class chosen last and among the top ones,
        and the number of the turn in which it changed. Gradio calls this also when the list is only left.
        """
        unchanged = (KEEP, KEEP, KEEP, chosen, KEEP, KEEP, KEEP)
        if typed in (None, "", chosen):
            return unchanged
        try:
            index = named_class(self.shared, typed)
        except TargetError as error:
            still = "" if chosen is None else f" The class is still “{self.shared.classes[chosen]}”."
            return (fragments.message(_sentence(str(error)) + still, "error"), *unchanged[1:])
        if index == chosen:
            return unchanged
        return (*self.begin(turn), index, index, _in_top(photo, index), turn.number)

    def stop(self, turn: Turn) -> tuple[str, Any]:
        """End what is running for this visitor."""
        turn.next()
        turn.end(turn.number)
        self.waiting.leave(turn)
        return fragments.message(STOPPED), _enabled(False)

    def over(self, *arguments: object) -> None:
        """An action has ended, however: what it was given says whose it was."""
        turn = next((one for one in arguments if isinstance(one, Turn)), None)
        if turn is not None:
            ticket = arguments[arguments.index(turn) - 1]
            turn.end(ticket)
            self.waiting.leave(turn, ticket)

    def offered(self, turn: Turn, *results: object) -> list[Any]:
        """Which buttons do something now: Stop, then the downloads of each result, as the page has them."""
        return [_enabled(turn.is_busy), *(_enabled(bool(result)) for result in results)]

    @_in_sentences(13, emptied=4)
    def open_upload(self, ticket: object, turn: Turn, upload: object, *choices: object) -> Iterator[Shown]:
        """Show the network an uploaded image, and explain what it says."""
        turn.take(ticket)
        file, name = _uploaded(upload, self.folder)
        image = read_upload(file, name, self.limits)
        photo = open_photo(self.shared, image, short_name(name), whole_name(name))
        yield from self._opened(photo, turn, choices)

    @_in_sentences(13)
    def open_sample(self, name: str, ticket: object, turn: Turn, *choices: object) -> Iterator[Shown]:
        """Show the network one of the samples, and explain what it says."""
        turn.take(ticket)
        if name not in self.samples:
            raise InputError(f"there is no sample {name!r}; {near_misses(name, self.samples)}")
        image = self.samples[name].read()
        yield from self._opened(open_photo(self.shared, image, name), turn, choices)

    def _opened(self, photo: Photo, turn: Turn, choices: Sequence[object]) -> Iterator[Shown]:
        """The photograph, its top classes, empty tabs; then the explanation of the first class."""
        best = photo.predictions[0]
        said = f"The network says “{best.name}” ({best.probability:.1%})."
        tops = [(f"{one.name}  {one.probability:.1%}", one.index) for one in photo.predictions[:TOP]]
        top = {"__type__": "update", "choices": tops, "value": best.index}
        cleared = (fragments.photograph(photo), None, "", None, "", None, "")
        yield (fragments.message(said), photo, top, best.index, None, *cleared, best.index)
        for status, pane, explained in self._explaining(photo, turn, best.index, *choices):
            yield (status, *(KEEP,) * 4, pane, explained, *(KEEP,) * 6)

    @_in_sentences(3)
    def explain(self, ticket: object, turn: Turn, photo: Photo | None, *choices: object) -> Iterator[Shown]:
        """One method's map; yields status, pane and what can be downloaded."""
        turn.take(ticket)
        yield from self._explaining(_opened(photo), turn, *choices)

    @_in_sentences(3)
    def explain_again(self, ticket: object, turn: Turn, photo: Photo | None, *choices: object) -> Iterator[Shown]:
        """The map anew after a setting has changed; nothing where there is no image yet."""
        turn.take(ticket)
        if photo is None:
            yield fragments.message("Drop an image, or take a sample, to begin."), KEEP, KEEP
            return
        yield from self._explaining(photo, turn, *choices)

    def _explaining(self, photo: Photo, turn: Turn, *choices: object) -> Iterator[Shown]:
        found = self._checked(*choices)
        method, target = found.methods[0], photo.prediction(found.target)
        name = style.label(method)
        result = yield from _followed(
            partial(explain, self.shared, photo, found, method),
            turn,
            lambda share: (fragments.progress(f"{name} for “{target.name}”", share), KEEP, KEEP),
        )
        done = f"{name} for “{target.name}” took {result.seconds:.1f} s."
        yield fragments.message(done), fragments.explained(photo, target, result), (target, (result,))

    @_in_sentences(3)
    def compare(self, ticket: object, turn: Turn, photo: Photo | None, *choices: object) -> Iterator[Shown]:
        """Several methods' maps, one by one; yields status, pane and what can be downloaded."""
        turn.take(ticket)
        photo, found = _opened(photo), self._checked(*choices)
        target = photo.prediction(found.target)
        results: list[Result] = []
        failed: dict[str, str] = {}
        for number, method in enumerate(found.methods):
            waiting = found.methods[number:]
            pane: Any = fragments.compared(photo, target, results, failed, waiting)
            status = _counted(style.label(method), number, len(found.methods))
            yield fragments.progress(status, number / len(found.methods)), pane, (target, tuple(results))
            try:
                result = yield from _followed(
                    partial(explain, self.shared, photo, found, method),
                    turn,
                    _progress_line(status, number, len(found.methods)),
                )
                results.append(result)
            except InputError:
                raise
            except EgcamError as error:
                failed[method] = str(error)
        seconds = sum(result.seconds for result in results)
        text = f"{len(results)} {'method' if len(results) == 1 else 'methods'} in {seconds:.1f} s."
        pane = fragments.compared(photo, target, results, failed)
        yield fragments.message(text), pane, (target, tuple(results))

    @_in_sentences(3)
    def measure(self, ticket: object, turn: Turn, photo: Photo | None, *choices: object) -> Iterator[Shown]:
        """Several methods' scores, method by method; yields status, pane and what can be downloaded."""
        turn.take(ticket)
        photo, found = _opened(photo), self._checked(*choices)
        target = photo.prediction(found.target)
        rows: Scores = {}
        for number, method in enumerate(found.methods):
            status = _counted(f"Measuring {style.label(method)}", number, len(found.methods))
            pane = fragments.measured(target, rows, found.methods[number:])
            yield fragments.progress(status, number / len(found.methods)), pane, dict(rows)
            rows[method] = yield from _followed(
                partial(measure, self.shared, photo, found, method),
                turn,
                _progress_line(status, number, len(found.methods)),
            )
        yield fragments.message("Measured."), fragments.measured(target, rows), rows

    @_in_sentences(2)
    def saturate(self, ticket: object, turn: Turn, photo: Photo | None, *choices: object) -> Iterator[Shown]:
        """The saturation curves and the verdict; yields status, pane and what can be downloaded."""
        turn.take(ticket)
        target_index, layer = choices
        photo, found = _opened(photo), self._checked(target_index, "grad-cam", layer, samples=1, reference="usual")
        target = photo.prediction(found.target)
        measured = yield from _followed(
            partial(saturate, self.shared, photo, found),
            turn,
            lambda share: (fragments.progress("Scaling the photograph up from black", share), KEEP),
        )
        with self.shared.lock:
            drawn = downloads.saturation_drawing(self.shared.classifier.name, measured)
        yield fragments.message("Measured."), fragments.saturated(target, measured, drawn)

    @_in_sentences(2)
    def download_maps(self, kind: str, photo: Photo | None, explained: Explained | None) -> Iterator[Shown]:
        """A file with maps; yields status and the file."""
        target, results = explained or (None, ())
        photo = _opened(photo)
        with self.shared.lock:
            chosen = target or photo.predictions[0]
            file = downloads.maps_file(self.folder, kind, photo, chosen, results, self.shared.classifier.name)
        yield from _handed_over(file)

    @_in_sentences(2)
    def download_scores(self, photo: Photo | None, rows: Scores | None) -> Iterator[Shown]:
        """A file with scores; yields status and the file."""
        photo = _opened(photo)
        yield from _handed_over(downloads.scores_file(self.folder, photo, rows or {}))

    def _checked(self, target: object, methods: object, layer: object, samples: object, reference: object) -> Choices:
        return checked(self.shared, self.limits, target, layer, methods, samples, reference)


def _queued(before: int) -> str:
    """What is said to a visitor who waits.

    >>> _queued(0), _queued(1)
    ('Waiting for the network…', 'Waiting for the network: 1 other is before you…')
    """
    if before == 0:
        return "Waiting for the network…"
    return f"Waiting for the network: {before} {'other is' if before == 1 else 'others are'} before you…"


def _enabled(wanted: bool) -> dict[str, Any]:
    """A button that can be pressed, or not."""
    return {"__type__": "update", "interactive": wanted}


def _followed(work: Callable[[Progress], T], turn: Turn, line: Callable[[float], Shown]) -> Generator[Shown, None, T]:
    """Yield a line whenever the work has come further; its result is the generator's."""
    running, before = shares(work, turn), -1
    while True:
        try:
            share = next(running)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        except GeneratorExit:
            running.close()
            raise
        percent = int(100 * share)
        # A line that says nothing new is still a chance for a visitor who has left to be noticed.
        yield line(share) if percent != before else (KEEP,) * len(line(share))
        before = percent


def _progress_line(status: str, number: int, count: int) -> Callable[[float], Shown]:
    return lambda share: (fragments.progress(status, (number + share) / count), KEEP, KEEP)


def _counted(what: str, number: int, count: int) -> str:
    return what if count == 1 else f"{what}, {number + 1} of {count}"


def _in_top(photo: Photo | None, target: int) -> int | None:
    """The class among the top ones, if it is one of them."""
    tops = [] if photo is None else [one.index for one in photo.predictions[:TOP]]
    return target if target in tops else None


def _opened(photo: Photo | None) -> Photo:
    if photo is None:
        raise InputError("there is no image yet: drop one, or take a sample")
    return photo


def _uploaded(upload: object, folder: Path) -> tuple[Path, str]:
    """Where an upload was put, and what its owner calls it; anything but a file of the own folder is refused."""
    if upload is None:
        raise InputError("there is no image yet: drop one, or take a sample")
    path, name = getattr(upload, "path", None), getattr(upload, "orig_name", None)
    file = Path(str(path)).resolve()
    if path is None or not file.is_relative_to(folder.resolve()) or not file.is_file():
        raise InputError("that is no uploaded file: drop an image on the page")
    return file, str(name or file.name)


def _handed_over(file: Path) -> Iterator[Shown]:
    """Shows the file; Gradio takes a copy, which it deletes when that is old."""
    try:
        yield fragments.message(f"{file.name} is ready."), str(file)
    finally:
        shutil.rmtree(file.parent)


def _sentence(text: str) -> str:
    """With a capital letter and a full stop, in one line."""
    line = " ".join(text.split())
    line = line[:1].upper() + line[1:]
    return line if line.endswith((".", "?", "!", "…")) else line + "."
