"""What a report makes of missing scores: the same images for all methods, and the true number in every caption."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from math import isnan, nan

import numpy as np
import pytest
import torch
from rich.console import Console

from egcam.imageops import upsampled
from egcam.metrics.faithfulness import sufficiency_of
from egcam.studies.records import Unit
from egcam.studies.report import write_report
from egcam.studies.report.figures import classes_of, model_drawings
from egcam.studies.report.view import gather
from egcam.studies.results import Results
from egcam.studies.specs import DataSpec, ModelSpec
from support.results_in_memory import made, study, with_pictures

METHODS = ("grad-cam", "copy", "layer-cam")
IMAGES = 12
RANDOM = np.random.default_rng(1)
GRAD_CAM, LAYER_CAM = RANDOM.uniform(0.2, 0.5, IMAGES), RANDOM.uniform(0.4, 0.7, IMAGES)
# Deletion and infidelity: lower is better.
EASY = set(np.argsort(GRAD_CAM)[:2].tolist())


def scores(kept):
    """A copy of Grad-CAM that fails on all images but the kept ones, beside Grad-CAM and LayerCAM."""

    def value(model, method, metric, image):
        if method == "copy" and image not in kept:
            return f"RuntimeError: too hard, {image}.png"
        return float((LAYER_CAM if method == "layer-cam" else GRAD_CAM)[image])

    return value


def source_of(kept, **more):
    return with_pictures(made(study(METHODS, ("deletion", "infidelity"), **more), IMAGES, scores(kept)), IMAGES)


@pytest.fixture
def no_figures(monkeypatch):
    monkeypatch.setattr("egcam.studies.report.report.model_drawings", lambda content, section: [])
    monkeypatch.setattr("egcam.studies.report.report.overall_drawing", lambda content: None)


def summary_of(folder):
    with (folder / "summary.csv").open(newline="") as file:
        return {(row["model"], row["metric"], row["method"]): row for row in csv.DictReader(file)}


@pytest.mark.usefixtures("no_figures")
def test_a_copy_that_fails_on_hard_images_is_neither_best_nor_ranked(tmp_path):
    write_report(source_of(EASY), tmp_path)
    own, whole = GRAD_CAM[sorted(EASY)].mean(), GRAD_CAM.mean()
    markdown, latex, html = ((tmp_path / f"report.{end}").read_text() for end in ("md", "tex", "html"))
    assert f"| Grad-CAM | **{whole:.4f}** | **{whole:.4f}** |" in markdown
    assert f"| copy | {own:.4f} (n = 2) | {own:.4f} (n = 2) |" in markdown
    assert rf"copy & {own:.4f} ($n=2$) & {own:.4f} ($n=2$) \\" in latex
    assert f"<td>{own:.4f} <small>(n = 2)</small></td>" in html
    assert f"<td><strong>{whole:.4f}</strong></td>" in html
    for text in (markdown, latex, html):
        assert "eans over 12 images; a mean with its own n is over these n images alone and not compared" in text
    rows = summary_of(tmp_path)
    for metric in ("deletion", "infidelity"):
        row = rows["net", metric, "copy"]
        assert (row["rank"], row["compared"], row["images"], row["missing"], row["pairs"], row["verdict"]) == (
            "", "False", "2", "10", "2", "not compared",
        )  # fmt: skip
        assert rows["net", metric, "grad-cam"]["rank"] == "1.0"
        assert rows["net", metric, "grad-cam"]["images"] == "12"
    # Its line among the details has no rank.
    detail = next(line for line in markdown.splitlines() if line.startswith("| copy") and "not compared" in line)
    assert detail.rstrip(" |").endswith("-")
    assert "10 other causes" not in markdown
    assert "copy, all metrics: no score for 10 of 12 images: RuntimeError: too hard, " in markdown
    assert "(1 image) and 9 other causes" in markdown


def test_figures_leave_out_what_is_not_compared():
    source = source_of(EASY)
    for metric in ("insertion", "deletion"):
        kept = source.all_curves["net", metric]
        kept["copy"] = {image: curve for image, curve in kept["copy"].items() if image in EASY}
    content = gather(Results.of(source))
    (section,) = content.sections
    assert section.ranking.methods == ("grad-cam", "layer-cam")
    assert section.ranking.mean.tolist() == [1.0, 2.0]
    assert set(section.curves["deletion"]) == {"grad-cam", "layer-cam"}
    kept = source.all_curves["net", "deletion"]["grad-cam"]
    np.testing.assert_allclose(
        section.curves["deletion"]["grad-cam"].mean, np.mean(list(kept.values()), axis=0), rtol=1e-6
    )
    captions = {drawing.kind: drawing.caption for drawing in model_drawings(content, section)}
    assert "Not ranked, because scores are missing: copy." in captions["ranks"]
    assert "on net over 12 images," in captions["curves"]
    assert "Without a dot: no score, or too few to compare." in captions["differences"]


@pytest.mark.usefixtures("no_figures")
def test_means_are_over_the_images_all_methods_have(tmp_path):
    kept = set(np.argsort(GRAD_CAM)[:8].tolist())
    write_report(source_of(kept), tmp_path)
    common = sorted(kept)
    rows = summary_of(tmp_path)
    for method, values in (("grad-cam", GRAD_CAM), ("copy", GRAD_CAM), ("layer-cam", LAYER_CAM)):
        row = rows["net", "deletion", method]
        assert float(row["mean"]) == pytest.approx(values[common].mean())
        assert float(row["difference"]) == pytest.approx(np.median((values - GRAD_CAM)[common]), abs=1e-12)
        assert (row["images"], row["pairs"]) == ("8", "8")
    assert rows["net", "deletion", "grad-cam"]["rank"] == rows["net", "deletion", "copy"]["rank"] == "1.0"
    for name in ("report.md", "report.tex", "report.html"):
        text = (tmp_path / name).read_text()
        assert "eans over 8 images, those that all compared methods have a score for" in text
        assert "over 12 images" not in text


@pytest.mark.usefixtures("no_figures")
def test_every_caption_leaves_out_unreadable_images(tmp_path):
    broken = {Unit("net", method, image): f"cannot read {image}.png" for method in METHODS for image in range(10, 14)}
    source = made(study(METHODS, ("deletion", "insertion")), 14, lambda *about: 0.1 + 0.01 * about[3], broken=broken)
    write_report(source, tmp_path)
    for name in ("report.md", "report.tex", "report.html"):
        text = (tmp_path / name).read_text()
        assert re.findall(r"eans over (\d+) image", text) == ["10"] * text.count("eans over")
        assert "eans over 10 images" in text
    assert "14; without any score: 4 (net)" in (tmp_path / "report.md").read_text()
    assert {row["images"] for row in summary_of(tmp_path).values()} == {"10"}
    # A line for each method, not for each image.
    console = Console(width=200, record=True, file=None)
    with console.capture() as shown:
        console.print(Results.of(source).table("net").render())
    assert shown.get().count("no score for 4 of 14 images") == 3
    assert shown.get().count("no score") == 3
    assert "Means over 10 images" in shown.get()


@pytest.mark.usefixtures("no_figures")
def test_metrics_over_other_images_have_their_number_in_a_row(tmp_path):
    def value(model, method, metric, image):
        return "undefined here" if metric == "infidelity" and method == "copy" and image < 3 else 0.1 + 0.01 * image

    write_report(made(study(METHODS, ("deletion", "infidelity")), 8, value), tmp_path)
    assert "| *images* | 8 | 5 |" in (tmp_path / "report.md").read_text()
    assert r"images & 8 & 5 \\" in (tmp_path / "report.tex").read_text()
    assert '<th scope="row">images</th><td>8</td><td>5</td>' in (tmp_path / "report.html").read_text()


def test_an_unfinished_method_does_not_shift_the_others():
    """Means are over the images that all methods have finished, and of those the ones with scores of all."""
    without = [Unit("net", "layer-cam", image) for image in range(9, 12)]
    source = made(study(METHODS, ("deletion",)), IMAGES, scores(range(1, 12)), without)
    lines = {line.method: line for line in gather(Results.of(source)).sections[0].summary.lines}
    assert [lines[method].images for method in METHODS] == [8, 8, 8]
    assert lines["grad-cam"].mean == pytest.approx(GRAD_CAM[1:9].mean())


def test_sufficiency_is_over_the_maps_all_methods_have():
    """Each of its scores hangs on all the maps: those of an image that one method has no map of count for none."""
    source = with_pictures(made(study(METHODS, ("sufficiency",)), 6, lambda *about: nan), 6)
    del source.all_maps["net", "copy"][4]
    table = Results.of(source).table("net")
    kept = [0, 1, 2, 3, 5]
    for method in METHODS:
        maps = torch.stack([torch.from_numpy(source.all_maps["net", method][image]) for image in kept])
        expected = sufficiency_of(upsampled(maps, (8, 8)), torch.tensor([3 + image % 2 for image in kept]))
        found = table.values(method, "sufficiency")
        assert found[kept].tolist() == expected.tolist()
        assert isnan(found[4])
    causes = {row.method: row.cause for row in table.rows if row.image == 4}
    assert "another method has no map of it" in causes["grad-cam"]
    assert "its map was not kept" in causes["copy"]
    # A method with few maps takes none from the others.
    for image in (0, 1, 2):
        del source.all_maps["net", "copy"][image]
    table = Results.of(source).table("net")
    assert np.isfinite(table.values("grad-cam", "sufficiency")).all()
    assert np.isfinite(table.values("copy", "sufficiency")).nonzero()[0].tolist() == [3, 5]


# Names


def of_model(model, **more):
    return replace(study(METHODS, ("deletion",), **more), models=(model,))


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (ModelSpec("here/net.py:build", "net"), "net.py:build, own weights"),
        (ModelSpec("here/net.py:build", "net", weights="random"), "net.py:build, random weights"),
        (ModelSpec("resnet18", "net"), "resnet18, published weights"),
        (ModelSpec("resnet18", "net", weights="far/off.pt"), "resnet18, weights from off.pt"),
    ],
)
def test_whose_weights_they_are_is_said(tmp_path, model, said):
    write_report(made(of_model(model), 2, scores(range(2))), tmp_path)
    assert f"| model net | {said}" in (tmp_path / "report.md").read_text()


def test_classes_go_by_name_where_they_are_known(tmp_path):
    names = tmp_path / "names.txt"
    names.write_text("\n".join(["zero", "one", "two", "three, or so", "four"]))
    cifar = {"data": DataSpec("cifar10", "data"), "target": "label"}
    expected = [
        (of_model(ModelSpec("resnet18", "net")), "tiger shark, predicted hammerhead"),
        (of_model(ModelSpec("net.py:build", "net", classes=str(names))), "three, predicted four"),
        (of_model(ModelSpec("net.py:build", "net"), **cifar), "cat, predicted deer"),
        (of_model(ModelSpec("net.py:build", "net")), "class 3, predicted 4"),
        (of_model(ModelSpec("net.py:build", "net", classes=str(tmp_path / "gone.txt"))), "class 3, predicted 4"),
    ]
    for of, said in expected:
        source = with_pictures(made(of, 2, scores(range(2))), 2)
        (section,) = gather(Results.of(source)).sections
        # The first image is predicted as what is explained, the second is not.
        assert [classes_of(example) for example in section.examples] == [f"{said.split(',')[0]}, as predicted", said]
