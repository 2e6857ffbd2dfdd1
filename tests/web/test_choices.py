"""Whatever a request says, it becomes a valid choice or a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from egcam.errors import EgcamError
from egcam.web.choices import Choices, checked
from egcam.web.limits import Limits
from egcam.web.shared_model import share
from support.tiny_page import picture, tiny_classifier

SHARED = share(tiny_classifier())
GOOD: dict[str, Any] = {
    "target": 1,
    "layer": "3",
    "methods": ["grad-cam", "layer-cam", "grad-cam"],
    "samples": 8,
    "reference": "black",
}


def _checked(**changes: Any) -> Choices:
    return checked(SHARED, Limits(), **{**GOOD, **changes})


def test_good_choices_pass_and_a_method_counts_once() -> None:
    assert _checked() == Choices(1, "3", ("grad-cam", "layer-cam"), 8, "black")
    assert _checked(layer="usual").options(SHARED)["layer"] is None
    assert _checked().options(SHARED)["layer"] == "3"
    assert _checked(target="2", samples=4.0, methods="cam") == Choices(2, "3", ("cam",), 4, "black")


def test_black_is_black_as_the_network_sees_it() -> None:
    images = SHARED.classifier.preprocess(picture())[None]
    given = SHARED.classifier.options_for("occlusion", _checked().options(SHARED))
    drawn = given["reference"].draw(images, [0], 0, 0).images
    assert drawn.unique().tolist() == [-1.0]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"target": 3}, "there is no class 3: the network has 3 classes, 0 to 2"),
        ({"target": -1}, "there is no class -1"),
        ({"target": None}, "no class is chosen"),
        ({"target": True}, "no class is chosen"),
        ({"target": 1.5}, "no class is chosen"),
        ({"target": "1; drop"}, "no class is chosen"),
        ({"target": float("inf")}, "no class is chosen"),
        ({"target": {"a": 1}}, "no class is chosen"),
        ({"layer": "5"}, "this page has no layer '5'"),
        ({"layer": "__class__"}, "this page has no layer"),
        ({"layer": None}, "this page has no layer None"),
        ({"layer": ["3"]}, "this page has no layer"),
        ({"methods": []}, "no method is chosen"),
        ({"methods": None}, "no method is chosen"),
        ({"methods": ["grad-kam"]}, "did you mean 'grad-cam'"),
        ({"methods": [["grad-cam"]]}, "there is no method"),
        ({"methods": {"grad-cam": 1}}, "no method is chosen"),
        ({"samples": -1}, "samples is a whole number from 1 to 64, or 0 for the method's own, not -1"),
        ({"samples": 65}, "or 0 for the method's own, not 65"),
        ({"samples": 10**9}, "from 1 to 64"),
        ({"samples": 2.5}, "not 2.5"),
        ({"samples": float("nan")}, "from 1 to 64"),
        ({"samples": "9" * 10_000}, "from 1 to 64"),
        ({"reference": "/etc"}, "there is no reference '/etc'"),
        ({"reference": None}, "there is no reference None"),
    ],
)
def test_bad_choices_are_told_in_a_sentence(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(EgcamError) as caught:
        _checked(**changes)
    assert told in str(caught.value)
    assert len(str(caught.value)) < 300
