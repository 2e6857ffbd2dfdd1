"""What went wrong in an evaluation: a method or a metric that raised an error, and whether memory ran out.

A score that is undefined by its metric's definition (of a map that is zero everywhere, say) is no failure: it is NaN
with a cause (`egcam.metrics.undefined`), and computing it again would give NaN again.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from egcam.errors import FailedEvaluationWarning

_SIGNS = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
_SHOWN_CAUSES = 8
_OUT_OF_MEMORY: type[BaseException] = getattr(torch, "OutOfMemoryError", torch.cuda.OutOfMemoryError)


@dataclass(frozen=True)
class Fault:
    """An error in a line, and whether it was for lack of memory. The error itself would hold on to that memory."""

    cause: str
    out_of_memory: bool = False


@dataclass(frozen=True)
class Failure:
    """A method, or a metric of it, that raised an error."""

    method: str  # its name in the table
    metric: str | None  # which metric raised; None if the method itself did
    image: int | None  # the image's number; None if all images failed at once
    fault: Fault  # what was raised


def fault_of(error: BaseException) -> Fault:
    """What an exception says; errors egcam raises on purpose need no more than their text.

    Example:
        >>> fault_of(ValueError("no such class")).cause, fault_of(KeyError("a")).cause
        ('no such class', "KeyError: 'a'")
        >>> fault_of(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")).out_of_memory
        True
    """
    text = " ".join(str(error).split())
    kind = type(error).__name__
    cause = text if isinstance(error, ValueError) and text else f"{kind}: {text}" if text else kind
    return Fault(cause, is_out_of_memory(error))


def is_out_of_memory(error: BaseException | None) -> bool:
    """Whether memory ran out, by the kind of the error, its text, or the error it was raised from."""
    if error is None:
        return False
    if isinstance(error, MemoryError | _OUT_OF_MEMORY):
        return True
    said = isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)
    return said or is_out_of_memory(error.__cause__)


def report(failures: Sequence[Failure]) -> None:
    """Warn of failures: a line for each method, metric and cause."""
    alike: dict[tuple[str, str | None, str], list[int | None]] = {}
    for one in failures:
        alike.setdefault((one.method, one.metric, one.fault.cause), []).append(one.image)
    for (method, metric, cause), images in alike.items():
        what = method if metric is None else f"{metric} of {method}"
        warnings.warn(
            f"{what} failed {_where(images)}: {cause}; the scores are NaN there", FailedEvaluationWarning, stacklevel=3
        )


def _where(images: Sequence[int | None]) -> str:
    numbers = [image for image in images if image is not None]
    if not numbers:
        return "on all images"
    more = f" and {len(numbers) - _SHOWN_CAUSES} more" if len(numbers) > _SHOWN_CAUSES else ""
    return f"on image {', '.join(map(str, numbers[:_SHOWN_CAUSES]))}{more}"
