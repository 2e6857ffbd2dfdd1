"""Numbers as tables print them."""

from __future__ import annotations

from math import isfinite


def figure(value: float) -> str:
    """A number with four significant digits, as tables print it; '-' if there is none.

    Example:
        >>> figure(0.12345), figure(float("nan")), figure(123456.7), figure(0.00001234)
        ('0.1235', '-', '1.23e+05', '1.23e-05')
    """
    if not isfinite(value):
        return "-"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:#.4g}".rstrip(".")


def counted(count: int, what: str) -> str:
    """A number of things.

    Example:
        >>> counted(1, "image"), counted(1200, "image")
        ('1 image', '1,200 images')
    """
    return f"{count:,} {what}" + ("" if count == 1 else "s")
