"""Any text, so that Markdown, LaTeX or a spreadsheet shows it as it is."""

from __future__ import annotations

import re

_MARKDOWN = re.compile(r"([\\`*{}\[\]<>#|~$])")
# An underscore after a letter or a digit never begins emphasis.
_UNDERSCORE = re.compile(r"(?<![^\W_])_")
_LATEX: dict[str, str] = {
    **{character: "\\" + character for character in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "…": r"\ldots{}",
    "’": "'",
    "×": r"$\times$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "±": r"$\pm$",
    "−": r"$-$",
    "°": r"$^\circ$",
}
# A number with a sign or an exponent, or one that an interval follows.
_NUMBER = re.compile(r"([+-]?[\d,.]+(?:e[+-]?\d+)?)( \[[^\]]*\])?")


def one_line(text: object) -> str:
    """Without line breaks and runs of spaces."""
    return " ".join(str(text).split())


def in_markdown(text: object) -> str:
    r"""Text that Markdown shows as it is, also inside a table.

    Example:
        >>> print(in_markdown("a|b <i> *c* my_cam"))
        a\|b &lt;i&gt; \*c\* my_cam
    """
    plain = one_line(text).replace("&", "&amp;")
    # Signs of HTML as entities: not every reader takes a backslash before them.
    plain = _MARKDOWN.sub(r"\\\1", plain).replace(r"\<", "&lt;").replace(r"\>", "&gt;")
    return _UNDERSCORE.sub(r"\\_", plain)


def in_latex(text: object) -> str:
    r"""Text that LaTeX sets as it is.

    Example:
        >>> print(in_latex("50% of a_b & \\c"))
        50\% of a\_b \& \textbackslash{}c
    """
    return "".join(_LATEX.get(character, character) for character in one_line(text))


def in_csv(text: str) -> str:
    """Text in a cell that a spreadsheet does not take for a formula: an apostrophe before it where it would.

    Example:
        >>> in_csv("=1+1.jpg"), in_csv("cat.jpg")
        ("'=1+1.jpg", 'cat.jpg')
    """
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def number_in_latex(text: str) -> str:
    r"""The same, with signs, exponents and intervals as formulas; math mode drops blanks, so an interval has its own.

    Example:
        >>> print(number_in_latex("-0.65 [-0.80, 0.02]"), number_in_latex("1.2e-05"), number_in_latex("0.5"))
        $-0.65$ $[-0.80, 0.02]$ $1.2 \times 10^{-5}$ 0.5
    """
    found = _NUMBER.fullmatch(text)
    if found is None or not (found[2] or set("+-e") & set(text)):
        return in_latex(text)
    return " ".join(f"${_powers(piece.strip())}$" for piece in found.groups() if piece)


def _powers(text: str) -> str:
    return re.sub(r"e([+-]?\d+)", lambda found: rf" \times 10^{{{int(found[1])}}}", text)
