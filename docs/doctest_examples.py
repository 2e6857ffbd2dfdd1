"""For mkdocstrings: the examples of egcam's docstrings, under "Example:" or on their own, as the code they are.

Griffe knows the heading "Examples:" only; a bare ">>>" would become a quotation.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_HEADING = re.compile(r"^(\s*)Example:$", re.MULTILINE)
_BARE = re.compile(r"\n\n(>>> .*)\Z", re.DOTALL)


class DoctestExamples(Extension):
    """Put every docstring's examples under the heading Griffe looks for."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Change the docstring before it is parsed."""
        if obj.docstring is not None:
            obj.docstring.value = with_examples(obj.docstring.value)


def with_examples(text: str) -> str:
    """The docstring with its examples under "Examples:".

    >>> with_examples("Add one." + chr(10) * 2 + ">>> 1 + 1" + chr(10) + "2").splitlines()[2]
    'Examples:'
    """
    text = _HEADING.sub(r"\1Examples:", text)
    bare = _BARE.search(text)
    if bare is None or "Examples:" in text:
        return text
    indented = "\n".join("    " + line for line in bare[1].splitlines())
    return f"{text[: bare.start()]}\n\nExamples:\n{indented}"
