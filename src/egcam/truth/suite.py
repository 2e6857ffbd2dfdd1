"""All tests with a known answer, for any methods, as one table and one picture."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from egcam.attribution.registry import is_control, method, records, usual_methods
from egcam.errors import EgcamError, MethodError
from egcam.evaluation.comparable import Values
from egcam.evaluation.controls import not_ahead
from egcam.evaluation.printing import NO_BETTER
from egcam.metrics.cell_shapley import cell_agreement, cell_shapley
from egcam.models.restore import untouched
from egcam.pages.tables import Cell, Column, Mark, TextTable, as_markdown, as_rich
from egcam.progress import Progress, part_of
from egcam.truth.grids import difull_trial, dipart_trial, gridpg_trial, make_grids
from egcam.truth.planted import planted_trial
from egcam.truth.shapes import LAYER, ShapesNetwork, empty_backgrounds, recognised, shapes_network, shapes_trial
from egcam.truth.trial import Trial
from egcam.truth.units import unit_trials
from egcam.truth.walls import walls_trial

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

_CONTROL = " *"

MEANINGS = {
    "walls": "heat where the network cannot look",
    "difull": "heat in the one cell of a grid that the head is connected to",
    "dipart": "the same, with features that see the whole grid",
    "gridpg": "heat in the cell of the grid that shows the class",
    "patch": "heat on a small patch that decides the class",
    "shapes": "heat on the shape that makes the class",
    "unit+": "networks of known weights: evidence for the class, F1 of the cells",
    "unit-": "the same for evidence against it",
    "cells": "correlation with the Shapley values of the layer's cells",
}


@dataclass(frozen=True)
class TruthTable:
    """What `run_truth` found."""

    methods: tuple[str, ...]  # in the order of the table
    tests: Mapping[str, str]  # likewise, with "higher" or "lower"
    scores: Mapping[tuple[str, str], Values]  # (N,) for each method and test; NaN if there is none
    causes: Mapping[tuple[str, str], str]  # why a method has no score in a test
    # For the picture, by test: a trial with one image, and the maps of the methods.
    examples: Mapping[str, tuple[Trial, Mapping[str, Tensor]]] = field(repr=False)

    def mean(self, name: str, test: str) -> float:
        """The mean score; NaN if the method has none."""
        values = self.scores[name, test]
        finite = values[np.isfinite(values)]
        return float(finite.mean()) if len(finite) else float("nan")

    def not_ahead(self, test: str) -> frozenset[str]:
        """The methods that are not shown to be better than every control."""
        scored = {name: self.scores[name, test] for name in self.methods if isfinite(self.mean(name, test))}
        return not_ahead(scored, self.tests[test] == "higher")

    def as_text_table(self, digits: int = 3) -> TextTable:
        """Methods by tests: the best method of each is marked, and what does not beat the controls has a sign."""
        arrows = {"higher": "↑", "lower": "↓"}
        columns = (
            Column("method"),
            *(Column(f"{test}\n{arrows[way]}", MEANINGS.get(test, "")) for test, way in self.tests.items()),
        )
        cells = {test: self._cells(test, digits) for test in self.tests}
        return TextTable(
            columns,
            tuple(
                (Cell(_label(name)), *(cells[test][place] for test in self.tests))
                for place, name in enumerate(self.methods)
            ),
        )

    def _cells(self, test: str, digits: int) -> list[Cell]:
        means = [self.mean(name, test) for name in self.methods]
        ours = {round(mean, 3) for name, mean in zip(self.methods, means, strict=True) if not is_control(name)}
        ours = {mean for mean in ours if isfinite(mean)}
        best = (max if self.tests[test] == "higher" else min)(ours) if ours else None
        weak = self.not_ahead(test)
        cells = []
        for name, mean in zip(self.methods, means, strict=True):
            mark: Mark = "best" if not is_control(name) and round(mean, 3) == best and name not in weak else ""
            text = f"{mean:.{digits}f}" if isfinite(mean) else "-"
            cells.append(Cell(text, mark, None, NO_BETTER if name in weak else ""))
        return cells

    @property
    def notes(self) -> list[str]:
        """What the table needs to be read."""
        controls = [name for name in self.methods if is_control(name)]
        notes = [f"{test}: {MEANINGS[test]}" for test in self.tests if test in MEANINGS]
        scored = [name for name in controls if any(isfinite(self.mean(name, test)) for test in self.tests)]
        if controls:
            notes.append(f"{_CONTROL.strip()} is a control: it knows nothing of the class")
        if scored:
            notes.append(f"{NO_BETTER} is not shown to be better than each control ({', '.join(scored)})")
        for name in self.methods:
            causes = dict.fromkeys(self.causes[name, test] for test in self.tests if (name, test) in self.causes)
            notes += [f"{name}: no score: {cause}" for cause in causes]
        return notes

    def to_markdown(self) -> str:
        """The table in Markdown, notes below."""
        return as_markdown(self.as_text_table()) + "\n" + "".join(f"- {note}\n" for note in self.notes)

    def render(self) -> RenderableType:
        """The same for a terminal: rich prints it."""
        from rich.console import Group
        from rich.text import Text

        return Group(as_rich(self.as_text_table(digits=2)), *(Text(f"- {note}") for note in self.notes))

    def picture(self) -> Figure:
        """An image of each test with its truth, and the maps of the methods beside it."""
        from egcam.truth.picture import truth_picture

        return truth_picture(self.examples, self.methods)

    def save(self, folder: Path) -> list[Path]:
        """truth.md, scores.csv and truth.png in a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [folder / name for name in ("truth.md", "scores.csv", "truth.png")]
        files[0].write_text(self.to_markdown(), encoding="utf-8")
        with files[1].open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["method", "test", "image", "score"])
            for (name, test), values in self.scores.items():
                writer.writerows([name, test, number, value] for number, value in enumerate(values.tolist()))
        self.picture().savefig(files[2], dpi=200)
        return files


def _label(name: str) -> str:
    return method(name).label + _CONTROL * is_control(name)


def default_methods(quick: bool) -> list[str]:
    """What is judged where nobody says: methods at layers, then the controls."""
    names = usual_methods() if quick else [record.name for record in records() if record.group != "input"]
    return [*names, *(record.name for record in records(controls=True) if record.group == "control")]


def run_truth(
    methods: Sequence[str] | None = None,
    quick: bool = False,
    network: ShapesNetwork | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> TruthTable:
    """Test methods on cases whose answer is known; offline, and the same for the same seed.

    Args:
        methods: by name; None is all that make maps at layers (the usual ones if `quick`), and the controls.
        quick: fewer images and permutations.
        network: what all tests but the unit networks are done with; None is `shapes_network()`, trained the first time.
        seed: of images and permutations.
        progress: called with the share done, from 0 to 1.
    """
    names = list(dict.fromkeys(default_methods(quick) if methods is None else methods))
    if not names:
        raise MethodError("there are no methods to judge; egcam.methods() lists them")
    for name in names:
        method(name)
    if network is None:
        network = shapes_network(progress=part_of(progress, 0.0, 0.3))
    trials = make_trials(network, quick, seed, part_of(progress, 0.3, 0.5))
    judging = part_of(progress, 0.5, 1.0)
    tests = {trial.name: trial.better for trial in trials}
    scores: dict[tuple[str, str], Values] = {}
    causes: dict[tuple[str, str], str] = {}
    examples: dict[str, tuple[Trial, dict[str, Tensor]]] = {}
    for place, name in enumerate(names):
        for number, trial in enumerate(trials):
            judging((place + number / len(trials)) / len(names))
            values, maps = torch.full((len(trial.images),), torch.nan), None
            try:
                maps = trial.maps(name)
                values = trial.score(maps).double()
            except EgcamError as error:
                causes[name, trial.name] = " ".join(str(error).split())
            key = name, trial.name
            scores[key] = np.concatenate([scores.get(key, np.array([])), values.numpy()])
            example = examples.setdefault(trial.name, (trial, {}))
            if maps is not None and example[0] is trial:
                example[1][name] = maps[0]
    return TruthTable(tuple(names), tests, scores, causes, examples)


def make_trials(
    network: ShapesNetwork, quick: bool = False, seed: int = 0, progress: Progress | None = None
) -> list[Trial]:
    """The trials of all tests, in the order of the table."""
    count = 16 if quick else 60
    others = empty_backgrounds(seed=seed)
    shapes = recognised(network, 2 * count, seed + 3)
    with untouched(network, shapes.images.device), torch.no_grad():
        rows = network.get_submodule(LAYER)(shapes.images[:1]).shape[2] // 3
    grids = make_grids(shapes.images, shapes.labels, 2, count, seed)
    wide = torch.cat([others, others.flip(3)], 3)
    wide = torch.cat([wide, wide.flip(2)], 2)
    return [
        walls_trial(network, shapes.images[:count], LAYER, rows, others),
        difull_trial(network, grids, LAYER, wide),
        dipart_trial(network, grids, LAYER, wide),
        gridpg_trial(network, grids, LAYER, wide),
        planted_trial(network, count, seed),
        shapes_trial(network, count, seed + 1),
        *unit_trials("positive", 4, seed),
        *unit_trials("negative", 4, seed),
        shapley_trial(
            network, shapes.images[: count // 2], LAYER, others, 16 if quick else 64, shapes.labels, seed, progress
        ),
    ]


def shapley_trial(
    model: nn.Module,
    images: Tensor,
    layer: str,
    references: Tensor,
    permutations: int,
    targets: Tensor,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trial:
    """`cell_shapley` as a trial; the score is the Pearson correlation of signed maps with the values.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
        >>> trial = shapley_trial(net, torch.rand(2, 1, 4, 4), "1", torch.rand(3, 1, 4, 4), 6, torch.tensor([0, 2]))
        >>> trial.scores("hires-cam").shape
        torch.Size([2])
    """
    targets = targets[: len(images)]
    report = part_of(progress, 0.0, 1.0)
    values = cell_shapley(
        model, images, layer, references, permutations, targets, seed, progress=lambda done, of: report(done / of)
    )
    truth = torch.nn.functional.interpolate(values.float()[:, None], size=(images.shape[2], images.shape[3]))[:, 0]

    def score(maps: Tensor) -> Tensor:
        return cell_agreement(maps, values).pearson

    return Trial("cells", "higher", model, layer, images, targets, truth, references, score)
