"""Figures for papers, from explanations, curves and tables; computing is kept apart from drawing.

from egcam import figures
figure = figures.method_grid({"grad-cam": one, "expected-grad-cam": other})
figures.save(figure, "grid.png", "grid.svg")

Every function returns a matplotlib figure that fits a column (3.3 in) or a page (6.9 in) of a paper with letters of 7
points or more, in perceptually uniform colours. pyplot and its settings are neither used nor changed.
"""

from egcam.evaluation.ranking import MeanRank
from egcam.figures import style
from egcam.figures.bar_panels import metric_bars
from egcam.figures.contrast_panels import Contrast, class_contrast, contrast_of
from egcam.figures.convergence_panels import convergence
from egcam.figures.curve_panels import MeanCurve, mean_curve, perturbation_curves
from egcam.figures.mask_panels import mask_comparison, mask_scores
from egcam.figures.method_grids import method_grid
from egcam.figures.page import save
from egcam.figures.patch_panels import Patch, choose_patches, top_patches
from egcam.figures.rank_panels import radar, rank_plot
from egcam.figures.sampling import Convergence, sampling_convergence
from egcam.figures.scores import mean_ranks

__all__ = [
    "Contrast",
    "Convergence",
    "MeanCurve",
    "MeanRank",
    "Patch",
    "choose_patches",
    "class_contrast",
    "contrast_of",
    "convergence",
    "mask_comparison",
    "mask_scores",
    "mean_curve",
    "mean_ranks",
    "method_grid",
    "metric_bars",
    "perturbation_curves",
    "radar",
    "rank_plot",
    "sampling_convergence",
    "save",
    "style",
    "top_patches",
]
