"""The sheet a figure is drawn on, and the files it becomes: the same bytes for the same figure."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from egcam.errors import InputError
from egcam.figures import style

SUFFIXES = (".png", ".svg", ".pdf")
# What would tell two runs apart: when, and with which version, a file was written.
_ANONYMOUS: dict[str, dict[str, Any]] = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
_ANONYMOUS["pdf"] = {"CreationDate": None, "Creator": None, "Producer": None}


class Page(Figure):
    """A matplotlib figure that is drawn in egcam's style wherever and whenever it is drawn.

    matplotlib makes some texts only when a figure is drawn, in the settings of that moment. pyplot knows nothing of a
    page: it need not be closed, and no window opens.
    """

    def __init__(self, width: float, height: float, **options: Any) -> None:
        with style.context():
            super().__init__(figsize=(width, height), **options)
            FigureCanvasAgg(self)

    def draw(self, renderer: RendererBase) -> None:
        """Draw everything."""
        with style.context():
            super().draw(renderer)

    def savefig(self, fname: Any, *, transparent: bool | None = None, **options: Any) -> None:
        """As every matplotlib figure's, in the style of the page."""
        with style.context():
            super().savefig(fname, transparent=transparent, **options)

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        return encoded(self, "png", 150)


def save(figure: Figure, *paths: str | Path, dpi: float = style.DPI) -> list[Path]:
    """Write a figure as PNG, SVG or PDF, by the suffix of each path; the same figure gives the same bytes.

    Letters in SVG are outlines and in PDF embedded TrueType, so they look the same everywhere; photographs inside have
    the resolution `dpi`.

    Args:
        figure: what one of egcam's figure functions returned (any matplotlib figure will do).
        paths: one or more files that end in .png, .svg or .pdf; missing folders are made.
        dpi: pixels per inch.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [path.suffix for path in save(Page(2, 1), f"{folder}/a.png", f"{folder}/a.svg")]
        ['.png', '.svg']
    """
    if not paths:
        raise InputError("no file is named: save(figure, 'figure.png', 'figure.svg')")
    if not 20 <= dpi <= 2400:
        raise InputError(f"dpi is pixels per inch, from 20 to 2400; not {dpi}")
    files = [checked_path(path) for path in paths]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(encoded(figure, file.suffix.lower()[1:], dpi))
    return files


def encoded(figure: Figure, kind: str, dpi: float = style.DPI) -> bytes:
    """A figure as the bytes of a PNG, SVG or PDF file.

    Example:
        >>> encoded(Page(2, 1), "png")[1:4]
        b'PNG'
    """
    buffer = BytesIO()
    with style.context():
        figure.savefig(buffer, format=kind, dpi=dpi, metadata=_ANONYMOUS[kind])
    return buffer.getvalue()


def checked_path(path: str | Path) -> Path:
    """The path, if its suffix is one a figure can be written as.

    Example:
        >>> checked_path("figure.SVG").name
        'figure.SVG'
    """
    file = Path(path)
    if file.suffix.lower() not in SUFFIXES:
        raise InputError(f"{file} does not end in .png, .svg or .pdf: the suffix says what a figure is written as")
    if file.is_dir():
        raise InputError(f"{file} is a folder; a figure is a file that ends in .png, .svg or .pdf")
    return file
