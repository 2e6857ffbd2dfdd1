"""What the numbers say of SlopeCAM, made by rule: where it has the best mean, is tied, or behind whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

from egcam.evaluation.numbers import counted
from egcam.evaluation.printing import image_counts
from egcam.evaluation.signs import SURE
from egcam.evaluation.stats import Line, Summary, summarised
from egcam.evaluation.table import Table
from egcam.metrics.registry import metric as metric_called
from egcam.studies.report.formatting import better, difference_of, listed, metric_label, spread

TOO_FEW = "too few images to tell"
Place = Literal["clear first", "first", "shared", "tied", "behind", "unsettled", "none"]


@dataclass(frozen=True)
class Standing:
    """Where a method stands by one metric."""

    metric: str  # the metric
    # "clear first": best mean, and ahead of every other method; "first": best mean, but not ahead of all; "shared":
    # best mean, which another has as well; "tied": another has the best mean, but is not shown to be ahead; "behind":
    # it is; "unsettled": too few images to be compared; "none": it has no score.
    place: Place
    best: str | None  # the method with the best mean (the next best, where this one is first); None without another
    # How far this method is from that one, with its interval; see `egcam.evaluation.stats.Line`.
    difference: tuple[float, float, float]
    ahead_of_it: tuple[str, ...]  # the methods that are ahead of this one; see `egcam.evaluation.stats.Line`
    level_with: tuple[str, ...]  # the methods it cannot be distinguished from
    equal_to: tuple[str, ...]  # the methods whose mean is printed like its own


@dataclass(frozen=True)
class Interpretation:
    """Where a method stands, metric by metric, and by which is decided, if one was named.

    `images` is the most that any metric compares it on.
    """

    method: str
    images: int
    rivals: int
    standings: tuple[Standing, ...]
    primary: str | None = None

    def at(self, *places: Place) -> list[Standing]:
        """The standings at these places."""
        return [one for one in self.standings if one.place in places]


def interpret(table: Table, method: str, primary: str | None = None) -> Interpretation:
    """Where a method stands among the others of a table."""
    summary = summarised(table, method, primary=primary)
    standings = tuple(_standing(summary, metric, method) for metric in table.metrics)
    return Interpretation(method, max(image_counts(table), default=0), len(table.methods) - 1, standings, primary)


def _standing(summary: Summary, metric: str, method: str) -> Standing:
    own = summary.line(metric, method)
    others = [line for line in summary.of(metric) if line.method != method and isfinite(line.rank)]
    # Verdicts are of the others against this method.
    ahead = tuple(line.method for line in others if line.verdict == "ahead")
    level = tuple(line.method for line in others if line.verdict not in ("ahead", "behind"))
    rival = min(others, key=lambda line: line.rank, default=None)
    # This method less the other: the summary has it the other way round.
    apart = (rival and (-rival.difference, -rival.difference_high, -rival.difference_low)) or (0.0, 0.0, 0.0)
    place = _place(own, rival, others)
    equal = tuple(line.method for line in others if line.rank == own.rank)
    return Standing(metric, place, rival.method if rival else None, apart, ahead, level, equal)


def _place(own: Line, rival: Line | None, others: Sequence[Line]) -> Place:
    if not isfinite(own.mean):
        return "none"
    if rival is None or not own.compared:
        return "unsettled"
    if any(line.verdict == "too few images" for line in others):
        return "unsettled"
    if own.rank > rival.rank:
        return "behind" if rival.verdict == "ahead" else "tied"
    if all(line.verdict == "behind" for line in others):
        return "clear first"
    return "first" if own.rank < rival.rank else "shared"


def sentences(interpretation: Interpretation, labels: Mapping[str, str]) -> list[str]:
    """The interpretation in plain sentences, the unfavourable as plainly as the rest."""
    name = labels[interpretation.method]
    if interpretation.rivals == 0:
        return [f"{name} is the only method: there is nothing to compare it with."]
    if interpretation.images < 2:
        return ["A single image has no interval: the numbers above are of that image and say nothing beyond it."]
    lines = [
        _by_primary(interpretation, name, labels),
        _first(interpretation, name, labels),
        _tied(interpretation, labels),
        *_behind(interpretation, labels),
    ]
    none = interpretation.at("none")
    if none:
        lines.append(f"No score: {_metrics(none)}.")
    unsettled = interpretation.at("unsettled")
    if unsettled:
        lines.append(f"Too few images have a score to compare: {_metrics(unsettled)}.")
    return [sentence for sentence in lines if sentence]


def caution(summary: Summary, primary: str | None = None) -> str:
    """What intervals and verdicts are of, and how far they can be trusted."""
    metrics = list(dict.fromkeys(line.metric for line in summary.lines))
    pairs = [line.pairs for line in summary.lines if isfinite(line.p)]
    comparisons = counted(len(pairs), "comparison")
    half = f", the first half of the 5 % for those by {metric_label(primary)}" if primary else ""
    text = (
        "Intervals are 95 %: those of means are bootstraps over images, those of differences follow from the signs of "
        'the images\' differences. They hold for other images like these, not for other models or data. "Ahead" and '
        '"behind" are said where so many images are on one side that p is at most 5 % if the median difference is 0, '
        f"corrected by Holm for the {comparisons} of a method with the others{half}: however skewed differences are, "
        "the error is no larger. Means are not compared: no test of them holds for skewed differences."
    )
    tied = [metric_label(one) for one in metrics if metric_called(one).many_ties]
    if tied:
        text += f" By {listed(tied)}, with many ties, the difference is the share of images with a higher score less "
        text += "that with a lower one."
    rough = [metric_label(one) for one in metrics if any(line.rough for line in summary.of(one))]
    if rough:
        text += f" Too narrow, because images are few or scores skewed: the intervals of means by {listed(rough)}."
    if pairs and len(pairs) * 2 / 2 ** min(pairs) > SURE:
        text += f" {counted(min(pairs), 'image')} cannot show a difference among {comparisons}."
    return text


_BY_PRIMARY = {
    "clear first": "is ahead of every other method",
    "first": "has the best mean, but is not shown to be ahead of all",
    "shared": "shares the best mean",
    "tied": "is not shown to differ from the best",
    "behind": "is behind",
    "unsettled": "has too few scores to be compared",
    "none": "has no score",
}


def _by_primary(interpretation: Interpretation, name: str, labels: Mapping[str, str]) -> str:
    for one in interpretation.standings:
        if one.metric == interpretation.primary:
            whom = f" {_few(one.ahead_of_it, labels)}" if one.place == "behind" else _though_behind(one, labels)
            return f"By the primary metric, {metric_label(one.metric)}, {name} {_BY_PRIMARY[one.place]}{whom}."
    return ""


def _first(interpretation: Interpretation, name: str, labels: Mapping[str, str]) -> str:
    clear, other, shared = interpretation.at("clear first"), interpretation.at("first"), interpretation.at("shared")
    total = len(interpretation.standings)
    both = [
        f"{metric_label(one.metric)} (with {_few(one.equal_to, labels)}{_though_behind(one, labels)})" for one in shared
    ]
    shares = f"shares the best mean on {listed(both)}" if shared else ""
    if not clear and not other:
        if shared:
            return f"{name} {shares}."
        return f"{name} has the best mean on none of the {total} metrics." if total > 1 else f"{name} is not the best."
    parts = [f"{name} has the best mean on {len(clear) + len(other)} of {counted(total, 'metric')}"]
    if clear:
        parts.append(f"clear of every other method on {_metrics(clear)}")
    if other:
        entries = [f"{metric_label(one.metric)} ({_not_behind(one, labels)})" for one in other]
        parts.append(f"not shown to be ahead of all others on {listed(entries)}")
    parts += [f"it {shares}"] if shared else []
    return "; ".join(parts) + "."


def _tied(interpretation: Interpretation, labels: Mapping[str, str]) -> str:
    tied = interpretation.at("tied")
    if not tied:
        return ""
    entries = [f"{metric_label(one.metric)} ({labels[one.best or '']}{_though_behind(one, labels)})" for one in tied]
    return f"Tied with the best mean (no difference to it is shown): {listed(entries)}."


def _though_behind(one: Standing, labels: Mapping[str, str]) -> str:
    """A noisy best may be level with a method that others are ahead of; and a method may have the best mean, but be
    worse on most images.
    """
    but = "and" if one.place == "first" else "but"
    return f", {but} is behind {_few(one.ahead_of_it, labels)}" if one.ahead_of_it else ""


def _not_behind(one: Standing, labels: Mapping[str, str]) -> str:
    """The methods that the one with the best mean is not ahead of."""
    said = _few(one.level_with, labels), f"behind {_few(one.ahead_of_it, labels)}" if one.ahead_of_it else ""
    return "; ".join(filter(None, said))


def _behind(interpretation: Interpretation, labels: Mapping[str, str]) -> list[str]:
    lines = []
    for one in interpretation.at("behind"):
        also = [method for method in one.ahead_of_it if method != one.best]
        more = f"; {_few(also, labels)} {'is' if len(also) == 1 else 'are'} also ahead of it" if also else ""
        apart = f"{spread(*one.difference, sign=True)} from {labels[one.best or '']}, which has the best mean"
        lines.append(f"Behind on {metric_label(one.metric)} ({better(one.metric)}): {apart}{more}.")
    return lines


def _metrics(standings: Sequence[Standing]) -> str:
    return listed([metric_label(one.metric) for one in standings])


def _few(methods: Sequence[str], labels: Mapping[str, str], most: int = 5) -> str:
    shown = [labels[method] for method in methods[:most]]
    more = len(methods) - len(shown)
    return listed(shown) if not more else listed([*shown, counted(more, "other")])


def told(line: Line) -> str:
    """The verdict in words.

    Where the interval leaves 0 out and the test, which counts all comparisons, does not decide, more images would.

    Example:
        >>> told(Line("irof", "a", 0.5, pairs=8, difference=0.167, difference_low=0.09, difference_high=0.27,
        ...           verdict="no difference shown"))
        'too few images to tell'
    """
    apart = line.difference_low > 0 or line.difference_high < 0
    is_open = line.verdict == "too few images" or (line.verdict == "no difference shown" and apart)
    return TOO_FEW if is_open else line.verdict


def statement(line: Line, baseline: str, labels: Mapping[str, str]) -> str:
    """How a method stands to the baseline by one metric, in a sentence.

    Example:
        >>> line = Line("insertion", "a", 0.5, 0.4, 0.6, 9, 0, True, 0.0231, 0.0112, 0.0359, 9, 1.0, "ahead")
        >>> statement(line, "b", {"a": "A-CAM", "b": "B-CAM"})
        'Insertion (higher is better): A-CAM is ahead of B-CAM: median difference +0.023 [0.011, 0.036]'
    """
    about = f"{metric_label(line.metric)} ({better(line.metric)})"
    name, other = labels[line.method], labels[baseline]
    size = spread(line.difference, line.difference_low, line.difference_high, sign=True)
    apart = f"{difference_of(line.metric)} {size}"
    if line.verdict == "no score":
        return f"{about}: no image has a score of both {name} and {other}"
    if line.verdict == "not compared":
        scored = f"{apart} on {counted(line.pairs, 'image')}"
        return f"{about}: {name} and {other} are not compared, one of them lacks more than half of the scores: {scored}"
    if told(line) == TOO_FEW:
        return f"{about}: {counted(line.pairs, 'image')}, too few to tell {name} from {other} ({apart})"
    if line.verdict == "no difference shown":
        return f"{about}: no difference shown between {name} and {other}: {apart}"
    return f"{about}: {name} is {'ahead of' if line.verdict == 'ahead' else 'behind'} {other}: {apart}"
