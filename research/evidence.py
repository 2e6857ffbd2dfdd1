"""Is the default ahead? One table of networks and metrics from the results of the studies `evidence-*`.

    export EGCAM_DATA=… EGCAM_HALVES=halves.csv EGCAM_HEADS=heads
    python research/heads.py alexnet --out heads && python research/halves.py halves.csv
    egcam study run research/studies/evidence-confirm.toml --out results/confirm      # and the others
    python research/evidence.py results/confirm results/sensitivity …
    python research/evidence.py --means results/screen

For each network and metric: the default's mean, the best of the other methods by mean, and the paired difference to it
with its 95 % bootstrap interval, turned so that positive is better. "behind" is said where the interval to any method
lies below 0, "first" where those to all lie above 0, "tied" else. `--means` prints the means of all methods instead,
with the differences to the method called "default" on the first metric, again so that positive is better for it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from egcam.evaluation.table import Table
from egcam.metrics.registry import metric as called
from egcam.studies import Results

OURS = "expected-grad-cam"
SHORT = {
    "insertion-deletion": "ins-del",
    "relevance-mass-accuracy": "mass in the box",
    "relevance-rank-accuracy": "rank in the box",
    "max-sensitivity": "max-sensitivity",
}
LATER = ("expected-grad-cam-paper",)  # a form of ours, reported beside the others


@dataclass(frozen=True)
class Against:
    """The default against one other method, over the images both have a score for."""

    method: str
    ours: float
    theirs: float
    mean: float
    low: float
    high: float
    images: int

    @property
    def text(self) -> str:
        """Difference and interval."""
        return f"{self.mean + 0.0:+.3f} [{self.low + 0.0:+.3f}, {self.high + 0.0:+.3f}]"  # no minus before a zero


def compared(table: Table, ours: str) -> pd.DataFrame:
    """Means and paired differences to our method, by metric and method."""
    return table.summary(baseline=ours, resamples=4000).set_index(["metric", "method"])


def against(frame: pd.DataFrame, metric: str, other: str, ours: str = OURS) -> Against:
    """The paired difference, positive where ours is better; `frame` is what `compared` gives for ours."""
    mine, theirs = frame.loc[metric, ours], frame.loc[metric, other]
    ends = [theirs["difference_low"], theirs["difference_high"]]
    sign = -1.0 if called(metric).higher_is_better else 1.0
    low, high = sorted(sign * end for end in ends)
    return Against(other, mine["mean"], theirs["mean"], sign * theirs["difference"], low, high, theirs["images"])


def verdict(all_others: list[Against]) -> str:
    """Against the whole field."""
    better = [one.method for one in all_others if one.high < 0]
    if better:
        return f"behind {len(better)}"
    return "**first**" if all(one.low > 0 for one in all_others) else "tied"


def rows(label: str, table: Table, metrics: list[str], methods: list[str]) -> list[str]:
    """One row of Markdown for each metric."""
    found = []
    frame = compared(table, OURS)
    for metric in metrics:
        field = [against(frame, metric, method) for method in methods if method != OURS and method not in LATER]
        higher = called(metric).higher_is_better
        best = max(field, key=lambda one: one.theirs if higher else -one.theirs)
        plain = next((one for one in field if one.method == "grad-cam"), None)
        cells = [
            label,
            f"{SHORT.get(metric, metric)} {called(metric).arrow}",
            f"{best.ours:.3f}",
            f"{best.method} {best.theirs:.3f}",
            best.text,
            verdict(field),
            "" if plain is None else plain.text,
            str(best.images),
        ]
        found.append("| " + " | ".join(cells) + " |")
    return found


def means(label: str, table: Table, metrics: list[str], methods: list[str]) -> list[str]:
    """Means of all methods and, where one is called "default", what it is ahead by on the first metric."""
    head = ["method", *(f"{SHORT.get(metric, metric)} {called(metric).arrow}" for metric in metrics)]
    frame = compared(table, "default") if "default" in methods else None
    if frame is not None:
        head.append(f"{SHORT.get(metrics[0], metrics[0])}, default ahead by")
    found = [f"\n{label}\n", "| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for method in methods:
        cells = [method, *(f"{np.nanmean(table.values(method, metric)):.3f}" for metric in metrics)]
        if frame is not None:
            cells.append("" if method == "default" else against(frame, metrics[0], method, "default").text)
        found.append("| " + " | ".join(cells) + " |")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    parser.add_argument("--means", action="store_true")
    options = parser.parse_args()
    if not options.means:
        print("| network | metric | default | best other | difference to it | among all | to Grad-CAM | images |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for folder in options.results:
        results = Results.of(folder)
        for label, table in results.tables.items():
            if not table.rows:
                continue
            metrics = [one.name for one in results.study.metrics]
            methods = [one.name for one in results.study.methods]
            print("\n".join((means if options.means else rows)(label, table, metrics, methods)))


if __name__ == "__main__":
    main()
