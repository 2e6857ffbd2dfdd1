"""What `research/readings.py` measures, and that docs/expected-grad-cam.md prints what was measured."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

pandas = pytest.importorskip("pandas")
RESEARCH = Path(__file__).parent.parent / "research"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(RESEARCH))
    import readings as module  # type: ignore[import-not-found,unused-ignore]

    yield module
    sys.modules.pop("readings")


class Small(nn.Module):
    """Features and a head that is not linear, as in VGG-16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.features = nn.Sequential(nn.Conv2d(3, 6, 3, stride=4), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU())
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(5 * 36, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.features(images)
        return self.classifier(maps)


def test_remembered_feature_maps_change_no_reading(readings: Any) -> None:
    plain, data = Small().eval(), torch.randn(6, 3, 32, 32)
    remembering = copy.deepcopy(plain)
    remembering.features = readings.Remembered(remembering.features)
    image = torch.randn(1, 3, 32, 32)
    for label, changed in readings.READINGS.items():
        few = {**changed, "samples": 4}
        expected, found = (
            readings.reading(model, "features", data, **few)(image).maps for model in (plain, remembering)
        )
        assert expected.any(), label
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6, msg=label)


def test_feature_maps_are_computed_once(readings: Any) -> None:
    seen = []
    inner = nn.Conv2d(3, 2, 3)
    inner.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    remembered, images = readings.Remembered(inner), torch.randn(3, 3, 8, 8)
    first = remembered(images[[0, 1, 0]])
    again = remembered(images)
    assert seen == [2, 1]
    torch.testing.assert_close(first, inner(images[[0, 1, 0]]))
    torch.testing.assert_close(again, inner(images))


def test_scores_of_a_map_and_of_the_same_map_less_its_smallest_cell(readings: Any) -> None:
    """Three cells of 1 and one of 3: as a quarter of the mass stays beneath, it looks less sparse than it is."""
    found = readings.scores_of(torch.tensor([[[1.0, 1.0], [1.0, 3.0]]]), (2, 2))
    assert found["sparseness"] == pytest.approx((-3 - 1 + 1 + 3 * 3) / (4 * 6))
    assert found["complexity"] == pytest.approx(
        -(3 * (1 / 6) * torch.tensor(1 / 6).log() + 0.5 * torch.tensor(0.5).log())
    )
    assert found["stretched sparseness"] == pytest.approx(0.75)
    assert found["stretched complexity"] == pytest.approx(0.0)


@pytest.mark.filterwarnings("ignore:.*is zero everywhere")
def test_a_run_goes_on_where_it_stopped(readings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torchcam")
    pytest.importorskip("pytorch_grad_cam")
    torch.manual_seed(1)
    pictures = {f"{number}": torch.randn(3, 32, 32) for number in range(8)}
    monkeypatch.setenv("EGCAM_DATA", str(tmp_path))
    monkeypatch.setattr(readings, "read_image", lambda file: pictures[file.name])
    monkeypatch.setattr(
        readings, "images_of", lambda part, count: list(pictures)[:3] if part == "confirm" else list(pictures)[3:]
    )
    monkeypatch.setattr(readings, "FINER", {"small": "features.2"})
    monkeypatch.setattr(
        readings.egcam.zoo, "load", lambda name: Classifier(Small().eval(), "small", list("abcd"), _AsItIs())
    )
    out = tmp_path / "scores.parquet"
    readings.measure("small", 3, [8], ["black"], out)
    whole = pandas.read_parquet(out)
    assert whole.groupby("image").size().tolist() == [whole.reading.nunique()] * 3
    assert {*readings.RIVALS, *readings.READINGS} - set(whole.reading) == {"black", "32 samples"}
    whole[(whole.image != "2") & (whole.reading != "pooled")].to_parquet(out)
    readings.measure("small", 3, [8], ["black"], out)
    order = ["image", "reading"]
    mended = pandas.read_parquet(out).sort_values(order, ignore_index=True)
    pandas.testing.assert_frame_equal(mended, whole.sort_values(order, ignore_index=True), rtol=1e-4)


class _AsItIs(Preprocessing):
    def __call__(self, image: Any) -> Tensor:
        return image


def test_the_page_prints_what_was_measured(readings: Any) -> None:
    page = readings.PAGE.read_text(encoding="utf-8")
    made = readings.tables(pandas.read_parquet(readings.SCORES))
    assert readings.with_tables(page, made) == page, "python research/readings.py --table writes it again"
