"""`egcam app` as it is typed."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from egcam.app.server import Running
from egcam.cli import app


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page would be served with; it ends at once."""
    pytest.importorskip("gradio", reason="the extra app is not installed")
    given: dict[str, Any] = {}

    @contextmanager
    def serve(classifier: Any, **options: Any) -> Any:
        given.update(options, name=classifier.name)
        yield Running("http://127.0.0.1:1/", Path())

    monkeypatch.setattr("egcam.app.server.serve", serve)
    monkeypatch.setattr("egcam.app.server.wait", lambda: None)
    return given


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["app", "--weights", "random", "--model", "resnet18", *arguments])


def test_it_listens_to_this_machine_only_unless_told_otherwise(served: dict[str, Any]) -> None:
    result = _run()
    assert result.exit_code == 0
    assert served["host"] == "127.0.0.1"
    assert served["name"] == "resnet18"
    assert "anyone who can reach" not in result.output
    assert "http://127.0.0.1:1/" in result.output


def test_another_address_is_warned_of(served: dict[str, Any]) -> None:
    result = _run("--host", "0.0.0.0", "--max-upload", "3", "--layer", "layer3")
    assert "anyone who can reach 0.0.0.0 can use this page" in " ".join(result.output.split())
    assert served["limits"].megabytes == 3
    assert served["layer"] == "layer3"
    assert len(served["summaries"]["grad-cam"]) > 10


@pytest.mark.parametrize("arguments", [("--max-upload", "0"), ("--max-upload", "5000"), ("--port", "70000")])
def test_wrong_use_ends_with_2(served: dict[str, Any], arguments: tuple[str, ...]) -> None:
    assert _run(*arguments).exit_code == 2
    assert not served


def test_without_gradio_it_ends_with_3_and_the_line_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import util

    find = util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *more: None if name == "gradio" else find(name, *more))
    result = _run()
    assert result.exit_code == 3
    assert "pip install 'egcam[app]'" in " ".join(result.output.split())
