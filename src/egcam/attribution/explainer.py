"""The part all methods share: checks, layer, targets, batching, and the explanation at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from egcam.attribution.explanation import Completeness, Explanation
from egcam.attribution.maps import Maps, facts_of
from egcam.attribution.options import check_count
from egcam.attribution.reference_activations import ReferenceActivations
from egcam.attribution.task import Meter, Progress, Task
from egcam.errors import EgcamError, InputError, ModelError, NonFiniteMapWarning, TargetError, ZeroMapWarning, warn_user
from egcam.imageops import Size, fused, fused_errors, size_of
from egcam.models.capture import Probe
from egcam.models.class_names import Classes
from egcam.models.dimensions import dimensions_of
from egcam.models.image_targets import Setting, image_part
from egcam.models.inputs import (
    ExtraInputs,
    FromList,
    check_images,
    is_listed,
    plain_model,
    warn_if_channels_last,
    warn_if_up_to_255,
)
from egcam.models.layers import BY_WORD, INPUT, Layer, LayerPoint, is_word, last_spatial_layer, parallel_layers, resolve
from egcam.models.layout import Layout
from egcam.models.place_layers import place_layers
from egcam.models.reading import Reshape, as_reshape
from egcam.models.restore import add_hook, untouched
from egcam.models.rows import check_rows
from egcam.models.targets import Score, Target, Targets, imagenet_classes, known_classes
from egcam.models.tokens import are_tokens
from egcam.models.trace import Trace, dry_run

_CPU_CACHED = 64 * 2**20  # a CPU gains nothing from batches much larger than its caches
_MOST_AT_ONCE = 64
_SMALL = 8  # up to this many passes are made in one batch, if the memory budget allows


class Explainer(ABC):
    """A method bound to a model: call it with images to get an `Explanation`.

    It keeps nothing in the model between calls, so it need not be closed, though `with` works. Several threads may
    call it.

    Args:
        model: the classifier. Compiled and DataParallel wrappers are seen through.
        layer: a module, its dotted name ("layer4", or "relu:2" for the second call of a module that runs repeatedly),
            a list of those (each map upsampled to the finest, divided by its maximum, averaged); "last" for the last
            spatial layer, where maps are most stable; "inner" for SlopeCAM's default layer, where maps are
            finer; or None, the method's default.
        score: what number of the target class is explained: "logit", "probability" (of a single output: its sigmoid)
            or "sigmoid".
        classes: the class names, for targets by name: a list, an array, or a dictionary by index (`id2label`); models
            that carry names, and ImageNet networks, need none. One for each output; for a single output z also two,
            [negative, positive], of logits -z and z.
        signed: keep negative values instead of applying the ReLU.
        batch_size: the most images in one pass; by default as many as fit `memory`.
        memory: bytes one pass may take, about; by default 384 MiB on a CPU and a third of what is free on a GPU.
        reshape: for layers that do not output (N, channels, height, width). Tokens (N, length, channels), with their
            grid, and (N, height, width, channels) are recognised; otherwise pass "tokens", "channels-last" or
            "channels-first", the grid of tokens (height, width), or a callable that turns the output into
            (N, channels, height, width).
        dimensions: 1 for signals (N, C, L), 2 for images, 3 for volumes and video; None is inferred from the model's
            convolutions.
    """

    name: ClassVar[str]
    at_input: ClassVar[bool] = False
    cpu_memory: ClassVar[int] = 384 * 2**20
    cause_of_zero: ClassVar[str] = (
        "the gradient is zero at the layer, as where the output is saturated or the layer does not reach the target; "
        "'slope-cam' averages the gradient over a path and so sees past saturation"
    )

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
        dimensions: int | None = None,
    ) -> None:
        self.model = plain_model(model)
        self._listed = isinstance(model, FromList)
        self.score = score
        self.classes = known_classes(model, classes) or known_classes(self.model, classes)
        if not isinstance(signed, bool | np.bool_):
            raise InputError(f"signed is True or False, not {signed!r}")
        self.signed = bool(signed)
        self.batch_size = _positive(batch_size, "batch_size")
        self.memory = _positive(memory, "memory")
        self.method = self.name
        self._layer = layer
        self._reshape = as_reshape(reshape)
        self.dimensions = dimensions
        self._dimensions: dict[tuple[int, ...], int] = {}
        self._layout = Layout()
        self._references = ReferenceActivations()
        self._traces: dict[tuple[int, ...], Trace | None] = {}
        self._points: tuple[LayerPoint, ...] | None = None
        self._by_image: bool | None = None
        Targets(None, 0, score)
        if self.at_input:
            self._points = (INPUT,)
        elif layer is not None and not is_word(layer, self.model):
            self._points = resolve(self.model, layer, lambda: "")

    # -- what a method fills in ------------------------------------------------------------------

    @abstractmethod
    def _explain(self, task: Task) -> Maps:
        """The maps of the task's images, before the ReLU. Must make the task's first pass, in one of its forms."""

    @property
    def passes(self) -> int:
        """Passes through the network per image, if known beforehand."""
        return 1

    def passes_at(self, channels: int, size: int = 224) -> int:
        """Passes for each image of `size` x `size` pixels at a layer with that many channels; tails are not counted."""
        return self.passes

    def usual_layer(self, trace: Trace) -> str:
        """The layer explained if none is named."""
        return last_spatial_layer(trace)

    def _options(self) -> dict[str, Any]:
        """What the method was set to, for the record."""
        return {}

    # -- what users call -------------------------------------------------------------------------

    def __call__(
        self,
        images: Tensor | Sequence[Tensor],
        target: Target = None,
        *,
        inputs: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
    ) -> Explanation:
        """Explain images.

        Args:
            images: (N, C, H, W) floats, preprocessed as the model expects; (C, H, W) for one image, whose result has
                no N either; or a list of images of one size, which the model then gets as a list, as detectors want.
                Or signals (N, C, L), volumes (N, C, D, H, W) or video (N, C, T, H, W), with or without N.
            target: None (each image's predicted class), a class index or name, one of `egcam.targets`, or one of those
                for each image. Callables in a list get their image's part of the output and return a number. A
                single callable gets the whole output and returns one number per row; it also gets sampled batches of
                other sizes, so it must treat all rows alike.
            inputs: additional positional inputs of the model. Tensors with N rows go with the images row by row; pass
                what all images share, such as text prompts, as `egcam.shared(…)`.
            keywords: additional keyword inputs of the model, treated alike.
            progress: called with (passes done, passes expected) as the work proceeds.
        """
        listed = self._listed or is_listed(images)
        dimensions = self._dimensions_of(images, inputs, keywords or {}) if isinstance(images, Tensor) else 2
        if dimensions == 2:
            warn_if_channels_last(images)
        single = isinstance(images, Tensor) and images.ndim == dimensions + 1
        given = images if isinstance(images, Tensor) else None
        images = check_images(images, self.model, dimensions)
        warn_if_up_to_255(images)
        given = images if given is None else given
        extra = ExtraInputs(len(images), tuple(inputs), dict(keywords or {}), listed)
        setting = Setting(
            size=(images.shape[-2], images.shape[-1]), run=lambda one: self._output_of(one, images, extra)
        )
        meter = Meter(progress)
        meter.expect(len(images) * self.passes)
        tasks: list[Task] = []
        found: list[Maps] = []
        with untouched(self.model, images.device), _export_guards_explained():
            targets = Targets(target, len(images), self.score, self.classes, setting)
            check_rows(self.model, images, extra)
            points = self._layer_points(images, extra, targets)
            self._refuse_embeddings(images, extra, targets)
            if self.batch_size != 1 and self._runs_by_image(points, images, extra):
                return self._one_by_one(given, listed, target, inputs, keywords, progress)
            probe = Probe(
                self.model, points, extra, self._reshape, self._layout, lambda some: self._trace_of(some, extra)
            )
            size = self._images_at_once(images, points, extra)
            probe.settle(images, size)
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
        return self._explanation(given, size_of(images), tasks, found, points, meter, single, targets.descriptions)

    def stream(
        self,
        loader: Iterable[Any],
        target: Target = None,
        *,
        labels: bool = True,
        inputs: Sequence[Any] | Callable[[Any], Sequence[Any]] = (),
        keywords: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None,
        progress: Progress | None = None,
    ) -> Iterator[Explanation]:
        """Explain batch after batch, keeping none in memory.

        `start` counts on from batch to batch, so that all explanations can be saved to one folder.

        Args:
            loader: gives batches of images, or pairs (images, labels); `inputs` and `keywords` may pick further items.
            target: as in a call. None explains the labels, if the batches have them, else the predictions.
            labels: False explains the predictions even if there are labels.
            inputs: additional positional inputs of the model: as in a call, or a function of the batch,
                e.g. `lambda batch: (batch[2],)`.
            keywords: additional keyword inputs of the model, or a function of the batch.
            progress: as in a call, starting again with each batch.
        """
        parameter = next(self.model.parameters(), None)
        start = 0
        for batch in loader:
            images, marks = _images_and_labels(batch)
            if parameter is not None:
                images = images.to(parameter.device)
            use_marks = target is None and labels and marks is not None
            explanation = self(
                images,
                marks if use_marks else target,
                inputs=inputs(batch) if callable(inputs) else inputs,
                keywords=keywords(batch) if callable(keywords) else keywords,
                progress=progress,
            )
            yield replace(explanation, start=start)
            start += len(explanation)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __repr__(self) -> str:
        layer = "found" if self._points is None else " + ".join(point.name for point in self._points)
        return f"{type(self).__name__}({type(self.model).__name__}, layer={layer!r})"

    def _runs_by_image(self, points: Sequence[LayerPoint], images: Tensor, extra: ExtraInputs) -> bool:
        """Whether images must be run one at a time: their layers run for each, as in some detectors, or mix them."""
        if self._by_image is None:
            trace = self._trace_of(images, extra)
            may_be = extra.listed or (trace is not None and trace.places == "boxes")
            self._by_image = (may_be and _runs_twice(self.model, points, images, extra)) or _mixes_images(self.model)
        return self._by_image

    def _one_by_one(self, images: Tensor, listed: bool, target: Target, *more: Any) -> Explanation:
        """Explain with one image in each pass."""
        alone = copy(self)
        alone.batch_size = 1
        inputs, keywords, progress = more
        return alone(list(images) if listed else images, target, inputs=inputs, keywords=keywords, progress=progress)

    def _output_of(self, image: Tensor, images: Tensor, extra: ExtraInputs) -> Any:
        """The model's output for another image than the explained ones, whose further inputs are the first one's."""
        args, kwargs = extra.rows(torch.zeros(1, dtype=torch.long, device="cpu"))
        with torch.no_grad():
            return image_part(self.model(extra.images(image[None].to(images, copy=True)), *args, **kwargs), 1, 0)

    # -- layer and batch size --------------------------------------------------------------------

    def _dimensions_of(self, images: Tensor, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> int:
        shape = tuple(images.shape)
        if shape not in self._dimensions:
            self._dimensions[shape] = dimensions_of(self.model, images, self.dimensions, inputs, keywords)
        return self._dimensions[shape]

    def _layer_points(self, images: Tensor, extra: ExtraInputs, targets: Targets) -> tuple[LayerPoint, ...]:
        if self._points is None:
            trace = self._traces[tuple(images.shape[1:])] = dry_run(self.model, images, extra, targets.reader())
            if targets.are_of_embeddings:
                # A layer with as many channels as there are outputs is then no map of class scores.
                trace = replace(trace, classes=None)
            several = self._several_layers(trace) if self._layer is None else []
            self._points = resolve(self.model, several or None, lambda: self._found(trace))
        return self._points

    def _several_layers(self, trace: Trace) -> list[str]:
        places = place_layers(trace)
        streams = [] if places else parallel_layers(trace)
        return streams if len(streams) > 1 else places

    def _refuse_embeddings(self, images: Tensor, extra: ExtraInputs, targets: Targets) -> None:
        """The largest number of an embedding is no predicted class."""
        if None not in targets.wanted:
            return
        trace = self._trace_of(images, extra)
        if trace is not None and trace.is_headless:
            raise TargetError(
                f"this network has no classification head: its {trace.classes} outputs are an embedding, and none of "
                "them is a predicted class. Pass a target, e.g. target=egcam.targets.Similarity(an_image), a callable, "
                "or the index of an output"
            )

    def _found(self, trace: Trace) -> str:
        word = self._layer
        return BY_WORD[word](self.model, trace) if is_word(word, self.model) else self.usual_layer(trace)

    def _images_at_once(self, images: Tensor, points: Sequence[LayerPoint], extra: ExtraInputs) -> int:
        own, names = images[0].numel() * images.element_size(), [point.name for point in points]
        return self._at_once(images, extra, lambda trace: 2 * own + trace.bytes_per_image(names))

    def _tails_at_once(self, images: Tensor, points: Sequence[LayerPoint], extra: ExtraInputs) -> int:
        """How many runs of what follows the layers fit into the memory budget together."""
        names = [point.name for point in points]
        return self._at_once(images, extra, lambda trace: trace.bytes_of_tail(names))

    def _at_once(self, images: Tensor, extra: ExtraInputs, bytes_of: Callable[[Trace], int]) -> int:
        """How many of what takes so many bytes each fit into the memory budget together."""
        if self.batch_size is not None:
            return self.batch_size
        trace = self._trace_of(images, extra)
        if trace is None:
            return _SMALL
        needed, most = max(1, bytes_of(trace)), _MOST_AT_ONCE
        if images.device.type == "cpu" and self.memory is None:
            most = max(_SMALL, min(most, _CPU_CACHED // needed))
        return max(1, min(most, self._budget(images.device) // needed))

    def _trace_of(self, images: Tensor, extra: ExtraInputs) -> Trace | None:
        shape = tuple(images.shape[1:])
        if shape not in self._traces:
            try:
                self._traces[shape] = dry_run(self.model, images, extra)
            except EgcamError:
                raise
            except Exception:  # any error will occur again in the real pass, where it can be reported properly
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
        size: Size,
        tasks: list[Task],
        found: list[Maps],
        points: Sequence[LayerPoint],
        meter: Meter,
        single: bool,
        described: tuple[str, ...] | None,
    ) -> Explanation:
        layers = [torch.cat(parts) for parts in zip(*(part.maps for part in found), strict=True)]
        shown = layers if self.signed else [layer.relu() for layer in layers]
        self._warn(tasks, layers, shown)
        error = None
        if all(part.errors is not None for part in found):
            joined = [torch.cat(parts) for parts in zip(*(part.errors or [] for part in found), strict=True)]
            error = fused_errors(joined, shown)

        def whole(parts: list[Tensor]) -> Tensor:
            joined = torch.cat(parts).detach()
            return joined[0] if single else joined

        def known(parts: list[Tensor | None]) -> Tensor | None:
            tensors = [part for part in parts if part is not None]
            return whole(tensors) if len(tensors) == len(parts) else None

        return Explanation(
            maps=whole([fused(shown)]),
            size=size,
            targets=known([task.indices for task in tasks]),
            scores=whole([task.scores for task in tasks]),
            predictions=known([task.predictions for task in tasks]),
            layer=" + ".join(point.name for point in points),
            method=self.method,
            reference=found[0].reference,
            error=known([error]),
            passes=meter.done,
            tails=meter.tails,
            completeness=_together([part.completeness for part in found], layers, single),
            options={**self._options(), "score": self.score, "signed": self.signed, **facts_of(found)},
            classes=_names(self.classes, tasks),
            images=images,
            outputs=known([task.outputs for task in tasks]),
            described=described,
            weights_checksum=tasks[0].probe.weights.checksum,
            reshape=self._reshape,
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
            unread = _are_unread_tokens(tasks[0])
            cause = _unmatched(zero[0], tasks) or _cause_of_zero(zero[0], before, activations, unread)
            cause = cause or self.cause_of_zero
            warn_user(
                f"{self.method}: the map of image {_few(zero)} is zero everywhere: {cause}",
                ZeroMapWarning,
            )


@contextmanager
def _export_guards_explained() -> Iterator[None]:
    """Explain the error of an exported network that is run with other shapes than it was exported for."""
    try:
        yield
    except AssertionError as error:
        if not str(error).startswith("Guard failed"):
            raise
        raise ModelError(
            f"this network was exported for inputs of one shape ({error}), and methods run batches of several sizes: "
            "explain the network it was exported from, or export it with a dynamic batch dimension"
        ) from error


def _runs_twice(model: nn.Module, points: Sequence[LayerPoint], images: Tensor, extra: ExtraInputs) -> bool:
    """Whether two images make a layer run twice."""
    calls: Counter[str] = Counter()
    wanted = [point for point in points if point.module is not None and point.call is None]
    args, kwargs = extra.rows(torch.zeros(2, dtype=torch.long, device="cpu"))
    with ExitStack() as stack:
        for point in wanted:
            assert point.module is not None
            stack.callback(add_hook(point.module, partial(_count, calls, point.name)).remove)
        with torch.no_grad():
            model(extra.images(images[:1].repeat(2, 1, 1, 1)), *args, **kwargs)
    return any(calls[point.name] > 1 for point in wanted)


def _count(calls: Counter[str], name: str, *_: object) -> None:
    calls[name] += 1


def _together(parts: list[Completeness | None], layers: list[Tensor], single: bool) -> Completeness | None:
    known = [part for part in parts if part is not None]
    if len(known) != len(parts) or len(layers) != 1:
        return None
    corrections = [part.correction for part in known if part.correction is not None]
    whole = Completeness(
        torch.cat([part.total for part in known]),
        torch.cat([part.expected for part in known]),
        layers[0].detach(),
        torch.cat(corrections) if corrections else None,
    )
    return whole.each(lambda tensor: tensor[0]) if single else whole


def _names(classes: Sequence[str] | None, tasks: list[Task]) -> tuple[str, ...] | None:
    """The class names, those of ImageNet where targets were understood by them."""
    if classes is None and any(isinstance(one, str) for task in tasks for one in task.targets.wanted):
        return imagenet_classes()
    return None if classes is None else tuple(classes)


def _few(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    return shown if len(numbers) <= 5 else f"{shown} and {len(numbers) - 5} more"


def _unmatched(image: int, tasks: list[Task]) -> str | None:
    """Why the score of an image is exactly 0, if its target can say."""
    for task in tasks:
        if image < len(task.images):
            return task.targets.why_zero(image) if float(task.scores[image]) == 0 else None
        image -= len(task.images)
    return None


def _mixes_images(model: nn.Module) -> bool:
    """Whether a normalisation without statistics of its own takes those of the batch, in evaluation too."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    return any(isinstance(module, kinds) and module.running_mean is None for module in model.modules())


def _are_unread_tokens(task: Task) -> bool:
    """Whether the layer outputs tokens, and the scores do not depend on those of the patches."""
    (point, *others) = task.probe.points
    trace = None if point.module is None or others else task.probe.trace(task.images[:1])
    calls = [] if trace is None else trace.calls_of(point.name.partition(":")[0])
    return trace is not None and any(are_tokens(trace, call) and trace.reaches_output(call) is False for call in calls)


def _cause_of_zero(image: int, before: list[Tensor], activations: Tensor | None, unread_tokens: bool) -> str | None:
    if any(bool((layer[image] < 0).any()) for layer in before):
        return "every position is negative evidence; signed=True shows the negative values"
    if activations is not None and not bool(activations[image].any()):
        return "the layer's activations are all zero for it; choose another layer, or check the image's normalisation"
    if unread_tokens:
        return (
            "after this layer the score is read from other tokens, such as the class token, so it does not depend on "
            "those of the patches; layer=None finds one that it depends on"
        )
    return None


def _positive(value: int | None, name: str) -> int | None:
    if value is not None:
        check_count(value, name, InputError)
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
