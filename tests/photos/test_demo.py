"""The demonstration: every method, one gallery, one page that needs nothing else."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from egcam import Explanation
from egcam.attribution.registry import records
from egcam.drawing.overlays import Tile
from egcam.models.classifier import Prediction
from egcam.pages import render
from egcam.photos.comparison import Comparison, Result
from egcam.photos.demo import Photograph, Section, known_answers


def fake(title: str) -> Comparison:
    import torch

    explanation = Explanation(
        maps=torch.ones(1, 2, 2),
        size=(8, 8),
        targets=torch.tensor([1]),
        scores=torch.ones(1),
        predictions=torch.tensor([1]),
        layer="top",
        method="grad-cam",
        passes=1,
    )
    photograph = Image.new("RGB", (600, 600), "teal")
    predictions = (Prediction(1, "<b>cat</b>", 0.75), Prediction(0, "dog", 0.25))
    result = Result("grad-cam", explanation, photograph, 0.5)
    return Comparison(title, photograph, "net", predictions[0], predictions, (result,), {"cam": "no linear & layer"})


def section(title: str, note: str = "") -> Section:
    found = fake(title)
    seen, walled = (Tile(found.photograph, title, "heat in the dark part: 0.25") for title in ("seen", "Grad-CAM"))
    return Section(Photograph(title, "a cat", note), found, (seen, walled), found)


def test_the_page_holds_everything_itself_and_escapes_names() -> None:
    texts = {"title": "Title", "introduction": "Intro", "behind_a_wall": "Wall", "footer": "footer"}
    sections = [section("one", "look <here>"), section("two")]
    known = {"known": known_answers(), "known_caption": "means & more"}
    html = render("gallery.html", sections=sections, highlight=["grad-cam"], **texts, **known)
    assert html.count("<section>") == 3
    assert html.count('src="data:image/jpeg;base64,') == 10
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "<script" not in html
    assert "why “&lt;b&gt;cat&lt;/b&gt;” (75%)?" in html
    assert "<b>cat" not in html
    assert "look &lt;here&gt;" in html
    assert "no linear &amp; layer" in html
    assert html.count('class="eg-ours"') == 6
    assert 'name="viewport"' in html
    assert "prefers-color-scheme: dark" in html
    assert all('alt="' in image for image in re.findall(r"<img[^>]*>", html))
    assert html.count("<details>") == 2
    folded = "".join(re.findall(r"<details>.*?</details>", html, re.DOTALL))
    assert folded.count("<img") == 2
    assert html.count("heat in the dark part: 0.25") == 2
    assert "means &amp; more" in html


def test_known_answers_are_those_of_the_documentation() -> None:
    """The numbers of the page, of README.md and of the landing page are one table."""
    known = known_answers()
    for file in ("README.md", "docs/index.md"):
        text = (Path(__file__).parents[2] / file).read_text(encoding="utf-8")
        rows = re.search(r"<!-- known_answers -->\n(.*?)<!-- end", text, re.DOTALL)[1].splitlines()
        assert [len(known.columns)] * len(rows) == [row.count("|") - 1 for row in rows]
        told = [[cell.strip(" *") for cell in row.split("|")[1:-1]] for row in rows]
        assert [column.head for column in known.columns[1:]] == told[0][1:]
        assert [[cell.text for cell in row] for row in known.rows] == told[2:]
    assert [known.rows[place][0].text for place in known.highlighted] == ["SlopeCAM"]


def test_comparison_grid_labels_everything() -> None:
    tiles = fake("one").tiles()
    assert [tile.title for tile in tiles] == ["photograph", "grad-cam", "top 2 predictions"]
    assert tiles[1].detail == "0.50 s, 1 pass"
    one = fake("one")
    inner = replace(one.results[0], explanation=replace(one.results[0].explanation, layer="inner"))
    both = replace(one, results=(*one.results, inner)).tiles()
    assert [tile.detail for tile in both[1:3]] == ["0.50 s, 1 pass, at top", "0.50 s, 1 pass, at inner"]
    picture = np.asarray(fake("one").picture())
    assert picture.std() > 10


@pytest.mark.real
@pytest.mark.slow
def test_demo_runs_every_quick_method_and_knows_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skimage")
    from egcam.photos.demo import PHOTOGRAPHS, run_demo

    shares: list[float] = []
    made = run_demo(tmp_path / "demo", progress=shares.append, photographs=PHOTOGRAPHS[:1])
    (shown,) = made.sections
    assert [result.method for result in shown.found.results] == ["grad-cam", "slope-cam"]
    assert [result.explanation.layer for result in shown.found.results] == ["_swish:2", "_blocks.10"]
    assert shown.found.target.name == "missile"
    assert shown.others is not None
    assert {result.method for result in shown.others.results} == {
        one.name for one in records() if not (one.package or one.slow) and one.group not in ("attention", "control")
    } - {"grad-cam", "slope-cam"}
    assert shown.others.skipped == {}
    layers = {result.method: result.explanation.layer for result in shown.others.results}
    assert layers["expected-grad-cam"] == "_blocks.10", "where methods differ"
    assert layers["cam"] == "_swish:2"
    assert layers["smooth-grad"] == "input"
    heat = {tile.title: float(tile.detail.rpartition(" ")[2]) for tile in shown.walled[1:]}
    assert heat["SlopeCAM (egcam)"] == 0
    assert heat["Grad-CAM"] > 0.1
    with Image.open(made.gallery) as gallery:
        assert gallery.width > 1400
    html = made.web_page.read_text(encoding="utf-8")
    assert all(f"<strong>{result.method}</strong>" in html for result in shown.others.results)
    assert len(html) < 5_000_000
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_demo_command_says_where_and_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from egcam.cli import app
    from egcam.photos import demo

    def run(folder: Path, quick: bool, full: bool, progress: object) -> demo.Demo:
        asked.append((quick, full))
        return demo.Demo(tuple(section(one.name) for one in demo.PHOTOGRAPHS), folder / "g.png", folder / "i.html")

    asked: list[tuple[bool, bool]] = []
    monkeypatch.setattr(demo, "run_demo", run)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    shown = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--open", "--quick"])
    assert shown.exit_code == 0
    assert "a cat: the network says" in shown.stdout
    assert "With the lower part hidden: Grad-CAM, heat in the dark part: 0.25" in shown.stdout.replace("\n", " ")
    assert opened == [(tmp_path / "i.html").resolve().as_uri()]
    as_json = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--json", "--full"])
    assert len(json.loads(as_json.stdout)["photographs"]) == 8
    assert len(opened) == 1
    assert asked == [(True, False), (False, True)]
