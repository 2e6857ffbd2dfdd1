"""The part all methods share: checks, layer, targets, batching, and the explanation at the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from copy import copy
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from egcam.attribution.explanation import Completeness, Explanation
from egcam.attribution.registry import records
from egcam.attribution.task import Maps, Meter, Progress, Task
from egcam.errors import (
    EgcamError,
    IncompleteMapWarning,
    InputError,
    LayerError,
    ModelError,
    NonFiniteMapWarning,
    TargetError,
    ZeroMapWarning,
    check_count,
    warn_user,
)
from egcam.imageops import Size, fused, fused_errors, size_of
from egcam.models.black_box import BlackBox
from egcam.models.capture import Probe
from egcam.models.class_names import Classes
from egcam.models.class_scores import Score, check_score, known_classes
from egcam.models.dimensions import dimensions_of
from egcam.models.inputs import (
    ExtraInputs,
    FromList,
    Layout,
    check_images,
    is_listed,
    plain_model,
    warn_if_channels_last,
    warn_if_up_to_255,
)
from egcam.models.layer_output import Reshape, Ways, are_tokens, as_reshape
from egcam.models.layers import (
    BY_WORD,
    INPUT,
    Layer,
    LayerPoint,
    is_word,
    last_spatial_layer,
    parallel_layers,
    resolve,
)
from egcam.models.model_errors import check_rows, model_error
from egcam.models.place_layers import place_layers
from egcam.models.restore import add_hook, untouched
from egcam.models.session import Session, session_of
from egcam.models.targets import Setting, Target, Targets, image_part
from egcam.models.trace import Trace, dry_run

_CPU_CACHED = 64 * 2**20  # a CPU gains nothing from batches much larger than its caches
_KEPT = 640 * 2**20  # for the graph of what follows a layer, which is kept from call to call
_MOST_AT_ONCE = 64
_SMALL = 8  # up to this many passes are made in one batch, if the memory budget allows


class Common(TypedDict, total=False):
    """The options every explainer takes; see `Explainer`."""

    score: Score
    classes: Classes | None
    signed: bool
    batch_size: int | None
    memory: int | None
    reshape: Reshape | None
    dimensions: int | None


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
            that carry names, as those of `egcam.zoo` do, need none. One for each output; for a single output z also
            two, [negative, positive], of logits -z and z.
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
    by_scores: ClassVar[bool] = False  # whether scores are all it needs, so that it explains black boxes too
    image_by_image: ClassVar[bool] = False  # whether a task holds a single image
    cpu_memory: ClassVar[int] = 384 * 2**20
    cause_of_zero: ClassVar[str] = (
        "the gradient is zero at the layer, as where the output is saturated or the layer does not reach the target; "
        "'slope-cam' compares the image with others and so sees past saturation"
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
        self.classes = known_classes(model, classes) or known_classes(self.model, classes)
        if not isinstance(signed, bool | np.bool_):
            raise InputError(f"signed is True or False, not {signed!r}")
        for name, value in (("batch_size", batch_size), ("memory", memory)):
            if value is not None:
                check_count(value, name, InputError)
        check_score(score)
        self.score, self.signed, self.batch_size, self.memory = score, bool(signed), batch_size, memory
        self.method = self.name
        self.dimensions = dimensions
        self._layer, self._reshape = layer, None if reshape is None else as_reshape(reshape)
        self._points: tuple[LayerPoint, ...] | None = None
        if isinstance(self.model, BlackBox):
            _check_black_box(self.name, self.by_scores, layer)
            self.score = "probability" if self.model.gives_probabilities and score == "logit" else score
        if self.at_input or isinstance(self.model, BlackBox):
            self._points = (INPUT,)
        elif layer is not None and not is_word(layer, self.model):
            self._points = resolve(self.model, layer, lambda: "")

    # -- what a method fills in ------------------------------------------------------------------

    @abstractmethod
    def _explain(self, task: Task) -> Maps:
        """The maps of the task's images, before the ReLU. Must make the task's first pass, in one of its forms."""

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
            progress: called with (runs made, runs expected) as the work proceeds, and at its end with twice the same.
        """
        listed = self._listed or is_listed(images)
        session, keywords = session_of(self.model), dict(keywords or {})
        weights = session.look(self.model)
        dimensions = 2
        if isinstance(images, Tensor):
            key = ("dimensions", tuple(images.shape), self.dimensions)
            infer = partial(dimensions_of, self.model, images, self.dimensions, inputs, keywords)
            dimensions = session.fact(key, infer)
        if dimensions == 2:
            warn_if_channels_last(images)
        single = isinstance(images, Tensor) and images.ndim == dimensions + 1
        given = images if isinstance(images, Tensor) else None
        images = check_images(images, self.model, dimensions)
        warn_if_up_to_255(images)
        given = images if given is None else given
        extra = ExtraInputs(len(images), tuple(inputs), keywords, listed)
        setting = Setting(size=size_of(images), run=lambda one: self._output_of(one, images, extra))
        meter = Meter(progress)
        with untouched(self.model, images.device):
            try:
                targets = Targets(target, len(images), self.score, self.classes, setting)
                if extra.args or extra.kwargs:
                    check_rows(self.model, images, extra)
                place = self._place(images, extra, targets, session)
                if place.embedding is not None and None in targets.wanted:
                    raise _no_head(place.embedding)
                if place.by_image and self.batch_size != 1:
                    return self._one_by_one(given, listed, target, inputs, keywords, progress)
                tasks = self._tasks(images, extra, targets, session, place, meter)
                parts = [self._explain(task) if task.has_scores() else None for task in meter.each(tasks)]
            except Exception as error:
                instead = model_error(error, self.model, images, extra)
                if instead is None:
                    raise
                raise instead from error
        found = _with_zero_maps(parts, tasks) if None in parts else [part for part in parts if part is not None]
        return self._explanation(given, size_of(images), tasks, found, place, meter, single, targets, weights.checksum)

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

    def _place(self, images: Tensor, extra: ExtraInputs, targets: Targets, session: Session) -> _Place:
        """Where and how such images are explained; resolved once, and kept in the model's session."""
        kind = (tuple(images.shape[1:]), images.dtype, images.device, extra.listed)

        def resolved() -> _Place:
            trace = session.fact(("trace", *kind), lambda: _dry_run(self.model, images, extra))
            points = self._points or self._find_points(images, extra, targets, trace)
            names = tuple(point.name for point in points)
            by_image, of_image, of_tail = _mixes_images(self.model), 0, 0
            if trace is not None:
                may_be = extra.listed or trace.places == "boxes"
                by_image |= may_be and _runs_twice(self.model, points, images, extra)
                of_image = 2 * images[0].numel() * images.element_size() + trace.bytes_per_image(names)
                of_tail = trace.bytes_of_tail(names)
            embedding = trace.classes if trace is not None and trace.is_headless else None
            place = _Place(names, by_image, of_image, of_tail, embedding, session.fact("layout", Layout))
            if not by_image or self.batch_size == 1:
                at_once = self._at_once(images, of_image, self._budget(images.device))
                self._probe(points, extra, place, session).settle(images, at_once)
            return place

        if self._points is None and not targets.are_classes:
            # What is explained may decide what is found, so it is the explainer's own.
            self._points = self._find_points(images, extra, targets, None)
        named = (type(self), self._layer) if self._points is None else tuple(point.name for point in self._points)
        reshape = id(self._reshape) if callable(self._reshape) else self._reshape
        return session.fact(("place", named, reshape, self.batch_size, self.memory, *kind), resolved)

    def _probe(self, points: Sequence[LayerPoint], extra: ExtraInputs, place: _Place, session: Session) -> Probe:
        def trace(some: Tensor) -> Trace | None:
            key = ("trace", tuple(some.shape[1:]), some.dtype, some.device, extra.listed)
            return session.fact(key, lambda: _dry_run(self.model, some, extra))

        return Probe(self.model, points, extra, self._reshape, place.layout, trace, place.ways)

    def _find_points(
        self, images: Tensor, extra: ExtraInputs, targets: Targets, trace: Trace | None
    ) -> tuple[LayerPoint, ...]:
        if trace is None:
            trace = dry_run(self.model, images, extra, targets.reader())
        trace = replace(trace, places=targets.places or trace.places)
        if targets.are_of_embeddings:
            # A layer with as many channels as there are outputs is then no map of class scores.
            trace = replace(trace, classes=None)
        several = self._several_layers(trace) if self._layer is None else []
        return resolve(self.model, several or None, lambda: self._found(trace))

    def _several_layers(self, trace: Trace) -> list[str]:
        places = place_layers(trace)
        streams = [] if places else parallel_layers(trace)
        return streams if len(streams) > 1 else places

    def _found(self, trace: Trace) -> str:
        word = self._layer
        return BY_WORD[word](self.model, trace) if is_word(word, self.model) else self.usual_layer(trace)

    def _tasks(
        self, images: Tensor, extra: ExtraInputs, targets: Targets, session: Session, place: _Place, meter: Meter
    ) -> list[Task]:
        """The images in as many parts as fit into memory, or one by one."""
        points = self._points or [
            LayerPoint(name, self.model.get_submodule(module), int(call) if call else None)
            for name, (module, _, call) in ((name, name.partition(":")) for name in place.layers)
        ]
        probe = self._probe(points, extra, place, session)
        memory = self._budget(images.device)
        at_once = self._at_once(images, place.of_image, memory)
        size = 1 if self.image_by_image else at_once
        memo: dict[str, Any] = {}
        return [
            Task(
                probe,
                images[start : start + size],
                torch.arange(start, min(start + size, len(images)), device="cpu"),
                targets.part(start, min(start + size, len(images))),
                at_once,
                meter,
                memo,
                session,
                tails_at_once=self._at_once(images, place.of_tail, memory),
                memory=memory,
                kept_memory=max(memory, _KEPT) if self.memory is None else memory,
                limit=self.batch_size,
            )
            for start in range(0, len(images), size)
        ]

    def _at_once(self, images: Tensor, needed: int, memory: int) -> int:
        """How many of what takes so many bytes each fit into the memory budget together."""
        if self.batch_size is not None:
            return self.batch_size
        if not needed:
            return _SMALL
        most = _MOST_AT_ONCE
        if images.device.type == "cpu" and self.memory is None:
            most = max(_SMALL, min(most, _CPU_CACHED // needed))
        return max(1, min(most, memory // needed))

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
        place: _Place,
        meter: Meter,
        single: bool,
        targets: Targets,
        checksum: str,
    ) -> Explanation:
        layers = [torch.cat(parts) for parts in zip(*(part.maps for part in found), strict=True)]
        shown = layers if self.signed else [layer.relu() for layer in layers]
        self._warn(tasks, found, layers, shown)
        error = None
        if all(part.errors is not None for part in found):
            joined = [torch.cat(parts) for parts in zip(*(part.errors or [] for part in found), strict=True)]
            error = fused_errors(joined, shown)

        sides = [part.completeness for part in found if part.completeness is not None]

        def whole(parts: Iterable[Tensor | None]) -> Any:
            tensors = list(parts)
            if any(part is None for part in tensors):
                return None
            joined = torch.cat(tensors).detach()  # type: ignore[arg-type]
            return joined[0] if single else joined

        return Explanation(
            maps=whole([fused(shown)]),
            size=size,
            targets=whole(task.indices for task in tasks),
            scores=whole(task.scores for task in tasks),
            predictions=whole(task.predictions for task in tasks),
            layer=" + ".join(place.layers),
            method=self.method,
            reference=" or ".join(dict.fromkeys(part.reference for part in found if part.reference)) or None,
            error=whole([error]),
            passes=meter.passes,
            tails=meter.tails,
            completeness=_together(sides, layers[0], single) if sides and len(layers) == 1 else None,
            options={**self._options(), "score": self.score, "signed": self.signed},
            classes=None if self.classes is None else tuple(self.classes),
            images=images,
            outputs=whole(task.outputs for task in tasks),
            described=tuple(one.description for one in targets.by_image) or None,
            weights_checksum=checksum,
            reshape=self._reshape,
        )

    def _warn(self, tasks: list[Task], found: list[Maps], before: list[Tensor], shown: list[Tensor]) -> None:
        inexact = [number for number, part in enumerate(found) if part.inexact is not None]
        if inexact:
            warn_user(
                f"{self.method}: the map of image {_few(inexact)} is made of derivatives between reference and image, "
                f"not of exact slopes ({found[inexact[0]].inexact}); explanation.completeness.gap says what its sum "
                "is off by",
                IncompleteMapWarning,
            )
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


@dataclass(frozen=True)
class _Place:
    """Where and how images of one kind are explained.

    Attributes:
        layers: the names of the layers.
        by_image: whether images must be run one at a time: the network mixes them, or takes them apart as some
            detectors do.
        of_image: bytes that a pass takes for each image.
        of_tail: bytes that a run of what follows the layers takes for each row.
        embedding: how many numbers the output has, if none of them is a class.
        layout: the memory layout the network takes.
        ways: how what the layers return is read.
    """

    layers: tuple[str, ...]
    by_image: bool
    of_image: int
    of_tail: int
    embedding: int | None
    layout: Layout
    ways: Ways = field(default_factory=dict)


def _check_black_box(name: str, by_scores: bool, layer: Layer) -> None:
    if layer not in (None, INPUT.name):
        raise LayerError(f"a black box has no layers to look into, so layer={layer!r} means nothing; leave it out")
    if not by_scores:
        able = [one.name for one in records() if getattr(one.factory, "by_scores", False)]
        raise ModelError(
            f"{name} needs a network's layers and gradients, and a black box has none; "
            f"{', '.join(able)} ask for scores alone"
        )


def _dry_run(model: nn.Module, images: Tensor, extra: ExtraInputs) -> Trace | None:
    try:
        return dry_run(model, images, extra)
    except EgcamError:
        raise
    except Exception:  # any error will occur again in the real pass, where it can be reported properly
        return None


def _no_head(outputs: int) -> TargetError:
    """The largest number of an embedding is no predicted class."""
    return TargetError(
        f"this network has no classification head: its {outputs} outputs are an embedding, and none of "
        "them is a predicted class. Pass a target, e.g. target=egcam.targets.Similarity(an_image), a callable, "
        "or the index of an output"
    )


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


def _together(parts: list[Completeness], maps: Tensor, single: bool) -> Completeness:
    whole = Completeness(
        total=torch.cat([part.total for part in parts]),
        expected=torch.cat([part.expected for part in parts]),
        around=torch.cat([part.around for part in parts]),
        exact=torch.cat([part.exact for part in parts]),
        attributions=maps.detach(),
    )
    return whole.each(lambda tensor: tensor[0]) if single else whole


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


def _images_and_labels(batch: Any) -> tuple[Tensor, Any]:
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, tuple | list) and batch and isinstance(batch[0], Tensor):
        return batch[0], (batch[1] if len(batch) > 1 else None)
    said = f"the loader gives {type(batch).__name__}; it must give images or (images, labels) tensors"
    if isinstance(batch, Mapping):
        keys = list(batch)
        names = [key for key in keys if isinstance(batch[key], Tensor) and batch[key].ndim > 2] or keys[:1]
        others = [key for key in keys if key not in names]
        pair = ", ".join(f"batch[{key!r}]" for key in (*names[:1], *others[:1]))
        said += f". From its keys {', '.join(map(repr, keys))} make them: stream((({pair}) for batch in loader))"
    raise InputError(said)


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
        names = [name for name in value.__dataclass_fields__ if not name.startswith("_")]
        fields = {name: plain_settings(getattr(value, name)) for name in names}
        return {"kind": type(value).__name__, **fields}
    if callable(value):
        return getattr(value, "__name__", type(value).__name__)
    return type(value).__name__


def _with_zero_maps(parts: Sequence[Maps | None], tasks: Sequence[Task]) -> list[Maps]:
    """The maps of each task; those of a task without a score are zero, and have what the others have."""
    like = next((part for part in parts if part is not None), Maps([]))
    return [_zero_maps(like, task) if part is None else part for part, task in zip(parts, tasks, strict=True)]


def _zero_maps(like: Maps, task: Task) -> Maps:
    count = len(task.images)

    def none(tensor: Tensor) -> Tensor:
        return tensor.new_zeros((count, *tensor.shape[1:]))

    maps = [none(one) for one in like.maps] or [torch.zeros_like(layer[:, 0]) for layer in task.activations]
    errors = None if like.errors is None else [none(one) for one in like.errors]
    sides = None if like.completeness is None else like.completeness.each(none)
    return replace(like, maps=maps, errors=errors, completeness=sides, inexact=None)
