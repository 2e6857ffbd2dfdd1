"""The quality of explanations, measured: one score per image, as a function or as a metric on a case.

A metric is a small frozen dataclass of its options, `Deletion(step=448)`, that scores a `Case`: a model, images, maps,
classes. What metrics share is computed once for a case. `register` adds metrics of your own, and every metric is a
function too. `names()` lists them. Those of maps are called `f(model, images, heatmaps, target)`, those of complexity
`f(heatmaps)`, those of localization `f(heatmaps, masks)`, and those that explain again `f(model, images,
explainer, target)`; everything else is a keyword. All are batched, seeded, leave the model as it was, and
score every image by itself: the other images and the batch size play no part (sufficiency, which compares images,
aside).
"""

import pkgutil
from importlib import import_module

from egcam.metrics.baselines import replacement as replacement
from egcam.metrics.case import Case as Case
from egcam.metrics.cell_shapley import ShapleyAgreement as ShapleyAgreement
from egcam.metrics.cell_shapley import shapley_agreement as shapley_agreement
from egcam.metrics.complexity import Complexity as Complexity
from egcam.metrics.complexity import Sparseness as Sparseness
from egcam.metrics.complexity import complexity as complexity
from egcam.metrics.complexity import sparseness as sparseness
from egcam.metrics.confidence import Adcc as Adcc
from egcam.metrics.confidence import Arcc as Arcc
from egcam.metrics.confidence import AverageDrop as AverageDrop
from egcam.metrics.confidence import AverageGain as AverageGain
from egcam.metrics.confidence import IncreaseInConfidence as IncreaseInConfidence
from egcam.metrics.confidence import adcc as adcc
from egcam.metrics.confidence import arcc as arcc
from egcam.metrics.confidence import average_drop as average_drop
from egcam.metrics.confidence import average_gain as average_gain
from egcam.metrics.confidence import increase_in_confidence as increase_in_confidence
from egcam.metrics.confidence import masked_confidence as masked_confidence
from egcam.metrics.faithfulness import Deletion as Deletion
from egcam.metrics.faithfulness import FaithfulnessEstimate as FaithfulnessEstimate
from egcam.metrics.faithfulness import Infidelity as Infidelity
from egcam.metrics.faithfulness import Insertion as Insertion
from egcam.metrics.faithfulness import InsertionDeletion as InsertionDeletion
from egcam.metrics.faithfulness import Irof as Irof
from egcam.metrics.faithfulness import Monotonicity as Monotonicity
from egcam.metrics.faithfulness import PixelFlipping as PixelFlipping
from egcam.metrics.faithfulness import SensitivityN as SensitivityN
from egcam.metrics.faithfulness import Sufficiency as Sufficiency
from egcam.metrics.faithfulness import deletion as deletion
from egcam.metrics.faithfulness import deletion_curve as deletion_curve
from egcam.metrics.faithfulness import faithfulness_estimate as faithfulness_estimate
from egcam.metrics.faithfulness import infidelity as infidelity
from egcam.metrics.faithfulness import insertion as insertion
from egcam.metrics.faithfulness import insertion_curve as insertion_curve
from egcam.metrics.faithfulness import insertion_deletion as insertion_deletion
from egcam.metrics.faithfulness import insertion_deletion_curves as insertion_deletion_curves
from egcam.metrics.faithfulness import irof as irof
from egcam.metrics.faithfulness import irof_curve as irof_curve
from egcam.metrics.faithfulness import monotonicity as monotonicity
from egcam.metrics.faithfulness import patch_drops as patch_drops
from egcam.metrics.faithfulness import pixel_flipping as pixel_flipping
from egcam.metrics.faithfulness import pixel_flipping_curve as pixel_flipping_curve
from egcam.metrics.faithfulness import sensitivity_n as sensitivity_n
from egcam.metrics.faithfulness import sufficiency as sufficiency
from egcam.metrics.filling_in import fill_in as fill_in
from egcam.metrics.imputation import Road as Road
from egcam.metrics.imputation import RoadBothOrders as RoadBothOrders
from egcam.metrics.imputation import road as road
from egcam.metrics.imputation import road_both_orders as road_both_orders
from egcam.metrics.imputation import road_curve as road_curve
from egcam.metrics.layer_space import LayerDeletion as LayerDeletion
from egcam.metrics.layer_space import LayerInsertion as LayerInsertion
from egcam.metrics.layer_space import layer_deletion as layer_deletion
from egcam.metrics.layer_space import layer_insertion as layer_insertion
from egcam.metrics.localization import AttributionLocalization as AttributionLocalization
from egcam.metrics.localization import CellMassAccuracy as CellMassAccuracy
from egcam.metrics.localization import EnergyPointingGame as EnergyPointingGame
from egcam.metrics.localization import PointingGame as PointingGame
from egcam.metrics.localization import RelevanceMassAccuracy as RelevanceMassAccuracy
from egcam.metrics.localization import RelevanceRankAccuracy as RelevanceRankAccuracy
from egcam.metrics.localization import TopKIntersection as TopKIntersection
from egcam.metrics.localization import attribution_localization as attribution_localization
from egcam.metrics.localization import cell_mass_accuracy as cell_mass_accuracy
from egcam.metrics.localization import energy_pointing_game as energy_pointing_game
from egcam.metrics.localization import pointing_game as pointing_game
from egcam.metrics.localization import relevance_mass_accuracy as relevance_mass_accuracy
from egcam.metrics.localization import relevance_rank_accuracy as relevance_rank_accuracy
from egcam.metrics.localization import top_k_intersection as top_k_intersection
from egcam.metrics.noise import Noise as Noise
from egcam.metrics.perturb import Curve as Curve
from egcam.metrics.perturbed import Perturbed as Perturbed
from egcam.metrics.registry import Metric as Metric
from egcam.metrics.registry import MetricError as MetricError
from egcam.metrics.registry import Work as Work
from egcam.metrics.registry import make as make
from egcam.metrics.registry import metric as metric
from egcam.metrics.registry import names as names
from egcam.metrics.registry import register as register
from egcam.metrics.registry import unregister as unregister
from egcam.metrics.robustness import AvgSensitivity as AvgSensitivity
from egcam.metrics.robustness import LocalLipschitz as LocalLipschitz
from egcam.metrics.robustness import MaxSensitivity as MaxSensitivity
from egcam.metrics.robustness import RelativeInputStability as RelativeInputStability
from egcam.metrics.robustness import RelativeOutputStability as RelativeOutputStability
from egcam.metrics.robustness import avg_sensitivity as avg_sensitivity
from egcam.metrics.robustness import local_lipschitz as local_lipschitz
from egcam.metrics.robustness import max_sensitivity as max_sensitivity
from egcam.metrics.robustness import perturbed_explanations as perturbed_explanations
from egcam.metrics.robustness import relative_input_stability as relative_input_stability
from egcam.metrics.robustness import relative_output_stability as relative_output_stability
from egcam.metrics.sanity import ClassSensitivity as ClassSensitivity
from egcam.metrics.sanity import EfficientModelRandomization as EfficientModelRandomization
from egcam.metrics.sanity import ModelRandomization as ModelRandomization
from egcam.metrics.sanity import RandomLogit as RandomLogit
from egcam.metrics.sanity import SmoothModelRandomization as SmoothModelRandomization
from egcam.metrics.sanity import class_sensitivity as class_sensitivity
from egcam.metrics.sanity import efficient_model_randomization as efficient_model_randomization
from egcam.metrics.sanity import model_randomization as model_randomization
from egcam.metrics.sanity import model_randomization_curve as model_randomization_curve
from egcam.metrics.sanity import random_logit as random_logit
from egcam.metrics.sanity import smooth_model_randomization as smooth_model_randomization
from egcam.metrics.timing import RunningTime as RunningTime
from egcam.metrics.timing import running_time as running_time
from egcam.metrics.undefined import UndefinedScoreWarning as UndefinedScoreWarning
from egcam.metrics.undefined import causes_collected as causes_collected

# All modules here, so that a metric is known by lying in this folder.
for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
