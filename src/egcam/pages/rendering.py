"""Templates filled in; every value is escaped for what the template writes: HTML, Markdown or LaTeX."""

from __future__ import annotations

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
    environment.filters |= {"jpeg": jpeg, "data_uri": data_uri}
    if suffix in _TABLES:
        environment.filters["table"] = lambda table: Markup(_TABLES[suffix](table))
    return environment


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
