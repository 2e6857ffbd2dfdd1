"""How often verdicts, intervals and the reliability of metrics are wrong, on scores whose truth is known.

    python benchmarks/verdict_error.py [--families 1000] [--methods 10] [--metrics 9] [--images 12 20 50] [--seed 0]

A family is a table of methods x metrics against a baseline, summarised as reports do it; its error is the share of
tables in which any method is called ahead or behind, though none differs. Three minutes on one core.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import numpy as np
from scipy import stats

from egcam.evaluation.comparable import Values
from egcam.evaluation.signs import SURE, medians, sign_p
from egcam.evaluation.stats import intervals, is_rough, reliability, summarised
from egcam.evaluation.table import Table
from egcam.metrics.registry import records

Draw = Callable[[np.random.Generator, tuple[int, ...]], Values]

MEDIAN_ZERO: dict[str, Draw] = {
    "normal": lambda source, shape: source.standard_normal(shape),
    "t2": lambda source, shape: source.standard_t(2, shape),
    "lognormal": lambda source, shape: source.lognormal(size=shape) - 1,
    "two points, 0 or 10, nine to one": lambda source, shape: 10.0 * (source.random(shape) < 0.1),
}
MEAN_ZERO: dict[str, Draw] = {
    "normal": MEDIAN_ZERO["normal"],
    "t2": MEDIAN_ZERO["t2"],
    "lognormal": lambda source, shape: source.lognormal(size=shape) - np.exp(0.5),
    "two points, -1 or 9, nine to one": lambda source, shape: np.where(source.random(shape) < 0.1, 9.0, -1.0),
}
HITS: Draw = lambda source, shape: (source.random(shape) < 0.3) * 1.0 - (source.random(shape) < 0.3)  # noqa: E731


def tables(draw: Draw, metrics: Sequence[str], methods: int, images: int, count: int, seed: int) -> Iterator[Table]:
    """Tables in which the baseline scores 0 everywhere, and the others what is drawn."""
    called = ("baseline", *(f"method {number}" for number in range(1, methods)))
    shape = methods, len(metrics), images
    seconds, causes = np.zeros(shape), np.full(shape, None)
    source = np.random.default_rng(seed)
    for _ in range(count):
        drawn = draw(source, shape)
        drawn[0] = 0.0
        yield Table(drawn, called, tuple(metrics), tuple(range(images)), seconds, causes)


def verdict_error(found: Iterator[Table], primary: str | None) -> float:
    """The share of the tables with a verdict."""
    wrong = []
    for table in found:
        lines = summarised(table, "baseline", resamples=2, primary=primary).lines
        wrong.append(any(line.verdict in ("ahead", "behind") for line in lines))
    return float(np.mean(wrong))


def turned_signs(differences: Values, draws: int = 4000) -> Values:
    """(K,) p-values by turning the signs of images, as if differences were symmetric: all signs, of up to twelve."""
    count = len(differences)
    if count <= 12:
        signs = np.array([*product([-1.0, 1.0], repeat=count)])
    else:
        drawn = np.random.default_rng(0).choice([-1.0, 1.0], (draws, count))
        signs = np.concatenate([np.ones((1, count)), drawn])
    return np.asarray((np.abs(signs @ differences) >= np.abs(differences.sum(0)) * (1 - 1e-6)).mean(0))


def student(differences: Values) -> Values:
    """(K,) p-values of Student's t."""
    with np.errstate(divide="ignore", invalid="ignore"):
        size = differences.mean(0) / (differences.std(0, ddof=1) / np.sqrt(len(differences)))
    return np.asarray(2 * stats.t.sf(np.abs(np.nan_to_num(size)), len(differences) - 1))


def johnson(differences: Values) -> Values:
    """(K,) p-values of Johnson's t (1978), which corrects for skewness."""
    count, mean = len(differences), differences.mean(0)
    variance = differences.var(0, ddof=1)
    third = ((differences - mean) ** 3).mean(0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shifted = mean + third / (6 * variance * count) + third * mean**2 / (3 * variance**2)
        p_values = 2 * stats.t.sf(np.abs(shifted) / np.sqrt(variance / count), count - 1)
    return np.nan_to_num(p_values, nan=0.0)


def checked(differences: Values) -> Values:
    """(K,) the same of Student's t, and no verdict where differences are all the same, or skewed for their number."""
    refused = [not np.ptp(column) or is_rough(column[:, None]) for column in differences.T]
    return np.where(refused, 1.0, student(differences))


MEANS_BY = {
    "turned signs": turned_signs,
    "Student's t": student,
    "Johnson's t": johnson,
    "Student's t unless skewed": checked,
}


def error_of_means(draw: Draw, test: Callable[[Values], Values], columns: int, images: int, count: int) -> float:
    """The share of families in which a test of means, corrected by Holm, shows a difference that is not there."""
    source = np.random.default_rng(1)
    return float(np.mean([test(draw(source, (images, columns))).min() <= SURE / columns for _ in range(count)]))


def coverage(draw: Draw, truth: float, images: int, count: int, columns: int = 10) -> str:
    """How often the interval of a mean holds it, and of how many metrics it is said to be too narrow."""
    source = np.random.default_rng(2)
    held, rough = [], []
    for number in range(count):
        drawn = draw(source, (images, columns))
        low, high = intervals(drawn, seed=number)
        held += ((low <= truth) & (truth <= high)).tolist()
        rough.append(is_rough(drawn))
    return f"{np.mean(held):.3f} ({np.mean(rough):.2f})"


def reliabilities(methods: int, share: float, images: int, count: int) -> str:
    """The mean correlation of the methods' means with those of other images, and the mean reliability."""
    source = np.random.default_rng(3)
    true, found = [], []
    for _ in range(count):
        effects = np.sqrt(share / (1 - share) / images) * source.standard_normal(methods)
        first, second = (effects + source.standard_normal((images, methods)) for _ in range(2))
        true.append(np.corrcoef(first.mean(0), second.mean(0))[0, 1])
        found.append(reliability(first))
    return f"{np.mean(true):.2f}, {np.mean(found):.2f}"


def planned(factor: float, level: float, count: int, apart: float = 0.5) -> str:
    """How often `factor` (w / d)^2 images show a normal difference d, w being half the interval of twenty images."""
    source = np.random.default_rng(4)
    _, low, high = medians(apart + source.standard_normal((20, count)))
    images = round(factor * float((high - low).mean() / 2 / apart) ** 2)
    return f"{images} images, {(sign_p(apart + source.standard_normal((images, count))) <= level).mean():.2f}"


def row(*cells: object) -> None:
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(title: str, *cells: object) -> None:
    print(f"\n{title}\n")
    row(*cells)
    row(*["---"] * len(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", type=int, default=1000)
    parser.add_argument("--methods", type=int, default=10)
    parser.add_argument("--metrics", type=int, default=9)
    parser.add_argument("--images", type=int, nargs="+", default=[12, 20, 50])
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    plain = [one.name for one in records() if not one.many_ties][: options.metrics]
    comparisons = (options.methods - 1) * options.metrics

    head(
        f"Error of {comparisons} verdicts; in brackets with a primary metric",
        *("differences of median 0", *(f"n = {images}" for images in options.images)),
    )
    hits = [one.name for one in records() if one.many_ties]
    kinds = {**MEDIAN_ZERO, f"hits or misses, {len(hits)} metrics": HITS}
    for number, (kind, draw) in enumerate(kinds.items()):
        metrics = hits if draw is HITS else plain
        cells = []
        for images in options.images:
            seed = options.seed + 1000 * number + images
            both = [
                verdict_error(tables(draw, metrics, options.methods, images, options.families, seed), primary)
                for primary in (None, metrics[0])
            ]
            cells.append(f"{both[0]:.3f} ({both[1]:.3f})")
        row(kind, *cells)

    head(
        f"Error of {comparisons} tests of means, which are not used",
        *("differences of mean 0", "test", *(f"n = {images}" for images in options.images)),
    )
    for (kind, draw), (name, test) in product(MEAN_ZERO.items(), MEANS_BY.items()):
        found = [error_of_means(draw, test, comparisons, images, options.families // 5) for images in options.images]
        row(kind, name, *(f"{one:.3f}" for one in found))

    sizes = (6, 10, 20, 50, 200)
    head(
        "How often the interval of a mean holds it; in brackets how often it is said to be too narrow",
        *("scores", *(f"n = {images}" for images in sizes)),
    )
    scored: dict[str, tuple[Draw, float]] = {
        "normal": (MEDIAN_ZERO["normal"], 0.0),
        "t2": (MEDIAN_ZERO["t2"], 0.0),
        "lognormal": (MEAN_ZERO["lognormal"], 0.0),
        "one of five hits": (lambda source, shape: (source.random(shape) < 0.2) * 1.0, 0.2),
    }
    for kind, (draw, truth) in scored.items():
        row(kind, *(coverage(draw, truth, images, options.families // 5) for images in sizes))

    shares = (0.2, 0.44, 0.7, 0.9)
    head(
        "Correlation of the means with those of 24 other images, and the reliability from 24",
        *("methods", *(f"share {share}" for share in shares)),
    )
    for methods in (5, 8, 12, 20):
        row(methods, *(reliabilities(methods, share, 24, 2 * options.families) for share in shares))

    head("How often planned images show a normal difference", "comparisons", "images, share")
    row("one, of the primary metric", planned(45, SURE / 2, 5 * options.families))
    row("one of a hundred", planned(90, SURE / 100, 5 * options.families))


if __name__ == "__main__":
    main()
