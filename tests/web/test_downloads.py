"""Files hold what was shown, lie in the page's own folder, and go after a while."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from egcam.errors import InputError
from egcam.evaluation.score import Score
from egcam.web import downloads
from egcam.web.choices import Choices
from egcam.web.session import explain, measure, open_photo
from egcam.web.shared_model import share
from support.tiny_page import picture, tiny_classifier

pytestmark = pytest.mark.usefixtures("one_thread")

SHARED = share(tiny_classifier())
CHOICES = Choices(1, "3", ("grad-cam", "layer-cam"), 4)
PHOTO = open_photo(SHARED, picture(7), "../my photo.png")
RESULTS = tuple(explain(SHARED, PHOTO, CHOICES, method, lambda _: None) for method in CHOICES.methods)
DOG = PHOTO.prediction(1)


def test_raw_maps_are_the_maps(tmp_path: Path) -> None:
    file = downloads.maps_file(tmp_path, "npz", PHOTO, DOG, RESULTS, "tiny")
    assert file.is_relative_to(tmp_path.parent)
    assert file.name == "egcam-my-photo-dog.npz"
    with np.load(file, allow_pickle=False) as arrays:
        for result in RESULTS:
            np.testing.assert_array_equal(arrays[f"maps/{result.method}"], result.explanation.maps[0].numpy())
            np.testing.assert_array_equal(arrays[f"heatmaps/{result.method}"], result.explanation.heatmaps[0].numpy())
        np.testing.assert_array_equal(arrays["photograph"], np.asarray(PHOTO.seen))
        facts = json.loads(str(arrays["facts"]))
    assert facts["target"] == {"index": 1, "name": "dog", "probability": DOG.probability}
    assert facts["methods"]["grad-cam"]["layer"] == "3"


@pytest.mark.parametrize("results", [RESULTS[:1], RESULTS], ids=["one", "two"])
def test_figures_are_whole(tmp_path: Path, results: tuple) -> None:
    picture_file = downloads.maps_file(tmp_path, "png", PHOTO, DOG, results, "tiny")
    with Image.open(picture_file) as drawn:
        assert drawn.format == "PNG"
        assert len(drawn.convert("RGB").getcolors(2**24)) > 500
    drawing = downloads.maps_file(tmp_path, "svg", PHOTO, DOG, results, "tiny").read_text()
    assert drawing.rstrip().endswith("</svg>")
    assert drawing.count("<image") >= 3 * len(results) - 1


def test_scores_as_csv(tmp_path: Path) -> None:
    rows = {"grad-cam": measure(SHARED, PHOTO, CHOICES, "grad-cam", lambda _: None)}
    with downloads.scores_file(tmp_path, PHOTO, rows).open(newline="") as text:
        read = list(csv.DictReader(text))
    assert [float(line["value"]) for line in read] == [row.value for row in rows["grad-cam"]]


@pytest.mark.parametrize("name", ["=1+1|cmd'.jpg", "+a.jpg", "-a.jpg", "@SUM(A1).jpg"])
def test_scores_hold_no_formulas_and_numbers_stay_numbers(tmp_path: Path, name: str) -> None:
    scored = Score(0, "=method", "-metric", -0.25, 1.5)
    with downloads.scores_file(tmp_path, replace(PHOTO, name=name), {"=method": [scored]}).open(newline="") as text:
        _, line = csv.reader(text)
    assert line[:5] == [f"'{name}", "'=method", "'-metric", "-0.25", "1.5"]


@pytest.mark.parametrize("kind", ["exe", "../png", ""])
def test_other_kinds_are_refused(tmp_path: Path, kind: str) -> None:
    with pytest.raises(InputError, match="downloaded as png, svg, npz"):
        downloads.maps_file(tmp_path, kind, PHOTO, DOG, RESULTS, "tiny")


def test_nothing_to_download_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="explain an image first"):
        downloads.maps_file(tmp_path, "png", PHOTO, DOG, (), "tiny")
