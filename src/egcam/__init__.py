"""egcam: class activation maps whose gradients can be trusted.

import egcam
explanation = egcam.explain(model, images)      # Expected Grad-CAM of the predicted class
explanation.overlay()[0].save("why.png")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from egcam import errors
from egcam._version import __version__
from egcam.attribution import references
from egcam.attribution.cam import (
    CAM,
    ExpectedGradCAM,
    GradCAM,
    GradCAMPlusPlus,
    GradientCAM,
    HiResCAM,
    IntegratedGradCAM,
    LayerCAM,
    SmoothGradCAMPlusPlus,
    XGradCAM,
)
from egcam.attribution.estimators import Expected, Integrated, Smooth, Vanilla
from egcam.attribution.explainer import Explainer
from egcam.attribution.explanation import Explanation
from egcam.attribution.kernels import Kernel
from egcam.attribution.paths import RandomSubset
from egcam.attribution.perturbation import AblationCAM, ScoreCAM
from egcam.attribution.registry import explain, methods, register
from egcam.attribution.saliency import ExpectedGradients, InputGradient, IntegratedGradients, SmoothGrad
from egcam.attribution.weightings import Weighting
from egcam.errors import EgcamError, ZeroMapWarning
from egcam.models.inputs import shared
from egcam.models.layers import find_layer

if TYPE_CHECKING:
    from egcam import figures, metrics, studies
    from egcam.evaluation.evaluate import evaluate
    from egcam.evaluation.layers import best_layer, candidate_layers
    from egcam.models import zoo
    from egcam.saturation_check.measure import saturation

_LAZY_MODULES = {
    "figures": "egcam.figures",
    "metrics": "egcam.metrics",
    "studies": "egcam.studies",
    "zoo": "egcam.models.zoo",
}
_LAZY_NAMES = {
    "best_layer": "egcam.evaluation.layers",
    "candidate_layers": "egcam.evaluation.layers",
    "evaluate": "egcam.evaluation.evaluate",
    "saturation": "egcam.saturation_check.measure",
}

__all__ = [
    "AblationCAM",
    "CAM",
    "EgcamError",
    "Expected",
    "ExpectedGradCAM",
    "ExpectedGradients",
    "Explainer",
    "Explanation",
    "GradCAM",
    "GradCAMPlusPlus",
    "GradientCAM",
    "HiResCAM",
    "InputGradient",
    "Integrated",
    "IntegratedGradCAM",
    "IntegratedGradients",
    "Kernel",
    "LayerCAM",
    "RandomSubset",
    "ScoreCAM",
    "Smooth",
    "SmoothGrad",
    "SmoothGradCAMPlusPlus",
    "Vanilla",
    "Weighting",
    "XGradCAM",
    "ZeroMapWarning",
    "best_layer",
    "candidate_layers",
    "__version__",
    "errors",
    "evaluate",
    "explain",
    "figures",
    "find_layer",
    "methods",
    "metrics",
    "references",
    "register",
    "saturation",
    "shared",
    "studies",
    "zoo",
]


def __getattr__(name: str) -> Any:
    """Load what most callers do not need only when it is asked for."""
    if name in _LAZY_MODULES:
        return import_module(_LAZY_MODULES[name])
    if name in _LAZY_NAMES:
        return getattr(import_module(_LAZY_NAMES[name]), name)
    raise AttributeError(f"module 'egcam' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
