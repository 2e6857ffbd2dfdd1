"""Figures for papers, from explanations, curves and tables; computing is kept apart from drawing.

from egcam import figures
figure = figures.method_grid({"grad-cam": one, "slope-cam": other})
figures.save(figure, "grid.png", "grid.svg")

Every function returns a matplotlib figure that fits a column (3.3 in) or a page (6.9 in) of a paper with letters of 7
points or more, in perceptually uniform colours. pyplot and its settings are neither used nor changed.

One module for each kind (`…_panels`, `method_grids`) on `sheet`, `style`, `ticks` and `page`. May use explanations,
metrics, evaluation's tables and drawing; reports of studies and the page show them.
"""

from egcam.evaluation.ranking import MeanRank
from egcam.figures import style
from egcam.figures.bar_panels import metric_bars
from egcam.figures.contrast_panels import Contrast, class_contrast, contrast_of
from egcam.figures.curve_panels import MeanCurve, mean_curve, perturbation_curves
from egcam.figures.mask_panels import mask_comparison, mask_scores
from egcam.figures.method_grids import method_grid
from egcam.figures.page import save
from egcam.figures.rank_panels import rank_plot
from egcam.figures.scores import mean_ranks

__all__ = [
    "Contrast",
    "MeanCurve",
    "MeanRank",
    "class_contrast",
    "contrast_of",
    "mask_comparison",
    "mask_scores",
    "mean_curve",
    "mean_ranks",
    "method_grid",
    "metric_bars",
    "perturbation_curves",
    "rank_plot",
    "save",
    "style",
]


def __dir__() -> list[str]:
    return __all__
