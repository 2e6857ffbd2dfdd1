"""The functions of `egcam.metrics`, made from the metrics: the arguments of a case and the options of a metric."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from inspect import Parameter, Signature, cleandoc
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from egcam.metrics.case import Case

if TYPE_CHECKING:
    from egcam.metrics.registry import Metric, Need

T = TypeVar("T")

_MODEL = {"model": "the classifier.", "images": "(N, C, H, W)."}
_TARGET = "the explained classes; None is the explanation's own, and the prediction for maps alone."
_HEATMAPS = "(N, H, W) maps or an explanation."
_MASKS = "(N, H, W) masks of the object: booleans, whole numbers, or floats cut at one half."
_EXPLAINER = "a callable (images, target) -> (N, h, w) maps, or one of egcam's explainers (its heat maps count)."
_MAPS_ALREADY_MADE = "the explainer's maps of the images if you have them already."
_PROTOCOL = '"default" or "paper".'
_DIMENSIONS = "1 for signals, 2 for images, 3 for volumes and video; None is inferred from the other arguments."
_BATCH = "the most images in one pass or explained at once; None is 8 on a CPU and 32 elsewhere."
_OF_MODEL: dict[str, tuple[str, Any]] = {
    "inputs": ("additional positional inputs of the model; see `Case`.", ()),
    "keywords": ("additional keyword inputs of the model.", None),
    "classes": ("the class names, for targets by name.", None),
}
_OF_SHADES = {"normalisation": ("the images' mean and standard deviation, for black and white; see `Case`.", None)}


def function_of(
    kind: type[Metric],
    call: Callable[[Any, Case], T] | None = None,
    doc: str | None = None,
    *,
    name: str | None = None,
    needs: Sequence[Need] | None = None,
    without: Sequence[str] = (),
) -> Callable[..., T]:
    """A function (model, images, heatmaps, target, *, options) that makes the metric and a case, and scores it.

    Args:
        kind: the metric.
        call: what is done with the metric and the case; None scores it.
        doc: what the function says of itself; None is what the metric says, its arguments joined in.
        name: the function's name; None is the metric's.
        needs: what it is given; None is what the metric needs.
        without: options of the metric it does not take.
    """
    inputs = _inputs(kind.needs if needs is None else needs)
    options = [field for field in fields(kind) if field.name not in without]  # type: ignore[arg-type]
    more: dict[str, tuple[str, Any]] = {"protocol": (_PROTOCOL, "default")} if kind.paper_options else {}
    if "model" in inputs:
        more |= {"batch_size": (_BATCH, None), "dimensions": (_DIMENSIONS, None), **_OF_MODEL}
        if any(field.name == "reference" or field.name.endswith("baseline") for field in options):
            more |= _OF_SHADES
        if kind.reuses_maps:
            more = {"heatmaps": (_MAPS_ALREADY_MADE, None), **more}
    parameters = [
        Parameter(key, Parameter.POSITIONAL_OR_KEYWORD, default=None if key == "target" else Parameter.empty)
        for key in inputs
    ]
    for field in options:
        default = Parameter.empty if field.default is MISSING else field.default
        parameters.append(Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=field.type))
    parameters += [Parameter(key, Parameter.KEYWORD_ONLY, default=default) for key, (_, default) in more.items()]
    signature = Signature(parameters)
    known = {field.name for field in options}

    def run(*args: Any, **kwargs: Any) -> T:
        given = signature.bind(*args, **kwargs).arguments
        protocol = given.pop("protocol", "default")
        metric = kind.made(protocol, **{key: given.pop(key) for key in tuple(given) if key in known})
        case = Case(**given)
        if call is None:
            return metric(case)  # type: ignore[return-value]
        return case.run(lambda: call(metric, case))

    known_as = kind.name.replace("-", "_") if name is None else name
    function = _in_module_of(kind, run, known_as)
    function.__signature__ = signature
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    function.__doc__ = cleandoc(doc) if doc is not None else _joined(kind, inputs, more)
    made: Callable[..., T] = function
    return made


def _inputs(needs: Sequence[Need]) -> dict[str, str]:
    """What the function is given, in order, and how its documentation calls it."""
    found: dict[str, str] = {}
    for need in needs:
        found |= _MODEL if need == "model" else {need: {"heatmaps": _HEATMAPS, "masks": _MASKS}.get(need, _EXPLAINER)}
    return found | ({"target": _TARGET} if "model" in needs else {})


def _in_module_of(kind: type[Metric], run: Callable[..., T], name: str) -> Any:
    """A function that belongs to the metric's module, so that its examples are run with that module's names."""

    def function(*args: Any, **kwargs: Any) -> T:
        return run(*args, **kwargs)

    module = sys.modules[kind.__module__]
    made = FunctionType(function.__code__, vars(module), name, closure=function.__closure__)
    made.__module__, made.__qualname__ = kind.__module__, name
    return made


def _joined(kind: type[Metric], inputs: dict[str, str], more: dict[str, tuple[str, Any]]) -> str:
    """The metric's docstring with all the function's arguments in place of the metric's own."""
    text = cleandoc(kind.__doc__ or "")
    head, _, rest = text.partition("\nExample:\n")
    head, _, own = head.partition("\nAttributes:\n")
    lines = [f"    {key}: {said}" for key, said in inputs.items()]
    lines += [own.rstrip()] if own.strip() else []
    lines += [f"    {key}: {said}" for key, (said, _) in more.items()]
    return "\n".join([head.rstrip(), "", "Args:", *lines, *(["", "Example:", rest] if rest else [])])
