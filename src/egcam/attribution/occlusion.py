"""Occlusion: cover a part of the image and see how far the score falls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from operator import add
from typing import Any, TypeAlias, Unpack

import torch
from torch import nn

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.references import ReferenceLike, as_reference
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task, chunks
from egcam.errors import MethodError, is_whole
from egcam.imageops import Size, size_of, wide_enough

Sides: TypeAlias = int | tuple[int, ...] | None
Window: TypeAlias = tuple[slice, ...]


@register(
    "occlusion",
    label="Occlusion",
    summary="how far the class score falls when a window of the image is covered; slow",
    group="input",
    slow=True,
    line=("green", "-.", "s"),
)
class Occlusion(Explainer):
    """Occlusion (Zeiler and Fergus, 2014): the mean drop of the score over the windows that cover a pixel.

        map_p = mean over windows w that contain p of  y(x) - y(x with w replaced by the reference)

    Windows start every `stride` pixels, the last one of a row and column at the border. One pass for each window. Small
    drops of a half-precision model's score are lost in that score's rounding.

    Args:
        model: the classifier.
        window: the side of the window in pixels, or (height, width), for volumes (depth, height, width); None is an
            eighth of each side of the image.
        stride: how far apart windows start, or (down, across); None is half the window.
        reference: what covers: a name, an image, a function; see `egcam.Expected`'s reference.
        seed: of a reference that draws.
        common: the options all explainers take.

    Example:
        >>> net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
        >>> explanation = Occlusion(net, window=2, stride=2, signed=True)(torch.rand(1, 1, 4, 4), target=0)
        >>> explanation.maps.shape, explanation.passes
        (torch.Size([1, 4, 4]), 5)
    """

    at_input = True
    by_scores = True
    cpu_memory = 256 * 2**20
    cause_of_zero = "covering any part of the image leaves the score as it is; try a larger window or another reference"

    def __init__(
        self,
        model: nn.Module,
        *,
        window: Sides = None,
        stride: Sides = None,
        reference: ReferenceLike = "black",
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, None, **common)
        self.window, self.stride = _sides(window, "window"), _sides(stride, "stride")
        self.reference = as_reference(reference, default="black", seed=seed)
        self.seed = seed

    def _starts(self, size: Size) -> tuple[list[list[int]], list[int]]:
        """Where windows start along each axis, and their sides."""
        wanted = _each(self.window, size, "window") or [-(-side // 8) for side in size]
        sides = list(map(min, wanted, size))
        steps = _each(self.stride, size, "stride") or [-(-side // 2) for side in sides]
        # A window as large as the image has one place only.
        if any(step > side < whole for step, side, whole in zip(steps, sides, size, strict=True)):
            raise MethodError(
                f"windows of {_crossed(sides)} pixels that start every {_crossed(steps)} leave pixels out: "
                "stride must not be larger than window"
            )
        return [_starts(*one) for one in zip(size, sides, steps, strict=True)], sides

    def _windows(self, size: Size) -> list[Window]:
        starts, sides = self._starts(size)
        return [tuple(map(slice, corner, map(add, corner, sides))) for corner in product(*starts)]

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        images = task.images
        count, size = len(images), size_of(images)
        windows = self._windows(size)
        reference = self.reference.for_images(images)
        covers = reference.draw(images, task.rows.tolist(), 0, self.seed).images
        clean = wide_enough(task.scores)
        drops = clean.new_zeros(count, *size)
        covered = clean.new_zeros(size)
        for place in windows:
            covered[place] += 1
        pairs = [(window, row) for window in range(len(windows)) for row in range(count)]
        for batch in task.meter.each(chunks(pairs, task.batch_size)):
            own = torch.tensor([row for _, row in batch], device="cpu")
            points = images[own].clone()
            for number, (window, row) in enumerate(batch):
                points[number][:, *windows[window]] = covers[row][:, *windows[window]]
            scores = wide_enough(task.scores_at(points, own)).to(clean)
            for number, (window, row) in enumerate(batch):
                drops[row][windows[window]] += clean[row] - scores[number]
        return Maps([drops / covered], None, reference.description)

    def _options(self) -> dict[str, Any]:
        return {
            "window": list(self.window) if isinstance(self.window, tuple) else self.window,
            "stride": list(self.stride) if isinstance(self.stride, tuple) else self.stride,
        }


def _starts(length: int, window: int, stride: int) -> list[int]:
    starts = list(range(0, length - window + 1, stride))
    return starts if starts[-1] == length - window else [*starts, length - window]


def _sides(given: Sides, name: str) -> Sides:
    if given is None:
        return None
    several = tuple(given) if isinstance(given, tuple | list) else (given,)
    if not several or not all(is_whole(side) and not isinstance(side, bool) and side >= 1 for side in several):
        raise MethodError(f"{name} is a number of pixels or (height, width), each at least 1, not {given!r}")
    return tuple(map(int, several)) if isinstance(given, tuple | list) else int(several[0])


def _each(given: Sides, size: Size, name: str) -> list[int]:
    """One for each axis of an image of this size; none if nothing was said."""
    if given is None:
        return []
    if isinstance(given, int):
        return [given] * len(size)
    if len(given) != len(size):
        raise MethodError(f"{name} has {len(given)} numbers, and images of {_crossed(size)} need {len(size)}, or one")
    return list(given)


def _crossed(sides: Sequence[int]) -> str:
    return " x ".join(map(str, sides))
