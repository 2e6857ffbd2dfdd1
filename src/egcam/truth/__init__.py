"""Tests whose answer is known: networks and images made so that what decides is no matter of opinion.

`egcam truth` runs them all (`suite`); each is also here by itself, for networks of your own where that makes sense:
images with something planted (`planted`), grids and cut networks (`grids`, `walls`, `cut`), shapes of known parts
(`shapes`), single units (`units`), a map that answers for another class (`next_class`).

May use methods, metrics, models and figures, as any user would; the command, and studies of planted images, use it.
"""

from __future__ import annotations

from egcam.metrics.cell_shapley import CellAgreement as CellAgreement
from egcam.metrics.cell_shapley import cell_agreement as cell_agreement
from egcam.metrics.cell_shapley import cell_shapley as cell_shapley
from egcam.metrics.localization import share_inside as share_inside
from egcam.truth.grids import Disconnected as Disconnected
from egcam.truth.grids import Grids as Grids
from egcam.truth.grids import difull_trial as difull_trial
from egcam.truth.grids import dipart_trial as dipart_trial
from egcam.truth.grids import gridpg_trial as gridpg_trial
from egcam.truth.grids import make_grids as make_grids
from egcam.truth.next_class import warn_same_for_next_class as warn_same_for_next_class
from egcam.truth.planted import Decided as Decided
from egcam.truth.planted import checkered as checkered
from egcam.truth.planted import decided_by_patch as decided_by_patch
from egcam.truth.planted import patch_decides as patch_decides
from egcam.truth.planted import patch_trial as patch_trial
from egcam.truth.planted import plant as plant
from egcam.truth.planted import planted_trial as planted_trial
from egcam.truth.planted import taught_patch as taught_patch
from egcam.truth.shapes import Shapes as Shapes
from egcam.truth.shapes import ShapesNetwork as ShapesNetwork
from egcam.truth.shapes import draw_shapes as draw_shapes
from egcam.truth.shapes import shapes_network as shapes_network
from egcam.truth.shapes import shapes_trial as shapes_trial
from egcam.truth.suite import TruthTable as TruthTable
from egcam.truth.suite import run_truth as run_truth
from egcam.truth.suite import shapley_trial as shapley_trial
from egcam.truth.trial import Trial as Trial
from egcam.truth.units import UNITS as UNITS
from egcam.truth.units import UnitNetwork as UnitNetwork
from egcam.truth.units import signed_scores as signed_scores
from egcam.truth.units import unit_images as unit_images
from egcam.truth.units import unit_trials as unit_trials
from egcam.truth.walls import Walled as Walled
from egcam.truth.walls import dead_heat as dead_heat
from egcam.truth.walls import walls_trial as walls_trial
