"""`egcam layers`."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from egcam.cli import app
from egcam.evaluation.layers import candidate_layers

torchvision = pytest.importorskip("torchvision")


def test_layers_are_those_between_the_blocks() -> None:
    answer = CliRunner().invoke(app, ["layers", "squeezenet1_1", "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    wanted = candidate_layers(torchvision.models.squeezenet1_1().eval(), torch.zeros(1, 3, 224, 224))
    assert [(one["name"], tuple(one["size"]), one["channels"]) for one in found["layers"]] == [
        (layer.name, layer.size, layer.channels) for layer in wanted
    ]
    assert found["found"] == "features.12"
    assert found["slope-cam"] == "features.11"
    assert found["layers"][-1]["tail"] == pytest.approx(wanted[-1].tail)


def test_the_table_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answer = CliRunner().invoke(app, ["layers", "squeezenet1_1"])
    assert answer.exit_code == 0, answer.output
    lines = answer.stdout.splitlines()
    assert any("features.11  (slope-cam)" in line and "13 x 13" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_a_model_that_is_not_known_is_named() -> None:
    answer = CliRunner().invoke(app, ["layers", "squeezenet1_9"])
    assert answer.exit_code == 2
    assert "squeezenet1_1" in answer.output
