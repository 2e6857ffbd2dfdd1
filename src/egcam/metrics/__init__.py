"""The quality of explanations, measured: one score per image.

A metric is a small frozen dataclass of its options that is called: `Deletion(step=448)(model, images, heatmaps,
target)`. Those of complexity are called with `(heatmaps)`, those of localization with `(heatmaps, masks)`, and those
that explain again with `(model, images, explainer, target)`. `Deletion(step=448).of(case)` scores a `Case`, for which
metrics share what they can. `names()` lists all, `make(name)` makes one, `register` adds your own. All are batched,
seeded, leave the model as it was, and score every image by itself: the other images and the batch size play no part
(sufficiency, which compares images, aside).

May use `attribution` and `models`; `evaluation` and what is below use it.
"""

from egcam.metrics.baselines import replacement as replacement
from egcam.metrics.case import Case as Case
from egcam.metrics.cell_shapley import ShapleyAgreement as ShapleyAgreement
from egcam.metrics.complexity import Complexity as Complexity
from egcam.metrics.complexity import Sparseness as Sparseness
from egcam.metrics.confidence import Adcc as Adcc
from egcam.metrics.confidence import Arcc as Arcc
from egcam.metrics.confidence import AverageDrop as AverageDrop
from egcam.metrics.confidence import AverageGain as AverageGain
from egcam.metrics.confidence import IncreaseInConfidence as IncreaseInConfidence
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
from egcam.metrics.filling_in import fill_in as fill_in
from egcam.metrics.imputation import Road as Road
from egcam.metrics.imputation import RoadBothOrders as RoadBothOrders
from egcam.metrics.layer_space import LayerDeletion as LayerDeletion
from egcam.metrics.layer_space import LayerInsertion as LayerInsertion
from egcam.metrics.localization import AttributionLocalization as AttributionLocalization
from egcam.metrics.localization import CellMassAccuracy as CellMassAccuracy
from egcam.metrics.localization import EnergyPointingGame as EnergyPointingGame
from egcam.metrics.localization import PointingGame as PointingGame
from egcam.metrics.localization import RelevanceMassAccuracy as RelevanceMassAccuracy
from egcam.metrics.localization import RelevanceRankAccuracy as RelevanceRankAccuracy
from egcam.metrics.localization import TopKIntersection as TopKIntersection
from egcam.metrics.noise import Noise as Noise
from egcam.metrics.perturb import Curve as Curve
from egcam.metrics.perturbed import Copies as Copies
from egcam.metrics.perturbed import Perturbed as Perturbed
from egcam.metrics.registry import ExplainerMetric as ExplainerMetric
from egcam.metrics.registry import MapMetric as MapMetric
from egcam.metrics.registry import MaskMetric as MaskMetric
from egcam.metrics.registry import Metric as Metric
from egcam.metrics.registry import MetricError as MetricError
from egcam.metrics.registry import ModelMetric as ModelMetric
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
from egcam.metrics.sanity import ClassSensitivity as ClassSensitivity
from egcam.metrics.sanity import EfficientModelRandomization as EfficientModelRandomization
from egcam.metrics.sanity import ModelRandomization as ModelRandomization
from egcam.metrics.sanity import RandomLogit as RandomLogit
from egcam.metrics.sanity import SmoothModelRandomization as SmoothModelRandomization
from egcam.metrics.timing import RunningTime as RunningTime
from egcam.metrics.undefined import UndefinedScoreWarning as UndefinedScoreWarning
from egcam.metrics.undefined import causes_collected as causes_collected

__all__ = sorted(name for name, thing in vars().items() if getattr(thing, "__module__", "").startswith(__name__))


def __dir__() -> list[str]:
    return __all__
