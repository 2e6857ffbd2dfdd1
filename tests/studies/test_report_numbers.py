"""What a report says: intervals, ranks, verdicts and interpretations, on scores made up so that the answer is known."""

from __future__ import annotations

import csv
from math import isnan, nan

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text
from scipy.stats import rankdata

from egcam import figures
from egcam.errors import MethodError
from egcam.evaluation.ranking import mean_ranks
from egcam.evaluation.score import Score
from egcam.evaluation.signs import holm, sign_p
from egcam.evaluation.stats import agreement_of_metrics, beyond, draws, summarised
from egcam.evaluation.table import Table
from egcam.studies.records import Unit
from egcam.studies.report import write_report
from egcam.studies.report.formatting import figure, spread
from egcam.studies.report.interpretation import caution, interpret, sentences, statement, told
from egcam.studies.report.view import gather
from egcam.studies.results import Results
from support.results_in_memory import METHODS, METRICS, made, study, with_pictures

LABELS = {"a": "A-CAM", "b": "B-CAM", "c": "C-CAM"}


def table(scores):
    """A table from {metric: {method: scores by image}}."""
    methods = tuple(next(iter(scores.values())))
    rows = [
        Score(image, method, metric, value, 0.0)
        for metric, by_method in scores.items()
        for method, values in by_method.items()
        for image, value in enumerate(values)
    ]
    return Table.of(rows, methods, tuple(scores))


def noisy(middle, seed, images=30, spread=0.1):
    return middle + spread * np.random.default_rng(seed).standard_normal(images)


def test_a_summary_is_that_of_the_table():
    scores = {
        "insertion": {"a": noisy(0.5, 0), "b": noisy(0.6, 1), "c": noisy(0.4, 2)},
        "deletion": {"a": noisy(0.5, 3), "b": noisy(0.3, 4), "c": np.full(30, nan)},
    }
    scores["insertion"]["b"][3:7] = nan
    of = table(scores)
    expected = of.summary("a").drop(columns="better")
    found = pd.DataFrame([vars(line) for line in summarised(of, "a").lines]).drop(columns="verdict")
    pd.testing.assert_frame_equal(found[expected.columns], expected, rtol=1e-9, atol=1e-12)


def test_draws_go_on_where_memory_ends(monkeypatch):
    whole = np.concatenate(list(draws(7)))
    monkeypatch.setattr("egcam.evaluation.stats._MOST", 100)
    parts = list(draws(7))
    assert len(parts) > 10
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    assert (whole.sum(1) == 7).all()


def test_ranks_by_hand():
    of = table(
        {
            "insertion": {"a": [0.9, 0.9], "b": [0.5, 0.5], "c": [0.1, 0.1]},
            "deletion": {"a": [0.2, 0.2], "b": [0.1, 0.1], "c": [0.2, 0.2]},
            "running-time": {"a": [9.0, 9.0], "b": [9.0, 9.0], "c": [1.0, 1.0]},
        }
    )
    found = mean_ranks([of])
    # a: 1st and 2.5th; b: 2nd and 1st; c: 3rd and 2.5th. Running time does not count.
    assert found.metrics == ("insertion", "deletion")
    assert dict(zip(found.methods, found.mean, strict=True)) == {"b": 1.5, "a": 1.75, "c": 2.75}
    # All images say the same.
    assert found.low.tolist() == found.high.tolist() == found.mean.tolist()
    both = mean_ranks([of, table({"insertion": {"a": [0.1, 0.2], "b": [0.3, 0.4], "c": [0.5, 0.6]}})])
    assert dict(zip(both.methods, both.mean, strict=True)) == {
        "a": pytest.approx(6.5 / 3), "b": pytest.approx(5 / 3), "c": pytest.approx(6.5 / 3),
    }  # fmt: skip


def test_a_metric_without_a_score_of_one_method_does_not_count_in_ranks():
    of = table(
        {
            "insertion": {"a": [0.9, 0.8], "b": [0.5, 0.5], "c": [nan, nan]},
            "deletion": {"a": [0.3, 0.3], "b": [0.1, 0.1], "c": [0.2, 0.2]},
        }
    )
    found = mean_ranks([of])
    assert found.metrics == ("deletion",)
    assert found.methods == ("b", "c", "a")
    gone = table({"insertion": {"a": [0.9, 0.8], "b": [0.5, 0.5], "c": [nan, nan]}})
    assert mean_ranks([gone]).methods == ("a", "b")
    assert mean_ranks([table({"insertion": {"a": [0.9, nan], "b": [nan, 0.5]}})]) is None
    assert mean_ranks([]) is None
    single = mean_ranks([table({"insertion": {"a": [0.9], "b": [0.5]}})])
    assert np.isnan(single.low).all()


def test_a_report_ranks_as_a_figure_does():
    """Methods whose means and whose images disagree: a is best on average, b on two images of three."""
    scores = {
        "insertion": {"a": [9.0, 1.0, 1.0], "b": [1.0, 2.0, 2.0], "c": [0.0, 0.0, nan]},
        "deletion": {"a": [0.1, 0.2, 0.3], "b": [0.1, 0.3, 0.2], "c": [0.4, 0.1, 0.1]},
        "running-time": {"a": [3.0, 3.0, 3.0], "b": [2.0, 2.0, 2.0], "c": [1.0, 1.0, 1.0]},
    }
    of = table(scores)
    by_image = {"a": [], "b": [], "c": []}
    for image in range(3):
        places = {"a": [], "b": [], "c": []}
        for name, sign in (("insertion", -1), ("deletion", 1)):
            values = {method: sign * scores[name][method][image] for method in places}
            if not any(isnan(value) for value in values.values()):
                for method, value in values.items():
                    smaller = sum(other < value for other in values.values())
                    places[method].append(smaller + (1 + sum(other == value for other in values.values())) / 2)
        for method, found in places.items():
            by_image[method].append(sum(found) / len(found))
    expected = {method: pytest.approx(sum(ranks) / 3) for method, ranks in by_image.items()}
    in_report = mean_ranks([of])
    assert dict(zip(in_report.methods, in_report.mean, strict=True)) == expected
    in_figure, images = figures.mean_ranks(of)
    assert images == in_report.images == 3
    assert [(one.method, one.mean, one.low, one.high) for one in in_figure] == list(
        zip(in_report.methods, in_report.mean, in_report.low, in_report.high, strict=True)
    )
    assert "mean rank over 2 metrics and 3 images (1 is best)" in {
        text.get_text() for text in figures.rank_plot(of).findobj(Text)
    }


def test_the_interval_of_a_rank_is_a_bootstrap_over_images(monkeypatch):
    rng = np.random.default_rng(5)
    of = table(
        {"insertion": {name: rng.random(11) for name in "abc"}, "deletion": {name: rng.random(11) for name in "abc"}}
    )
    ranks = np.mean(
        [
            rankdata(sign * np.stack([of.values(name, metric) for name in "abc"], 1), axis=1)
            for metric, sign in (("insertion", -1), ("deletion", 1))
        ],
        axis=0,
    )
    drawn = np.random.default_rng(0).integers(0, 11, (2000, 11))
    low, high = np.quantile(ranks[drawn].mean(1), [beyond(11), 1 - beyond(11)], axis=0)
    for most in (4_000_000, 50):
        monkeypatch.setattr("egcam.evaluation.stats._MOST", most)
        found = mean_ranks([of])
        order = ["abc".index(name) for name in found.methods]
        np.testing.assert_allclose(found.mean, ranks.mean(0)[order])
        np.testing.assert_allclose(found.low, low[order])
        np.testing.assert_allclose(found.high, high[order])


def test_images_of_one_name_are_ranked_each():
    rows = [
        Score("same", method, "deletion", value, 0.0)
        for method, values in {"a": [0.1, 0.1, 0.9], "b": [0.2, 0.2, 0.2]}.items()
        for value in values
    ]
    found = mean_ranks([Table.of(rows, ("a", "b"), ("deletion",))])
    assert found.images == 3
    assert found.mean.tolist() == [pytest.approx(4 / 3), pytest.approx(5 / 3)]


# Interpretations


@pytest.mark.parametrize(
    ("own", "other", "metric", "place"),
    [
        (0.6, 0.5, "insertion", "clear first"),
        (0.5, 0.6, "insertion", "behind"),
        (0.5, 0.6, "deletion", "clear first"),
        (0.6, 0.5, "deletion", "behind"),
    ],
)
def test_a_shift_larger_than_the_noise_is_seen(own, other, metric, place):
    of = table({metric: {"a": noisy(own, 0, spread=0.01), "b": noisy(other, 1, spread=0.01)}})
    standing = interpret(of, "a").standings[0]
    assert standing.place == place
    assert standing.best == "b"
    line = summarised(of, "b").line(metric, "a")
    assert line.verdict == ("ahead" if place == "clear first" else "behind")
    assert line.difference == pytest.approx(own - other, abs=0.01)
    # The reading and the summary are the same difference.
    assert standing.difference == pytest.approx((line.difference, line.difference_low, line.difference_high), rel=1e-9)


def test_a_shift_below_the_noise_is_a_tie():
    a = noisy(0.5, 0)
    b = a + noisy(0.002, 1, spread=0.05) - noisy(0, 1, spread=0.05).mean()
    of = table({"insertion": {"a": a, "b": b}})
    assert interpret(of, "a").standings[0].place == "tied"
    assert interpret(of, "b").standings[0].place == "first"
    told = sentences(interpret(of, "a"), LABELS)
    assert told == [
        "A-CAM is not the best.",
        "Tied with the best mean (no difference to it is shown): Insertion (B-CAM).",
    ]
    assert sentences(interpret(of, "b"), LABELS) == [
        "B-CAM has the best mean on 1 of 1 metric; not shown to be ahead of all others on Insertion (A-CAM)."
    ]


def test_many_comparisons_need_more_than_an_interval():
    """Of 60 pure noises some intervals leave out 0; corrected for their number, none is a difference."""
    many = {"a": noisy(0.5, 101)} | {f"m{number}": noisy(0.5, number) for number in range(60)}
    lines = [line for line in summarised(table({"insertion": many}), "a").lines if line.method != "a"]
    assert any(line.difference_low > 0 or line.difference_high < 0 for line in lines)
    assert {line.verdict for line in lines} == {"no difference shown"}
    assert all(line.p >= 0.05 for line in lines)


def test_p_values_are_holms_over_all_metrics():
    scores = {
        "insertion": {"a": noisy(0.5, 0), "b": noisy(0.55, 1), "c": noisy(0.45, 2)},
        "deletion": {"a": noisy(0.5, 3), "b": noisy(0.46, 4), "c": noisy(0.53, 5)},
    }
    apart = {(m, one): scores[m][one] - scores[m]["a"] for m in scores for one in ("b", "c")}
    plain = sign_p(np.stack(list(apart.values()), 1))
    of = summarised(table(scores), "a")
    np.testing.assert_allclose([of.line(metric, method).p for metric, method in apart], holm(plain))
    assert isnan(of.line("insertion", "a").p)


def test_the_primary_metric_is_said_first():
    of = table(
        {"insertion": {"a": noisy(0.4, 0), "b": noisy(0.9, 1)}, "deletion": {"a": noisy(0.1, 3), "b": noisy(0.5, 4)}}
    )
    assert sentences(interpret(of, "a", "deletion"), LABELS)[0] == (
        "By the primary metric, Deletion, A-CAM is ahead of every other method."
    )
    assert sentences(interpret(of, "a", "insertion"), LABELS)[0] == (
        "By the primary metric, Insertion, A-CAM is behind B-CAM."
    )
    told = caution(summarised(of, "a", primary="insertion"), "insertion")
    assert (
        "Holm for the 2 comparisons of a method with the others, the first half of the 5 % for those by Insert" in told
    )


def test_a_few_images_cannot_show_much():
    apart = {name: noisy(number, number, images=8, spread=0.01) for number, name in enumerate("abcdefghij")}
    found = summarised(table({"insertion": apart}), "a")
    assert {line.verdict for line in found.lines if line.method != "a"} == {"no difference shown"}
    assert "8 images cannot show a difference among 9 comparisons." in caution(found)
    assert "cannot show" not in caution(summarised(table({"insertion": {name: apart[name] for name in "abc"}}), "a"))


def test_what_is_compared_and_how_rough_it_is_are_said():
    hits = {name: np.random.default_rng(number).integers(0, 2, 30) * 1.0 for number, name in enumerate("abc")}
    skewed = {name: np.random.default_rng(number).lognormal(0, 2, 30) for number, name in enumerate("abc")}
    plain = {name: noisy(0.5, number) for number, name in enumerate("abc")}
    told = caution(summarised(table({"insertion": plain, "pointing-game": hits, "infidelity": skewed}), "a"))
    assert (
        "By Pointing game, with many ties, the difference is the share of images with a higher score less that" in told
    )
    assert "Too narrow, because images are few or scores skewed: the intervals of means by Infidelity." in told
    assert "ties" not in caution(summarised(table({"insertion": plain}), "a"))
    assert "narrow" not in caution(summarised(table({"insertion": plain}), "a"))


def test_the_best_mean_may_be_worse_on_most_images():
    """B has the better mean by one image of twenty, and is worse on all others."""
    a, b = np.full(20, 0.5), np.linspace(0.3, 0.4, 20)
    b[0] = 90.0
    of = table({"insertion": {"a": a, "b": b}})
    assert sentences(interpret(of, "b"), LABELS) == [
        "B-CAM has the best mean on 1 of 1 metric; not shown to be ahead of all others on Insertion (behind A-CAM)."
    ]
    assert interpret(of, "a").standings[0].place == "tied"


def test_a_study_of_running_times_alone_has_a_report(tmp_path, no_figures):
    write_report(made(study(metrics=("running-time",)), 4, lambda *_: 0.1), tmp_path)
    assert "reliability" not in (tmp_path / "report.md").read_text()


def test_how_far_metrics_can_be_trusted_is_in_the_report(tmp_path, no_figures):
    methods = (*METHODS, "hires-cam", "eigen-cam")
    source = made(study(methods), 12, lambda model, method, metric, image: methods.index(method) / 8)
    write_report(source, tmp_path)
    text = (tmp_path / "report.md").read_text()
    # Each method has its place on every image, so other images would say the same; of methods in the same order one
    # metric is better upwards and the other downwards.
    assert "| Insertion | 1.00 | " in text
    assert "reliability" in (tmp_path / "report.html").read_text()
    of = table({"insertion": {"a": [0.1], "b": [0.2], "c": [0.3]}, "deletion": {"a": [0.1], "b": [0.2], "c": [0.3]}})
    means = np.array([of.means(metric) for metric in of.metrics]).T
    np.testing.assert_allclose(agreement_of_metrics(means, [True, False]), [[1, -1], [-1, 1]])


def test_the_unfavourable_is_said_by_name():
    of = table(
        {
            "insertion": {"a": noisy(0.4, 0), "b": noisy(0.9, 1), "c": noisy(0.7, 2)},
            "deletion": {"a": noisy(0.1, 3), "b": noisy(0.5, 4), "c": noisy(0.6, 5)},
        }
    )
    told = sentences(interpret(of, "a"), LABELS)
    assert told[0] == "A-CAM has the best mean on 1 of 2 metrics; clear of every other method on Deletion."
    line = summarised(of, "b").line("insertion", "a")
    apart = spread(line.difference, line.difference_low, line.difference_high, sign=True)
    behind = f"Behind on Insertion (higher is better): {apart} from B-CAM, which has the best mean"
    assert told[1] == f"{behind}; C-CAM is also ahead of it."
    assert len(told) == 2
    assert (
        statement(line, "b", LABELS)
        == f"Insertion (higher is better): A-CAM is behind B-CAM: median difference {apart}"
    )
    assert apart.startswith("-0.5")


def test_readings_where_nothing_can_be_said():
    one = table({"insertion": {"a": [0.5], "b": [0.4]}})
    assert sentences(interpret(one, "a"), LABELS) == [
        "A single image has no interval: the numbers above are of that image and say nothing beyond it."
    ]
    assert "1 image, too few to tell A-CAM from B-CAM (median difference +0.1000)" in statement(
        summarised(one, "b").line("insertion", "a"), "b", LABELS
    )
    alone = table({"insertion": {"a": [0.5, 0.6]}})
    assert "only method" in sentences(interpret(alone, "a"), LABELS)[0]
    empty = table({"insertion": {"a": [nan, nan], "b": [0.4, 0.5]}})
    assert sentences(interpret(empty, "a"), LABELS) == ["A-CAM is not the best.", "No score: Insertion."]
    assert "no image has a score of both" in statement(summarised(empty, "b").line("insertion", "a"), "b", LABELS)
    assert sentences(interpret(empty, "b"), LABELS) == ["B-CAM is not the best.",
                                                   "Too few images have a score to compare: Insertion."]  # fmt: skip


def test_a_difference_that_the_test_does_not_show_is_one_of_too_few_images():
    """All of eight images on one side, p = 2 / 2^8, by seven metrics: 7 * 2 / 2^8 = 0.055."""
    scores = {"a": [0.1, 0.12, 0.14, 0.16, 0.18, 0.2, 0.22, 0.24], "b": [0.0] * 8}
    metrics = ("insertion", "irof", "sparseness", "complexity", "pixel-flipping", "average-drop", "deletion")
    line = summarised(table(dict.fromkeys(metrics, scores)), "b")
    found = line.line("irof", "a")
    assert (found.verdict, found.difference_low > 0) == ("no difference shown", True)
    assert told(found) == "too few images to tell"
    said = ": 8 images, too few to tell A-CAM from B-CAM (median difference +0.170 [0.100, 0.240])"
    assert statement(found, "b", LABELS).endswith(said)
    same = summarised(table({"irof": {"a": noisy(0.5, 0), "b": noisy(0.5, 0)}}), "b").line("irof", "a")
    assert told(same) == "no difference shown"


def test_equal_scores_are_no_difference():
    same = noisy(0.5, 0)
    of = table({"insertion": {"a": same, "b": same}})
    assert summarised(of, "b").line("insertion", "a").verdict == "no difference shown"
    assert interpret(of, "a").standings[0].place == "shared"
    assert sentences(interpret(of, "a"), LABELS) == ["A-CAM shares the best mean on Insertion (with B-CAM)."]


def test_numbers_are_printed_to_the_digits_they_have():
    assert spread(0.0231, 0.0112, 0.0359, sign=True) == "+0.023 [0.011, 0.036]"
    assert spread(-1.96, -2.99, -0.87, sign=True) == "-2.0 [-3.0, -0.9]"
    assert spread(-0.0004, -0.031, 0.03) == "0.000 [-0.031, 0.030]"
    assert spread(2.5e7, 1.5e7, 3.5e7) == "2.50e+07 [1.50e+07, 3.50e+07]"
    assert spread(nan, nan, nan) == "-"
    assert spread(0.5, nan, nan, sign=True) == "+0.5000"
    assert spread(0.5, 0.5, 0.5) == "0.5000 [0.5000, 0.5000]"
    # As tables print means.
    of = table({"insertion": {"a": [0.12345], "b": [1234567.0], "c": [nan]}})
    printed = of.to_markdown()
    for value in (0.12345, 1234567.0, nan):
        assert f" {figure(value)} " in printed.replace("*", "").replace("<u>", "").replace("</u>", "")


# The files


@pytest.fixture
def no_figures(monkeypatch):
    """Drawing takes most of a report's time, and numbers do not hang on it."""
    monkeypatch.setattr("egcam.studies.report.report.model_drawings", lambda content, part: [])


def value(model, method, metric, image):
    return 0.1 * METHODS.index(method) + 0.01 * METRICS.index(metric) + 0.001 * ((image * 7) % 5)


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_csv_files_hold_the_numbers_to_the_last_digit(tmp_path, no_figures):
    source = made(study(), 12, value, broken={Unit("net", "layer-cam", 2): "it, broke\nhere"})
    write_report(source, tmp_path)
    scores = rows_of(tmp_path / "scores.csv")
    assert len(scores) == 12 * 3 * 3
    for row in scores:
        if row["cause"]:
            assert (row["value"], row["cause"], row["image"], row["method"]) == (
                "",
                "it, broke\nhere",
                "2",
                "layer-cam",
            )
        else:
            assert float(row["value"]) == value("net", row["method"], row["metric"], int(row["image"]))
    summary = rows_of(tmp_path / "summary.csv")
    expected = Results.of(source).table("net").summary("grad-cam").set_index(["metric", "method"])
    assert len(summary) == 9
    for row in summary:
        line = expected.loc[(row["metric"], row["method"])]
        for column in ("mean", "low", "high", "difference", "difference_low", "difference_high", "rank", "p"):
            assert float(row[column] or nan) == pytest.approx(line[column], rel=1e-9, abs=1e-12, nan_ok=True)
        assert int(row["missing"]) == (1 if row["method"] == "layer-cam" else 0)
        assert row["baseline"] == "grad-cam"
    verdicts = {(row["metric"], row["method"]): row["verdict"] for row in summary}
    # Higher by 0.2 everywhere: better for insertion, worse for deletion.
    assert verdicts["insertion", "slope-cam"] == "ahead"
    assert verdicts["deletion", "slope-cam"] == "behind"
    assert verdicts["deletion", "grad-cam"] == "baseline"


def test_another_baseline(tmp_path, no_figures):
    source = made(study(), 5, value)
    write_report(source, tmp_path, baseline="layer-cam")
    assert {row["baseline"] for row in rows_of(tmp_path / "summary.csv")} == {"layer-cam"}
    assert "SlopeCAM (egcam) against LayerCAM" in (tmp_path / "report.md").read_text()
    with pytest.raises(MethodError, match="did you mean 'layer-cam'"):
        write_report(source, tmp_path, baseline="layercam")


def test_without_grad_cam_the_first_method_is_the_baseline():
    assert gather(Results.of(made(study(["layer-cam", "cam"]), 3, lambda *_: 0.5))).baseline == "layer-cam"


def test_curves_are_means_over_the_images_all_methods_have():
    source = with_pictures(made(study(), 4, value), 4)
    del source.all_curves["net", "insertion"]["layer-cam"][1]
    source.all_curves["net", "insertion"]["grad-cam"][3][2] = nan
    (part,) = gather(Results.of(source)).sections
    for method in METHODS:
        kept = source.all_curves["net", "insertion"][method]
        expected = np.mean([kept[0], kept[2]], axis=0)
        np.testing.assert_allclose(part.curves["insertion"][method].mean, expected, rtol=1e-6)
    np.testing.assert_allclose(
        part.curves["deletion"]["grad-cam"].mean,
        np.mean(list(source.all_curves["net", "deletion"]["grad-cam"].values()), axis=0),
        rtol=1e-6,
    )


def test_curves_of_other_lengths_are_brought_together():
    source = with_pictures(made(study(), 2, value), 2)
    source.all_curves["net", "insertion"]["grad-cam"] = {
        0: np.linspace(0, 1, 11, dtype=np.float32), 1: np.linspace(0, 1, 6, dtype=np.float32),
    }  # fmt: skip
    (part,) = gather(Results.of(source)).sections
    np.testing.assert_allclose(part.curves["insertion"]["grad-cam"].mean, np.linspace(0, 1, 11), atol=1e-6)


def test_examples_show_the_maps():
    source = with_pictures(made(study(examples=2), 4, value), 4)
    source.all_maps["net", "layer-cam"].pop(1)
    (part,) = gather(Results.of(source)).sections
    assert [example.name for example in part.examples] == ["0.png", "1.png"]
    assert part.examples[1].overlays["layer-cam"] is None
    assert part.examples[1].overlays["grad-cam"].size == (8, 8)
    assert (part.examples[1].target, part.examples[1].prediction) == (3, 4)
    assert not isnan(np.asarray(part.examples[0].overlays["grad-cam"]).mean())
