"""Figures for papers, from explanations, curves and tables; computing is kept apart from drawing.

from egcam import figures
figure = figures.method_grid({"grad-cam": one, "slope-cam": other})
figures.save(figure, "grid.png", "grid.svg")

Every function returns a matplotlib figure that fits a column (3.3 in) or a page (6.9 in) of a paper with letters of 7
points or more, in perceptually uniform colours. pyplot and its settings are neither used nor changed.
"""

from egcam.evaluation.ranking import MeanRank as MeanRank
from egcam.figures import style as style
from egcam.figures.bar_panels import metric_bars as metric_bars
from egcam.figures.contrast_panels import Contrast as Contrast
from egcam.figures.contrast_panels import class_contrast as class_contrast
from egcam.figures.contrast_panels import contrast_of as contrast_of
from egcam.figures.curve_panels import MeanCurve as MeanCurve
from egcam.figures.curve_panels import mean_curve as mean_curve
from egcam.figures.curve_panels import perturbation_curves as perturbation_curves
from egcam.figures.mask_panels import mask_comparison as mask_comparison
from egcam.figures.mask_panels import mask_scores as mask_scores
from egcam.figures.method_grids import method_grid as method_grid
from egcam.figures.page import save as save
from egcam.figures.rank_panels import rank_plot as rank_plot
from egcam.figures.scores import mean_ranks as mean_ranks
