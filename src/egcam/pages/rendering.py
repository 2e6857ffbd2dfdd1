"""Templates filled in; every value is escaped for what the template writes: HTML, Markdown or LaTeX."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from egcam.pages.escaping import in_latex, in_markdown
from egcam.pages.tables import TextTable, as_latex, as_markdown

if TYPE_CHECKING:
    from jinja2 import Environment

# jinja2 is imported inside functions only: `import egcam` must stay quick.

_ESCAPES: dict[str, Callable[[object], str]] = {".md": in_markdown, ".tex": in_latex}
_TABLES: dict[str, Callable[[TextTable], str]] = {".md": as_markdown, ".tex": as_latex}
# Braces are LaTeX's own.
_LATEX_SIGNS = {
    "block_start_string": "<%",
    "block_end_string": "%>",
    "variable_start_string": "<<",
    "variable_end_string": ">>",
    "comment_start_string": "<#",
    "comment_end_string": "#>",
}


# Shorter words fit into the narrowest caption there is, three beside each other on a phone.
_LONG_WORD = 12
_NAME_PIECE = re.compile(r"\.?[^-_.,+()\[\]]*[-_,+()\[\]]*")


@dataclass(frozen=True)
class Embedded:
    """A picture inside a page: its data URI and its size in pixels."""

    src: str
    width: int
    height: int


def render(template: str, **values: Any) -> str:
    """A template's text.

    Example:
        >>> page = render("frame.html", title="Cats & <dogs>")
        >>> "<title>Cats &amp; &lt;dogs&gt;</title>" in page
        True
    """
    return _environment(Path(template).suffix).get_template(template).render(**values)


def part(template: str, name: str, **values: Any) -> str:
    """What one macro of an HTML template makes: a piece of a page.

    Example:
        >>> part("web.html", "message", text="1 < 2", kind="info")
        '<p class="eg-message eg-info">1 &lt; 2</p>'
    """
    module: Any = _environment(".html").get_template(template).module
    return str(getattr(module, name)(**values)).strip()


@cache
def _environment(suffix: str) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    escape = _ESCAPES.get(suffix)
    options: dict[str, Any] = dict(_LATEX_SIGNS) if suffix == ".tex" else {}
    if escape is not None:
        # What is finalised comes as Markup, so that it is not escaped for HTML on top.
        options["finalize"] = lambda value: value if hasattr(value, "__html__") else Markup(escape(value))
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **options,
    )
    environment.globals["zip"] = zip
    environment.filters |= {"jpeg": jpeg, "data_uri": data_uri, "pieces": pieces}
    if suffix in _TABLES:
        environment.filters["table"] = lambda table: Markup(_TABLES[suffix](table))
    return environment


def pieces(text: str) -> list[tuple[str, bool]]:
    """A text in pieces between which a line may end, each with whether it may be cut short where there is no room.

    A file's name is one long word, which browsers would break anywhere: it is taken apart at its own signs.

    Example:
        >>> pieces("my cat")
        [('my cat', False)]
        >>> [piece for piece, _ in pieces("IMG_20240317-holiday.final.jpeg")]
        ['IMG_', '20240317-', 'holiday', '.final', '.jpeg']
    """
    found: list[tuple[str, bool]] = []
    for part in re.split(rf"(\S{{{_LONG_WORD},}})", text):
        is_long = len(part) >= _LONG_WORD and not any(letter.isspace() for letter in part)
        found += [(piece, True) for piece in _NAME_PIECE.findall(part)] if is_long else [(part, False)]
    return [(piece, is_cut) for piece, is_cut in found if piece]


def data_uri(content: bytes, kind: str) -> str:
    """Bytes of an image as an address that needs no file.

    Example:
        >>> data_uri(b"abc", "png")
        'data:image/png;base64,YWJj'
    """
    return f"data:image/{kind};base64,{b64encode(content).decode('ascii')}"


def jpeg(image: Image.Image, most: int = 448) -> Embedded:
    """A picture for a page, no side longer than `most` pixels."""
    shown = image.convert("RGB")
    shown.thumbnail((most, most), Image.Resampling.LANCZOS)
    buffer = BytesIO()
    shown.save(buffer, "JPEG", quality=88)
    return Embedded(data_uri(buffer.getvalue(), "jpeg"), shown.width, shown.height)
