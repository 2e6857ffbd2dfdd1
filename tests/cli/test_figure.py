"""`egcam figure`: every kind from image files, with the manners of the other commands."""

from __future__ import annotations

import json
import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from click.testing import Result
from PIL import Image
from typer.testing import CliRunner

import egcam
from egcam.attribution import registry
from egcam.cli import app
from egcam.models import zoo
from egcam.photos.files import read_image

OWN = """
import torch
from torch import nn
from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

SEEN = Preprocessing((32, 32), 32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))

def small():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6 * 16 * 16, 8), nn.ReLU(),
        nn.Linear(8, 3))
    net[-1].weight.data.abs_()
    net[-3].weight.data.abs_()
    return Classifier(net, "small", ["cat", "dog", "bird, fowl"], SEEN)
"""
KINDS = ("grid", "mask", "contrast", "curves", "bars", "ranks")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    for seed, name in enumerate(("one.png", "two.png")):
        coarse = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((40, 36), Image.Resampling.BICUBIC).save(tmp_path / name)
    mask = np.zeros((36, 40), np.uint8)
    mask[10:25, 10:30] = 255
    Image.fromarray(mask).save(tmp_path / "mask.png")
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["figure", *arguments, "--model", "own.py:small"], catch_exceptions=False)


def extras(kind: str) -> list[str]:
    mask = ["--mask", "mask.png"] if kind == "mask" else []
    metrics = ["--metrics", "deletion,sparseness,complexity"] if kind in ("bars", "ranks") else []
    return [*mask, *metrics, "--samples", "4", "--dpi", "60", "--step", "128"]


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_written_as_png_and_svg(kind: str) -> None:
    result = run(kind, "one.png", *extras(kind), "--out", "a/f.png", "--out", "a/f.svg", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["kind"] == kind
    assert document["files"] == ["a/f.png", "a/f.svg"]
    assert document["images"][0]["file"] == "one.png"
    with Image.open("a/f.png") as picture:
        assert picture.width in (round(3.3 * 60), round(6.9 * 60))
    assert ElementTree.parse("a/f.svg").getroot().tag.endswith("svg")


@pytest.mark.usefixtures("place")
def test_the_numbers_are_those_of_the_library() -> None:
    classifier = zoo.load("own.py:small")
    pixels = torch.stack([classifier.preprocess(read_image(name)) for name in ("one.png", "two.png")])
    document = json.loads(
        run(
            "bars", "one.png", "two.png", "--methods", "grad-cam,layer-cam", "--metrics", "deletion,sparseness",
            "--step", "64", "--out", "f.png", "--json",
        ).stdout
    )  # fmt: skip
    found = {(line["metric"], line["method"]): line["mean"] for line in document["scores"]}
    for method in ("grad-cam", "layer-cam"):
        heat = egcam.explain(classifier.model, pixels, method).heatmaps
        expected = float(egcam.metrics.Deletion(step=64)(classifier.model, pixels, heat).mean())
        assert found["deletion", method] == pytest.approx(expected, abs=1e-5)
        assert found["sparseness", method] == pytest.approx(float(egcam.metrics.Sparseness()(heat).mean()), abs=1e-5)
    curves = json.loads(
        run("curves", "one.png", "two.png", "--methods", "grad-cam", "--step", "64", "--out", "c.png", "--json").stdout
    )
    assert curves["areas"]["deletion"]["grad-cam"] == pytest.approx(found["deletion", "grad-cam"], abs=1e-6)


@pytest.mark.usefixtures("place")
def test_ranks_are_those_of_the_table() -> None:
    document = json.loads(
        run(
            "ranks", "one.png", "two.png", "--methods", "grad-cam,layer-cam", "--metrics", "deletion,running-time",
            "--step", "64", "--out", "f.png", "--json",
        ).stdout
    )  # fmt: skip
    classifier = zoo.load("own.py:small")
    pixels = torch.stack([classifier.preprocess(read_image(name)) for name in ("one.png", "two.png")])
    grad, layer = (
        egcam.metrics.Deletion(step=64)(
            classifier.model, pixels, egcam.explain(classifier.model, pixels, name).heatmaps
        )
        for name in ("grad-cam", "layer-cam")
    )
    # Image by image; running time does not count.
    first = torch.where(grad < layer, 1.0, torch.where(grad == layer, 1.5, 2.0)).mean().item()
    assert {one["method"]: one["rank"] for one in document["ranks"]} == {"grad-cam": first, "layer-cam": 3 - first}


@pytest.mark.usefixtures("place")
def test_what_has_no_heat_map_says_so() -> None:
    shown = run("curves", "one.png", "--methods", "grad-cam", "--step", "128", "--colors", "magma", "--out", "f.png")
    assert "has no heat map and ignores --colors" in " ".join(shown.stderr.split())


@pytest.mark.usefixtures("place")
def test_the_other_class_of_a_contrast_is_the_one_that_is_named() -> None:
    contrast = json.loads(
        run("contrast", "one.png", "--target", "cat", "--contrast-with", "dog", "--out", "c.png", "--json").stdout
    )
    assert contrast["contrast_with"]["name"] == "dog"


@pytest.mark.usefixtures("place")
def test_a_picture_that_cannot_be_read_is_named_and_the_others_are_drawn() -> None:
    Path("bad.png").write_text("no picture")
    result = run("grid", "bad.png", "one.png", "--methods", "grad-cam", "--dpi", "60", "--out", "f.png")
    assert result.exit_code == 1
    assert "bad.png" in result.stderr
    assert Path("f.png").is_file()
    assert run("grid", "bad.png", "--methods", "grad-cam", "--out", "g.png").exit_code == 1
    assert not Path("g.png").exists()


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gird", "one.png"], "did you mean 'grid'"),
        (["grid", "one.png", "--out", "f.tiff"], "does not end in .png, .svg or .pdf"),
        (["grid", "one.png", "--methods", "grad-camm"], "did you mean 'grad-cam'"),
        (["grid", "one.png", "--width", "wide"], "unknown width 'wide'"),
        (["grid", "one.png", "--colors", "rainbowish"], "unknown colour map"),
        (["mask", "one.png"], "--mask FILE"),
        (["mask", "one.png", "--mask", "own.py"], "own.py"),
        (["contrast", "one.png", "two.png"], "shows one image, not 2"),
        (["contrast", "one.png", "--methods", "grad-cam,cam"], "shows one method, not 2"),
        (["contrast", "one.png", "--target", "cat", "--contrast-with", "cat"], "contrasted with itself"),
        (["bars", "one.png", "--metrics", "deletoin"], "did you mean 'deletion'"),
        (["bars", "one.png", "--methods", "grad-cam", "--layer", "nowhere"], "no layer 'nowhere'"),
    ],
)
def test_wrong_calls_say_what_would_be_right(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code in (1, 2)
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.usefixtures("place")
def test_all_methods_leave_out_what_does_not_apply() -> None:
    arguments = ["--methods", "all", "--samples", "2", "--dpi", "60", "--out", "f.png"]
    result = run("grid", "one.png", "two.png", *arguments, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert [one["file"] for one in document["images"]] == ["one.png", "two.png"]
    assert sorted(document["skipped"]) == ["attention-relevance", "attention-rollout", "cam"]
    # Nor are other packages' methods among all of them.
    own = [name for name in egcam.methods() if not registry.method(name).package]
    assert len(document["methods"]) == len(own) - 3


@pytest.mark.usefixtures("place")
def test_a_mask_is_cut_as_its_image() -> None:
    document = json.loads(
        run("mask", "one.png", "--mask", "mask.png", "--dpi", "60", "--out", "f.png", "--json").stdout
    )
    classifier = zoo.load("own.py:small")
    pixels = classifier.preprocess(read_image("one.png"))[None]
    # The image is 40 x 36: its shorter side becomes 32, and the middle 32 of 35 columns are seen.
    white = Image.open("mask.png").resize((35, 32), Image.Resampling.NEAREST).crop((2, 0, 34, 32))
    inside = torch.from_numpy(np.asarray(white) > 127)[None]
    heat = egcam.explain(classifier.model, pixels, "grad-cam").heatmaps
    expected = float(egcam.metrics.RelevanceMassAccuracy()(heat, inside)[0])
    assert document["scores"]["grad-cam"] == pytest.approx(expected, abs=1e-5)


def shared_data() -> Path:
    return Path(os.environ.get("EGCAM_DATA", Path(__file__).parents[3] / "shared" / "data"))


@pytest.mark.real
def test_a_real_zebra_with_its_mask(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    coco = pytest.importorskip("pycocotools.coco")
    annotations = shared_data() / "coco" / "instances.json"
    if not annotations.is_file():
        pytest.skip("COCO images are not at hand: set EGCAM_DATA to a folder with coco/instances.json")
    known = coco.COCO(str(annotations))
    (found,) = [one for one in known.loadImgs(known.getImgIds()) if one["file_name"] == "000000104455.jpg"]
    mask = np.zeros((found["height"], found["width"]), np.uint8)
    for one in known.loadAnns(known.getAnnIds(found["id"], catIds=known.getCatIds(["zebra"]))):
        mask |= known.annToMask(one)
    Image.fromarray(mask * 255).save(tmp_path / "mask.png")
    image = str(annotations.parent / "images" / found["file_name"])
    arguments = ["mask", image, "--mask", str(tmp_path / "mask.png"), "--samples", "4", "--json"]
    result = CliRunner().invoke(app, ["figure", *arguments, "--out", str(tmp_path / "f.png")], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert document["images"][0]["target"]["name"] == "zebra"
    # The animal fills about half of the picture; the maps keep to it far better than chance.
    assert all(score > 0.75 for score in document["scores"].values())
