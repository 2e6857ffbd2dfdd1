"""Tables of kept scores, and what may be said of them: used by the script that writes the page of the default."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas

from egcam.attribution.registry import is_control
from egcam.evaluation.signs import SURE, holm, paired_difference, sign_p
from egcam.metrics import registry

SCORES = Path(__file__).parent / "scores"
OURS = "slope-cam"
FORMER = "two steps"  # of the default, with 32 samples: shown, not counted
TRUTH = "the truth"  # the Shapley values of the layer's cells, taken as a map
METRICS = {  # name: (heading, higher is better, digits)
    "insertion-deletion": ("ins-del ↑", True, 3),
    "infidelity": ("infidelity ↓", False, 3),
    "sparseness": ("sparseness ↑", True, 3),
    "cell-mass-accuracy": ("heat in the right place ↑", True, 3),
    "pointing-game": ("pointing ↑", True, 2),
    "relevance-mass-accuracy": ("mass in box ↑", True, 3),
    "relevance-rank-accuracy": ("rank in box ↑", True, 3),
    "max-sensitivity": ("max-sensitivity ↓", False, 3),
}
_MANY_TIES = {metric.name for metric in registry.records() if metric.many_ties}


@dataclass(frozen=True)
class Standing:
    """Where the default stands on one metric: methods it is ahead of and behind, and controls it does not beat."""

    ahead: list[str]
    behind: list[str]
    others: list[str]
    unbeaten: list[str]

    @property
    def word(self) -> str:
        """As the tables print it; ° where a control is not beaten."""
        found = "first" if len(self.ahead) == len(self.others) else "tied"
        return (f"behind {len(self.behind)}" if self.behind else found) + "°" * bool(self.unbeaten)


def scores(name: str) -> pandas.DataFrame:
    """The long table of a study: model, method, image, metric, value."""
    return pandas.read_parquet(SCORES / f"{name}.parquet").astype({"value": "float64"})


def by_image(table: pandas.DataFrame, model: str, metric: str) -> pandas.DataFrame:
    """Images x methods, only images that every method has a score of, in the order of their names."""
    part = table[(table.model == model) & (table.metric == metric)].astype({"image": str, "method": str})
    return part.pivot(index="image", columns="method", values="value").astype(float).dropna()


def metrics_of(table: pandas.DataFrame, model: str) -> list[str]:
    """The metrics a network has scores of, in the order of the tables."""
    known = set(table[table.model == model].metric)
    return [metric for metric in METRICS if metric in known]


def standings(table: pandas.DataFrame, model: str, ours: str = OURS) -> dict[str, Standing]:
    """Where the default stands on each metric, by sign tests, corrected over all comparisons of the network."""
    columns = {metric: by_image(table, model, metric) for metric in metrics_of(table, model)}
    return standings_of(columns, {metric: METRICS[metric][1] for metric in columns}, ours)


def standings_of(
    columns: dict[str, pandas.DataFrame], higher: dict[str, bool], ours: str = OURS
) -> dict[str, Standing]:
    """The same for images x methods of each metric, and whether higher is better; of another method than the default
    if `ours` names one.
    """
    gains: dict[tuple[str, str], float] = {}
    chances: dict[tuple[str, str], float] = {}
    for metric, found in columns.items():
        sign = 1 if higher[metric] else -1
        others = [name for name in found.columns if name not in (ours, FORMER)]
        gain = np.stack([sign * paired_difference(found[ours].to_numpy(), found[one].to_numpy()) for one in others], 1)
        chance = sign_p(gain, metric in _MANY_TIES)
        for place, name in enumerate(others):
            gains[metric, name] = float(np.sign(gain[:, place]).sum())
            chances[metric, name] = float(chance[place])
    corrected = dict(zip(chances, holm(np.array(list(chances.values()))), strict=True))
    result = {}
    for metric in columns:
        names = [name for one, name in gains if one == metric]
        sure = [name for name in names if corrected[metric, name] <= SURE]
        ahead = [name for name in sure if gains[metric, name] > 0]
        behind = [name for name in sure if gains[metric, name] < 0 and not is_control(name)]
        methods = [name for name in names if not is_control(name)]
        controls = [name for name in names if is_control(name) and name not in ahead]
        result[metric] = Standing([name for name in ahead if not is_control(name)], behind, methods, controls)
    return result


def tables_of_means(table: pandas.DataFrame, ours: str = OURS) -> Iterator[str]:
    """A table of means for each network, the best method of each column in bold; and where the default stands, or
    another method.
    """
    for model in sorted(table.model.unique()):
        metrics = metrics_of(table, model)
        columns = {metric: by_image(table, model, metric) for metric in metrics}
        yield f"**{model}**, {_counts(columns)} images\n"
        yield from header(["method", *(METRICS[metric][0] for metric in metrics)])
        average = pandas.DataFrame({metric: column.mean() for metric, column in columns.items()})
        methods = average[[not is_control(name) for name in average.index]]
        best = {m: methods[m].max() if METRICS[m][1] else methods[m].min() for m in metrics}
        first = [name for name in dict.fromkeys((ours, OURS, FORMER)) if name in average.index]
        rest = [name for name in average.index if name not in first]
        for method in [*first, *sorted(rest, key=is_control)]:
            figures = []
            for metric in metrics:
                text = f"{average.loc[method, metric]:.{METRICS[metric][2]}f}"
                is_best = average.loc[method, metric] == best[metric] and not is_control(method)
                figures.append(f"**{text}**" if is_best else text)
            yield f"| {method}{' *' * is_control(method)} | " + " | ".join(figures) + " |"
        if ours in average.index:
            found = standings(table, model, ours)
            yield f"| *where {ours} stands* | " + " | ".join(found[metric].word for metric in metrics) + " |"
        yield ""


def verdicts(table: pandas.DataFrame, against: str = "grad-cam", ours: str = OURS) -> Iterator[str]:
    """One row for each network: the default's mean, that of another method, and where the default stands; or where
    `ours` stands.
    """
    metrics = [metric for metric in METRICS if metric in set(table.metric)]
    yield from header(["network", "images", *(METRICS[metric][0] for metric in metrics)])
    for model in sorted(table.model.unique()):
        own = metrics_of(table, model)
        columns = {metric: by_image(table, model, metric) for metric in own}
        found = standings(table, model, ours)
        cells = []
        for metric in metrics:
            if metric not in own:
                cells.append("")
                continue
            digits = METRICS[metric][2]
            mean, other = (float(columns[metric][name].mean()) for name in (ours, against))
            cells.append(f"{mean:.{digits}f} / {other:.{digits}f} {marked(found[metric].word)}")
        yield f"| {model} | {_counts(columns)} | " + " | ".join(cells) + " |"
    yield ""


def _counts(columns: dict[str, pandas.DataFrame]) -> str:
    """How many images each metric has scores of: one number, a range of two, or all in the order of the metrics."""
    counts = [len(column) for column in columns.values()]
    fewest, most = min(counts), max(counts)
    if most - fewest > 1:
        return ", ".join(map(str, counts))
    return str(most) if fewest == most else f"{fewest} to {most}"


def all_standings(table: pandas.DataFrame) -> dict[str, dict[str, Standing]]:
    """Where the default stands on each network and metric, metrics as the tables name them."""
    return {
        model: {METRICS[metric][0][:-2]: standing for metric, standing in standings(table, model).items()}
        for model in sorted(table.model.unique())
    }


def not_ahead(questions: dict[str, dict[str, dict[str, Standing]]]) -> Iterator[str]:
    """A row for each question and networks on which the same methods are ahead, or the same controls not beaten; the
    standings are by question, network and metric.
    """
    yield from header(["question", "networks", "behind on", "not shown to beat every control on"])
    for question, networks in questions.items():
        rows: dict[tuple[str, str], list[str]] = {}
        for network, by_metric in networks.items():
            rows.setdefault((_behind(by_metric), _unbeaten(by_metric)), []).append(network)
        yield from (f"| {question} | {', '.join(who)} | {' | '.join(row)} |" for row, who in rows.items() if any(row))
    yield ""


def _behind(by_metric: dict[str, Standing]) -> str:
    """Metrics and, in brackets, the methods that are ahead on them."""
    metrics: dict[str, list[str]] = {}
    for metric, standing in by_metric.items():
        if standing.behind:
            every = len(standing.behind) == len(standing.others) > 2
            metrics.setdefault("all others" if every else ", ".join(standing.behind), []).append(metric)
    return "; ".join(f"{', '.join(names)} ({ahead})" for ahead, names in metrics.items())


def _unbeaten(by_metric: dict[str, Standing]) -> str:
    return ", ".join(metric for metric, standing in by_metric.items() if standing.unbeaten)


def header(cells: list[str]) -> Iterator[str]:
    """The head of a table."""
    yield "| " + " | ".join(cells) + " |"
    yield "| --- |" + " --- |" * (len(cells) - 1)


def marked(word: str) -> str:
    """A verdict, bold where the default is first."""
    return f"**{word}**" if word.startswith("first") else word
