"""Means that can be compared: over the same images for all methods, with the number of images said."""

from __future__ import annotations

from io import StringIO
from math import isnan, nan

import numpy as np
import pytest
from rich.console import Console

from egcam.evaluation.score import Score
from egcam.evaluation.table import Table

SOURCE = np.random.default_rng(3)
GRAD_CAM = SOURCE.uniform(0.1, 0.4, 12)
OTHER = SOURCE.uniform(0.3, 0.6, 12)


def table(scores, cause="it broke"):
    """A table from {metric: {method: scores by image}}."""
    rows = [
        Score(image, method, metric, value, 0.0, f"{cause} on {image}" if isnan(value) else None)
        for metric, by_method in scores.items()
        for method, values in by_method.items()
        for image, value in enumerate(values)
    ]
    return Table.of(rows, tuple(next(iter(scores.values()))), tuple(scores))


def only(values, kept):
    """The values at the kept images, NaN elsewhere."""
    return [value if image in kept else nan for image, value in enumerate(values)]


def printed(of):
    text = StringIO()
    Console(file=text, width=200, force_terminal=True).print(of.render())
    return text.getvalue()


def line_of(text, method):
    return next(line for line in text.splitlines() if line.replace("| ", "").startswith(method))


def test_a_method_with_scores_of_the_easy_images_is_never_best():
    """The same as Grad-CAM, but failing on all images except the two with the best scores."""
    easy = set(np.argsort(GRAD_CAM)[:2].tolist())
    of = table({"deletion": {"grad-cam": GRAD_CAM, "copy": only(GRAD_CAM, easy), "layer-cam": OTHER}})
    own, whole = np.sort(GRAD_CAM)[:2].mean(), GRAD_CAM.mean()
    assert own < whole

    lines = of.summary().set_index("method")
    assert lines.loc["copy", "mean"] == pytest.approx(own)
    assert isnan(lines.loc["copy", "rank"])
    assert not lines.loc["copy", "compared"]
    assert lines["images"].tolist() == [12, 2, 12]
    assert lines["missing"].tolist() == [0, 10, 0]
    assert lines.loc["grad-cam", "mean"] == pytest.approx(whole)
    assert lines["rank"].tolist()[::2] == [1.0, 2.0]
    # Against Grad-CAM on the two images it has, it is the same.
    assert lines.loc["copy", ["difference", "pairs"]].tolist() == [0.0, 2]

    markdown = of.to_markdown()
    assert f"| grad-cam | **{whole:.4f}** |" in markdown
    assert f"| copy | {own:#.4g} (n = 2) |" in markdown
    assert f"| layer-cam | <u>{OTHER.mean():.4f}</u> |" in markdown
    assert "- Means over 12 images; a mean with its own n is over these n images alone and not compared" in markdown
    latex = of.to_latex()
    assert rf"grad-cam & \textbf{{{whole:.4f}}} \\" in latex
    assert rf"copy & {own:#.4g} ($n=2$) \\" in latex
    assert "% Means over 12 images; a mean with its own n" in latex
    shown = printed(of)
    assert "\x1b[1m" in line_of(shown, "grad-cam")
    assert "\x1b[" not in line_of(shown, "copy")
    assert f"{own:#.4g} (n = 2)" in shown
    assert "Means over 12 images" in shown


def test_means_are_over_the_images_all_methods_have():
    easy = set(np.argsort(GRAD_CAM)[:7].tolist())
    of = table({"deletion": {"grad-cam": GRAD_CAM, "copy": only(GRAD_CAM, easy), "layer-cam": OTHER}})
    common = sorted(easy)
    lines = of.summary().set_index("method")
    for method, values in (("grad-cam", GRAD_CAM), ("copy", GRAD_CAM), ("layer-cam", OTHER)):
        assert lines.loc[method, "mean"] == pytest.approx(values[common].mean())
        assert lines.loc[method, "low"] <= values[common].mean() <= lines.loc[method, "high"]
        assert lines.loc[method, "difference"] == pytest.approx(np.median((values - GRAD_CAM)[common]))
    assert lines["images"].tolist() == lines["pairs"].tolist() == [7, 7, 7]
    assert lines["missing"].tolist() == [0, 5, 0]
    assert lines["rank"].tolist() == [1.0, 1.0, 3.0]
    best = f"**{GRAD_CAM[common].mean():.4f}**"
    assert of.to_markdown().count(best) == 2
    assert "Means over 7 images, those that all compared methods have a score for" in of.to_markdown()


def means_by_loops(scores):
    """{method: (mean, compared)} of {method: scores}, image by image."""
    images = range(len(next(iter(scores.values()))))
    scored = [image for image in images if any(not isnan(values[image]) for values in scores.values())]
    compared = []
    for method, values in scores.items():
        held = sum(not isnan(values[image]) for image in images)
        if held and held >= len(scored) / 2:
            compared.append(method)
    common = [image for image in scored if all(not isnan(scores[method][image]) for method in compared)]
    found = {}
    for method, values in scores.items():
        counted = method in compared and bool(common)
        kept = common if counted else [image for image in images if not isnan(values[image])]
        found[method] = (sum(values[image] for image in kept) / len(kept) if kept else nan, counted)
    return found


@pytest.mark.parametrize("seed", range(30))
def test_summaries_are_those_of_plain_loops(seed):
    source = np.random.default_rng(seed)
    scores = {name: source.uniform(size=9) for name in "abcd"}
    for values in scores.values():
        values[source.uniform(size=9) < source.choice([0.0, 0.2, 0.6, 1.0])] = nan
    expected = means_by_loops(scores)
    lines = table({"insertion": scores}).summary("a").set_index("method")
    ranked = sorted((-mean for mean, compared in expected.values() if compared))
    for method, (mean, compared) in expected.items():
        assert lines.loc[method, "mean"] == pytest.approx(mean, nan_ok=True)
        assert lines.loc[method, "compared"] == compared
        rank = ranked.index(-mean) + 1 if compared else nan
        assert lines.loc[method, "rank"] == pytest.approx(rank, nan_ok=True)


def test_methods_without_a_common_image_are_not_ranked():
    of = table({"insertion": {"a": [0.9, 0.8, nan, nan], "b": [nan, nan, 0.1, 0.2]}})
    assert np.isnan(of.summary()["rank"]).all()
    assert "| a | 0.8500 (n = 2) |" in of.to_markdown()
    assert "| b | 0.1500 (n = 2) |" in of.to_markdown()
    assert "No image has a score for all methods" in of.to_markdown()


def test_metrics_that_differ_in_images_say_so_in_the_last_row():
    of = table(
        {
            "insertion": {"a": [0.5, 0.7, 0.9], "b": [0.2, 0.4, 0.6]},
            # Undefined by the metric, not failed: the same rule.
            "sparseness": {"a": [0.5, 0.7, nan], "b": [0.2, 0.4, 0.6]},
        }
    )
    assert "| *images* | 3 | 2 |" in of.to_markdown()
    assert "| b | <u>0.4000</u> | <u>0.3000</u> |" in of.to_markdown()
    assert r"images & 3 & 2 \\" in of.to_latex()
    assert [line.split() for line in printed(of).splitlines() if line.startswith("images")] == [["images", "3", "2"]]
    assert "Means over as many images as the last row says" in of.to_markdown()


def test_means_that_are_printed_alike_are_tied():
    of = table({"deletion": {"a": [0.0021441], "b": [0.0021439], "c": [0.0031], "d": [0.0042]}})
    assert of.summary()["rank"].tolist() == [1.0, 1.0, 3.0, 4.0]
    markdown = of.to_markdown()
    assert "| a | **0.002144** |" in markdown
    assert "| b | **0.002144** |" in markdown
    assert "| c | <u>0.003100</u> |" in markdown
    alike = table({"deletion": {"a": [0.0021441], "b": [0.0021439]}})
    assert "**" not in alike.to_markdown()
    assert "<u>" not in alike.to_markdown()


def test_missing_scores_are_a_line_for_each_method():
    of = table(
        {
            "insertion": {"a": only(GRAD_CAM, range(8)), "b": [*GRAD_CAM[:11], nan]},
            "deletion": {"a": only(GRAD_CAM, range(8)), "b": GRAD_CAM},
        },
        "could not be read",
    )
    notes = [line for line in of.to_markdown().splitlines() if line.startswith("- ")]
    assert notes[1:] == [
        "- a, all metrics: no score for 4 of 12 images: could not be read on 8 (1 image) and 3 other causes",
        "- b, Ins: no score for 1 of 12 images: could not be read on 11",
    ]
    assert printed(of).count("no score for") == 2


def test_unreadable_images_are_not_in_the_number():
    scores = [[*values[:10], nan, nan, nan, nan] for values in (GRAD_CAM, OTHER)]
    of = table({"deletion": dict(zip("ab", scores, strict=True))})
    assert "Means over 10 images, " in of.to_markdown()
    assert "Means over 10 images, " in of.to_latex()
    assert "Means over 10 images, " in printed(of)
    assert of.summary()["images"].tolist() == [10, 10]


def test_bars_leave_out_what_is_not_compared():
    from egcam.figures.scores import best_of, by_metric, scores_of

    easy = np.argsort(GRAD_CAM)[:2].tolist()
    of = table({"deletion": {"grad-cam": GRAD_CAM, "copy": only(GRAD_CAM, easy), "layer-cam": OTHER}})
    panel = by_metric(scores_of(of))["deletion"]
    assert isnan(panel["copy"].mean)
    assert isnan(panel["copy"].low)
    assert best_of(panel, higher_is_better=False) == {"grad-cam"}
    assert panel["grad-cam"].mean == pytest.approx(GRAD_CAM.mean())
