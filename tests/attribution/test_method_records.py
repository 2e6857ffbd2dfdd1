"""A method is registered once, with all that is known of it; lists, legends, pages and estimates read that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

import egcam
from egcam.attribution import registry
from egcam.cli import app
from egcam.drawing import palette
from egcam.errors import MethodError
from egcam.figures import style

SOURCE = Path(egcam.__file__).parent


@pytest.fixture
def mine() -> Iterator[str]:
    facts = {"label": "My CAM", "summary": "grad-cam with a sign", "line": ("purple", ":", "D"), "usual": True}
    egcam.register("my-cam", partial(egcam.GradCAM, signed=True), slow=True, highlight=True, **facts)
    yield "my-cam"
    registry.unregister("my-cam")


def test_what_is_said_when_a_method_is_registered_is_shown_wherever_it_is_met(mine: str) -> None:
    assert style.label(mine) == "My CAM"
    assert style.line(mine) == style.LineStyle(style.PURPLE, ":", "D")
    assert registry.usual_methods()[-1] == mine
    assert registry.method(mine).slow
    assert registry.is_highlighted(mine)
    listed = json.loads(CliRunner().invoke(app, ["methods", "--json"]).stdout)["methods"]
    (record,) = [one for one in listed if one["name"] == mine]
    assert record["summary"] == "grad-cam with a sign"


def test_a_name_and_a_factory_are_enough() -> None:
    egcam.register("plain-cam", egcam.GradCAM)
    try:
        record = registry.method("plain-cam")
        assert (record.label, record.summary, record.group) == ("plain-cam", "registered by you", "yours")
        assert egcam.methods()[-1] == "plain-cam"
        assert registry.create("plain-cam", nn.Identity()).method == "plain-cam"
        assert egcam.GradCAM.name == "grad-cam"
    finally:
        registry.unregister("plain-cam")


def test_a_class_is_registered_where_it_is_written() -> None:
    @egcam.register("own-cam", label="Own CAM")
    class OwnCAM(egcam.GradientCAM):
        """Grad-CAM under another name."""

    try:
        assert OwnCAM(nn.Identity()).method == "own-cam"
        assert style.label("own-cam") == "Own CAM"
    finally:
        registry.unregister("own-cam")


def test_a_name_is_given_once_and_a_group_is_one_of_four() -> None:
    with pytest.raises(MethodError, match="'grad-cam' is registered already"):
        egcam.register("grad-cam", egcam.GradCAM)
    with pytest.raises(MethodError, match=r"no group of methods 'gradients'; did you mean 'gradient'"):
        egcam.register("my-cam", egcam.GradCAM, group="gradients")  # type: ignore[arg-type]
    assert "my-cam" not in egcam.methods()


def test_built_in_methods_are_all_described_and_all_drawn_differently() -> None:
    records = list(registry.records())
    assert len({one.label for one in records}) == len({one.line for one in records}) == len(records) == 34
    assert all(one.group != "yours" and one.summary != "registered by you" for one in records)
    colors = {one.line[0] for one in records if one.line is not None}
    assert colors <= set(palette.COLORS)
    assert [one.name for one in records if one.line and one.line[0] == "vermillion"] == ["slope-cam"]


def test_a_method_is_described_in_one_file_only() -> None:
    """Its label in quotes is written where the class is, and nowhere else; the package itself lists class names."""
    for one in registry.records():
        said = re.compile(rf'label="{re.escape(one.label)}"|: "{re.escape(one.label)}"')
        files = [file.name for file in SOURCE.rglob("*/*.py") if said.search(file.read_text(encoding="utf-8"))]
        assert len(files) == 1, (one.name, files)


def test_options_are_those_of_the_signature_with_their_defaults() -> None:
    options = registry.method("expected-grad-cam").options()
    assert (options["samples"], options["seed"], options["kernel"]) == (16, 0, egcam.Kernel("uniform", scale=1.0))
    assert (options["signed"], options["score"]) == (False, "logit")
    assert next(iter(options)) == "layer"
    assert "model" not in options
