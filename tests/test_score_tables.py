"""The verdicts of the results pages (research/score_tables.py), on scores whose verdict is plain."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pandas = pytest.importorskip("pandas")
RESEARCH = Path(__file__).parent.parent / "research"


@pytest.fixture
def score_tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(RESEARCH))
    import score_tables as module  # type: ignore[import-not-found,unused-ignore]

    yield module
    sys.modules.pop("score_tables")


def scored(gains: dict[str, float], metric: str = "insertion-deletion", images: int = 40) -> Any:
    """The default scores 1 and each other method that less its gain, with noise that is far smaller than any gain."""
    noise = np.random.default_rng(0).normal(scale=1e-3, size=(len(gains) + 1, images))
    rows = [
        {
            "model": "net",
            "method": method,
            "image": str(image),
            "metric": metric,
            "value": 1 - gain + noise[place, image],
        }
        for place, (method, gain) in enumerate({"slope-cam": 0.0, **gains}.items())
        for image in range(images)
    ]
    return pandas.DataFrame(rows)


@pytest.mark.parametrize(
    ("gains", "word"),
    [
        ({"grad-cam": 0.1, "hires-cam": 0.2, "random": 0.3}, "first"),
        ({"grad-cam": 0.1, "hires-cam": 0.0, "random": 0.3}, "tied"),
        ({"grad-cam": 0.1, "hires-cam": -0.1, "random": 0.3}, "behind 1"),
        ({"grad-cam": 0.1, "hires-cam": 0.2, "random": 0.0}, "first°"),
        ({"grad-cam": -0.1, "hires-cam": -0.2, "random": -0.3}, "behind 2°"),
    ],
)
def test_where_the_default_stands(score_tables: Any, gains: dict[str, float], word: str) -> None:
    assert score_tables.standings(scored(gains), "net")["insertion-deletion"].word == word


def test_lower_is_better_for_infidelity(score_tables: Any) -> None:
    table = scored({"grad-cam": 0.1}, "infidelity")
    assert score_tables.standings(table, "net")["infidelity"].word == "behind 1"


def test_not_ahead_names_metrics_and_who_is_ahead(score_tables: Any) -> None:
    gains = {"grad-cam": 0.1, "hires-cam": -0.1, "layer-cam": 0.1, "random": 0.0}
    lines = [*score_tables.not_ahead("Question", score_tables.all_standings(scored(gains)))]
    assert lines[0].startswith("| Question |")
    assert lines[2:] == ["| net | ins-del (hires-cam) | ins-del |", ""]


def test_not_ahead_says_all_others_once(score_tables: Any) -> None:
    gains = {"grad-cam": -0.1, "hires-cam": -0.1, "layer-cam": -0.1}
    lines = [*score_tables.not_ahead("Question", score_tables.all_standings(scored(gains)))]
    assert lines[2] == "| net | ins-del (all others) |  |"


def test_nothing_is_said_where_the_default_is_first(score_tables: Any) -> None:
    assert not [*score_tables.not_ahead("Question", score_tables.all_standings(scored({"grad-cam": 0.1})))]


def test_the_best_method_is_bold_and_a_control_never(score_tables: Any) -> None:
    table = scored({"grad-cam": 0.1})
    control = table[table.method == "slope-cam"].assign(method="random")
    lines = [*score_tables.tables_of_means(pandas.concat([table, control]))]
    assert "| slope-cam | **1.000** |" in lines
    assert "| random * | 1.000 |" in lines
