"""Explainers made of other packages' objects: captum, zennit, pytorch-grad-cam, torchcam, or any function."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias, Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.task import Maps, Meter, Task
from egcam.errors import InputError, MethodError, TargetError
from egcam.imageops import wide_enough
from egcam.models.class_scores import class_count
from egcam.models.inputs import ExtraInputs
from egcam.models.layer_output import shape_in_words
from egcam.models.layers import INPUT, LayerPoint, resolve
from egcam.models.restore import add_hook
from egcam.models.shadow import separate_copy
from egcam.rng import OwnDraws, generator

Run: TypeAlias = Callable[["Foreign", Task, Tensor, Tensor, Tensor], Any]


def foreign(
    thing: Any, model: nn.Module | None = None, options: Mapping[str, Any] | None = None, **common: Unpack[Common]
) -> Foreign:
    """Turn another package's object into an explainer, to call, evaluate and use in a study like any other.

    | package | object | its maps |
    |---|---|---|
    | captum | `Saliency(model)`, `LayerGradCam(model, layer)`, … | `attribute(...)`, summed over channels |
    | zennit | an attributor, or a composite and `model` | relevance from 1 at the class, summed over colours |
    | pytorch-grad-cam | `EigenCAM(model, [layer])`, … | as it gives them, between 0 and 1 |
    | torchcam | `LayerCAM(model, layer)`, … | as it gives them |
    | any | a function (images, target) -> (N, h, w) maps, and `model` | as it gives them |

    The explained class goes to the object as its target. Without `signed=True` negative values are cut off, as
    everywhere. One thread at a time uses the object. The model's mode and gradients are restored, but hooks that the
    object keeps on the model stay. What it draws from torch's generators is the same in every call, and leaves those
    as they are.

    Args:
        thing: the object.
        model: the classifier; needed only where the object does not have it.
        options: what the object's own call takes besides images and target, e.g. `{"n_steps": 20}`.
        common: the options all explainers take, except `score` and `reshape`, which are set in the object.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3))
        >>> bright = foreign(lambda images, target: images.mean(1), net)
        >>> bright(torch.ones(2, 1, 8, 8), target=0).maps.mean()
        tensor(1.)
    """
    return Foreign(thing, model, options, **common)


class Foreign(Explainer):
    """An explainer that lets another package's object do the work; see `foreign`."""

    name = "foreign"
    at_input = True
    cause_of_zero = "so says the foreign explainer"

    def __init__(
        self,
        thing: Any,
        model: nn.Module | None = None,
        options: Mapping[str, Any] | None = None,
        **common: Unpack[Common],
    ) -> None:
        package = _package_of(thing)
        found = model if model is not None else _model_of(thing)
        if not isinstance(found, nn.Module):
            raise MethodError(f"this {type(thing).__name__} does not say which model it explains: pass model=…")
        super().__init__(found, None, **common)
        if self.score != "logit" or self._reshape is not None:
            raise MethodError(
                "score and reshape are not for a foreign explainer: which number it explains and how it reads layers "
                "is set where its object is created"
            )
        self.thing, self.options, self._package = thing, dict(options or {}), package
        self._lock = threading.Lock()
        self._points = (_point_of(thing, self.model),)
        self.method = getattr(thing, "__name__", type(thing).__name__)

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        if task.probe.extra.listed:
            raise InputError(
                "a foreign explainer passes batches, and this model takes lists: wrap it in one that does not"
            )
        classes, outputs = task.indices, task.outputs
        if classes is None or outputs is None:
            raise TargetError("a foreign explainer explains classes and cannot take a callable target")
        if class_count(outputs.shape[1], self.classes) != outputs.shape[1]:
            raise TargetError(
                "a foreign explainer explains outputs of the model, and here two class names share one output"
            )
        draws, counting = OwnDraws(generator(0, "foreign")), _passes_counted(self.model, task.meter)
        with self._lock, torch.enable_grad(), _gradients_kept(self.model), counting, draws:
            made = _RUN[self._package](self, task, task.images.clone(), classes, outputs)
        return Maps([_as_map(layer, task.images) for layer in (made if isinstance(made, list | tuple) else [made])])

    def _options(self) -> dict[str, Any]:
        return {"package": self._package, "object": type(self.thing).__name__}

    def __deepcopy__(self, memo: dict[int, Any]) -> Foreign:
        raise TypeError("the object of another package may hold on to the model in ways that are not known here")


def _package_of(thing: Any) -> str:
    if isinstance(thing, type):
        raise MethodError(f"pass an object, not the class {thing.__name__}: {thing.__name__}(model, …)")
    packages = {kind.__module__.partition(".")[0] for kind in type(thing).__mro__}
    for package in _RUN:
        if package in packages:
            return package
    if callable(thing):
        return "any"
    raise MethodError(
        f"{type(thing).__name__} is neither an object of captum, zennit, pytorch-grad-cam or torchcam nor a function "
        "(images, target) -> maps"
    )


def _model_of(thing: Any) -> Any:
    return getattr(thing, "model", None) or getattr(thing, "forward_func", None)


def _point_of(thing: Any, model: nn.Module) -> LayerPoint:
    """The layer by its name, where the object has one; nothing is looked at there by egcam itself."""
    layer = (
        getattr(thing, "layer", None) or getattr(thing, "target_layers", None) or getattr(thing, "target_names", None)
    )
    if layer is None:
        return INPUT
    try:
        return LayerPoint(" + ".join(point.name for point in resolve(model, layer, lambda: "")), None)
    except ValueError:
        return LayerPoint(type(thing).__name__, None)


@contextmanager
def _gradients_kept(model: nn.Module) -> Iterator[None]:
    """The parameters' gradients out of reach: some packages clear them, or add to them."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


@contextmanager
def _passes_counted(model: nn.Module, meter: Meter) -> Iterator[None]:
    def count(module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor):
            meter.add(len(args[0]))

    handle = add_hook(model, count, before=True)
    try:
        yield
    finally:
        handle.remove()


def _as_map(made: Any, images: Tensor) -> Tensor:
    """(N, h, w), channels added up."""
    tensor = made if isinstance(made, Tensor) else torch.as_tensor(made)
    tensor = wide_enough(tensor.detach()).to(images.device)
    tensor = tensor.sum(1) if tensor.ndim == images.ndim else tensor
    if tensor.ndim != images.ndim - 1 or len(tensor) != len(images):
        raise InputError(
            f"the foreign explainer returned {tuple(tensor.shape)} for {len(images)} image(s); needed are "
            f"{shape_in_words(images.ndim - 2)} attributions, or maps: the same without channels"
        )
    return tensor


def _extra_of(task: Task) -> ExtraInputs:
    return task.probe.extra.part(task.rows)


def _refuse_extra(task: Task, package: str) -> None:
    if task.probe.extra.args or task.probe.extra.kwargs:
        raise InputError(
            f"{package} cannot pass further inputs to the model; wrap the model in one that takes images only"
        )


def _captum(own: Foreign, task: Task, images: Tensor, classes: Tensor, outputs: Tensor) -> Any:
    args, kwargs = task.probe.extra.rows(task.rows)
    if kwargs:
        raise InputError("captum passes further inputs by position only: use inputs=… instead of keywords=…")
    more = {"additional_forward_args": args} if args else {}
    return own.thing.attribute(images, target=classes if outputs.shape[1] > 1 else None, **more, **own.options)


def _zennit(own: Foreign, task: Task, images: Tensor, classes: Tensor, outputs: Tensor) -> Any:
    from zennit.attribution import Attributor, Gradient

    _refuse_extra(task, "zennit")
    start = nn.functional.one_hot(classes, outputs.shape[1]).to(outputs)
    if isinstance(own.thing, Attributor):
        return own.thing(images, start.reshape(outputs.shape), **own.options)[1]
    # A composite changes the model's weights for as long as it is at work.
    return Gradient(separate_copy(own.model), own.thing)(images, start, **own.options)[1]


def _pytorch_grad_cam(own: Foreign, task: Task, images: Tensor, classes: Tensor, outputs: Tensor) -> Any:
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    _refuse_extra(task, "pytorch-grad-cam")
    targets = [ClassifierOutputTarget(index) for index in classes.tolist()]
    return own.thing(input_tensor=images.requires_grad_(), targets=targets, **own.options)


def _torchcam(own: Foreign, task: Task, images: Tensor, classes: Tensor, outputs: Tensor) -> Any:
    args, kwargs = task.probe.extra.rows(task.rows)
    scores = own.model(images.requires_grad_(), *args, **kwargs)
    return own.thing(classes.tolist(), scores, **own.options)


def _any(own: Foreign, task: Task, images: Tensor, classes: Tensor, outputs: Tensor) -> Any:
    made = own.thing(images, classes, **_extra_of(task).for_call(), **own.options)
    return getattr(made, "maps", made)


_RUN: dict[str, Run] = {
    "captum": _captum,
    "zennit": _zennit,
    "pytorch_grad_cam": _pytorch_grad_cam,
    "torchcam": _torchcam,
    "any": _any,
}
