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
from egcam.models.classifier import Prediction
from egcam.pages import render
from egcam.photos.comparison import Comparison, Result


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


def test_the_page_holds_everything_itself_and_escapes_names() -> None:
    sections = [(fake("one"), "look <here>"), (fake("two"), "")]
    texts = {"title": "Title", "introduction": "Intro", "footer": "footer"}
    html = render("gallery.html", sections=sections, highlight=["grad-cam"], **texts)
    assert html.count("<section>") == 2
    assert html.count('src="data:image/jpeg;base64,') == 4
    assert not re.search(r'(src|href)="(?!data:)', html)
    assert "<script" not in html
    assert "&lt;b&gt;cat&lt;/b&gt;" in html
    assert "<b>cat" not in html
    assert "look &lt;here&gt;" in html
    assert "no linear &amp; layer" in html
    assert html.count('class="eg-ours"') == 2
    assert 'name="viewport"' in html
    assert "prefers-color-scheme: dark" in html
    assert all('alt="' in image for image in re.findall(r"<img[^>]*>", html))
    assert "75.0%" in html
    assert "width:25.0%" in html


def test_comparison_grid_labels_everything() -> None:
    tiles = fake("one").tiles()
    assert [tile.title for tile in tiles] == ["photograph", "grad-cam", "top 2 predictions"]
    assert tiles[1].detail == "0.50 s, 1 pass"
    one = fake("one")
    inner = replace(one.results[0], explanation=replace(one.results[0].explanation, layer="inner"))
    both = replace(one, results=(*one.results, inner)).tiles()
    assert [tile.detail for tile in both[1:3]] == ["0.50 s, 1 pass, at top", "0.50 s, 1 pass, at inner"]
    assert replace(one.results[0], score=0.4567).detail == "0.46 · 0.50 s, 1 pass"
    picture = np.asarray(fake("one").picture())
    assert picture.std() > 10


def test_a_comparison_is_scored_by_insertion_deletion() -> None:
    import torch

    import egcam
    from egcam.models.classifier import Classifier
    from egcam.photos.comparison import compare, scored

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 4, 3),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(4, 2),
        ).eval()
    classifier = Classifier(net)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 255, (300, 300, 3), np.uint8))
    found = scored(compare(classifier, image, ["input-gradient", "smooth-grad"]), classifier, image, steps=4)
    images = classifier.images(image)
    for result in found.results:
        step = images.shape[-1] * images.shape[-2] // 4
        alone = egcam.metrics.InsertionDeletion(step=step)(net, images, result.explanation, found.target.index)
        assert result.score == pytest.approx(float(alone), abs=1e-6)


def test_only_what_is_too_slow_is_shown_once() -> None:
    from egcam.photos.demo import too_slow

    seconds = {"a": 1.0, "b": 30.0, "c": 10.0}
    assert too_slow(seconds, 4, 170) == []
    assert too_slow(seconds, 4, 100) == ["b"]
    assert too_slow(seconds, 4, 60) == ["b", "c"]
    assert too_slow(seconds, 4, 41) == ["b", "c"]
    assert too_slow({"slope-cam": 90.0, "a": 1.0, "quick": 0.1}, 4, 10) == ["a"]
    assert too_slow(seconds, 1, 50) == []


@pytest.mark.real
@pytest.mark.slow
def test_demo_runs_every_quick_method_on_a_photograph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("skimage")
    from egcam.photos import demo
    from egcam.photos.demo import PHOTOGRAPHS, run_demo

    monkeypatch.setattr(demo, "_QUICK_SAMPLES", 2)

    shares: list[float] = []
    made = run_demo(tmp_path / "demo", quick=True, progress=shares.append, photographs=PHOTOGRAPHS[:1])
    (comparison,) = made.comparisons
    assert {result.method for result in comparison.results} == {
        one.name for one in records() if not (one.package or one.slow) and one.group not in ("attention", "control")
    }
    assert comparison.skipped == {}
    layers = {result.method: result.explanation.layer for result in comparison.results}
    assert layers["slope-cam"] == "_blocks.10"
    assert layers["grad-cam"] == layers["expected-grad-cam"] == "_blocks.10", "where methods differ"
    assert layers["cam"] == "_swish:2"
    assert layers["smooth-grad"] == "input"
    assert comparison.target.name == "missile"
    with Image.open(made.gallery) as gallery:
        assert gallery.width > 1400
    html = made.web_page.read_text(encoding="utf-8")
    assert all(f"<strong>{result.method}</strong>" in html for result in comparison.results)
    assert len(html) < 5_000_000
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_demo_command_says_where_and_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from egcam.cli import app
    from egcam.photos import demo

    def run(folder: Path, quick: bool, patience: float, progress: object) -> demo.Demo:
        shown = tuple(fake(one.name) for one in demo.PHOTOGRAPHS)
        return demo.Demo(shown, folder / "g.png", folder / "i.html", ("slow-cam",) if patience < 1e9 else ())

    monkeypatch.setattr(demo, "run_demo", run)
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    shown = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--open", "--quick"])
    assert shown.exit_code == 0
    assert "a cat: the network says" in shown.stdout
    assert "With --quick, methods take fewer samples" in shown.stdout.replace("\n", " ")
    assert "Too slow to repeat, shown on the first photograph only: slow-cam" in shown.stdout.replace("\n", " ")
    assert opened == [(tmp_path / "i.html").resolve().as_uri()]
    as_json = CliRunner().invoke(app, ["demo", "--out", str(tmp_path), "--json", "--full"])
    assert json.loads(as_json.stdout)["once"] == []
    assert len(json.loads(as_json.stdout)["photographs"]) == 4
    assert len(opened) == 1
