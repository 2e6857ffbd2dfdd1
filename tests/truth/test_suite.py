"""The table and the picture of all tests, with a network that need not know anything."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from egcam import truth
from egcam.cli import app
from egcam.errors import MethodError
from egcam.truth import suite
from egcam.truth.suite import TruthTable, default_methods, run_truth

METHODS = ["hires-cam", "grad-cam", "cam", "random", "centre"]


@pytest.fixture(scope="module")
def trials() -> list[truth.Trial]:
    """Two tests that need no trained network."""
    wall = truth.walls_trial(truth.ShapesNetwork().eval(), truth.draw_shapes(8).images, "features", rows=4)
    return [wall, *truth.unit_trials("positive", count=2)]


@pytest.fixture(scope="module")
def found(trials: list[truth.Trial]) -> TruthTable:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(suite, "make_trials", lambda *_: trials)
        patched.setattr(suite, "shapes_network", lambda **_: None)
        return run_truth(METHODS)


def test_scores_are_those_of_the_trials(found: TruthTable, trials: list[truth.Trial]) -> None:
    assert dict(found.tests) == {"walls": "lower", "unit+": "higher"}
    units = np.concatenate([trial.scores("hires-cam").numpy() for trial in trials[1:]])
    np.testing.assert_array_equal(found.scores["hires-cam", "unit+"], units)
    assert found.mean("hires-cam", "walls") == 0
    assert found.mean("random", "walls") == pytest.approx((4 / 12) ** 0.5, abs=0.1)
    # Of six units the plain gradient misses three.
    assert found.mean("hires-cam", "unit+") == 0.5


def test_what_cannot_be_applied_has_no_score_and_a_cause(found: TruthTable) -> None:
    assert np.isnan(found.mean("cam", "walls"))
    assert "no score" in "\n".join(found.notes)
    assert "| CAM | - |" in found.to_markdown()


def test_controls_are_named_and_what_does_not_beat_them_is_marked(found: TruthTable) -> None:
    text = found.to_markdown()
    assert "Random \\*" in text
    assert "| HiResCAM | **0.000** |" in text
    made = TruthTable(
        ("grad-cam", "random"),
        {"a": "higher", "b": "lower"},
        {
            ("grad-cam", "a"): np.array([0.9, 0.8, 0.9] * 2),
            ("random", "a"): np.array([0.1, 0.2, 0.1] * 2),
            ("grad-cam", "b"): np.array([0.2, 0.3, 0.1] * 2),
            ("random", "b"): np.array([0.1, 0.2, 0.2] * 2),
        },
        {},
        {},
    )
    assert made.not_ahead("a") == frozenset()
    assert made.not_ahead("b") == {"grad-cam"}
    assert "| Grad-CAM | **0.867** | 0.200° |" in made.to_markdown()


def test_files(found: TruthTable, tmp_path: Path) -> None:
    table, scores, picture = found.save(tmp_path / "out")
    assert table.read_text(encoding="utf-8") == found.to_markdown()
    rows = list(csv.DictReader(scores.open()))
    assert len(rows) == sum(len(values) for values in found.scores.values())
    with Image.open(picture) as image:
        assert image.width > image.height > 300


def test_the_command(found: TruthTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def run(methods: list[str] | None, quick: bool, **options: object) -> TruthTable:
        asked.update(methods=methods, quick=quick)
        return found

    monkeypatch.setattr(suite, "run_truth", run)
    command = ["truth", "--quick", "--methods", "hires-cam, grad-cam", "--out", str(tmp_path), "--json"]
    answer = json.loads(CliRunner().invoke(app, command).stdout)
    assert asked == {"methods": ["hires-cam", "grad-cam"], "quick": True}
    assert answer["means"]["hires-cam"]["walls"] == 0
    assert answer["means"]["cam"]["walls"] is None
    assert all(Path(file).is_file() for file in answer["files"])


def test_methods() -> None:
    quick, whole = default_methods(quick=True), default_methods(quick=False)
    assert quick[-4:] == whole[-4:] == ["random", "centre", "edges", "mean-activation"]
    assert "score-cam" in whole
    assert "score-cam" not in quick
    assert "integrated-gradients" not in whole
    with pytest.raises(MethodError, match="no methods to judge"):
        run_truth([], network=truth.ShapesNetwork())
    with pytest.raises(MethodError, match="did you mean"):
        run_truth(["gradcam"], network=truth.ShapesNetwork())


def test_shapley_trial_scores_the_values_themselves_with_one() -> None:
    network = truth.ShapesNetwork().eval()
    images = truth.draw_shapes(1).images[:, :, :16, :16]
    trial = truth.shapley_trial(network, images, "features", images.flip(3), 1, torch.tensor([0]))
    values = truth.cell_shapley(network, images, "features", images.flip(3), 1, target=0)
    torch.testing.assert_close(trial.score(2 * values), torch.ones(1, dtype=torch.float64))
