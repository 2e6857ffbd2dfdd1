"""Few ticks, and numbers on them that need no formulas: a dollar sign in a label stays one."""

from __future__ import annotations

from math import floor, log10

from matplotlib.axis import Axis
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float) -> str:
    """A short number with a true minus.

    Example:
        >>> number(-0.25), number(2.0), number(1e-7)
        ('−0.25', '2', '1e−07')
    """
    return f"{value:g}".replace("-", "−")


def power_of_ten(value: float) -> str:
    """1, 10 and 100 as they are, other powers raised.

    Example:
        >>> power_of_ten(0.1), power_of_ten(10), power_of_ten(1e-4)
        ('0.1', '10', '10⁻⁴')
    """
    if 0.005 < value < 200:
        return number(value)
    exponent = log10(value)
    whole = floor(exponent + 0.5)
    raised = f"10{str(whole).translate(_RAISED)}"
    if abs(exponent - whole) < 1e-9:
        return raised
    return number(value)


def plain_numbers(axis: Axis, most: int = 4) -> None:
    """At most `most` steps on a linear axis."""
    axis.set_major_locator(MaxNLocator(most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(round(value, 12))))


def powers_of_ten(axis: Axis, most: int = 4) -> None:
    """At most `most` powers of ten on a logarithmic axis."""
    axis.set_major_locator(LogLocator(base=10, numticks=most + 1))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: power_of_ten(value)))


def these_numbers(axis: Axis, values: list[float]) -> None:
    """Exactly these ticks."""
    axis.set_major_locator(FixedLocator(values))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: number(round(value, 12))))
