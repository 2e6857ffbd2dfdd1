"""The part all methods share: checks, layer, targets, batching, and the explanation at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from egcam.attribution.explanation import Completeness, Explanation
from egcam.attribution.maps import Maps
from egcam.attribution.options import is_whole
from egcam.attribution.reference_activations import ReferenceActivations
from egcam.attribution.task import Meter, Progress, Task
from egcam.errors import EgcamError, InputError, NonFiniteMapWarning, ZeroMapWarning, warn_user
from egcam.imageops import fused, fused_errors
from egcam.models.capture import Probe
from egcam.models.class_names import Classes
from egcam.models.inputs import ExtraInputs, check_images, plain_model
from egcam.models.layers import INPUT, Layer, LayerPoint, last_spatial_layer, resolve
from egcam.models.layout import Layout
from egcam.models.reading import Reshape, as_reshape
from egcam.models.restore import untouched
from egcam.models.rows import check_rows
from egcam.models.targets import Score, Target, Targets, known_classes
from egcam.models.trace import Trace, dry_run

_CPU_CACHED = 64 * 2**20  # a CPU gains nothing from batches much larger than its caches
_MOST_AT_ONCE = 64
_SMALL = 8  # so few passes are made in one go, without asking what they need


class Explainer(ABC):
    """A method bound to a model: call it with images to get an `Explanation`.

    It keeps nothing in the model between calls, so it needs no closing, though `with` works. It may be called from
    several threads.

    Args:
        model: the classifier. Compiled and DataParallel wrappers are seen through.
        layer: a module, its dotted name ("layer4", or "relu:2" for the second call of a module that runs repeatedly),
            a list of those (each map upsampled to the finest, divided by its maximum, averaged), or None: found.
        score: what number of the target class is explained: "logit", "probability" (of a single output: its sigmoid)
            or "sigmoid".
        classes: the class names, for targets by name: a list, an array, or a dictionary by index (`id2label`); models
            that carry names, and ImageNet networks, need none. One for each output; for a single output z also two,
            [negative, positive], of logits -z and z.
        signed: keep negative values instead of applying the ReLU.
        batch_size: the most images in one pass; by default as many as fit `memory`.
        memory: bytes one pass may take, about; by default 384 MiB on a CPU and a third of what is free on a GPU.
        reshape: for layers that do not put out (N, channels, height, width): "tokens" for (N, length, channels), its
            grid read off the network and the image; (height, width) for tokens on that grid; a callable that makes
            (N, channels, height, width) of the output. (N, height, width, channels) is recognised; "channels-last" and
            "channels-first" say so where it is not.
    """

    name: ClassVar[str]
    at_input: ClassVar[bool] = False
    cpu_memory: ClassVar[int] = 384 * 2**20

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        score: Score = "logit",
        classes: Classes | None = None,
        signed: bool = False,
        batch_size: int | None = None,
        memory: int | None = None,
        reshape: Reshape | None = None,
    ) -> None:
        self.model = plain_model(model)
        self.score = score
        self.classes = known_classes(model, classes) or known_classes(self.model, classes)
        self.signed = signed
        self.batch_size = _positive(batch_size, "batch_size")
        self.memory = _positive(memory, "memory")
        self.method = self.name
        self._layer = layer
        self._reshape = as_reshape(reshape)
        self._layout = Layout()
        self._references = ReferenceActivations()
        self._traces: dict[tuple[int, ...], Trace | None] = {}
        self._points: tuple[LayerPoint, ...] | None = None
        Targets(None, 0, score)
        if self.at_input:
            self._points = (INPUT,)
        elif layer is not None:
            self._points = resolve(self.model, layer, lambda: "")

    # -- what a method fills in ------------------------------------------------------------------

    @abstractmethod
    def _explain(self, task: Task) -> Maps:
        """The maps of the task's images, before the ReLU. Must make the task's first pass, in one of its forms."""

    @property
    def passes(self) -> int:
        """Passes through the network for each image, where that is known beforehand."""
        return 1

    def passes_at(self, channels: int) -> int:
        """Passes for each image at a layer of so many channels; tails behind the layer are not counted."""
        return self.passes

    def _options(self) -> dict[str, Any]:
        """What the method was set to, for the record."""
        return {}

    # -- what users call -------------------------------------------------------------------------

    def __call__(
        self,
        images: Tensor,
        target: Target = None,
        *,
        inputs: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Explanation:
        """Explain images.

        Args:
            images: (N, C, H, W) floats, preprocessed as the model expects; (C, H, W) for one image, answered likewise.
            target: None (each image's predicted class), a class index or name, one of those for each image, or a
                callable from the model's output to one number per row; it also sees sampled batches of other sizes,
                so it must treat every row alike.
            inputs: further positional inputs of the model. Tensors with N rows go with the images row by row; what all
                images have in common, such as text prompts, is passed as `egcam.shared(…)`.
            keywords: further keyword inputs of the model, treated alike.
            progress: called with (passes done, passes expected) as the work goes on.
        """
        single = isinstance(images, Tensor) and images.ndim == 3
        given = images
        images = check_images(images, self.model)
        extra = ExtraInputs(len(images), tuple(inputs), dict(keywords or {}))
        targets = Targets(target, len(images), self.score, self.classes)
        meter = Meter(progress)
        meter.expect(len(images) * self.passes)
        tasks: list[Task] = []
        found: list[Maps] = []
        with untouched(self.model, images.device):
            check_rows(self.model, images, extra)
            points = self._layer_points(images, extra)
            probe = Probe(
                self.model, points, extra, self._reshape, self._layout, lambda some: self._trace_of(some, extra)
            )
            size = self._images_at_once(images, points, extra)
            memo: dict[str, Any] = {}
            for start in range(0, len(images), size):
                stop = min(start + size, len(images))
                rows = torch.arange(start, stop, device="cpu")
                task = Task(
                    probe,
                    images[start:stop],
                    rows,
                    targets.part(start, stop),
                    size,
                    meter,
                    memo,
                    self._references,
                    self._tails_at_once(images, points, extra),
                )
                found.append(self._explain(task))
                tasks.append(task)
        return self._explanation(given, tasks, found, points, meter, single)

    def stream(
        self,
        loader: Iterable[Any],
        target: Target = None,
        *,
        labels: bool = True,
        progress: Progress | None = None,
    ) -> Iterator[Explanation]:
        """Explain batch after batch, holding on to none.

        The explanations count on in `start`, so that all of them can be saved to one folder.

        Args:
            loader: gives batches of images, or pairs (images, labels).
            target: as in a call. When None and the batches have labels, the labels are explained,
            labels: unless this is False; then it is the predictions.
            progress: as in a call, for each batch anew.
        """
        parameter = next(self.model.parameters(), None)
        start = 0
        for batch in loader:
            images, marks = _images_and_labels(batch)
            if parameter is not None:
                images = images.to(parameter.device)
            use_marks = target is None and labels and marks is not None
            explanation = self(images, marks if use_marks else target, progress=progress)
            yield replace(explanation, start=start)
            start += len(explanation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __repr__(self) -> str:
        layer = "found" if self._points is None else " + ".join(point.name for point in self._points)
        return f"{type(self).__name__}({type(self.model).__name__}, layer={layer!r})"

    # -- layer and batch size --------------------------------------------------------------------

    def _layer_points(self, images: Tensor, extra: ExtraInputs) -> tuple[LayerPoint, ...]:
        if self._points is None:
            trace = self._traces[tuple(images.shape[1:])] = dry_run(self.model, images, extra)
            self._points = resolve(self.model, None, lambda: last_spatial_layer(trace))
        return self._points

    def _images_at_once(self, images: Tensor, points: Sequence[LayerPoint], extra: ExtraInputs) -> int:
        if self.batch_size is not None:
            return self.batch_size
        if self.memory is None and len(images) * self.passes <= _SMALL:
            return len(images) * self.passes
        needed = self._bytes_per_image(images, points, extra)
        if needed is None:
            return _SMALL
        most = _MOST_AT_ONCE
        if images.device.type == "cpu" and self.memory is None:
            most = max(_SMALL, min(most, _CPU_CACHED // max(1, needed)))
        return max(1, min(most, self._budget(images.device) // max(1, needed)))

    def _bytes_per_image(self, images: Tensor, points: Sequence[LayerPoint], extra: ExtraInputs) -> int | None:
        trace = self._trace_of(images, extra)
        own = images[0].numel() * images.element_size()
        return None if trace is None else 2 * own + trace.bytes_per_image([point.name for point in points])

    def _tails_at_once(self, images: Tensor, points: Sequence[LayerPoint], extra: ExtraInputs) -> int:
        """How many runs of what follows the layers fit into the memory budget together."""
        if self.batch_size is not None:
            return self.batch_size
        trace = self._trace_of(images, extra)
        if trace is None:
            return _SMALL
        needed = trace.bytes_of_tail([point.name for point in points])
        fitting = min(_MOST_AT_ONCE, self._budget(images.device) // max(1, needed))
        if images.device.type == "cpu" and self.memory is None:
            fitting = max(_SMALL, min(fitting, _CPU_CACHED // max(1, needed)))
        return max(1, fitting)

    def _trace_of(self, images: Tensor, extra: ExtraInputs) -> Trace | None:
        shape = tuple(images.shape[1:])
        if shape not in self._traces:
            try:
                self._traces[shape] = dry_run(self.model, images, extra)
            except EgcamError:
                raise
            except Exception:  # whatever is wrong shows in the real pass, where it can be explained
                self._traces[shape] = None
        return self._traces[shape]

    def _budget(self, device: torch.device) -> int:
        if self.memory is not None:
            return self.memory
        if device.type == "cuda":
            return int(torch.cuda.mem_get_info(device)[0] // 3)
        return self.cpu_memory

    # -- the result ------------------------------------------------------------------------------

    def _explanation(
        self,
        images: Tensor,
        tasks: list[Task],
        found: list[Maps],
        points: Sequence[LayerPoint],
        meter: Meter,
        single: bool,
    ) -> Explanation:
        layers = [torch.cat(parts) for parts in zip(*(part.maps for part in found), strict=True)]
        shown = layers if self.signed else [layer.relu() for layer in layers]
        self._warn(tasks, layers, shown)
        error = None
        if all(part.errors is not None for part in found):
            joined = [torch.cat(parts) for parts in zip(*(part.errors or [] for part in found), strict=True)]
            error = fused_errors(joined, shown)

        def whole(parts: list[Tensor | None]) -> Tensor | None:
            tensors = [part for part in parts if part is not None]
            if len(tensors) != len(parts):
                return None
            joined = torch.cat(tensors).detach()
            return joined[0] if single else joined

        maps = whole([fused(shown)])
        scores = whole([task.scores for task in tasks])
        assert maps is not None
        assert scores is not None
        return Explanation(
            maps=maps,
            size=(int(images.shape[-2]), int(images.shape[-1])),
            targets=whole([task.indices for task in tasks]),
            scores=scores,
            predictions=whole([task.predictions for task in tasks]),
            layer=" + ".join(point.name for point in points),
            method=self.method,
            reference=found[0].reference,
            error=whole([error]),
            passes=meter.done,
            tails=meter.tails,
            completeness=_together([part.completeness for part in found], layers, single),
            options={**self._options(), "score": self.score, "signed": self.signed},
            classes=None if self.classes is None else tuple(self.classes),
            images=images,
            outputs=whole([task.outputs for task in tasks]),
        )

    def _warn(self, tasks: list[Task], before: list[Tensor], shown: list[Tensor]) -> None:
        broken = [i for i in range(len(shown[0])) if not all(bool(layer[i].isfinite().all()) for layer in shown)]
        if broken:
            warn_user(
                f"{self.method}: the map of image {_few(broken)} holds NaN or infinite values; the model's output or "
                "gradient overflows there (half precision? try float32)",
                NonFiniteMapWarning,
            )
        zero = [i for i in range(len(shown[0])) if all(not bool(layer[i].any()) for layer in shown)]
        if zero:
            activations = torch.cat([task.activations[0] for task in tasks]) if tasks[0].activations else None
            cause = _cause_of_zero(zero[0], before, activations)
            warn_user(
                f"{self.method}: the map of image {_few(zero)} is zero everywhere: {cause}",
                ZeroMapWarning,
            )


def _together(parts: list[Completeness | None], layers: list[Tensor], single: bool) -> Completeness | None:
    known = [part for part in parts if part is not None]
    if len(known) != len(parts) or len(layers) != 1:
        return None
    total = torch.cat([part.total for part in known])
    expected = torch.cat([part.expected for part in known])
    attributions = layers[0].detach()
    return (
        Completeness(total[0], expected[0], attributions[0]) if single else Completeness(total, expected, attributions)
    )


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"


def _cause_of_zero(image: int, before: list[Tensor], activations: Tensor | None) -> str:
    if any(bool((layer[image] < 0).any()) for layer in before):
        return "every position speaks against the target class; signed=True shows the negative values"
    if activations is not None and not bool(activations[image].any()):
        return "the layer's activations are all zero for it; choose another layer, or check the image's normalisation"
    return (
        "the gradient is zero at the layer, as where the output is saturated or the layer does not reach the target; "
        "'expected-grad-cam' averages the gradient over a path and so sees past saturation"
    )


def _positive(value: int | None, name: str) -> int | None:
    if value is not None and not is_whole(value):
        raise InputError(f"{name} must be a whole number, not {value!r}")
    if value is not None and value < 1:
        raise InputError(f"{name} must be at least 1, not {value}")
    return value


def _images_and_labels(batch: Any) -> tuple[Tensor, Any]:
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor):
        return batch[0], (batch[1] if len(batch) > 1 else None)
    raise InputError(f"the loader gives {type(batch).__name__}; it must give images or (images, labels) tensors")


def plain_settings(value: Any) -> Any:
    """A setting as something JSON can hold: numbers and names as they are, objects by what they are made of."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    description = getattr(value, "description", None)
    if isinstance(description, str):
        return description
    if is_dataclass(value) and not isinstance(value, type):
        fields = {key: plain_settings(getattr(value, key)) for key in asdict_keys(value)}
        return {"kind": type(value).__name__, **fields}
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return type(value).__name__


def asdict_keys(value: Any) -> list[str]:
    """The names of a dataclass's public fields."""
    return [name for name in value.__dataclass_fields__ if not name.startswith("_")]
