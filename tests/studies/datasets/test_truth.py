"""Tests with a known answer as a study: its images, labels and masks, and the scores the tests themselves give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from egcam import truth
from egcam.errors import EgcamError
from egcam.studies.config import StudyError, load_study
from egcam.studies.datasets import open_dataset
from egcam.studies.datasets import truth as kind
from egcam.studies.runner import run_study
from egcam.studies.specs import DataSpec
from egcam.truth import networks
from support.tiny_study import InProcess

STUDY = """
name = "known"
target = "label"
methods = ["hires-cam", "grad-cam"]
metrics = ["cell-mass-accuracy"]
[method.hires-cam]
signed = true
[method.grad-cam]
signed = true
[data]
kind = "truth"
test = "TEST"
count = 4
[[models]]
name = "egcam.truth.networks:TEST"
[run]
maps = "none"
"""


@pytest.fixture(autouse=True)
def untrained(monkeypatch: pytest.MonkeyPatch) -> truth.ShapesNetwork:
    """A network that knows nothing: what it is shown and asked is the same."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = truth.ShapesNetwork().eval()
    monkeypatch.setattr(networks, "trained", lambda: network)
    monkeypatch.setattr(kind, "recognised", lambda _, count, seed: truth.draw_shapes(count, seed))
    return network


@pytest.mark.parametrize("test", ["difull", "dipart", "gridpg", "walls", "shapes"])
def test_a_study_scores_as_the_test_itself(tmp_path: Path, untrained: truth.ShapesNetwork, test: str) -> None:
    file = tmp_path / "study.toml"
    file.write_text(STUDY.replace("TEST", test))
    results = run_study(file, tmp_path / "out", engine=InProcess())
    frame = results.frame
    trial = trial_of(test, untrained)
    for method in ("hires-cam", "grad-cam"):
        found = frame[frame["method"] == method].sort_values("name")
        wanted = truth.share_inside(trial.maps(method), (trial.truth > 0).float(), whole_cells=True)
        assert found["value"].tolist() == pytest.approx(wanted.tolist(), abs=1e-4)


def stored(images: torch.Tensor) -> torch.Tensor:
    """In 256 levels, as the data set keeps them."""
    return (((images * 0.25 + 0.5).clamp(0, 1) * 255).round() / 255 - 0.5) / 0.25


def trial_of(test: str, network: truth.ShapesNetwork) -> truth.Trial:
    if test == "shapes":
        drawn = truth.draw_shapes(4, 1)
        given = network, "features", stored(drawn.images), drawn.labels, drawn.masks, drawn.images
        return truth.Trial("shapes", "higher", *given, lambda maps: maps.sum((1, 2)))
    known = truth.draw_shapes(8, 3)
    if test == "walls":
        return truth.walls_trial(network, stored(known.images[:4]), "features", networks.HIDDEN_ROWS)
    make = {"difull": truth.difull_trial, "dipart": truth.dipart_trial, "gridpg": truth.gridpg_trial}[test]
    return make(network, truth.make_grids(stored(known.images), known.labels, 2, 4, 0), "features")


def test_pictures_labels_and_masks() -> None:
    data = open_dataset(DataSpec("truth", options={"test": "shapes", "count": 6}))
    drawn = truth.draw_shapes(6, 1)
    pictures = {data[index].name: data[index] for index in range(6)}
    for number in range(6):
        one = pictures[f"shapes {number:04d}"]
        assert one.label == int(drawn.labels[number])
        np.testing.assert_array_equal(one.mask, drawn.masks[number].numpy() > 0)
        seen = networks.shapes().preprocessing(one.image)
        torch.testing.assert_close(seen, drawn.images[number], atol=4 / 255 / 2 + 1e-6, rtol=0)


def test_what_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    for change, said in {
        'test = "walls"\npath = "."': "makes its images itself: leave data.path out",
        'test = "wall"': "'wall'",
        "": "test is missing",
    }.items():
        file.write_text(STUDY.replace('test = "TEST"', change).replace("TEST", "walls"))
        with pytest.raises(StudyError, match=said):
            load_study(file)
    with pytest.raises(EgcamError, match="at least one image"):
        open_dataset(DataSpec("truth", options={"test": "walls", "count": 0}))
