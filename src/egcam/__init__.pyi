"""What egcam offers; `__init__.py` reads these lines, and imports a name when it is first asked for."""

from typing import Any

from egcam import errors as errors
from egcam import figures as figures
from egcam import metrics as metrics
from egcam import studies as studies
from egcam import targets as targets
from egcam import truth as truth
from egcam.attribution import references as references
from egcam.attribution.attention import AttentionRelevance as AttentionRelevance
from egcam.attribution.attention import AttentionRollout as AttentionRollout
from egcam.attribution.augmented import Augmented as Augmented
from egcam.attribution.cam import CAM as CAM
from egcam.attribution.cam import ExpectedGradCAM as ExpectedGradCAM
from egcam.attribution.cam import GradCAM as GradCAM
from egcam.attribution.cam import GradCAMPlusPlus as GradCAMPlusPlus
from egcam.attribution.cam import GradientCAM as GradientCAM
from egcam.attribution.cam import HiResCAM as HiResCAM
from egcam.attribution.cam import IntegratedGradCAM as IntegratedGradCAM
from egcam.attribution.cam import LayerCAM as LayerCAM
from egcam.attribution.cam import SmoothGradCAMPlusPlus as SmoothGradCAMPlusPlus
from egcam.attribution.cam import XGradCAM as XGradCAM
from egcam.attribution.eigen import KPCACAM as KPCACAM
from egcam.attribution.eigen import EigenCAM as EigenCAM
from egcam.attribution.eigen import EigenGradCAM as EigenGradCAM
from egcam.attribution.estimators import Expected as Expected
from egcam.attribution.estimators import Integrated as Integrated
from egcam.attribution.estimators import Smooth as Smooth
from egcam.attribution.estimators import Vanilla as Vanilla
from egcam.attribution.explainer import Explainer as Explainer
from egcam.attribution.explanation import Explanation as Explanation
from egcam.attribution.finer import FinerCAM as FinerCAM
from egcam.attribution.foreign import Foreign as Foreign
from egcam.attribution.foreign import foreign as foreign
from egcam.attribution.full_grad import FullGrad as FullGrad
from egcam.attribution.guided import GuidedBackprop as GuidedBackprop
from egcam.attribution.guided import GuidedGradCAM as GuidedGradCAM
from egcam.attribution.kernels import Kernel as Kernel
from egcam.attribution.lrp import LRP as LRP
from egcam.attribution.occlusion import Occlusion as Occlusion
from egcam.attribution.paths import RandomSubset as RandomSubset
from egcam.attribution.perturbation import ISCAM as ISCAM
from egcam.attribution.perturbation import SSCAM as SSCAM
from egcam.attribution.perturbation import AblationCAM as AblationCAM
from egcam.attribution.perturbation import ScoreCAM as ScoreCAM
from egcam.attribution.registry import explain as explain
from egcam.attribution.registry import methods as methods
from egcam.attribution.registry import register as register
from egcam.attribution.rise import RISE as RISE
from egcam.attribution.saliency import ExpectedGradients as ExpectedGradients
from egcam.attribution.saliency import InputGradient as InputGradient
from egcam.attribution.saliency import IntegratedGradients as IntegratedGradients
from egcam.attribution.saliency import SmoothGrad as SmoothGrad
from egcam.attribution.shapley import SuperpixelShapley as SuperpixelShapley
from egcam.attribution.shapley_cam import ShapleyCAM as ShapleyCAM
from egcam.attribution.slope_cam import SlopeCAM as SlopeCAM
from egcam.attribution.surrogates import LIME as LIME
from egcam.attribution.surrogates import KernelSHAP as KernelSHAP
from egcam.attribution.weightings import Weighting as Weighting
from egcam.attribution.windows import Windows as Windows
from egcam.errors import EgcamError as EgcamError
from egcam.errors import ZeroMapWarning as ZeroMapWarning
from egcam.evaluation.evaluate import evaluate as evaluate
from egcam.evaluation.layers import best_layer as best_layer
from egcam.evaluation.layers import candidate_layers as candidate_layers
from egcam.models import zoo as zoo
from egcam.models.black_box import black_box as black_box
from egcam.models.crops import Crop as Crop
from egcam.models.crops import crop as crop
from egcam.models.inputs import shared as shared
from egcam.models.layers import find_layer as find_layer
from egcam.saturation_check.measure import saturation as saturation

__version__: str
__all__: list[str]

def __getattr__(name: str) -> Any: ...  # the packages of which these names are
