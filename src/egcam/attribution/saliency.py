"""The same estimators with the input as the layer: one value for each pixel.

Input-Gradients and SmoothGrad show how strongly each pixel acts, sum_c |g_c|. Integrated and Expected Gradients share
out a difference of scores, sum_c (x - x')_c g_c, of which the positive part is shown. `signed=True` gives the plain
sums over colour channels.
"""

from __future__ import annotations

from typing import Unpack

from torch import nn

from egcam.attribution.cam import GradientCAM
from egcam.attribution.estimators import Estimator, Expected, Integrated, Smooth, Vanilla
from egcam.attribution.explainer import Common
from egcam.attribution.kernels import KernelLike
from egcam.attribution.paths import PathLike
from egcam.attribution.references import ReferenceLike
from egcam.attribution.registry import register
from egcam.attribution.sampling import Sampling
from egcam.attribution.weightings import Magnitude, Summed, Weighting


class _AtInput(GradientCAM):
    """A gradient estimate at the input itself."""

    at_input = True

    def __init__(self, model: nn.Module, gradient: Estimator, weighting: Weighting, **common: Unpack[Common]) -> None:
        super().__init__(model, None, gradient=gradient, weighting=weighting, **common)


def _strength(signed: bool) -> Weighting:
    return Summed() if signed else Magnitude()


@register(
    "input-gradient",
    label="Input gradient",
    summary="the gradient at the pixels",
    group="input",
    line=("grey", "--", "p"),
)
class InputGradient(_AtInput):
    """Input-Gradients (Simonyan et al., 2014): sum_c |dy/dx_c|; signed, sum_c dy/dx_c."""

    def __init__(self, model: nn.Module, **common: Unpack[Common]) -> None:
        super().__init__(model, Vanilla(), _strength(common.get("signed", False)), **common)


@register(
    "smooth-grad",
    label="SmoothGrad",
    summary="the gradient at the pixels, averaged over noisy copies of the image",
    group="input",
    line=("sky", ":", "8"),
)
class SmoothGrad(_AtInput):
    """SmoothGrad (Smilkov et al., 2017): the input gradient averaged over noisy copies, then sum_c |.|."""

    def __init__(
        self,
        model: nn.Module,
        *,
        samples: int = 25,
        scale: float = 0.15,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        gradient = Smooth(samples, scale=scale, seed=seed)
        super().__init__(model, gradient, _strength(common.get("signed", False)), **common)


@register(
    "integrated-gradients",
    label="Integrated Gradients",
    summary="the gradient at the pixels along the path from a reference, times the difference",
    group="input",
    line=("green", ":", "H"),
)
class IntegratedGradients(_AtInput):
    """Integrated Gradients (Sundararajan et al., 2017): relu(sum_c (x - x')_c * mean_a dy/dx_c at x' + a (x - x')).

    With `signed=True` a map's total tends to y(x) - y(x') as the samples grow.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        samples: int = 50,
        reference: ReferenceLike = "black",
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        gradient = Integrated(samples, reference=reference, difference="latent", seed=seed)
        super().__init__(model, gradient, Summed(), **common)


@register(
    "expected-gradients",
    label="Expected Gradients",
    summary="integrated-gradients averaged over many reference images instead of one",
    group="input",
    line=("orange", ":", "o"),
)
class ExpectedGradients(_AtInput):
    """Expected Gradients (Erion et al., 2021): relu( sum_c E[(x - x')_c * dy/dx_c at x' + a (x - x')] ).

    With `signed=True` a map's total tends to y(x) - E[y(x')] as the samples grow.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        reference: ReferenceLike = None,
        samples: int = 32,
        seed: int = 0,
        path: PathLike = "linear",
        kernel: KernelLike = None,
        sampling: Sampling = "lattice",
        tolerance: float | None = None,
        **common: Unpack[Common],
    ) -> None:
        gradient = Expected(
            reference,
            samples,
            path=path,
            kernel=kernel,
            difference="latent",
            sampling=sampling,
            tolerance=tolerance,
            seed=seed,
        )
        super().__init__(model, gradient, Summed(), **common)
