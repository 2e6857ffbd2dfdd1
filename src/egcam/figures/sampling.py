"""How fast a sampled map settles: its distance from a long run, beside the error it reports itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from egcam.attribution.explanation import Explanation
from egcam.attribution.registry import create, takes
from egcam.errors import InputError, MethodError
from egcam.imageops import in_double
from egcam.models.targets import Target
from egcam.progress import Progress

Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Convergence:
    """Maps of one image at growing sample numbers, each several times with its own seed, and a long run.

    Attributes:
        samples: (S,) the sample numbers.
        errors: (R, S) the true relative error of each run, ||map_n - map_long|| / ||map_long||.
        reported: (R, S) the relative standard error each run reports, ||error_n|| / ||map_long||; NaN if a run
            is too short to tell.
        maps: (S, h, w) the maps of the first run.
        long_map: (h, w) the map of the long run.
        long_samples: its sample number.
        long_reported: the relative standard error it reports.
        method: the registered name.
        label: the explained class.
        seeds: of the runs; the long run has another.
    """

    samples: tuple[int, ...]
    errors: Values
    reported: Values
    maps: Values
    long_map: Values
    long_samples: int
    long_reported: float
    method: str
    label: str
    seeds: tuple[int, ...]

    @property
    def error(self) -> Values:
        """(S,) the root mean square of the runs' true errors: what the reported standard error estimates."""
        return np.asarray(np.sqrt((self.errors**2).mean(0)))


def sampling_convergence(
    model: nn.Module,
    image: Tensor,
    samples: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    *,
    long: int = 512,
    runs: int = 4,
    target: Target = None,
    method: str = "slope-cam",
    seed: int = 0,
    progress: Progress | None = None,
    **options: Any,
) -> Convergence:
    """Explain one image with more and more samples, and compare with a long run of another seed.

    The cost is `long + runs * sum(samples)` passes or a little more.

    Args:
        model: the classifier.
        image: (C, H, W) or (1, C, H, W), preprocessed as the model expects.
        samples: the sample numbers, growing.
        long: the samples of the run that stands for the truth; ten times the largest of `samples`, or so.
        runs: how many times each number of samples is tried, with a seed of its own each time.
        target: the class; None is the prediction.
        method: a registered method that takes `samples` and `seed`.
        seed: of the long run; the others have the seeds after it.
        progress: called with the share of the work done.
        options: of the method: reference, layer, kernel, difference, sampling, …

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 3), nn.Tanh())
        >>> found = sampling_convergence(net, torch.rand(1, 8, 8), (2, 8), long=64, runs=2, signed=True)
        >>> found.errors.shape, found.maps.shape
        ((2, 2), (2, 6, 6))
    """
    samples = _checked(samples, long, runs, method)
    image = image[0] if image.ndim == 4 and len(image) == 1 else image
    if image.ndim != 3:
        raise InputError(f"convergence is shown for one image, (C, H, W); not {tuple(image.shape)}")
    total = long + runs * sum(samples)
    done = 0

    def explained(count: int, own_seed: int) -> Explanation:
        nonlocal done
        made = create(method, model, samples=count, seed=own_seed, **options)(image, target)
        done += count
        if progress is not None:
            progress(done / total)
        return made

    truth = explained(long, seed)
    far = _array(truth.maps)
    size = float(np.linalg.norm(far))
    if size == 0:
        raise InputError("the map of the long run is zero everywhere: there is nothing to converge to; try signed=True")
    seeds = tuple(seed + 1 + run for run in range(runs))
    errors, reported = np.full((2, runs, len(samples)), np.nan)
    maps = []
    for run, own_seed in enumerate(seeds):
        for place, count in enumerate(samples):
            made = explained(count, own_seed)
            found = _array(made.maps)
            errors[run, place] = np.linalg.norm(found - far) / size
            if made.error is not None:
                reported[run, place] = np.linalg.norm(_array(made.error)) / size
            if run == 0:
                maps.append(found)
    long_reported = float("nan") if truth.error is None else float(np.linalg.norm(_array(truth.error)) / size)
    label = truth.label().split(",")[0]
    return Convergence(samples, errors, reported, np.stack(maps), far, long, long_reported, method, label, seeds)


def _checked(samples: Sequence[int], long: int, runs: int, method: str) -> tuple[int, ...]:
    if not {"samples", "seed"} <= takes(method):
        raise MethodError(f"{method} is not sampled: convergence is shown for methods with samples and a seed")
    counts = tuple(int(count) for count in samples)
    if not counts or counts[0] < 1 or list(counts) != sorted(set(counts)):
        raise InputError(f"samples are growing whole numbers from 1, such as (1, 2, 4, 8); not {list(samples)}")
    if long <= counts[-1]:
        raise InputError(
            f"the long run has {long} samples: it must have more than the largest of samples, {counts[-1]}"
        )
    if runs < 1:
        raise InputError(f"runs is 1 or more, not {runs}")
    return counts


def _array(tensor: Tensor) -> Values:
    return in_double(tensor).numpy()
