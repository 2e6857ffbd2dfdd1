"""The verdicts of the results pages (research/score_tables.py), on scores whose verdict is plain."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import comb
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


def test_one_image_does_not_decide(score_tables: Any) -> None:
    """Better on 39 of 40 images; on the last so much worse that the means are as one."""
    table = scored({"grad-cam": 0.1, "random": 0.3})
    worse = (table.method == "slope-cam") & (table.image == "39")
    table.loc[worse, "value"] -= 4.0
    assert score_tables.standings(table, "net")["insertion-deletion"].word == "first"


def test_hits_are_compared_on_the_images_where_methods_differ(score_tables: Any) -> None:
    table = scored({"grad-cam": 0.0}, "pointing-game")
    missed = (table.method == "grad-cam") & (table.image.astype(int) < 8)
    table["value"] = 1.0 - missed
    assert score_tables.standings(table, "net")["pointing-game"].word == "first"
    assert score_tables.standings(table.assign(metric="sparseness"), "net")["sparseness"].word == "tied"


def rows_behind(score_tables: Any, gains: dict[str, float]) -> list[str]:
    """The rows below the head of the table of what is not ahead."""
    lines = [*score_tables.not_ahead({"Question": score_tables.all_standings(scored(gains))})]
    assert lines[0].startswith("| question | networks |")
    return lines[2:-1]


def test_not_ahead_names_metrics_and_who_is_ahead(score_tables: Any) -> None:
    gains = {"grad-cam": 0.1, "hires-cam": -0.1, "layer-cam": 0.1, "random": 0.0}
    assert rows_behind(score_tables, gains) == ["| Question | net | ins-del (hires-cam) | ins-del |"]


def test_not_ahead_says_all_others_once(score_tables: Any) -> None:
    gains = {"grad-cam": -0.1, "hires-cam": -0.1, "layer-cam": -0.1}
    assert rows_behind(score_tables, gains) == ["| Question | net | ins-del (all others) |  |"]


def test_nothing_is_said_where_the_default_is_first(score_tables: Any) -> None:
    assert rows_behind(score_tables, {"grad-cam": 0.1}) == []


def test_the_best_method_is_bold_and_a_control_never(score_tables: Any) -> None:
    table = scored({"grad-cam": 0.1})
    control = table[table.method == "slope-cam"].assign(method="random")
    lines = [*score_tables.tables_of_means(pandas.concat([table, control]))]
    assert "| slope-cam | **1.000** |" in lines
    assert "| random * | 1.000 |" in lines


def shown_by_hand(differences: Any, many_ties: bool) -> float:
    """The chance that fair coins are as one-sided as these signs, from its definition."""
    above, below = int((differences > 0).sum()), int((differences < 0).sum())
    coins = above + below if many_ties else len(differences)
    return min(1.0, 2 * sum(comb(coins, heads) for heads in range(max(above, below), coins + 1)) / 2**coins)


def test_the_kept_scores_by_another_way(score_tables: Any) -> None:
    """Every verdict of one study again: pairs, signs and Holm's steps written out."""
    table, higher = score_tables.scores("confirm-cifar"), {"insertion-deletion", "sparseness"}
    for model in table.model.unique():
        chances, gains = {}, {}
        for metric in score_tables.metrics_of(table, model):
            values = score_tables.by_image(table, model, metric)
            for name in values.columns.drop(["slope-cam", score_tables.FORMER]):
                gain = (values["slope-cam"] - values[name]) * (1 if metric in higher else -1)
                gain[gain.abs() <= 1e-6 * values[["slope-cam", name]].abs().max(axis=1)] = 0
                chances[metric, name] = shown_by_hand(gain, many_ties=False)
                gains[metric, name] = (gain > 0).sum() - (gain < 0).sum()
        shown, left = set(), len(chances)
        for key in sorted(chances, key=chances.__getitem__):
            if chances[key] * left > 0.05:
                break
            shown.add(key)
            left -= 1
        for metric, standing in score_tables.standings(table, model).items():
            methods = [*standing.others]
            assert set(standing.ahead) == {
                name for name in methods if (metric, name) in shown and gains[metric, name] > 0
            }
            assert set(standing.behind) == {
                name for name in methods if (metric, name) in shown and gains[metric, name] < 0
            }


def test_pages_say_what_the_scores_say(score_tables: Any) -> None:
    default_page = pytest.importorskip("default_page")
    for file, write in (
        (default_page.PAGE, default_page.page),
        *((file, default_page.first_page) for file in default_page.LANDING),
    ):
        text = file.read_text(encoding="utf-8")
        assert write(text) == text, "python research/default_page.py writes it again"
