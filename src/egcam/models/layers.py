"""Which layer to explain: by module, by name, or found by a dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor, nn

from egcam.errors import LayerError, near_misses
from egcam.models.inputs import ExtraInputs
from egcam.models.trace import Call, Trace, dry_run
from egcam.models.trace import tensor_in as tensor_in

Layer: TypeAlias = nn.Module | str | Sequence[nn.Module | str] | None


@dataclass(frozen=True)
class LayerPoint:
    """A place in the network: a module and, for one that runs several times, which of its calls (counted from 1).

    The network's input is a place too; it has no module.
    """

    name: str
    module: nn.Module | None
    call: int | None = None


INPUT = LayerPoint("input", None)


def resolve(model: nn.Module, layer: Layer, find: Callable[[], str]) -> tuple[LayerPoint, ...]:
    """The places the user named: a module, a dotted name, `"name:2"` for its second call, or a list of those.

    Args:
        model: the plain module.
        layer: what the user said; None means the layer that `find` returns.
        find: called only when it is needed.
    """
    if layer is None:
        return (_named(model, find()),)
    if isinstance(layer, str | nn.Module):
        return (_one(model, layer),)
    points = tuple(_one(model, item) for item in (layer if isinstance(layer, Iterable) else [layer]))
    if not points:
        raise LayerError("the list of layers is empty; pass at least one layer, or None to have it found")
    repeated = [name for name, times in Counter(point.name for point in points).items() if times > 1]
    if repeated:
        raise LayerError(f"layer {repeated[0]!r} is listed twice")
    return points


def _one(model: nn.Module, layer: object) -> LayerPoint:
    if isinstance(layer, str):
        return _named(model, layer)
    if not isinstance(layer, nn.Module):
        raise LayerError(f"a layer is a module of the model or its dotted name, not {type(layer).__name__}")
    for name, module in model.named_modules():
        if module is layer:
            return LayerPoint(name, module)
    raise LayerError(
        f"the {type(layer).__name__} given as layer is not part of this model; pass one of the model's own modules "
        f"or its name, e.g. {_an_example(model)!r}"
    )


def _an_example(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Conv2d)]
    return names[-1] if names else next((name for name, _ in model.named_modules() if name), "")


def _named(model: nn.Module, name: str) -> LayerPoint:
    plain, _, call = name.partition(":")
    for prefix in ("module.", "_orig_mod."):
        if plain not in dict(model.named_modules()):
            plain = plain.removeprefix(prefix)
    modules = dict(model.named_modules(remove_duplicate=False))
    if not plain or plain not in modules:
        known = [known for known in modules if known]
        raise LayerError(f"the model has no layer {name!r}; {near_misses(plain, known)}")
    if call and (not call.isdigit() or int(call) < 1):
        raise LayerError(f"layer {name!r}: after the colon comes the number of the call, from 1, e.g. '{plain}:2'")
    return LayerPoint(name if call else plain, modules[plain], int(call) if call else None)


def find_layer(model: nn.Module, images: Tensor, extra: ExtraInputs | None = None) -> str:
    """The last layer whose output still has spatial extent, global and adaptive pooling aside.

    Where several modules put out that same tensor, the outermost one that does not span the whole network from the
    image on is named: `layer4` rather than `layer4.2`, `features.30` rather than `features`. A map of class scores
    that is only pooled afterwards (SqueezeNet's last convolution) is an output, not a feature layer. Only what depends
    on the image counts: of a network that compares two pictures, the layers of the explained one.
    """
    return last_spatial_layer(dry_run(model, images, extra))


def last_spatial_layer(trace: Trace) -> str:
    """`find_layer`'s rule, on the calls of a dry run."""
    _refuse_unknown_origin(trace)
    calls = trace.calls_on_image
    spatial = [call for call in calls if _is_spatial(call, trace) and not _is_class_map(call, trace)]
    if not spatial:
        _refuse_channels_last(None, calls, trace)
        raise _no_spatial_layer("none of its modules puts out feature maps (N, channels, height, width)")
    last = max(spatial, key=lambda call: call.finished)
    _refuse_channels_last(last, calls, trace)
    _refuse_tokens(last, spatial, calls)
    return _name_of(last, spatial, trace)


def _name_of(last: Call, spatial: Sequence[Call], trace: Trace) -> str:
    """The outermost module that puts out what a call did and does not span the network from the image on."""
    same = sorted((call for call in spatial if call.value == last.value), key=lambda call: call.finished)
    first = same[0]
    times = Counter(call.name for call in trace.calls)
    family = [
        call
        for call in same
        if (call is first or first.name.startswith(call.name + "."))
        and times[call.name] == 1
        and (call is first or trace.image not in call.inputs)
    ]
    if family:
        return max(family, key=lambda call: call.finished).name
    return f"{first.name}:{sum(call.finished <= first.finished for call in trace.calls_of(first.name))}"


@dataclass(frozen=True)
class FeatureLayer:
    """A layer a map can be made at.

    Attributes:
        name: of the module.
        channels: K.
        size: (h, w) of its maps.
        tail: what follows it, as a share of the network's multiplications with weights: what a sample of the latent
            path costs there, forward.
    """

    name: str
    channels: int
    size: tuple[int, int]
    tail: float


def feature_layers(model: nn.Module, trace: Trace) -> list[FeatureLayer]:
    """The layers between the blocks of a network, in the order they run, one for each feature map.

    A module inside a block is left out: a skip connection may go around it.
    """
    last_spatial_layer(trace)  # refuses networks that have no such layers, and says why
    spatial = [call for call in trace.calls_on_image if _is_spatial(call, trace) and not _is_class_map(call, trace)]
    whole = sum(call.multiplications for call in trace.calls)
    found: dict[str, FeatureLayer] = {}
    for call in spatial:
        if _is_between_blocks(call.name, model, trace):
            name = _name_of(call, spatial, trace)
            after = sum(other.multiplications for other in trace.calls if other.started > call.finished)
            channels, height, width = trace.map_shape(call)
            found[name] = FeatureLayer(name, channels, (height, width), after / max(1, whole))
    return list(found.values())


def _is_between_blocks(name: str, model: nn.Module, trace: Trace) -> bool:
    """Whether all that contains a module is a mere chain of modules, or works on the image itself."""
    from_image = {call.name for call in trace.calls if trace.image in call.inputs}
    parts = name.split(".")
    outer = [".".join(parts[:length]) for length in range(1, len(parts))]
    return all(above in from_image or _is_chain(model.get_submodule(above)) for above in outer)


def _is_chain(module: nn.Module) -> bool:
    return type(module).forward in (nn.Sequential.forward, nn.ModuleList.forward, nn.ModuleDict.forward)


def inner_layer(model: nn.Module, trace: Trace) -> str:
    """The last layer of the second-coarsest resolution: 14 x 14 at 224 pixels; the last one where there is none."""
    last = last_spatial_layer(trace)
    layers = feature_layers(model, trace)
    areas = sorted({layer.size[0] * layer.size[1] for layer in layers})
    (coarsest,) = [layer.size[0] * layer.size[1] for layer in layers if layer.name == last] or areas[:1]
    finer = [area for area in areas if area > coarsest]
    if not finer:
        return last
    return [layer.name for layer in layers if layer.size[0] * layer.size[1] == finer[0]][-1]


def _refuse_unknown_origin(trace: Trace) -> None:
    """Without other inputs every layer works on the image; with them, gradients must show which do."""
    if trace.other_inputs and not any(call.sees_image for call in trace.calls):
        raise LayerError(
            "the network takes several inputs, and which of its layers depend on the image cannot be told, for it "
            "switches gradients off: name the layer, and, where it runs for each input, the call, e.g. layer='name:1'"
        )


def _is_spatial(call: Call, trace: Trace) -> bool:
    return _is_map_like(call) and call.shape[2] * call.shape[3] > 1 and trace.axis(call) != "channels-last"


def _is_map_like(call: Call) -> bool:
    # Inside attention, four dimensions are heads and tokens; other first dimensions are windows cut from the image.
    return (
        bool(call.name) and not call.pooling and not call.in_attention and len(call.shape) == 4 and call.shape[0] == 1
    )


def _is_channels_last(call: Call, trace: Trace) -> bool:
    return _is_map_like(call) and call.shape[1] * call.shape[2] > 1 and trace.axis(call) == "channels-last"


def _is_class_map(call: Call, trace: Trace) -> bool:
    weighted_after = any(other.weighted and other.started > call.finished for other in trace.calls)
    return call.shape[1] == trace.classes and not weighted_after


def _refuse_tokens(last: Call, spatial: Sequence[Call], calls: Sequence[Call]) -> None:
    """A transformer's patch embedding is spatial too, but the network's work happens on tokens after it."""
    tokens = [call for call in calls if call.weighted and len(call.shape) == 3 and call.shape[1] > 1]
    convolutions = [call for call in spatial if call.weighted]
    if len(tokens) > len(convolutions) and any(call.started > last.finished for call in tokens):
        norms = [call.name for call in tokens if call.name.endswith(("norm1", "ln_1"))] or [tokens[-1].name]
        raise _no_spatial_layer(
            "it works on tokens (N, length, channels)", f"layer={norms[-1]!r} with reshape='tokens'"
        )


def _refuse_channels_last(last: Call | None, calls: Sequence[Call], trace: Trace) -> None:
    """A network that goes on with (N, height, width, channels) after its last (N, channels, height, width)."""
    moment = -1 if last is None else last.finished
    after = [call for call in calls if call.finished > moment and _is_channels_last(call, trace)]
    if any(call.weighted and call.started > moment for call in after):
        raise _no_spatial_layer(
            "its last feature maps are (N, height, width, channels)",
            f"layer={after[-1].name!r} with reshape='channels-last'",
        )


def _no_spatial_layer(why: str, proposal: str = "layer='…' with reshape='tokens' or 'channels-last'") -> LayerError:
    return LayerError(
        f"no layer to explain was found in this network: {why}. Pass {proposal}, or a layer and a callable reshape "
        "that turns its output into (N, channels, height, width)"
    )
