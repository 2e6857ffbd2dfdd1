"""Tests whose answer is known: networks and images made so that what decides is no matter of opinion.

`egcam truth` runs them all (`suite`); each is also here by itself, for networks of your own where that makes sense:
images with something planted (`planted`), grids and cut networks (`grids`, `walls`, `cut`), shapes of known parts
(`shapes`), single units (`units`), a map that answers for another class (`next_class`).

May use methods, metrics, models and figures, as any user would; the command, and studies of planted images, use it.
"""

from __future__ import annotations

from egcam.metrics.cell_shapley import CellAgreement, cell_agreement, cell_shapley
from egcam.metrics.localization import share_inside
from egcam.truth.grids import Disconnected, Grids, difull_trial, dipart_trial, gridpg_trial, make_grids
from egcam.truth.next_class import warn_same_for_next_class
from egcam.truth.planted import (
    Decided,
    checkered,
    decided_by_patch,
    patch_decides,
    patch_trial,
    plant,
    planted_trial,
    taught_patch,
)
from egcam.truth.shapes import Shapes, ShapesNetwork, draw_shapes, shapes_network, shapes_trial
from egcam.truth.suite import TruthTable, run_truth, shapley_trial
from egcam.truth.trial import Trial
from egcam.truth.units import UNITS, UnitNetwork, signed_scores, unit_images, unit_trials
from egcam.truth.walls import Walled, dead_heat, walls_trial

__all__ = ["CellAgreement", "Decided", "Disconnected", "Grids", "Shapes", "ShapesNetwork", "Trial", "TruthTable"]
__all__ += ["UNITS", "UnitNetwork", "Walled", "cell_agreement", "cell_shapley", "checkered", "dead_heat"]
__all__ += ["decided_by_patch", "difull_trial", "dipart_trial", "draw_shapes", "gridpg_trial", "make_grids"]
__all__ += ["patch_decides", "patch_trial", "plant", "planted_trial", "run_truth", "shapes_network", "shapes_trial"]
__all__ += ["shapley_trial", "share_inside", "signed_scores", "taught_patch", "unit_images", "unit_trials"]
__all__ += ["walls_trial", "warn_same_for_next_class"]
