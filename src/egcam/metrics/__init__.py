"""The quality of explanations, measured: pure functions from images and maps to one score per image.

`names()` lists them. Those of maps are called `f(model, images, heatmaps, target)`, those of complexity
`f(heatmaps)`, those of localization `f(heatmaps, masks)`, and those that explain again `f(model, images,
explainer, target)`; everything else is a keyword. All are batched, seeded, leave the model as it was, and
score every image by itself: batch mates and batch size play no part (sufficiency, which compares images,
aside).
"""

from egcam.metrics.baselines import replacement
from egcam.metrics.complexity import complexity, sparseness
from egcam.metrics.confidence import (
    adcc,
    average_drop,
    average_gain,
    increase_in_confidence,
    masked_confidence,
)
from egcam.metrics.faithfulness import (
    deletion,
    deletion_curve,
    faithfulness_estimate,
    infidelity,
    insertion,
    insertion_curve,
    insertion_deletion,
    insertion_deletion_curves,
    irof,
    irof_curve,
    monotonicity,
    patch_drops,
    pixel_flipping,
    pixel_flipping_curve,
    sensitivity_n,
    sufficiency,
)
from egcam.metrics.imputation import fill_in, road, road_curve
from egcam.metrics.localization import (
    attribution_localization,
    energy_pointing_game,
    pointing_game,
    relevance_mass_accuracy,
    relevance_rank_accuracy,
    top_k_intersection,
)
from egcam.metrics.noise import Noise
from egcam.metrics.perturb import Curve
from egcam.metrics.registry import Metric, MetricError, metric, names
from egcam.metrics.robustness import (
    Perturbed,
    avg_sensitivity,
    local_lipschitz,
    max_sensitivity,
    perturbed_explanations,
    relative_input_stability,
    relative_output_stability,
)
from egcam.metrics.sanity import model_randomization, model_randomization_curve, random_logit
from egcam.metrics.timing import running_time
from egcam.metrics.undefined import UndefinedScoreWarning, causes_collected

__all__ = [
    "Curve",
    "Metric",
    "MetricError",
    "Noise",
    "Perturbed",
    "UndefinedScoreWarning",
    "adcc",
    "attribution_localization",
    "average_drop",
    "average_gain",
    "avg_sensitivity",
    "causes_collected",
    "complexity",
    "deletion",
    "deletion_curve",
    "energy_pointing_game",
    "faithfulness_estimate",
    "fill_in",
    "increase_in_confidence",
    "infidelity",
    "insertion",
    "insertion_curve",
    "insertion_deletion",
    "insertion_deletion_curves",
    "irof",
    "irof_curve",
    "local_lipschitz",
    "masked_confidence",
    "max_sensitivity",
    "metric",
    "model_randomization",
    "model_randomization_curve",
    "monotonicity",
    "names",
    "patch_drops",
    "perturbed_explanations",
    "pixel_flipping",
    "pixel_flipping_curve",
    "pointing_game",
    "random_logit",
    "relative_input_stability",
    "relative_output_stability",
    "relevance_mass_accuracy",
    "relevance_rank_accuracy",
    "replacement",
    "road",
    "road_curve",
    "running_time",
    "sensitivity_n",
    "sparseness",
    "sufficiency",
    "top_k_intersection",
]
