"""The methods by name: what `egcam.explain`, the command and studies look methods up in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import Parameter, signature
from typing import Any

from torch import Tensor, nn

from egcam.attribution.cam import (
    CAM,
    ExpectedGradCAM,
    GradCAM,
    GradCAMPlusPlus,
    HiResCAM,
    IntegratedGradCAM,
    LayerCAM,
    SmoothGradCAMPlusPlus,
    XGradCAM,
)
from egcam.attribution.explainer import Explainer
from egcam.attribution.explanation import Explanation
from egcam.attribution.kernels import Kernel
from egcam.attribution.options import Common
from egcam.attribution.perturbation import AblationCAM, ScoreCAM
from egcam.attribution.saliency import ExpectedGradients, InputGradient, IntegratedGradients, SmoothGrad
from egcam.errors import MethodError, near_misses
from egcam.models.targets import Target

Factory = Callable[..., Explainer]

# Options people look for among a method's, and where they are instead.
ELSEWHERE = {
    "sharpness": "sharpness is an exponent of pictures, not of maps: pass it where maps are drawn, as "
    "explanation.overlay(sharpness=2) or --sharpness 2",
}

_factories: dict[str, Factory] = {}


def register(name: str, factory: Factory) -> None:
    """Add a method under a name of its own; `factory(model, **options)` must return an explainer.

    Example:
        >>> register("grad-cam-signed", partial(GradCAM, signed=True))
        >>> "grad-cam-signed" in methods()
        True
        >>> unregister("grad-cam-signed")
    """
    if name in _factories:
        raise MethodError(f"a method called {name!r} is registered already")
    _factories[name] = factory


def unregister(name: str) -> None:
    """Take a method out of the registry again."""
    _factory(name)
    del _factories[name]


def methods() -> list[str]:
    """The names of all registered methods.

    >>> "expected-grad-cam" in methods()
    True
    """
    return list(_factories)


def create(name: str, model: nn.Module, **options: Any) -> Explainer:
    """An explainer by name.

    Args:
        name: one of `methods()`.
        model: the classifier.
        options: what that method takes; see `takes`.
    """
    factory = _factory(name)
    unknown = sorted(set(options) - takes(name))
    if unknown:
        if unknown[0] in ELSEWHERE:
            raise MethodError(f"method {name!r} takes no option {unknown[0]!r}; {ELSEWHERE[unknown[0]]}")
        known = sorted(takes(name))
        raise MethodError(
            f"method {name!r} takes no option {unknown[0]!r}; {near_misses(unknown[0], known)} "
            f"(it takes {', '.join(known)})"
        )
    explainer = factory(model, **options)
    explainer.method = name
    return explainer


def takes(name: str) -> set[str]:
    """The option names a method's factory takes.

    >>> "samples" in takes("expected-grad-cam"), "samples" in takes("grad-cam"), "layer" in takes("smooth-grad")
    (True, False, False)
    """
    found: set[str] = set()
    for parameter in signature(_factory(name)).parameters.values():
        if parameter.kind is Parameter.VAR_KEYWORD:
            found.update(Common.__annotations__)
        elif parameter.name != "model":
            found.add(parameter.name)
    return found


def _factory(name: str) -> Factory:
    if name not in _factories:
        raise MethodError(f"there is no method {name!r}; {near_misses(str(name), _factories)}")
    return _factories[name]


def explain(
    model: nn.Module, images: Tensor, method: str = "expected-grad-cam", target: Target = None, **options: Any
) -> Explanation:
    """Explain images with a method by name: Expected Grad-CAM unless another is asked for.

    Args:
        model: the classifier.
        images: (N, C, H, W) floats, preprocessed as the model expects, or (C, H, W).
        method: one of `methods()`.
        target: None (the predicted class), a class index or name, one of those per image, or a callable on the output.
        options: `inputs`, `keywords` and `progress` go to the call, all else to the method: layer, reference, samples,
            seed, batch_size, …

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 3))
        >>> explain(net, torch.rand(2, 1, 8, 8), method="layer-cam", target=[1, 2], signed=True).targets
        tensor([1, 2])
    """
    for_call = {key: options.pop(key) for key in ("inputs", "keywords", "progress") if key in options}
    return create(method, model, **options)(images, target, **for_call)


_BUILT_IN: dict[str, Factory] = {
    "expected-grad-cam": ExpectedGradCAM,
    "expected-grad-cam-paper": partial(
        ExpectedGradCAM,
        difference="input",
        weighting="mean",
        kernel=Kernel("uniform", scale=1.0),
        negative=1.0,
    ),
    "grad-cam": GradCAM,
    "grad-cam++": GradCAMPlusPlus,
    "smooth-grad-cam++": SmoothGradCAMPlusPlus,
    "integrated-grad-cam": IntegratedGradCAM,
    "hires-cam": HiResCAM,
    "xgrad-cam": XGradCAM,
    "layer-cam": LayerCAM,
    "score-cam": ScoreCAM,
    "ablation-cam": AblationCAM,
    "cam": CAM,
    "input-gradient": InputGradient,
    "smooth-grad": SmoothGrad,
    "integrated-gradients": IntegratedGradients,
    "expected-gradients": ExpectedGradients,
}
for _name, _made in _BUILT_IN.items():
    register(_name, _made)
