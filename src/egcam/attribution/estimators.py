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
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass

import torch

from egcam.attribution.averaging import (
    Design,
    Evaluations,
    MapOf,
    Wanted,
    averaged,
    check_samples,
    replicate_sizes,
)
from egcam.attribution.kernels import Kernel, KernelLike, as_kernel
from egcam.attribution.latent_points import LatentPoints, check_latent
from egcam.attribution.maps import Maps
from egcam.attribution.moments import Moments, wide_enough
from egcam.attribution.path_points import DIFFERENCES, Difference, NoisyCopies, PathPlan, PathPoints
from egcam.attribution.paths import Latent, PathLike, Stepwise, as_path
from egcam.attribution.references import Reference, ReferenceLike, as_reference
from egcam.attribution.sampling import SAMPLINGS, Midpoints, Sampling, scheme
from egcam.attribution.step_points import NoSlopes, StepPoints, check_stepwise
from egcam.attribution.task import Task
from egcam.errors import SamplingError, check_known


class Estimator(ABC):
    """How dy/dA is obtained."""

    @property
    @abstractmethod
    def passes(self) -> int:
        """Passes through the network for each image (at most, where sampling may stop early)."""

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

    @property
    def passes(self) -> int:
        """One."""
        return 1

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        """The maps from one pass."""
        gradients = task.first_gradients().gradients
        moments = [Moments.of(wide_enough(gradient), wanted.order) for gradient in gradients]
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

    @property
    def passes(self) -> int:
        """n + 1."""
        return self.samples + 1

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        """The maps of the averaged gradient."""
        task.first_pass()
        copies = NoisyCopies(task, Kernel("gaussian", self.scale, relative=True), self.seed)
        return averaged(task, copies, Design(replicate_sizes(self.samples)), wanted, map_of)


@dataclass(frozen=True)
class Integrated(Estimator):
    """The gradient averaged along the line from b, the reference: W = 1/n sum_j dy/dA at b + a_j (x - b).

    a_j = (j + 1/2)/n. With `path="latent"` the line joins the activations of reference and image at the layer, and
    only what follows the layer is run n times. `difference="latent"` multiplies by f(x) - f(b) at the layer (at the
    input: x - b). On the latent path that makes the sum over all positions and channels tend to y(x) - y(b) as n grows:
    layer integrated gradients. On the path of images it does so only where what follows the layer is linear; there
    `difference="increment"`, what the activations gain from each point to the next, does it everywhere (conductance).
    A path of images costs n + 1 passes, with the latent difference one more up to the layer, with increments 2 n more;
    the latent path costs two.
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
        if isinstance(as_path(self.path), Latent):
            check_latent(self.difference, None)
        if isinstance(as_path(self.path), Stepwise):
            check_stepwise(self.difference, None)

    @property
    def passes(self) -> int:
        """n + 1, and those up to the layer that the difference needs; two on the latent path."""
        if isinstance(as_path(self.path), Latent):
            return 2
        return (
            1 + self.samples * (3 if self.difference == "increment" else 1) + (self.difference in ("input", "latent"))
        )

    def estimate(self, task: Task, wanted: Wanted, map_of: MapOf) -> Maps:
        """The maps of the averaged gradient."""
        reference = as_reference(self.reference, default="black", seed=self.seed)
        reference = reference.for_path(task.images, isinstance(as_path(self.path), Latent))
        plan = PathPlan(
            self.samples,
            Midpoints(self.samples),
            path=as_path(self.path),
            fixed_reference=True,
            difference=self.difference,
            seed=self.seed,
            distinct=1,
        )
        return _averaged_between(task, reference, plan, lambda evaluations: Design((evaluations,)), wanted, map_of)


def _averaged_between(
    task: Task,
    reference: Reference,
    plan: PathPlan,
    design: Callable[[int], Design],
    wanted: Wanted,
    map_of: MapOf,
) -> Maps:
    """The average over evaluations on a path; `design` says how so many of them are made."""
    points = _between(task, reference, plan, wanted)
    try:
        return averaged(task, points, design(points.evaluations_of(plan.samples)), wanted, map_of)
    except NoSlopes:
        assert isinstance(points, StepPoints)
        points.give_up()
        return _averaged_between(task, reference, plan, design, wanted, map_of)


def _between(task: Task, reference: Reference, plan: PathPlan, wanted: Wanted) -> Evaluations:
    """The evaluations on a path, after the first pass over the images."""
    if isinstance(plan.path, Latent):
        task.first_pass_with_tails()
        points = StepPoints if isinstance(plan.path, Stepwise) else LatentPoints
        return points(task, reference, plan, wanted.by_channel)
    task.first_pass()
    return PathPoints(task, reference, plan)


@dataclass(frozen=True)
class Expected(Estimator):
    r"""The expected gradient: W = k/n sum_s d_s * dy/dA at z_s.

        path of images    z_s = path(x'_s, x, a_s) + eta_s, seen at the layer
        path="latent"     z_s = A' + a_s (A - A') + eta_s in the layer's own space, A' = f(x'_s)
        path="stepwise"   no points: from A' to A in two steps, half of the cells in each, whose slopes take the place
                          of derivatives, see `egcam.attribution.step_points`

    x' is drawn from `reference`, a from U(0, 1), eta from `kernel`. A path of images costs n * draws + 1 passes, and
    with a difference term additional ones that end at the layer: n * draws for "input", twice as many for "increment",
    one per distinct reference for "latent". The latent path costs one pass for the image and n * draws runs of what
    follows the layer; references that do not depend on the image pass through the network once per explainer. What
    bypasses the layer (through a skip connection) is computed from the image.

    Args:
        reference: images (a tensor, data set or loader), a name ("photographs", "mixed", "blurred", "colours",
            "noise", "uniform", "constant", "black", "white"), a callable, or None: "photographs" on the latent path,
            else "mixed", blurred copies and plain colours in turn.
        samples: n, the number of path points, or of steps.
        path: "linear", x' + a (x - x'); "subset", a share a of the pixels of x' replaced by those of x; a callable
            (references, images, a) -> points; "latent"; or "stepwise", with difference "latent" only.
        kernel: smoothing noise, a `Kernel`, "gaussian", "uniform" or None. On the latent path its scale is in units of
            the standard deviation of the image's activations.
        difference: "none", d = 1; "input", d = f(x - x') as in the paper's last formula; "latent", d = f(x) - f(x');
            "increment", d = dA/da along the path of images (conductance). The summed map is complete, its total tends
            to y(x) - E[y(x')], with "increment" at every layer, and with path and difference "latent" at every layer
            that nothing bypasses.
        sampling: "lattice", a evenly spread over the whole run and over the visits of each reference; "stratified", a
            from equal strata of each replicate; "monte-carlo", a and x' independent. Same mean, more and more variance.
        tolerance: stop an image's sampling once ||error|| <= tolerance * ||map||.
        exact_sum: with path "latent" or "stepwise", difference "latent" and `weighting="summed"`: use that the map's
            sum is known, and correct it so that it adds up exactly; see `egcam.attribution.adding_up`.
        seed: of all draws. Draws depend on the seed and the sample's number only.

    Example:
        >>> Expected("black", samples=16).passes, Expected("black", samples=16, path="latent").passes
        (17, 1)
    """

    reference: ReferenceLike = None
    samples: int = 32
    _: KW_ONLY
    path: PathLike = "linear"
    kernel: KernelLike = None
    difference: Difference = "none"
    sampling: Sampling = "lattice"
    tolerance: float | None = None
    exact_sum: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_samples(self.samples)
        check_known(self.difference, DIFFERENCES, "difference", SamplingError)
        check_known(self.sampling, SAMPLINGS, "sampling", SamplingError)
        if self.tolerance is not None and not self.tolerance > 0:
            raise SamplingError(f"the tolerance must be positive, not {self.tolerance}")
        kernel = as_kernel(self.kernel)
        if isinstance(as_path(self.path), Stepwise):
            check_stepwise(self.difference, kernel)
        if self.is_latent:
            check_latent(self.difference, kernel)
        if self.exact_sum and not (self.is_latent and self.difference == "latent" and kernel is None):
            raise SamplingError("exact_sum=True needs path='latent' or 'stepwise', difference='latent' and no kernel")
        # Read once, not at every call: the reference may be a loader.
        object.__setattr__(self, "reference", as_reference(self.reference, samples=self.samples, seed=self.seed))

    @property
    def is_latent(self) -> bool:
        """Whether the path lies in the layer's own space."""
        return isinstance(as_path(self.path), Latent)

    @property
    def passes(self) -> int:
        """n * draws + 1, and the passes up to the layer that difference and normaliser need (at most).

        On the latent path one, and one for each reference that depends on the image.
        """
        if self.is_latent:
            assert isinstance(self.reference, Reference)
            source = self.reference.for_path(None, latent=True)
            return 1 if source.is_kept else 1 + (self.samples if source.varies else 1)
        kernel = as_kernel(self.kernel)
        evaluations = self.samples * self._per_sample
        to_layer = {"none": 0, "input": evaluations, "latent": self.samples, "increment": 2 * evaluations}
        normaliser = evaluations if kernel is not None and kernel.normaliser else 0
        return evaluations + 1 + to_layer[self.difference] + normaliser

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
            exact_sum=self.exact_sum,
            distinct=self.samples if self.tolerance is None and self.sampling != "monte-carlo" else None,
        )
        source = self.reference.for_path(task.images, self.is_latent)

        def design(evaluations: int) -> Design:
            sizes = replicate_sizes(evaluations, self.tolerance is not None)
            return Design(sizes, self._per_sample, self.tolerance)

        return _averaged_between(task, source, plan, design, wanted, map_of)
