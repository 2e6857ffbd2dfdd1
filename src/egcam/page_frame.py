"""The frame of a web page that needs nothing else: for the demo's gallery and the reports of studies."""

from __future__ import annotations

from html import escape

_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def framed(title: str, style: str, body: str) -> str:
    """A whole page.

    Args:
        title: plain text.
        style: CSS.
        body: HTML, already escaped.

    Example:
        >>> "<title>Cats &amp; dogs</title>" in framed("Cats & dogs", "", "<main></main>")
        True
    """
    return _FRAME.format(title=escape(title), style=style, body=body)
