"""Estimators: how the gradient dy/dA at a layer is obtained.

    Vanilla      at the image itself
    Smooth       averaged over noisy copies of the image
    Integrated   averaged along the straight path from one reference
    Expected     averaged over references, path points and noise: the estimator of Expected Grad-CAM
    Augmented    any of them at mirrored, scaled and brighter copies (augmented.py)

Every estimator fits every gradient CAM. The averaged ones evaluate the gradient at points z_s and average d_s * g_s,
with d the difference term (1 unless asked for).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import KW_ONLY, dataclass

import torch

from egcam.attribution.averaging import Design, MapOf, Wanted, averaged, check_samples, replicate_sizes
from egcam.attribution.kernels import Kernel, KernelLike, as_kernel
from egcam.attribution.paths import DIFFERENCES, Difference, NoisyCopies, PathLike, PathPlan, PathPoints, as_path
from egcam.attribution.references import Reference, ReferenceLike, as_reference
from egcam.attribution.sampling import SAMPLINGS, Midpoints, Sampling, scheme
from egcam.attribution.task import Maps, Task
from egcam.attribution.weightings import Moments, powers
from egcam.errors import SamplingError, check_known
from egcam.imageops import wide_enough


class Estimator(ABC):
    """How dy/dA is obtained."""

    @abstractmethod
    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        """The maps of a task's images.

        Args:
            task: the images, not yet passed through the network.
            wanted: which moments of the gradient the maps are made of, and how.
            map_of: from moments (one per layer) and the numbers of the images they belong to, to maps before the ReLU.
        """


@dataclass(frozen=True)
class Vanilla(Estimator):
    """The gradient at the image: g = dy/dA at x. One pass."""

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        """The maps from one pass."""
        gradients = task.first_gradients().gradients
        moments = [Moments(*powers(wide_enough(gradient), wanted.order)) for gradient in gradients]
        return Maps(map_of(moments, torch.arange(len(task.images), device="cpu")))


@dataclass(frozen=True)
class Smooth(Estimator):
    """The gradient averaged over noisy copies: W = 1/n sum_s dy/dA at x + eta_s, eta ~ N(0, (scale (max - min))^2).

    Costs n + 1 passes: one for the image itself.
    """

    samples: int = 25
    _: KW_ONLY
    scale: float = 0.15
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        """The maps of the averaged gradient."""
        task.first_pass()
        copies = NoisyCopies(task, Kernel("gaussian", self.scale, relative=True), self.seed)
        return averaged(task, copies, Design(replicate_sizes(self.samples)), wanted, map_of)


@dataclass(frozen=True)
class Integrated(Estimator):
    """The gradient averaged along the line from b, the reference: W = 1/n sum_j dy/dA at b + a_j (x - b).

    `difference="latent"` multiplies by f(x) - f(b) at the layer (at the input: x - b): at the input the sum over all
    positions and channels tends to y(x) - y(b) as n grows. Costs n + 1 passes, with the latent difference one more.
    """

    samples: int = 50
    _: KW_ONLY
    reference: ReferenceLike = "black"
    path: PathLike = "linear"
    difference: Difference = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)
        check_known(self.difference, DIFFERENCES, "difference", SamplingError)

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        """The maps of the averaged gradient."""
        reference = as_reference(self.reference, default="black", seed=self.seed).for_images(task.images)
        plan = PathPlan(
            self.samples,
            Midpoints(self.samples),
            path=as_path(self.path),
            fixed_reference=True,
            difference=self.difference,
            seed=self.seed,
            distinct=1,
        )
        return _averaged_between(task, reference, plan, Design((self.samples,)), wanted, map_of)


def _averaged_between(
    task: Task, reference: Reference, plan: PathPlan, design: Design, wanted: Wanted, map_of: MapOf
) -> Maps:
    """The average over points between references and the images."""
    task.first_pass()
    return averaged(task, PathPoints(task, reference, plan), design, wanted, map_of)


@dataclass(frozen=True)
class Expected(Estimator):
    """The expected gradient: W = k/n sum_s d_s * dy/dA at z_s,    z_s = path(x'_s, x, a_s) + eta_s.

    x' is drawn from `reference`, a from U(0, 1), eta from `kernel`. Costs n * draws + 1 passes, and with a difference
    term additional ones that end at the layer: n * draws for "input", one per distinct reference for "latent".

    Args:
        reference: images (a tensor, data set or loader), a name ("photographs", "mixed", "blurred", "colours",
            "noise", "uniform", "constant", "black", "white"), a callable, or None: photographs that come with the
            package, for data that these cannot stand in for blurred copies and plain colours in turn.
        samples: n, the number of path points.
        path: "linear", x' + a (x - x'); "subset", a share a of the pixels of x' replaced by those of x; or a callable
            (references, images, a) -> points.
        kernel: smoothing noise, a `Kernel`, "gaussian", "uniform" or None.
        difference: "none", d = 1; "input", d = f(x - x') as in the paper's last formula; "latent", d = f(x) - f(x').
        sampling: "lattice", a evenly spread over the whole run and over the visits of each reference; "stratified", a
            from equal strata of each replicate; "monte-carlo", a and x' independent. Same mean, more and more variance.
        tolerance: stop an image's sampling once ||error|| <= tolerance * ||map||.
        seed: of all draws. Draws depend on the seed and the sample's number only.
    """

    reference: ReferenceLike = None
    samples: int = 32
    _: KW_ONLY
    path: PathLike = "linear"
    kernel: KernelLike = None
    difference: Difference = "none"
    sampling: Sampling = "lattice"
    tolerance: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)
        check_known(self.difference, DIFFERENCES, "difference", SamplingError)
        check_known(self.sampling, SAMPLINGS, "sampling", SamplingError)
        if self.tolerance is not None and not self.tolerance > 0:
            raise SamplingError(f"the tolerance must be positive, not {self.tolerance}")
        as_path(self.path)
        as_kernel(self.kernel)
        # Read once, not at every call: the reference may be a loader.
        object.__setattr__(self, "reference", as_reference(self.reference, samples=self.samples, seed=self.seed))

    @property
    def _per_sample(self) -> int:
        kernel = as_kernel(self.kernel)
        return 1 if kernel is None else kernel.draws

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        """The maps of the averaged gradient."""
        assert isinstance(self.reference, Reference)
        strata = replicate_sizes(self.samples, self.tolerance is not None)
        plan = PathPlan(
            self.samples,
            scheme(self.sampling, strata, self.seed),
            path=as_path(self.path),
            kernel=as_kernel(self.kernel),
            difference=self.difference,
            seed=self.seed,
            per_sample=self._per_sample,
            distinct=self.samples if self.tolerance is None and self.sampling != "monte-carlo" else None,
        )
        design = Design(strata, self._per_sample, self.tolerance)
        return _averaged_between(task, self.reference.for_images(task.images), plan, design, wanted, map_of)
