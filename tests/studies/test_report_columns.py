"""From stored parts to the report in columns: the numbers of a direct computation, and CSV without formulas."""

from __future__ import annotations

import csv
from io import StringIO
from math import nan

import numpy as np
import pytest
from scipy.stats import binom, rankdata

from egcam.evaluation.score import Score
from egcam.evaluation.stats import beyond, intervals, intervals_of
from egcam.evaluation.table import Table
from egcam.pages.escaping import in_csv
from egcam.studies.manifest import DataRecord, Manifest, ModelRecord
from egcam.studies.progress import status
from egcam.studies.records import Outcome, Unit
from egcam.studies.report import write_report
from egcam.studies.report.report import COLUMNS, SUMMARY_COLUMNS, as_csv, summary_rows, write_scores
from egcam.studies.report.view import gather
from egcam.studies.results import Results
from egcam.studies.store import Store
from support.results_in_memory import METHODS, METRICS, keys, made, study

IMAGES = 12
MODELS = ("a", "b")


@pytest.fixture
def values():
    """(models, methods, metrics, images) scores, some of them missing."""
    source = np.random.default_rng(7)
    found = source.normal(size=(len(MODELS), len(METHODS), len(METRICS), IMAGES))
    found[0, 1, 0, 4] = found[1, 0, 2, 9] = nan
    return found


@pytest.fixture
def results(tmp_path, values):
    """The same in a store: in small parts, written in any order, some units twice."""
    of = study(models=MODELS)
    names = tuple(f"{image}.png" for image in range(IMAGES))
    records = {label: ModelRecord("0" * 64, 1, "layer") for label in MODELS}
    store = Store(tmp_path / "results")
    data = DataRecord("made up", {name: name for name in names})
    store.begin(Manifest(of.model_dump(), data, records, values[:, :, 0].size, **keys(of)))
    outcomes = []
    for model, method, image in np.ndindex(values[:, :, 0].shape):
        unit, own = Unit(MODELS[model], METHODS[method], image), values[model, method, :, image].tolist()
        causes = [None if np.isfinite(one) else "=gone" for one in own]
        scores = map(unit.score, METRICS, own, [0.25] * len(own), causes)
        outcomes.append(Outcome(unit, names[image], image, image + 1, 1.0 + method, tuple(scores)))
    order = np.random.default_rng(0).permutation(len(outcomes)).tolist()
    with store.lock():
        for start in range(0, len(order), 5):
            store.write([outcomes[place] for place in order[start : start + 7]])
    return Results.of(store)


def common(values, model, metric):
    """(N, M) the scores of the images that all methods have one for."""
    own = values[model, :, metric].T
    return own[np.isfinite(own).all(1)]


def test_means_differences_and_intervals_are_those_of_the_scores(results, values):
    for model, label in enumerate(MODELS):
        summary = results.table(label).summary("grad-cam").set_index(["metric", "method"])
        for metric, name in enumerate(METRICS):
            own = common(values, model, metric)
            drawn = np.random.default_rng(0).integers(0, len(own), (2000, len(own)))
            for column, method in enumerate(METHODS):
                line, apart = summary.loc[name, method], own[:, column] - own[:, 0]
                assert line["mean"] == pytest.approx(own[:, column].mean(), rel=1e-12)
                outside = beyond(len(own))
                low, high = np.quantile(own[:, column][drawn].mean(1), [outside, 1 - outside])
                assert (line["low"], line["high"]) == pytest.approx((low, high), rel=1e-9)
                assert line["difference"] == pytest.approx(np.median(apart), rel=1e-9)
                # The most extreme differences of which an interval of 95 % can be made.
                cut = int(binom.ppf(0.025, len(own), 0.5)) - 1
                ends = np.sort(apart)[[cut, len(own) - 1 - cut]] if cut >= 0 else (nan, nan)
                assert (line["difference_low"], line["difference_high"]) == pytest.approx(tuple(ends), nan_ok=True)
                assert line["images"] == len(own)


def test_ranks_over_models_are_those_of_the_scores(results, values):
    places = np.full((IMAGES, len(MODELS) * len(METRICS), len(METHODS)), nan)
    for model in range(len(MODELS)):
        for metric, name in enumerate(METRICS):
            own = values[model, :, metric].T
            has_all = np.isfinite(own).all(1)
            sign = 1 if name == "deletion" else -1
            places[has_all, model * len(METRICS) + metric] = rankdata(sign * own[has_all], axis=1)
    expected = np.nanmean(places, axis=1).mean(0)
    found = gather(results).ranking
    assert dict(zip(found.methods, found.mean, strict=True)) == pytest.approx(dict(zip(METHODS, expected, strict=True)))


def test_every_score_is_in_the_frame_and_the_csv_with_its_image(results, values, tmp_path):
    with (tmp_path / "scores.csv").open("w", newline="") as file:
        write_scores(file, results)
    with (tmp_path / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    keys = [(model, image, method, metric) for model in MODELS for image in range(IMAGES)
            for method in METHODS for metric in METRICS]  # fmt: skip
    assert [(row["model"], int(row["image"]), row["method"], row["metric"]) for row in rows] == keys
    for row, (model, image, method, metric) in zip(rows, keys, strict=True):
        value = values[MODELS.index(model), METHODS.index(method), METRICS.index(metric), image]
        assert row["value"] == ("" if np.isnan(value) else repr(float(value)))
        assert row["cause"] == ("'=gone" if np.isnan(value) else "")
        assert (row["name"], row["target"], row["prediction"]) == (f"{image}.png", str(image), str(image + 1))
    frame = results.frame
    assert frame["value"].tolist() == pytest.approx([float(row["value"] or nan) for row in rows], nan_ok=True)
    assert frame["method"].tolist() == [row["method"] for row in rows]
    assert list(frame["method"].cat.categories) == list(METHODS)


def test_blocks_are_the_rows_in_pieces(results):
    pieces = list(results.blocks(7))
    assert {len(piece) for piece in pieces[:-1]} == {7}
    for name in COLUMNS:
        whole = results.frame[name].tolist()
        assert [one for piece in pieces for one in piece[name]] == pytest.approx(whole, nan_ok=True)


def test_status_adds_up(results, values):
    found = status(results.source)
    assert found.seconds == len(MODELS) * IMAGES * (1 + 2 + 3)
    assert found.gaps == (("insertion", "=gone", 1), ("sparseness", "=gone", 1))
    assert (found.done, found.left) == (values[:, :, 0].size, 0)


FORMULAS = ["=1+1", "+1", "-1", "@A1", "\tx", "\rx"]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_of_a_study_is_a_formula(tmp_path, text):
    source = made(study(models=(text,)), 2, lambda model, method, metric, image: text if image else -0.5)
    results = Results.of(source)
    file, written = StringIO(), f"'{text}".replace("\r", "\n")
    write_scores(file, results)
    for cells in csv.DictReader(StringIO(file.getvalue(), newline="")):
        assert cells["model"] == written
        assert cells["cause"] == (written if cells["image"] == "1" else "")
        # A negative number is no formula.
        assert cells["value"] == ("" if cells["image"] == "1" else "-0.5")
    lines = as_csv(SUMMARY_COLUMNS, summary_rows(gather(results)))
    assert written in lines
    assert in_csv(text) == f"'{text}"
    assert in_csv(f"a{text}") == f"a{text}"


def test_progress_rises_to_the_end(tmp_path):
    seen: list[float] = []
    write_report(made(study(), 3, lambda *of: float(of[-1])), tmp_path, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1.0)
    assert len(set(seen)) >= 4


def test_rows_may_come_in_any_order():
    source = np.random.default_rng(1)
    rows = [Score(image, method, metric, float(source.random()), 0.0)
            for image in range(5) for metric in METRICS for method in METHODS]  # fmt: skip
    table = Table.of(rows, METHODS, METRICS)
    for method in METHODS:
        for metric in METRICS:
            own = [row.value for row in rows if (row.method, row.metric) == (method, metric)]
            assert table.values(method, metric).tolist() == own
    assert table.only(["deletion"]).values("layer-cam", "deletion").tolist() == (
        table.values("layer-cam", "deletion").tolist()
    )
    assert table.only(["deletion"]).metrics == ("deletion",)


def test_shared_draws_change_no_interval():
    source = np.random.default_rng(2)
    one, other = source.normal(size=(30, 4)), source.normal(size=(30, 2))
    one[3, 1] = other[5, 0] = nan
    for found, values in zip(intervals_of([one, other]), (one, other), strict=True):
        for ends, alone in zip(found, intervals(values), strict=True):
            np.testing.assert_array_equal(ends, alone)
