"""`egcam app` as it is typed."""

from __future__ import annotations

import re
import socket
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from egcam.cli import app
from egcam.web.server import Running


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page would be served with; it ends at once."""
    pytest.importorskip("gradio", reason="the extra app is not installed")
    given: dict[str, Any] = {}

    @contextmanager
    def serve(classifier: Any, **options: Any) -> Any:
        given.update(options, name=classifier.name)
        yield Running("http://127.0.0.1:1/", Path())

    monkeypatch.setattr("egcam.web.server.serve", serve)
    monkeypatch.setattr("egcam.web.server.wait", lambda: None)
    return given


def _run(*arguments: str, typed: str | None = None) -> Any:
    return CliRunner().invoke(app, ["app", "--weights", "random", "--model", "resnet18", *arguments], input=typed)


def test_it_listens_to_this_machine_only_unless_told_otherwise(served: dict[str, Any]) -> None:
    result = _run()
    assert result.exit_code == 0
    assert served["host"] == "127.0.0.1"
    assert served["name"] == "resnet18"
    assert "anyone who can reach" not in result.output
    assert "http://127.0.0.1:1/" in result.output


def test_another_address_is_warned_of(served: dict[str, Any]) -> None:
    result = _run("--host", "0.0.0.0", "--max-upload", "3", "--layer", "layer3")
    told = " ".join(result.output.split())
    assert "anyone who can reach 0.0.0.0 can use this page: set a password with --password" in told
    assert served["password"] is None
    assert served["limits"].megabytes == 3
    assert served["layer"] == "layer3"


def test_a_page_for_all_says_an_address_that_others_can_type(
    served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = " ".join(_run("--host", "0.0.0.0").output.split())
    found = re.search(r"from other machines at http://([^:/ ]+):1/", told)
    assert found is not None
    try:
        assert not ip_address(found[1]).is_unspecified
    except ValueError:
        assert found[1] == socket.gethostname()

    # In no network there is only the name.
    def unreachable(*_: Any) -> None:
        raise OSError

    monkeypatch.setattr("egcam.cli.commands.web.socket.socket", unreachable)
    assert f"from other machines at http://{socket.gethostname()}:1/" in " ".join(
        _run("--host", "0.0.0.0").output.split()
    )
    assert "other machines" not in _run().output


def test_the_password_is_typed_asked_for_or_set(served: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run("--password", "sesame", "--host", "0.0.0.0")
    assert served["password"] == "sesame"
    assert "sesame" not in result.output
    assert "anyone who can reach" not in result.output
    assert "is encrypted, not even the password" in " ".join(result.output.split())
    monkeypatch.setenv("EGCAM_PASSWORD", "from outside")
    _run()
    assert served["password"] == "from outside"
    result = _run("--ask-password", typed="asked for\nasked for\n")
    assert served["password"] == "asked for"
    assert "asked for" not in result.output


def test_an_empty_password_or_two_are_wrong_use(served: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert _run("--password", "").exit_code == 2
    assert _run("--password", "a", "--ask-password").exit_code == 2
    monkeypatch.setenv("EGCAM_PASSWORD", "")
    result = _run()
    assert result.exit_code == 2
    assert "the password is empty" in " ".join(result.output.split())
    assert not served


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
