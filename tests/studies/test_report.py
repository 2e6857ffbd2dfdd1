"""The files of a report: whole, safe against any name, the same every time, and honest about what they are."""

from __future__ import annotations

import re
from base64 import b64decode
from html.parser import HTMLParser
from io import BytesIO
from math import nan
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from egcam.errors import InputError
from egcam.metrics.registry import records
from egcam.pages.escaping import in_latex, in_markdown
from egcam.studies.manifest import ModelRecord
from egcam.studies.records import Outcome, Unit
from egcam.studies.report import write_report
from egcam.studies.results import ResultsError
from egcam.studies.specs import DataSpec, MethodSpec, ModelSpec, ReferenceSpec
from studies.test_results import stored
from support.results_in_memory import METHODS, METRICS, made, study, with_pictures

HOSTILE = "<script>alert('x')</script> & \"50%\" a_b|c $d$ \\e {f} #1 ~^ [g] `h` *i*"
VOID = {"meta", "img", "source", "br", "link", "input", "hr"}


def value(model, method, metric, image):
    return 0.1 * METHODS.index(method) + 0.01 * METRICS.index(metric) + 0.001 * ((image * 7) % 5)


class Page(HTMLParser):
    """A page taken apart; it must be well-formed: every tag closed, in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.texts, self.ids = [], [], [], [], set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append((tag, given))
        assert not any(name.startswith("on") for name in given), "a script in an attribute"
        self.links += [given[name] for name in ("src", "href", "srcset", "data", "action") if name in given]
        if "id" in given:
            assert given["id"] not in self.ids
            self.ids.add(given["id"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def read_page(folder):
    return Page((folder / "report.html").read_text())


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """A report with everything in it, and names that are out to break it."""
    folder = tmp_path_factory.mktemp("full")
    of = study(
        title=HOSTILE,
        models=(),
        data=DataSpec("folder", "/home/someone/secret/photos", size=8),
    )
    models = (ModelSpec("resnet18", HOSTILE, weights="/home/someone/secret/w.pt"), ModelSpec("vgg16", "vgg"))
    methods = (*of.methods, MethodSpec(HOSTILE, "slope-cam", {"samples": 4}))
    of = type(of)(**{**vars(of), "models": models, "methods": methods, "examples": 2})

    def scores(model, method, metric, image):
        if method == HOSTILE and image == 1:
            return f"cause {HOSTILE}\nin two lines"
        return value(model, METHODS[0] if method == HOSTILE else method, metric, image)

    source = with_pictures(made(of, 5, scores), 5)
    source.done = [Outcome(**{**vars(one), "name": f"{HOSTILE} {one.unit.image}"}) for one in source.done]
    source.data = {"description": f"photographs {HOSTILE}", "images": 5}
    paths = write_report(source, folder)
    return source, folder, paths


def test_all_files_are_there(full):
    _, folder, paths = full
    made_names = {str(path.relative_to(folder)) for path in paths}
    assert {"report.md", "report.tex", "report.html", "scores.csv", "summary.csv"} <= made_names
    # Of both models, and ranks over both.
    assert sum(name.startswith("figures/ranks-") for name in made_names) == 6
    assert {"figures/curves-vgg.svg", "figures/differences-vgg.png", "figures/examples-vgg.png"} <= made_names
    assert {path for path in folder.rglob("*") if path.is_file()} == set(paths)
    for path in paths:
        if path.suffix == ".png":
            assert len(np.unique(np.asarray(Image.open(path).convert("L")))) > 5
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")


def test_the_page_is_whole_and_loads_nothing(full):
    page = read_page(full[1])
    assert not page.all("script")
    assert not page.all("link")
    inner = {link[1:] for link in page.links if link.startswith("#")}
    assert inner
    assert inner <= page.ids
    for link in page.links:
        assert link.startswith(("#", "data:image/"))
    for text in ("http://", "https://", "url(", "@import"):
        assert text not in (full[1] / "report.html").read_text()
    for image in page.all("img"):
        kind, data = image["src"].removeprefix("data:image/").split(";base64,")
        content = b64decode(data, validate=True)
        if kind == "jpeg":
            assert Image.open(BytesIO(content)).size == (8, 8)
        else:
            assert ElementTree.fromstring(content).tag.endswith("svg")


def test_the_page_can_be_read_by_all(full):
    page = read_page(full[1])
    assert page.all("html")[0]["lang"] == "en"
    assert "width=device-width" in page.all("meta")[1]["content"]
    assert all(image["alt"] for image in page.all("img"))
    assert len(page.all("h1")) == 1
    # Every table is in a frame of its own that the keyboard can reach.
    frames = [one for one in page.all("div") if one.get("class") == "eg-wide"]
    assert len(frames) == len(page.all("table")) > 2
    assert all(one["tabindex"] == "0" and one["aria-label"] for one in frames)
    # A drawing for light pages and one for dark ones.
    assert len(page.all("picture")) == len(page.all("source")) == 7
    assert {one["media"] for one in page.all("source")} == {"(prefers-color-scheme: dark)"}
    assert "prefers-color-scheme: dark" in (full[1] / "report.html").read_text()


def test_hostile_names_are_shown_and_not_run(full):
    text = (full[1] / "report.html").read_text()
    assert "<script" not in text
    shown = read_page(full[1]).text
    assert HOSTILE in shown
    assert f"{HOSTILE} 1" in shown
    assert f"cause {HOSTILE} in two lines" in shown
    markdown = (full[1] / "report.md").read_text()
    assert "<script" not in markdown
    assert in_markdown(HOSTILE) in markdown
    # Rows of a table all have as many cells as its head: no bar of a name is taken for a border.
    for block in re.findall(r"(?:^\|.*\n)+", markdown, re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_paths_of_the_machine_stay_out(full):
    for path in full[2]:
        if path.suffix in (".md", ".tex", ".html", ".csv"):
            assert "someone" not in path.read_text()
    assert "weights from w.pt" in read_page(full[1]).text


def test_latex_is_balanced(full):
    text = (full[1] / "report.tex").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    body = "\n".join(lines)
    # What is left after escapes are taken out is LaTeX's own.
    bare = re.sub(r"\\[&%$#_{}\\]", "", body)
    assert bare.count("{") == bare.count("}")
    assert "%" not in bare
    assert "#" not in bare
    assert "_" not in bare
    assert bare.count("$") % 2 == 0
    assert "<" not in bare
    assert len(re.findall(r"\\begin\{table\}", text)) == len(re.findall(r"\\end\{table\}", text)) > 2
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert len(set(labels)) == len(labels)
    for block in re.findall(r"\\midrule\n(.*?)\\bottomrule", text, re.DOTALL):
        cells = {len(re.findall(r"(?<!\\)&", line)) for line in block.strip().splitlines()}
        assert len(cells) == 1
        assert not any(line.startswith("[") for line in block.splitlines())
    assert text.isascii()


def test_latex_escapes():
    assert in_latex('a_b & 5% $x$ #1 {y} \\z ~ ^ <k> | "q"\nnext') == (
        r"a\_b \& 5\% \$x\$ \#1 \{y\} \textbackslash{}z \textasciitilde{} \textasciicircum{} "
        r"\textless{}k\textgreater{} \textbar{} ''q'' next"
    )


def test_the_same_results_give_the_same_bytes(full, tmp_path):
    source, _, paths = full
    again = write_report(source, tmp_path)
    assert [path.name for path in again] == [path.name for path in paths]
    for one, other in zip(paths, again, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    for path in paths:
        if path.suffix in (".png", ".svg"):
            content = path.read_bytes().lower()
            assert b"matplotlib v" not in content
            assert b"dc:date" not in content


def test_a_folder_gives_the_same_tables_as_memory(tmp_path):
    source = with_pictures(made(study(), 3, value), 3)
    stored(tmp_path / "results", source)
    write_report(source, tmp_path / "here")
    write_report(tmp_path / "results", tmp_path / "there")
    for name in ("scores.csv", "summary.csv", "figures/curves-net.png", "figures/examples-net.png", "report.tex"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    assert "layer layer4" in read_page(tmp_path / "there").text


def test_sharpness_changes_the_example_maps_and_no_number(tmp_path):
    source = with_pictures(made(study(), 3, value), 3)
    plain, sharp = (write_report(source, tmp_path / str(p), sharpness=p) for p in (1, 3))
    changed = {
        str(one.relative_to(tmp_path / "1"))
        for one, other in zip(plain, sharp, strict=True)
        if one.read_bytes() != other.read_bytes()
    }
    assert changed == {"report.html", "figures/examples-net.png"}
    with pytest.raises(InputError, match="sharpness is an exponent of at least 1"):
        write_report(source, tmp_path / "none", sharpness=0.5)


def test_every_metric_and_twelve_methods_fit(tmp_path):
    known = ["grad-cam", "grad-cam++", "hires-cam", "xgrad-cam", "layer-cam", "score-cam", "ablation-cam", "cam",
             "smooth-grad-cam++", "integrated-grad-cam", "slope-cam", "expected-grad-cam"]  # fmt: skip
    metrics = [one.name for one in records() if not one.whole_set]
    source = made(study(known, metrics), 3, lambda model, method, metric, image: len(method) + len(metric) * image)
    write_report(source, tmp_path)
    latex = (tmp_path / "report.tex").read_text()
    # No table is wider than a page holds.
    assert max(len(columns) for columns in re.findall(r"\\begin\{tabular\}\{(.*?)\}", latex)) <= 9
    assert Image.open(tmp_path / "figures" / "differences-net.png").width == round(6.9 * 200)
    assert Image.open(tmp_path / "figures" / "ranks-net.png").width == round(3.3 * 200)


# What a report must say

words_only = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes most of a report's time, and words do not hang on it."""
    monkeypatch.setattr("egcam.studies.report.report.model_drawings", lambda content, part: [])
    monkeypatch.setattr("egcam.studies.report.report.overall_drawing", lambda content: None)


def warnings_of(folder):
    text = (folder / "report.md").read_text()
    return [line for line in text.splitlines() if line.startswith("> **Note.**")]


@words_only
def test_a_finished_study_has_no_warnings(tmp_path):
    write_report(made(study(), 2, value), tmp_path)
    assert warnings_of(tmp_path) == []
    assert not [one for one in read_page(tmp_path).all("p") if one.get("class") == "warn"]


@words_only
def test_an_unfinished_study_says_so_at_the_top(tmp_path):
    without = [Unit("net", "layer-cam", image) for image in (3, 4, 5)]
    write_report(made(study(), 6, value, without), tmp_path)
    (warning,) = warnings_of(tmp_path)
    assert "15 of 18 units are done: the numbers are over the 3 images that all methods have finished" in warning
    assert "15 of 18 units are done" in read_page(tmp_path).text
    assert "Unfinished: 3 of 6 images." in (tmp_path / "report.tex").read_text()
    assert "Means over 3 images" in (tmp_path / "report.md").read_text()


@words_only
def test_random_weights_are_said_wherever_the_numbers_are(tmp_path):
    of = study()
    of = type(of)(**{**vars(of), "models": (ModelSpec("resnet18", "net", weights="random"),)})
    write_report(made(of, 2, value), tmp_path)
    assert "random weights" in warnings_of(tmp_path)[0]
    assert "nothing about the methods" in warnings_of(tmp_path)[0]
    for name in ("report.md", "report.html", "report.tex"):
        assert "Random weights: these numbers say nothing about the methods." in (tmp_path / name).read_text()


@words_only
def test_stand_ins_are_said(tmp_path):
    source = made(study(), 2, value)
    said = "stands in for VGG-16, whose weights are not at hand"
    source.models = {"net": ModelRecord("", 0, "", (8, 8), note=said)}
    write_report(source, tmp_path)
    assert "net: stands in for VGG-16, whose weights are not at hand" in warnings_of(tmp_path)[0]
    assert "stands in for VGG-16" in (tmp_path / "report.tex").read_text()


@words_only
def test_failures_and_causes_are_said(tmp_path):
    source = made(study(), 4, value, broken={Unit("net", "grad-cam", 1): "the worker died"})
    write_report(source, tmp_path)
    assert "1 unit of 12 failed" in warnings_of(tmp_path)[0]
    text = (tmp_path / "report.md").read_text()
    assert "- Grad-CAM, all metrics: no score for 1 of 4 images: the worker died" in text
    assert "Grad-CAM, all metrics: no score for 1 of 4 images: the worker died" in read_page(tmp_path).text


@words_only
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("mixed", "blurred and colours"),
        ("constant", "constant (mean colour)"),
        ("/far/cats", "64 images of the folder cats"),
    ],
)
def test_what_references_are_drawn_from_is_said(tmp_path, source, said):
    write_report(made(study(reference=ReferenceSpec(source)), 3, value), tmp_path)
    assert f"| reference | {said} |" in (tmp_path / "report.md").read_text()


@words_only
def test_the_facts_are_there(tmp_path):
    source = with_pictures(made(study(protocol="paper", seed=7, reference=ReferenceSpec("data")), 3, value), 3)
    write_report(source, tmp_path)
    for text in ((tmp_path / "report.md").read_text(), read_page(tmp_path).text):
        for fact in ("2026-01-02T03:04:05+00:00", "six squares", "published weights", "SlopeCAM", "Insertion",
                     "the predicted class", "the paper's conventions", "64 other images of the same data",
                     "7 for methods and metrics", "9 of 9 done, 0 failed", "torch 2.0"):  # fmt: skip
            assert fact in text


@words_only
def test_the_reading_follows_from_the_numbers(tmp_path):
    write_report(made(study(), 8, value), tmp_path)
    text = (tmp_path / "report.md").read_text()
    # Highest by 0.1 and more everywhere, so first where higher is better and last on deletion.
    first = "- SlopeCAM (egcam) has the best mean on 2 of 3 metrics; clear of every other method on "
    assert f"{first}Insertion and Sparseness.\n" in text
    behind = (
        r"- Behind on Deletion (lower is better): +0.2000 \[0.2000, 0.2000\] from Grad-CAM, which has the best mean; "
    )
    assert f"{behind}LayerCAM is also ahead of it.\n" in text
    assert "Holm for the 6 comparisons of a method with the others: however skewed differences are" in text
    ahead = "Insertion (higher is better): SlopeCAM (egcam) is ahead of Grad-CAM: median difference "
    assert rf"{ahead}+0.2000 \[0.2000, 0.2000\]" in text


@words_only
def test_a_study_without_slope_cam(tmp_path):
    write_report(made(study(["grad-cam", "layer-cam"]), 3, value), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "The study has no SlopeCAM." in text
    assert "### LayerCAM against Grad-CAM" in text


# The edges


@pytest.mark.parametrize(
    ("methods", "images", "scores"),
    [
        (METHODS, 1, value),
        (["slope-cam"], 3, value),
        (["grad-cam"], 1, value),
        (METHODS, 3, lambda model, method, metric, image: nan if method == "layer-cam" else 0.5),
        (METHODS, 3, lambda model, method, metric, image: "no map at all"),
        (METHODS, 3, lambda model, method, metric, image: 0.25),
    ],
    ids=["one image", "one method", "one of each", "a method without scores", "no scores", "all equal"],
)
def test_reports_at_the_edge(tmp_path, methods, images, scores):
    source = with_pictures(made(study(methods), images, scores), images)
    paths = write_report(source, tmp_path)
    page = read_page(tmp_path)
    assert "nan" not in page.text.lower().split()
    text = (tmp_path / "report.md").read_text()
    assert "nan" not in re.findall(r"[a-z]+", text.lower())
    assert (tmp_path / "figures" / "ranks-net.png" in paths) == (
        len(methods) > 1 and scores("net", "grad-cam", "insertion", 0) != "no map at all"
    )


@words_only
def test_a_model_without_a_finished_image_is_named(tmp_path):
    without = [Unit("b", "grad-cam", image) for image in range(2)]
    write_report(made(study(models=("a", "b")), 2, value, without), tmp_path)
    assert "## b\n\nNo image has been finished by all methods yet." in (tmp_path / "report.md").read_text()
    assert "No image has been finished by all methods yet." in read_page(tmp_path).text


def test_an_empty_study_has_no_report(tmp_path):
    source = made(study(), 2, value)
    source.done = []
    with pytest.raises(ResultsError, match=r"nothing to report yet: 0 of 6 units are done"):
        write_report(source, tmp_path)
    assert list(tmp_path.iterdir()) == []
