"""`evaluate` and its table: the same numbers as the functions, shared work, and failures that do not spread."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

import egcam
from egcam import metrics
from egcam.errors import EgcamError, InputError, MethodError
from egcam.evaluation.evaluate import evaluate
from egcam.evaluation.score import Score
from egcam.evaluation.table import Table
from egcam.models.classifier import Classifier
from egcam.models.preprocessing import Preprocessing
from metrics.conftest import Counting, make_scene, measured


def bright(images, target):
    return images.mean(1) + 2


def dark(images, target):
    return 3 - images.mean(1)


METHODS = {"bright": bright, "dark": dark}


def values(table, method, metric):
    return torch.from_numpy(table.values(method, metric))


def test_the_table_holds_what_the_functions_give(scene):
    left_out = ("running-time", "irof")
    names = [one for one in metrics.names() if one not in left_out and not one.endswith("model-randomization")]
    table = evaluate(scene.model, scene.images, METHODS, names, target=scene.target, masks=scene.masks, seed=3)
    for name in names:
        one = metrics.metric(name)
        for method, explain in METHODS.items():
            maps = explain(scene.images, scene.target)
            given = {
                "model": [scene.model, scene.images],
                "heatmaps": [maps],
                "masks": [scene.masks],
                "explainer": [explain],
            }
            arguments = [value for need in one.needs for value in given[need]]
            arguments += [scene.target] if "model" in one.needs else []
            seed = {"seed": 3} if "seed" in one.options() else {}
            expected = measured(one, *arguments, **seed)
            torch.testing.assert_close(values(table, method, name), expected.double(), msg=f"{method} {name}")


def test_registered_methods_and_explainers(scene):
    cam = egcam.GradCAM(scene.model, layer="4")
    names = ["deletion", "max-sensitivity", "model-randomization", "random-logit", "adcc", "sparseness"]
    table = evaluate(
        scene.model,
        scene.images,
        {"by name": "grad-cam", "by object": cam, "expected": "slope-cam"},
        names,
        layer="4",
        reference=scene.images.flip(0),
        method_options={"expected": {"samples": 4}},
    )
    for name in names:
        torch.testing.assert_close(values(table, "by name", name), values(table, "by object", name))
    assert not np.isnan([row.value for row in table.rows]).any()
    maps = cam(scene.images).heatmaps
    torch.testing.assert_close(
        values(table, "by name", "deletion"), metrics.Deletion()(scene.model, scene.images, maps)
    )


def test_work_is_shared(scene):
    calls = []

    def counted(images, target):
        calls.append(len(images))
        return bright(images, target)

    names = ["max-sensitivity", "avg-sensitivity", "relative-input-stability", "relative-output-stability"]
    evaluate(scene.model, scene.images, {"m": counted}, [*names, "complexity", "sparseness"])
    assert sum(calls) == 3 * (1 + 10)
    calls.clear()
    evaluate(scene.model, scene.images, {"m": counted}, [*names, "local-lipschitz"])
    assert sum(calls) == 3 * (1 + 10 + 10)
    counting = Counting(scene.model)
    evaluate(counting, scene.images, {"m": bright}, ["insertion", "deletion", "insertion-deletion"], layer=None)
    # The images once, then both curves: 12 steps each.
    assert counting.seen == 3 * (1 + 12 + 12)


def test_curves_with_the_same_options_are_shared(scene):
    names = ["insertion", "deletion", "insertion-deletion"]
    counting = Counting(scene.model)
    coarse = {name: {"step": 36} for name in names}
    table = evaluate(counting, scene.images, {"m": bright}, names, metric_options=coarse)
    assert counting.seen == 3 * (1 + 4 + 4)
    maps = bright(scene.images, None)
    expected = metrics.Deletion(step=36)(scene.model, scene.images, maps)
    torch.testing.assert_close(values(table, "m", "deletion"), expected)
    mixed = evaluate(scene.model, scene.images, {"m": bright}, names, metric_options={"deletion": {"step": 36}})
    torch.testing.assert_close(values(mixed, "m", "deletion"), expected)
    torch.testing.assert_close(values(mixed, "m", "insertion"), metrics.Insertion()(scene.model, scene.images, maps))


def test_what_infidelity_finds_out_about_the_network_is_shared_by_methods(scene):
    apart = {
        name: metrics.Infidelity()(scene.model, scene.images, METHODS[name](scene.images, None)) for name in METHODS
    }
    counting = Counting(scene.model)
    table = evaluate(counting, scene.images, METHODS, ["infidelity"])
    assert counting.seen == 3 * (1 + 16)
    for name, expected in apart.items():
        torch.testing.assert_close(values(table, name, "infidelity"), expected, rtol=0, atol=0)


def test_and_by_maps_of_one_case(scene):
    counting = Counting(scene.model)
    case = metrics.Case(counting, scene.images)
    for explain in METHODS.values():
        maps = explain(scene.images, None)
        found = metrics.Infidelity().of(case.explained(maps))
        torch.testing.assert_close(found, metrics.Infidelity()(scene.model, scene.images, maps), rtol=0, atol=0)
    # The images once, and the patches once.
    assert counting.seen == 3 * (1 + 16)


def test_the_images_are_passed_once_whatever_the_metrics(scene):
    """Logits, probabilities and predictions are read from one pass; 12 steps each, 16 patches, 9 shares, one mask."""
    names = ["faithfulness-estimate", "pixel-flipping", "deletion", "infidelity", "road", "average-drop", "sufficiency"]
    counting = Counting(scene.model)
    evaluate(counting, scene.images, {"m": bright}, names)
    assert counting.seen == 3 * (1 + 12 + 12 + 12 + 16 + 9 + 1)


def test_the_maps_are_handed_out(scene):
    def coarse(images, target):
        if any(torch.equal(image, scene.images[1]) for image in images):
            raise ValueError("not this one")
        return bright(images, target)[:, ::3, ::3]

    cam = egcam.GradCAM(scene.model, layer="4", signed=True)
    with pytest.warns(egcam.errors.FailedEvaluationWarning):
        table = evaluate(scene.model, scene.images, {"cam": cam, "own": coarse}, ["sparseness"], target=scene.target)
    torch.testing.assert_close(table.maps["cam"], cam(scene.images, scene.target).maps.float())
    assert table.maps["own"][1].isnan().all()
    torch.testing.assert_close(table.maps["own"][[0, 2]], bright(scene.images, None)[[0, 2], ::3, ::3].float())


def test_a_baseline_that_draws_is_drawn_for_each_map(scene):
    drawn = []

    def noise(images):
        drawn.append(len(images))
        return torch.rand_like(images)

    evaluate(scene.model, scene.images, METHODS, ["infidelity"], metric_options={"infidelity": {"baseline": noise}})
    assert drawn == [3] * len(METHODS)


def test_curves_are_kept_under_the_names_of_the_images(scene):
    named = dict(zip("abc", scene.images, strict=True))
    table = evaluate(scene.model, named, {"m": bright}, ["insertion-deletion"])
    assert list(table.curves) == [("m", "insertion"), ("m", "deletion")]
    maps = bright(scene.images, None)
    for metric, whole in (
        ("insertion", metrics.Insertion().curve(metrics.Case(scene.model, scene.images, maps))),
        ("deletion", metrics.Deletion().curve(metrics.Case(scene.model, scene.images, maps))),
    ):
        kept = table.curves["m", metric]
        assert list(kept) == ["a", "b", "c"]
        for image, name in enumerate("abc"):
            torch.testing.assert_close(kept[name].scores, whole.scores[image])
            torch.testing.assert_close(kept[name].fractions, whole.fractions[image])


def test_a_method_that_fails_leaves_the_others_alone(scene):
    def broken(images, target):
        raise RuntimeError("no such layer")

    table = evaluate(scene.model, scene.images, {"bright": bright, "broken": broken}, ["sparseness", "deletion"])
    alone = evaluate(scene.model, scene.images, {"bright": bright}, ["sparseness", "deletion"])
    assert torch.equal(values(table, "bright", "deletion"), values(alone, "bright", "deletion"))
    assert values(table, "broken", "deletion").isnan().all()
    assert set(table.causes["cause"]) == {"RuntimeError: no such layer"}
    printed = table.to_markdown()
    assert "| broken | - | - |" in printed
    assert "- broken, all metrics: no score for 3 of 3 images: RuntimeError: no such layer" in printed


def test_an_image_that_fails_leaves_the_others_alone(scene):
    poison = scene.images[1].clone()

    def picky(images, target):
        if any(torch.equal(image, poison) for image in images):
            raise ValueError("cannot look at this")
        return bright(images, target)

    names = ["sparseness", "deletion", "sufficiency", "max-sensitivity"]
    table = evaluate(scene.model, dict(zip("abc", scene.images, strict=True)), {"picky": picky}, names)
    whole = evaluate(scene.model, scene.images, {"picky": bright}, names)
    for name in names:
        found = values(table, "picky", name)
        assert found.isnan().tolist() == [False, True, False]
        if name != "sufficiency":
            torch.testing.assert_close(found[[0, 2]], values(whole, "picky", name)[[0, 2]])
    assert set(table.causes["image"]) == {"b"}
    assert set(table.causes["cause"]) == {"cannot look at this"}


def test_zero_maps_under_perturbation_print_a_dash_with_the_cause(scene):
    known = scene.images.clone()

    def forgetful(images, target):
        same = torch.tensor([bool((image == known).flatten(1).all(1).any()) for image in images])
        return bright(images, target) * same.view(-1, 1, 1)

    options = {"relative-input-stability": {"noise": metrics.Noise("uniform", -0.01, 0.01)}}
    table = evaluate(
        scene.model,
        scene.images,
        {"bright": bright, "forgetful": forgetful},
        ["relative-input-stability", "sparseness"],
        metric_options=options,
    )
    line = next(line for line in table.to_markdown().splitlines() if line.startswith("| forgetful"))
    assert line.split("|")[2].strip() == "-"
    assert "its map becomes zero everywhere under perturbation" in table.to_markdown()


def test_masks_and_targets_per_image(scene):
    table = evaluate(scene.model, scene.images, METHODS, ["pointing-game"], masks=scene.masks)
    expected = metrics.PointingGame()(bright(scene.images, None), scene.masks)
    assert torch.equal(values(table, "bright", "pointing-game"), expected)


def test_defaults_are_the_papers_metrics(scene):
    class Stop(Exception):
        pass

    lines = []
    evaluate(
        scene.model,
        scene.images[:2],
        {"bright": bright},
        masks=scene.masks[:2],
        metric_options={"irof": {"segments": torch.arange(144).view(12, 12) // 36}},
        progress=lines.append,
    )
    named = {name for line in lines for name in line.split(": ")[1].split(", ")} - {"explain"}
    assert named == {name for name in metrics.names() if metrics.metric(name).paper}
    assert len(named) == 20  # nineteen estimators and the running time


def test_a_classifier_brings_its_classes_its_layer_and_its_normalisation(scene):
    seen = Preprocessing((12, 12), 12, mean=(0.3, 0.4, 0.5), std=(0.2, 0.3, 0.4))
    model = scene.model.float()
    classifier = Classifier(model, "pets", ["cat", "dog", "hen", "owl"], seen, layer="2")
    photos = [Image.fromarray((60 * one).byte().permute(1, 2, 0).numpy()) for one in scene.images.abs()]
    names = ["deletion", "pixel-flipping"]
    said = {"method_options": {"occlusion": {"window": 4}}, "target": "hen"}
    found = evaluate(classifier, dict(zip("abc", photos, strict=True)), ["hires-cam", "occlusion"], names, **said)
    plain = evaluate(
        model,
        torch.stack([seen(photo) for photo in photos]),
        ["hires-cam", "occlusion"],
        names,
        layer="2",
        classes=classifier.classes,
        normalisation=seen.normalisation,
        **said,
    )
    assert found.assumed is None
    assert found.frame["image"].unique().tolist() == ["a", "b", "c"]
    for method in found.methods:
        torch.testing.assert_close(found.maps[method], plain.maps[method])
        for name in names:
            torch.testing.assert_close(values(found, method, name), values(plain, method, name))
    other = evaluate(
        scene.model, torch.stack([seen(photo) for photo in photos]), ["occlusion"], names, **said | {"target": 2}
    )
    assert not torch.equal(values(found, "occlusion", "pixel-flipping"), values(other, "occlusion", "pixel-flipping"))


WRONG = {
    "unknown method": lambda s: evaluate(s.model, s.images, ["grad-cma"], ["sparseness"]),
    "no methods": lambda s: evaluate(s.model, s.images, [], ["sparseness"]),
    "a number for a method": lambda s: evaluate(s.model, s.images, [3], ["sparseness"]),
    "twice the same name": lambda s: evaluate(s.model, s.images, [bright, bright], ["sparseness"]),
    "unknown metric": lambda s: evaluate(s.model, s.images, METHODS, ["sparsness"]),
    "no metrics": lambda s: evaluate(s.model, s.images, METHODS, []),
    "no masks": lambda s: evaluate(s.model, s.images, METHODS, ["pointing-game"]),
    "masks of another size": lambda s: evaluate(
        s.model, s.images, METHODS, ["pointing-game"], masks=s.masks[:, :6, :6]
    ),
    "unknown option": lambda s: evaluate(
        s.model, s.images, METHODS, ["deletion"], metric_options={"deletion": {"stpe": 3}}
    ),
    "options for a metric not asked for": lambda s: evaluate(
        s.model, s.images, METHODS, ["deletion"], metric_options={"insertion": {"step": 3}}
    ),
    "an option that nothing takes": lambda s: evaluate(s.model, s.images, ["grad-cam"], ["deletion"], lyaer="4"),
    "photographs of no network": lambda s: evaluate(s.model, {"a": Image.new("RGB", (9, 9))}, METHODS, ["deletion"]),
    "unknown class": lambda s: evaluate(s.model, s.images, METHODS, ["deletion"], target=99),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_say_so_before_any_work(case, scene):
    with pytest.raises(EgcamError):
        WRONG[case](scene)


def made_table():
    """Two metrics, three methods, four images, numbers by hand."""
    scores = {
        ("sparseness", "a"): [1.0, 2.0, 3.0, 4.0],
        ("sparseness", "b"): [2.0, 2.0, 4.0, 4.0],
        ("sparseness", "c_%"): [0.0, 0.0, 0.0, 1.0],
        ("complexity", "a"): [1.0, 1.0, 1.0, 1.0],
        ("complexity", "b"): [3.0, 3.0, float("nan"), 3.0],
        ("complexity", "c_%"): [float("nan")] * 4,
    }
    rows = [
        Score(image, method, metric, value, 0.5, None if value == value else "why not")
        for (metric, method), listed in scores.items()
        for image, value in enumerate(listed)
    ]
    return Table.of(rows, ("a", "b", "c_%"), ("sparseness", "complexity"))


def test_frame_is_tidy():
    frame = made_table().frame
    assert list(frame.columns) == ["image", "method", "metric", "value", "seconds"]
    assert len(frame) == 24
    assert frame.query("method == 'b' and metric == 'sparseness'")["value"].tolist() == [2.0, 2.0, 4.0, 4.0]


def test_summary_by_hand():
    summary = made_table().summary("a").set_index(["metric", "method"])
    assert summary.loc[("sparseness", "b"), "mean"] == 3.0
    assert summary.loc[("sparseness", "b"), "difference"] == 0.5
    assert summary.loc[("sparseness", "a"), "difference"] == 0.0
    # An interval of a median needs six images.
    assert np.isnan(summary.loc[("sparseness", "b"), "difference_low"])
    assert summary["rank"]["sparseness"].tolist() == [2, 1, 3]
    # Lower is better, and what is missing has no rank.
    assert summary["rank"]["complexity"].tolist()[:2] == [1, 2]
    assert np.isnan(summary.loc[("complexity", "c_%"), "rank"])
    assert summary.loc[("complexity", "b"), "images"] == 3
    assert summary.loc[("complexity", "b"), "missing"] == 1
    # Paired over the three images both have.
    assert summary.loc[("complexity", "b"), "difference"] == 2.0


def test_bootstrap_interval_covers_as_it_says():
    """In 100 samples of 40 normal numbers, the 95 % interval holds the true mean about 95 times."""
    source = np.random.default_rng(0)
    held = 0
    for number in range(100):
        drawn = source.normal(1.0, 2.0, 40)
        rows = tuple(Score(image, "m", "sparseness", value, 0.0) for image, value in enumerate(drawn))
        line = Table.of(rows, ("m",), ("sparseness",)).summary(resamples=200, seed=number).iloc[0]
        assert line["low"] < line["mean"] < line["high"]
        held += line["low"] < 1.0 < line["high"]
    assert 86 <= held <= 99


def test_summary_is_repeatable_and_needs_a_known_baseline():
    table = made_table()
    assert table.summary(seed=1).equals(table.summary(seed=1))
    with pytest.raises(MethodError, match="did you mean"):
        table.summary("bb")


def test_markdown():
    lines = made_table().to_markdown().splitlines()
    assert lines[0] == "| method | SP ↑ | CP ↓ |"
    assert lines[2] == "| a | <u>2.500</u> | **1.000** |"
    assert lines[3] == "| b | **3.000** | <u>3.000</u> |"
    assert lines[4] == "| c_% | 0.2500 | - |"
    assert "- b, CP: no score for 1 of 4 images: why not" in lines


def test_latex():
    text = made_table().to_latex()
    assert text.splitlines()[:3] == [
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"Method & SP $\uparrow$ & CP $\downarrow$ \\",
    ]
    assert r"b & \textbf{3.000} & \underline{3.000} \\" in text
    assert r"c\_\% & 0.2500 & - \\" in text
    assert r"\bottomrule" in text


def test_csv(tmp_path):
    import pandas

    table = made_table()
    table.to_csv(tmp_path / "scores.csv")
    pandas.testing.assert_frame_equal(pandas.read_csv(tmp_path / "scores.csv"), table.frame)
    assert table.to_csv().splitlines()[0] == "image,method,metric,value,seconds"


def test_missing_pandas_says_how_to_get_it(monkeypatch):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "pandas" else found(name))
    with pytest.raises(ImportError, match=r"egcam\[study\]"):
        _ = made_table().frame


def test_missing_skimage_says_how_to_get_it(monkeypatch, scene):
    import importlib.util

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "skimage" else found(name))
    with pytest.raises(ImportError, match=r"egcam\[study\]"):
        metrics.Irof()(scene.model, scene.images, scene.maps)


def test_import_stays_light():
    """Neither pandas nor SciPy nor scikit-image comes with the metrics."""
    import subprocess
    import sys

    asked = "[name for name in ('pandas', 'scipy', 'skimage') if name in sys.modules]"
    code = f"import sys, egcam.metrics, egcam.evaluation; print({asked})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_input_error_of_a_single_image_is_a_cause_not_an_end():
    scene = make_scene(count=2)
    with pytest.raises(InputError):
        metrics.Infidelity(patch=50)(scene.model, scene.images, scene.maps)
    table = evaluate(scene.model, scene.images, METHODS, ["infidelity"], metric_options={"infidelity": {"patch": 50}})
    assert values(table, "bright", "infidelity").isnan().all()
    assert "does not fit" in table.to_markdown()


def test_rounding_is_no_difference():
    values = {
        "a": [0.5, 0.25, 0.125] * 2,
        "b": [0.5 + 2e-8, 0.25 + 1e-8, 0.125 + 1e-8] * 2,
        "c": [0.6, 0.35, 0.225] * 2,
    }
    rows = [Score(image, name, "deletion", value, 0.0) for name in values for image, value in enumerate(values[name])]
    table = Table.of(rows, tuple(values), ("deletion",))
    lines = table.summary("a").set_index("method")
    assert lines["rank"].tolist() == [1.0, 1.0, 3.0]
    assert lines.loc["b", ["difference", "difference_low", "difference_high"]].tolist() == [0.0, 0.0, 0.0]
    assert lines.loc["c", "difference"] == pytest.approx(0.1)
