"""Class names in the forms people have them in: lists, arrays, id2label, class_to_idx, files."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import egcam
from egcam.errors import TargetError
from egcam.models.class_names import as_class_names, read_classes
from egcam.models.zoo import load
from support.small_models import pictures, small_net

NAMES = ["tea", "coffee", "milk", "water", "juice"]
FORMS = {
    "list": NAMES,
    "array": np.array(NAMES),
    "objects": np.array(NAMES, dtype=object),
    "keys": dict.fromkeys(NAMES).keys(),
    "generator": NAMES,
    "by index": {3: "water", 0: "tea", 1: "coffee", 2: "milk", 4: "juice"},
    "by index as text": {str(index): name for index, name in reversed(list(enumerate(NAMES)))},
    "by numpy index": {np.int64(index): name for index, name in enumerate(NAMES)},
    "by name": {name: index for index, name in reversed(list(enumerate(NAMES)))},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_names(form):
    given = iter(FORMS[form]) if form == "generator" else FORMS[form]
    assert as_class_names(given) == NAMES


@pytest.mark.parametrize("form", FORMS)
def test_targets_and_labels_by_name(form):
    explanation = egcam.explain(small_net(), pictures(), "grad-cam", ["water", "tea"], classes=FORMS[form], signed=True)
    assert explanation.targets.tolist() == [3, 0]
    assert [explanation.label(0), explanation.label(1)] == ["water", "tea"]
    assert explanation.classes == tuple(NAMES)


def test_numbers_are_names_too():
    for given in (range(5), np.arange(5), torch.arange(5), {index: index for index in range(5)}):
        assert as_class_names(given) == ["0", "1", "2", "3", "4"]
    explanation = egcam.explain(small_net(), pictures(), "grad-cam", "4", classes=[10, 4, 3, 2, 1], signed=True)
    assert explanation.targets.tolist() == [1, 1]


WRONG = {
    "one text": ("tea", "one text"),
    "no name": ([], "no name"),
    "no order": (set(NAMES), "no order"),
    "a gap": ({0: "tea", 2: "milk"}, "0 to 1"),
    "from one": ({1: "tea", 2: "milk"}, "0 to 1"),
    "twice": ({"0": "tea", "00": "milk"}, "0 to 1"),
    "neither way": ({"tea": "hot", "milk": "cold"}, "0 to 1"),
    "both ways": ({0: 1, 1: 2, 2: 0}, "either way"),
    "nested": ([["n01", "tea"], ["n02", "milk"]], r"\['n01', 'tea'\]"),
    "nothing": (["tea", None], "None"),
    "fractions": ([0.5, 1.5], "0.5"),
    "a number": (5, "int"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_holds_no_names(case):
    given, said = WRONG[case]
    with pytest.raises(TargetError, match=said):
        as_class_names(given)
    with pytest.raises(TargetError, match=said):
        egcam.GradCAM(small_net(), classes=given)


@pytest.mark.parametrize("form", ["list", "by index as text", "by name"])
def test_names_from_json(form, tmp_path):
    file = tmp_path / "names.json"
    file.write_text(" \n" + json.dumps(FORMS[form], indent=1), encoding="utf-8")
    assert read_classes(file) == NAMES


def test_names_from_text(tmp_path):
    file = tmp_path / "names.txt"
    file.write_text("tea\r\ncoffee\nlait\u0301\n", encoding="utf-8")
    assert read_classes(file) == ["tea", "coffee", "lait\u0301"]
    assert read_classes(None) is None


@pytest.mark.parametrize("text", ["", "{", '{"0": ', "[1, ", '{"0": ["n01", "tench"]}', '{"id2label": {"0": "tea"}}'])
def test_files_that_hold_no_names_are_named(text, tmp_path):
    file = tmp_path / "names.json"
    file.write_text(text)
    with pytest.raises(TargetError, match=r"names\.json"):
        read_classes(file)


def test_a_loaded_network_takes_them_too(tmp_path):
    (tmp_path / "own.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5))\n"
    )
    classifier = load(f"{tmp_path}/own.py:net", classes=FORMS["by index"])
    assert [classifier.class_name(index) for index in range(5)] == NAMES
