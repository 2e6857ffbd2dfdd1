"""egcam: class activation maps whose gradients can be trusted.

import egcam
explanation = egcam.explain(model, images)      # Expected Grad-CAM of the predicted class
explanation.overlay()[0].save("why.png")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from egcam import errors, references
from egcam._version import __version__
from egcam.errors import EgcamError, ZeroMapWarning
from egcam.explainers.cam import (
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
from egcam.explainers.explainer import Explainer
from egcam.explainers.gradients import Expected, Integrated, Smooth, Vanilla
from egcam.explainers.kernels import Kernel
from egcam.explainers.paths import RandomSubset
from egcam.explainers.perturbation import AblationCAM, ScoreCAM
from egcam.explainers.saliency import ExpectedGradients, InputGradient, IntegratedGradients, SmoothGrad
from egcam.explainers.weightings import Weighting
from egcam.explanation import Explanation
from egcam.models.layers import find_layer
from egcam.registry import explain, methods, register

if TYPE_CHECKING:
    from egcam import metrics
    from egcam.evaluation import evaluate
    from egcam.models import zoo

_LAZY = {"metrics": "egcam.metrics", "evaluate": "egcam.evaluation", "zoo": "egcam.models.zoo"}

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
    "__version__",
    "errors",
    "evaluate",
    "explain",
    "find_layer",
    "methods",
    "metrics",
    "references",
    "register",
    "zoo",
]


def __getattr__(name: str) -> Any:
    """Load what most callers do not need only when it is asked for."""
    if name not in _LAZY:
        raise AttributeError(f"module 'egcam' has no attribute {name!r}")
    module = import_module(_LAZY[name])
    return module if name in ("metrics", "zoo") else getattr(module, name)


def __dir__() -> list[str]:
    return __all__
