"""Whatever text a page or a table is given is shown as it is, and a table says the same in every form."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from egcam.pages import Cell, Column, TextTable, part, render
from egcam.pages.escaping import in_latex, in_markdown, number_in_latex
from egcam.pages.tables import as_latex, as_markdown, as_rich

HOSTILE = "<script>alert('x')</script> & \"50%\" a_b|c $d$ \\e {f} {{ g }} {% h %} << i >> #1 ~^ [j] _k_"
TEMPLATES = Path(__file__).parents[2] / "src" / "egcam" / "pages" / "templates"
TABLE = TextTable(
    (Column("method"), Column("SP ↑", "Sparseness"), Column("", text=True)),
    (
        (Cell(HOSTILE), Cell("0.5000", "best"), Cell("ahead", "ahead")),
        (Cell("grad-cam"), Cell("0.4000", "second"), Cell("behind", "behind")),
        (Cell("copy"), Cell("0.3000", images=1200), Cell(HOSTILE)),
    ),
    frozenset({0}),
    ("images", "12", "-"),
)


class Texts(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_hostile_text_in_html_stays_text() -> None:
    card = part("parts.html", "card", image=Image.new("RGB", (4, 4)), alt=HOSTILE, title=HOSTILE, detail=HOSTILE)
    table = part("parts.html", "scores", table=TABLE, caption=HOSTILE)
    for piece in (card, table, part("web.html", "message", text=HOSTILE, kind="error")):
        found = Texts(piece)
        assert HOSTILE in "".join(found.texts)
        assert not [tag for tag, _ in found.tags if tag == "script"]
    assert Texts(card).tags[1][1]["alt"] == HOSTILE
    assert Texts(table).tags[0][1]["aria-label"] == HOSTILE


def test_a_table_in_html_by_hand() -> None:
    table = TextTable(TABLE.columns, TABLE.rows[1:2], frozenset({0}), TABLE.foot)
    text = re.sub(r"\s*\n\s*", "", part("parts.html", "scores", table=table, caption="c", shown=False))
    assert text == (
        '<div class="eg-wide" role="region" aria-label="c" tabindex="0"><table class="eg-scores"><thead><tr>'
        '<th scope="col">method</th><th scope="col"><abbr title="Sparseness">SP ↑</abbr></th>'
        '<th scope="col" class="text"></th></tr></thead><tbody><tr class="ours"><th scope="row">grad-cam</th>'
        '<td><u>0.4000</u></td><td class="text behind">behind</td></tr><tr class="counts"><th scope="row">images</th>'
        "<td>12</td><td>-</td></tr></tbody></table></div>"
    )


def test_a_table_in_markdown_has_as_many_cells_in_every_row() -> None:
    lines = as_markdown(TABLE).splitlines()
    assert lines[:2] == ["| method | SP ↑ |  |", "| --- | ---: | --- |"]
    assert lines[3:] == [
        "| grad-cam | <u>0.4000</u> | behind |",
        f"| copy | 0.3000 (n = 1,200) | {in_markdown(HOSTILE)} |",
        "| *images* | 12 | - |",
    ]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {4}


def test_a_table_in_latex() -> None:
    lines = as_latex(TABLE).splitlines()
    assert lines[:4] == [r"\begin{tabular}{lrl}", r"\toprule", r"Method & SP $\uparrow$ &  \\", r"\midrule"]
    assert lines[5:7] == [
        r"grad-cam & \underline{0.4000} & behind \\",
        rf"copy & 0.3000 ($n=1,200$) & {in_latex(HOSTILE)} \\",
    ]
    assert lines[7:] == [r"\midrule", r"images & 12 & - \\", r"\bottomrule", r"\end{tabular}"]
    bracket = TextTable((Column("a"), Column("b")), ((Cell("[x]"), Cell("1")),))
    assert r"{}[x] & 1 \\" in as_latex(bracket)


def test_a_table_for_a_terminal_takes_no_markup_from_names() -> None:
    console = Console(width=200)
    with console.capture() as shown:
        console.print(as_rich(TextTable((Column("[b]m"), Column("x")), ((Cell("[red]n[/red]"), Cell("1", "best")),))))
    assert shown.get().split() == ["[b]m", "x", "[red]n[/red]", "1"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.65 [0.49, 0.80]", "$0.65$ $[0.49, 0.80]$"),
        ("-0.20 [-0.30, -0.10]", "$-0.20$ $[-0.30, -0.10]$"),
        ("+3", "$+3$"),
        ("1.20e-05 [1.00e-05, 2.0e+06]", r"$1.20 \times 10^{-5}$ $[1.00 \times 10^{-5}, 2.0 \times 10^{6}]$"),
        ("1,200", "1,200"),
        ("0.5", "0.5"),
        ("-", "-"),
        ("e", "e"),
        ("50% [x]", r"50\% [x]"),
    ],
)
def test_numbers_in_latex_keep_their_blank_and_their_minus(text: str, expected: str) -> None:
    assert number_in_latex(text) == expected


def test_an_underscore_is_escaped_where_it_would_begin_emphasis() -> None:
    assert in_markdown("my_cam _x_ (_y)") == r"my_cam \_x_ (\_y)"


def test_a_forgotten_value_is_an_error_and_not_a_gap() -> None:
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        render("gallery.html", title="no sections")


def test_pages_load_nothing_and_have_each_colour_for_light_and_dark() -> None:
    texts = {"title": HOSTILE, "introduction": "", "footer": ""}
    known = {"known": TextTable((Column("a"),), ()), "known_caption": "", "behind_a_wall": ""}
    page = render("gallery.html", sections=[], highlight=[], **texts, **known)
    assert HOSTILE in "".join(Texts(page).texts)
    for text in ("http:", "https:", "url(", "@import", "<script"):
        assert text not in page
    light, dark = (re.findall(r"--[\w-]+(?=: #)", rule) for rule in re.findall(r":root \{([^}]*)\}", page))
    assert light == dark
    assert len(set(light)) == len(light) > 10
    inside = render("style.css", document=False)
    assert "body {" not in inside
    assert ".dark {" in inside
    used = set(re.findall(r"var\((--[\w-]+)\)", page))
    assert used <= set(light)


def test_no_template_turns_escaping_off() -> None:
    for template in TEMPLATES.iterdir():
        assert not re.search(r"\|\s*safe|autoescape", template.read_text(encoding="utf-8")), template.name
