"""A volume, a slide or a scene that a network sees in pieces, explained whole: in memory for one piece."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import product
from math import ceil, exp
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from egcam.attribution.explainer import plain_settings
from egcam.attribution.explanation import Completeness, Explanation
from egcam.attribution.registry import create
from egcam.attribution.task import Progress
from egcam.errors import InputError, TargetError, check_count
from egcam.imageops import Size
from egcam.models.class_scores import known_classes
from egcam.models.session import weights_of
from egcam.targets.masks import Mask, class_map

Blend: TypeAlias = Literal["gaussian", "constant"] | Tensor
Start: TypeAlias = tuple[int, ...]
Prepare: TypeAlias = Callable[[Any], Tensor]

_LEAST = 1e-3  # of a Gaussian's weights, so that every place counts


@dataclass(frozen=True)
class Windows:
    """A network that sees large inputs in overlapping windows, as sliding-window inference runs it.

    The score of the whole is what the windows' scores add up to, so its map is the sum of their maps, each with the
    window's weight, and adds up to the whole score less that of the references:

        a class              y = mean over windows of y_w
        Mask(label, mask)    y = mean over the mask's places v of  sum_w g_w(v) y_w(v) / sum_w g_w(v)

    Windows that the mask does not touch are not run. The map has the cells of the layer, laid side by side.

    Args:
        model: takes (N, C, *size).
        size: of a window: (height, width), (depth, height, width) or (length,).
        overlap: of neighbouring windows, the share of a side, from 0 to less than 1.
        blend: g, the weights of a window's places: "constant"; "gaussian", with a standard deviation of an eighth of
            each side, at least a thousandth; or a tensor of the window's size.
        even: windows evenly spread, as nnU-Net's; False moves the last one back to the end, as MONAI's.

    Example:
        >>> body = [nn.Conv2d(1, 2, 4, 4), nn.Sigmoid(), nn.AdaptiveAvgPool2d(1)]
        >>> net = nn.Sequential(*body, nn.Flatten(), nn.Linear(2, 2))
        >>> scene = torch.rand(1, 32, 64)
        >>> whole = Windows(net.eval(), (16, 16), 0.5).explain(scene, target=1, layer="1", signed=True)
        >>> whole.maps.shape, whole.size, bool(whole.completeness.gap.abs() < 1e-5)
        (torch.Size([8, 16]), (32, 64), True)
    """

    model: nn.Module
    size: Size
    overlap: float = 0.5
    blend: Blend = "gaussian"
    even: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.overlap < 1:
            raise InputError(f"overlap is a share of a window's side, from 0 to less than 1, not {self.overlap!r}")
        if isinstance(self.blend, Tensor) and tuple(self.blend.shape) != tuple(self.size):
            raise InputError(f"blend has the shape {tuple(self.blend.shape)}; it must be that of a window, {self.size}")
        if not isinstance(self.blend, Tensor) and self.blend not in ("gaussian", "constant"):
            raise InputError(f'blend is "gaussian", "constant" or a tensor of the window\'s size, not {self.blend!r}')

    def starts(self, size: Size) -> list[Start]:
        """Where the windows of an input of this size begin, in the order they are run.

        >>> Windows(nn.Identity(), (4,), 0.5).starts((9,)), Windows(nn.Identity(), (4,), 0.5, even=True).starts((11,))
        ([(0,), (2,), (4,), (5,)], [(0,), (2,), (4,), (5,), (7,)])
        """
        if len(size) != len(self.size):
            raise InputError(f"the input has the axes {size} besides its channels, and a window {self.size}: as many")
        if any(whole < side for whole, side in zip(size, self.size, strict=True)):
            raise InputError(f"the input is {size} and a window {self.size}: pass a smaller window, or pad the input")
        return list(product(*self.lines(size)))

    def lines(self, size: Size) -> list[list[int]]:
        """The same along each axis."""
        return [self._along(whole, side) for whole, side in zip(size, self.size, strict=True)]

    def _along(self, whole: int, side: int) -> list[int]:
        stride = max(1, int(side * (1 - self.overlap)))
        count = ceil((whole - side) / stride) + 1
        if self.even and count > 1:
            return [round(number * (whole - side) / (count - 1)) for number in range(count)]
        return [min(number * stride, whole - side) for number in range(count)]

    def weights(self) -> Tensor:
        """(*size) g, a window's weights, in float64."""
        if isinstance(self.blend, Tensor):
            return self.blend.double().cpu()
        made = torch.ones(1, dtype=torch.float64, device="cpu").reshape([1] * len(self.size))
        if self.blend == "constant":
            return made.expand(self.size)
        for axis, side in enumerate(self.size):
            line = [exp(-0.5 * ((place - (side - 1) / 2) / (side / 8)) ** 2) for place in range(side)]
            shape = [-1 if other == axis else 1 for other in range(len(self.size))]
            made = made * torch.tensor(line, dtype=torch.float64, device="cpu").reshape(shape)
        return made.clamp(min=_LEAST)

    def explain(
        self,
        source: Any,
        method: str = "slope-cam",
        target: Any = None,
        *,
        prepare: Prepare | None = None,
        folder: str | Path | None = None,
        every: int = 16,
        progress: Progress | None = None,
        **options: Any,
    ) -> Explanation:
        """Explain the whole, window by window.

        Args:
            source: (C, *size), anything that has a `shape` and can be cut: a tensor, a memory-mapped array, zarr.
            method: one of `egcam.methods()`.
            target: a class, by index or name, or a callable, explained in every window; or `egcam.targets.Mask` with a
                mask of the whole, for segmenters.
            prepare: from a piece of the source to the network's input (C, *size); None is a float tensor of it.
            folder: where the sums are kept every few windows; a call that was stopped goes on from there, to the same
                map to the bit. Sums of another run are refused; it is told by the weights, three windows of the source
                and the options, of which functions and loaders are told by their names only.
            every: how many windows that is.
            progress: called with (windows done, windows in all).
            options: what the method takes: layer, reference, samples, signed, …

        Returns:
            One explanation without a batch dimension. Its error is a bound: windows share references, so their errors
            are added up. It holds no images; `overlay(picture)` takes one of any resolution.
        """
        if target is None:
            raise TargetError("windows may predict different classes: say which one is explained, target=…")
        check_count(every, "every", InputError)
        if not hasattr(source, "shape"):
            raise InputError(f"a {type(source).__name__} has no shape: pass an array with channels first")
        size = tuple(int(side) for side in source.shape[1:])
        plan = _Plan(self, size, self._wanted(target, options), prepare or _as_float)
        explainer = create(method, self.model, **{**options, "signed": True})
        starts = plan.starts()
        sums = _Sums()
        kept = None if folder is None else _Kept(Path(folder), self._print(source, method, target, options, plan))
        if kept is not None:
            sums = kept.read()
        if progress is not None:
            progress(sums.done, len(starts))
        while sums.done < len(starts):
            start = starts[sums.done]
            weights = plan.weights(start)
            piece = plan.prepare(source[(slice(None), *_slices(start, self.size))])
            found = explainer(piece.to(_device(self.model)), plan.target(weights))
            sums = sums.plus(found, start, self.size, size, 1.0 if weights is not None else 1 / len(starts))
            if kept is not None and (sums.done % every == 0 or sums.done == len(starts)):
                kept.write(sums)
            if progress is not None:
                progress(sums.done, len(starts))
        facts = {**explainer._options(), "score": explainer.score, "windows": list(self.size), "overlap": self.overlap}
        return sums.explanation(self.model, size, target, bool(options.get("signed")), explainer.classes, facts)

    def _wanted(self, target: Any, options: dict[str, Any]) -> Any:
        """The target; of a mask with the names and the kind of score that the explainer has."""
        if not isinstance(target, Mask):
            return target
        classes = target.classes or known_classes(self.model, options.get("classes"))
        return replace(target, classes=classes, score=target.score or options.get("score"))

    def _print(self, source: Any, method: str, target: Any, options: dict[str, Any], plan: _Plan) -> str:
        """What tells one run from another, where sums are kept."""
        starts = plan.starts()
        looks = [starts[number] for number in (0, len(starts) // 2, -1)]
        pieces = [torch.as_tensor(source[(slice(None), *_slices(start, self.size))]) for start in looks]
        mask = target.mask if isinstance(target, Mask) else None
        parts = {
            "weights": weights_of(self.model).checksum,
            "source": [list(source.shape), *map(_digest, pieces), plain_settings(plan.prepare)],
            "windows": [list(self.size), self.overlap, self.even, _digest(self.weights())],
            "method": [method, {name: _plain(value) for name, value in sorted(options.items())}],
            "target": [_plain(replace(target, mask=None) if mask is not None else target), _digest(mask)],
        }
        return json.dumps(parts, sort_keys=True)


@dataclass(frozen=True)
class _Plan:
    """The windows to run, each with the weights of its places for the whole's score; None is the mean of windows."""

    windows: Windows
    size: Size
    wanted: Any
    prepare: Prepare

    def starts(self) -> list[Start]:
        """Of the windows to run, in order."""
        starts, mask = self.windows.starts(self.size), self._mask
        if mask is None:
            return starts
        return [start for start in starts if bool(mask[_slices(start, self.windows.size)].any())]

    @property
    def _mask(self) -> Tensor | None:
        mask = self.wanted.mask if isinstance(self.wanted, Mask) else None
        if mask is not None and tuple(mask.shape) != self.size:
            raise TargetError(f"the mask is {tuple(mask.shape)} and the input {self.size}: pass a mask of the whole")
        return mask

    @cached_property
    def _count(self) -> int:
        """How many places the mask has."""
        return int(np.prod(self.size)) if self._mask is None else int(self._mask.count_nonzero())

    def weights(self, start: Start) -> Tensor | None:
        """(*size) with which a window's places count for the whole; None where the mean of windows is explained."""
        if not isinstance(self.wanted, Mask):
            return None
        weights, lines = self.windows.weights(), self.windows.lines(self.size)
        inside = 1 if self._mask is None else self._mask[_slices(start, self.windows.size)].cpu()
        return weights * inside / _sum_at(start, lines, weights) / self._count

    def target(self, weights: Tensor | None) -> Any:
        """What is explained in a window."""
        if weights is None:
            return self.wanted

        def score(output: Any) -> Tensor:
            scores = class_map(output, self.wanted, tuple(weights.shape), weights.ndim)
            return (scores * weights.to(scores.device, scores.dtype)).sum()

        return [score]


@dataclass(frozen=True)
class _Sums:
    """What the windows so far add up to: a number of windows, the whole's map and error, and the scores."""

    done: int = 0
    map: Tensor | None = None
    error: Tensor | None = None
    scores: Tensor = field(default_factory=lambda: torch.zeros(4, dtype=torch.float64, device="cpu"))
    exact: bool = True
    complete: bool = True
    facts: tuple[str, str, str] = ("", "", "")

    def plus(self, found: Explanation, start: Start, window: Size, size: Size, share: float) -> _Sums:
        """With one window more."""
        cells = tuple(found.maps.shape)
        canvas = tuple(
            ceil(whole * count / side - 1e-9) for whole, count, side in zip(size, cells, window, strict=True)
        )
        if self.map is not None and tuple(self.map.shape) != canvas:
            raise InputError("the layer's map has another size in another window: name a layer, layer=…")
        sides = found.completeness
        score = found.scores.double().cpu().reshape(())
        parts = [score] if sides is None else [score, sides.total, sides.expected, sides.around]
        scores = torch.stack([part.double().cpu().reshape(()) for part in parts])
        scores = torch.cat([scores, torch.zeros(4 - len(scores), dtype=torch.float64, device="cpu")])
        error = None if found.error is None else found.error.double().cpu()
        return _Sums(
            self.done + 1,
            _placed(found.maps.double().cpu() * share, start, window, canvas, self.map),
            None if error is None else _placed(error * share, start, window, canvas, self.error),
            self.scores + scores * share,
            self.exact and (sides is None or bool(sides.exact.all())),
            self.complete and sides is not None,
            (found.method, found.layer, found.reference or ""),
        )

    def explanation(
        self, model: nn.Module, size: Size, target: Any, signed: bool, classes: Any, options: dict[str, Any]
    ) -> Explanation:
        """The whole."""
        assert self.map is not None
        signed_map = self.map.float()
        score, total, expected, around = self.scores.float()
        exact = torch.tensor(self.exact, device="cpu")
        is_class = isinstance(target, int) and not isinstance(target, bool)
        return Explanation(
            maps=signed_map if signed else signed_map.relu(),
            size=size,
            targets=torch.tensor(target, device="cpu") if is_class else None,
            scores=score,
            predictions=None,
            layer=self.facts[1],
            method=self.facts[0],
            reference=self.facts[2] or None,
            error=None if self.error is None else self.error.float(),
            completeness=Completeness(total, expected, around, exact, signed_map) if self.complete else None,
            options={**options, "signed": signed},
            classes=classes,
            described=None if is_class else (_named(target),),
            weights_checksum=weights_of(model).checksum,
        )


@dataclass(frozen=True)
class _Kept:
    """Sums in a folder, and which run they are of."""

    folder: Path
    run: str

    @property
    def _file(self) -> Path:
        return self.folder / "windows.npz"

    def read(self) -> _Sums:
        """What is there; nothing yet if the folder is new."""
        if not self._file.exists():
            return _Sums()
        with np.load(self._file, allow_pickle=False) as held:
            if str(held["run"]) != self.run:
                raise InputError(
                    f"{self.folder} holds sums of another model, input or method: go on with the same, or pass another "
                    "folder"
                )
            flags = held["flags"].tolist()
            maps = {name: torch.from_numpy(held[name]) if name in held else None for name in ("map", "error")}
            method, layer, reference = held["facts"].tolist()
            return _Sums(
                int(held["done"]),
                maps["map"],
                maps["error"],
                torch.from_numpy(held["scores"]),
                flags[0],
                flags[1],
                (method, layer, reference),
            )

    def write(self, sums: _Sums) -> None:
        """Replace what is there, at once: whoever is stopped while writing leaves the former sums."""
        self.folder.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {"run": self.run, "done": sums.done, "scores": sums.scores.numpy()}
        arrays |= {"flags": np.array([sums.exact, sums.complete]), "facts": np.array(sums.facts)}
        arrays |= {name: held.numpy() for name in ("map", "error") if (held := getattr(sums, name)) is not None}
        unfinished = self.folder / "windows.unfinished.npz"
        with unfinished.open("wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._file)


def _sum_at(start: Start, lines: Sequence[Sequence[int]], weights: Tensor) -> Tensor:
    """(*size) what the weights of all windows add up to at the places of one."""
    near = [
        [other - begin for other in line if abs(other - begin) < side]
        for begin, line, side in zip(start, lines, weights.shape, strict=True)
    ]
    total = torch.zeros_like(weights)
    for shifts in product(*near):
        sides = list(zip(shifts, weights.shape, strict=True))
        here = tuple(slice(max(shift, 0), side + min(shift, 0)) for shift, side in sides)
        there = tuple(slice(max(-shift, 0), side - max(shift, 0)) for shift, side in sides)
        total[here] += weights[there]
    return total


def _placed(values: Tensor, start: Start, window: Size, canvas: Size, below: Tensor | None) -> Tensor:
    """The canvas of cells with a window's map added; a cell between two of the canvas is split by length."""
    corner, matrices = [], []
    for begin, side, count, cells in zip(start, window, values.shape, canvas, strict=True):
        pitch = side / count
        first = int(begin / pitch + 1e-9)
        last = min(cells, ceil((begin + side) / pitch - 1e-9))
        left = begin / pitch + torch.arange(count, dtype=torch.float64, device="cpu")
        edge = torch.arange(first, last, dtype=torch.float64, device="cpu")
        overlap = torch.minimum(left[:, None] + 1, edge + 1) - torch.maximum(left[:, None], edge)
        corner.append(slice(first, last))
        matrices.append(overlap.clamp(min=0))
    for matrix in matrices:
        values = torch.tensordot(values, matrix, dims=([0], [0]))  # the first axis goes to the end, each in its turn
    made = torch.zeros(canvas, dtype=torch.float64, device="cpu") if below is None else below
    made[tuple(corner)] += values
    return made


def _slices(start: Start, size: Size) -> tuple[slice, ...]:
    return tuple(slice(begin, begin + side) for begin, side in zip(start, size, strict=True))


def _as_float(piece: Any) -> Tensor:
    return torch.as_tensor(piece).float()


def _device(model: nn.Module) -> torch.device:
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _digest(tensor: Tensor | None) -> str:
    return "" if tensor is None else sha256(tensor.contiguous().cpu().numpy().tobytes()).hexdigest()


def _plain(value: Any) -> Any:
    return f"tensor {tuple(value.shape)} {_digest(value)}" if isinstance(value, Tensor) else plain_settings(value)


def _named(target: Any) -> str:
    return target.description if isinstance(target, Mask) else str(target)
