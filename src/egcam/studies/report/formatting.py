"""Names and numbers as people write them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import floor, isfinite, log10

from egcam.evaluation.numbers import figure
from egcam.figures import style
from egcam.metrics.registry import metric as metric_called
from egcam.studies.specs import MethodSpec


def method_labels(methods: Sequence[MethodSpec]) -> dict[str, str]:
    """What to call each method: as people write it, or the study's own name for it where it has one.

    Example:
        >>> method_labels([MethodSpec("grad-cam", "grad-cam"), MethodSpec("mine", "slope-cam")])
        {'grad-cam': 'Grad-CAM', 'mine': 'mine'}
    """
    found = {one.name: style.label(one.name) for one in methods}
    shared = {label for label, count in Counter(found.values()).items() if count > 1}
    return {name: name if label in shared else label for name, label in found.items()}


def looks(methods: Sequence[MethodSpec]) -> dict[str, style.LineStyle]:
    """How each method is drawn: one of a kind looks the same under a name of the study's own."""
    count = Counter(one.method for one in methods)
    keys = {one.name: one.method if count[one.method] == 1 else one.name for one in methods}
    drawn = style.lines(keys.values())
    return {name: _in_ink(drawn[key]) for name, key in keys.items()}


def _in_ink(look: style.LineStyle) -> style.LineStyle:
    """Black is the ink of the page, which is light on a dark one."""
    return replace(look, color=style.INK) if look.color == style.BLACK else look


def metric_label(metric: str) -> str:
    """A metric's name in words.

    Example:
        >>> metric_label("pixel-flipping"), metric_label("irof"), metric_label("top-k-intersection")
        ('Pixel flipping', 'IROF', 'Top-k intersection')
    """
    return metric_called(metric).title


def key(metrics: Sequence[str]) -> str:
    """What the short headings of tables stand for.

    Example:
        >>> key(["pixel-flipping", "irof"])
        'PF: pixel flipping; IROF.'
    """
    names = {metric_called(metric).label: metric_label(metric) for metric in metrics}
    return "; ".join(short if short == name else f"{short}: {_lowered(name)}" for short, name in names.items()) + "."


def _lowered(name: str) -> str:
    return name if name[:2].isupper() else name[0].lower() + name[1:]


def better(metric: str) -> str:
    """Which way is better, in words."""
    return f"{metric_called(metric).direction} is better"


def spread(value: float, low: float, high: float, *, sign: bool = False) -> str:
    """A number with its interval, to the digits the interval allows.

    Example:
        >>> spread(0.0231, 0.0112, 0.0359, sign=True), spread(12.31, 11.9, 12.8)
        ('+0.023 [0.011, 0.036]', '12.31 [11.90, 12.80]')
    """
    if not isfinite(value):
        return "-"
    plus = "+" if sign else ""
    if not isfinite(low):
        text = figure(value)
        return f"+{text}" if sign and value > 0 else text
    largest = max(abs(value), abs(low), abs(high))
    if largest >= 1e5 or 0 < largest < 1e-3:
        return f"{value:{plus}.2e} [{low:.2e}, {high:.2e}]"
    # Two significant digits of the interval's half width.
    half = (high - low) / 2
    exact = half <= 1e-9 * largest
    digits = 4 if exact else min(8, max(0, 1 - floor(log10(half))))
    text = f"{_rounded(value, digits):{plus}.{digits}f}"
    return f"{text} [{_rounded(low, digits):.{digits}f}, {_rounded(high, digits):.{digits}f}]"


def _rounded(value: float, digits: int) -> float:
    """Without the sign of a zero that was rounded down to."""
    return round(value, digits) + 0.0


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    Example:
        >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"])
        ('a', 'a and b', 'a, b and c')
    """
    names = list(names)
    return " and ".join(names) if len(names) < 3 else ", ".join(names[:-1]) + " and " + names[-1]


def file_names(labels: Sequence[str]) -> dict[str, str]:
    """A file name for each label, no two alike.

    Example:
        >>> file_names(["VGG 16", "vgg/16", "<b>"])
        {'VGG 16': 'vgg-16', 'vgg/16': 'vgg-16-2', '<b>': 'b'}
    """
    found: dict[str, str] = {}
    for label in labels:
        plain = re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "model"
        name, number = plain, 1
        while name in found.values():
            number += 1
            name = f"{plain}-{number}"
        found[label] = name
    return found


def label_part(name: str) -> str:
    r"""A name inside a LaTeX \label.

    Example:
        >>> label_part("grad-cam++")
        'grad-cam--'
    """
    return re.sub(r"[^A-Za-z0-9]", "-", name)
