"""Which layer to explain: by module, by name, or found by a dry run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias, TypeGuard

from torch import Tensor, nn

from egcam.errors import LayerError, near_misses
from egcam.models.inputs import ExtraInputs
from egcam.models.layer_output import are_tokens, convolution_dimensions, shape_in_words
from egcam.models.trace import Call, Trace, dry_run

# What normalisations are called whose output a transformer's attention takes.
_BEFORE_ATTENTION = ("norm1", "ln_1", "layer_norm1", "layernorm_before")

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
    names = [name for name, module in model.named_modules() if convolution_dimensions(module)]
    return names[-1] if names else next((name for name, _ in model.named_modules() if name), "")


def _named(model: nn.Module, name: str) -> LayerPoint:
    plain, _, call = name.partition(":")
    for prefix in ("module.", "_orig_mod."):
        if plain not in dict(model.named_modules()):
            plain = plain.removeprefix(prefix)
    modules = dict(model.named_modules(remove_duplicate=False))
    if not plain or plain not in modules:
        names = [other for other in modules if other]
        raise LayerError(f"the model has no layer {name!r}; {near_misses(plain, names)}")
    if call and (not call.isdigit() or int(call) < 1):
        raise LayerError(f"layer {name!r}: after the colon comes the number of the call, from 1, e.g. '{plain}:2'")
    return LayerPoint(name if call else plain, modules[plain], int(call) if call else None)


def find_layer(model: nn.Module, images: Tensor, extra: ExtraInputs | None = None) -> str:
    """The last layer whose output still has spatial extent, global and adaptive pooling aside.

    That is (N, channels, height, width), (N, height, width, channels) or a transformer's tokens (N, length, channels).
    Of a transformer it is one on whose patches the scores depend: where they are read off a class token alone, what
    the last attention takes. Where several modules output that same tensor, the outermost one that does not span the
    whole network from the image on is named: `layer4` rather than `layer4.2`, `features.30` rather than `features`. A
    map of class scores that is only pooled afterwards (SqueezeNet's last convolution) is an output, not a feature
    layer. Only what depends on the image counts: of a network that compares two pictures, the layers of the explained
    one; and only what the class scores depend on: no auxiliary head.
    """
    return last_spatial_layer(dry_run(model, images, extra))


def last_spatial_layer(trace: Trace) -> str:
    """`find_layer`'s rule, on the calls of a dry run."""
    return _name_of(_last_feature_map(trace), trace)


def parallel_layers(trace: Trace) -> list[str]:
    """The last spatial layer of each stream of a network whose score is made of several: an ensemble's members, the
    branches of CrossViT, the scales of CoaT.

    One layer alone would leave out what the other streams saw. What a skip connection carries around a layer is no
    stream of its own: the layer depends on it.
    """
    chosen = [_last_feature_map(trace)]
    if trace.ways is None or chosen[0].node < 0:
        return [_name_of(chosen[0], trace)]
    earlier = trace.ways.sources(chosen[0].node)
    for call in _latest_first(trace):
        apart = call.node >= 0 and call.node not in earlier and _is_feature_map(call, trace)
        if apart and call.node in trace.ways.beside([member.node for member in chosen]):
            chosen.append(call)
            earlier |= trace.ways.sources(call.node)
    return [_name_of(call, trace) for call in reversed(chosen)]


def _latest_first(trace: Trace) -> list[Call]:
    """By when what a call returned was made: a module may hand on, in a list, what another made long before."""
    birth: dict[tuple[int, int], int] = {}
    for call in trace.calls:
        birth[call.value] = min(birth.get(call.value, call.finished), call.finished)
    return sorted(trace.calls_on_image, key=lambda call: (-birth[call.value], -call.finished))


def _last_feature_map(trace: Trace) -> Call:
    _refuse_unknown_origin(trace)
    last = next((call for call in _latest_first(trace) if _is_feature_map(call, trace)), None)
    _refuse_unreadable_tokens(last, trace)
    if last is None:
        raise _why_no_map(trace)
    return last


def _name_of(last: Call, trace: Trace) -> str:
    """The outermost module that outputs what a call did and does not span the network from the image on."""
    same = [call for call in trace.calls_on_image if call.value == last.value and _is_map_like(call, trace)]
    first = min(same, key=lambda call: call.finished)
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
    """A layer a map can be made at."""

    name: str  # of the module
    channels: int
    size: tuple[int, ...]  # (h, w) of its maps, (l,) of signals, (d, h, w) of volumes
    tail: float  # what follows it, as a share of the network's multiplications with weights


def feature_layers(model: nn.Module, trace: Trace) -> list[FeatureLayer]:
    """The layers between the blocks of a network, in the order they run, one for each feature map.

    A module inside a block is left out, unless it is the last layer: a skip connection may go around it.
    """
    last = last_spatial_layer(trace)  # refuses networks that have no such layers, and says why
    whole = sum(call.multiplications for call in trace.calls)
    layers: dict[str, FeatureLayer] = {}
    for call in trace.calls_on_image:
        if not _is_map_like(call, trace) or not (_is_between_blocks(call, model, trace) or call.name == last):
            continue
        if _is_feature_map(call, trace):
            name = _name_of(call, trace)
            after = sum(other.multiplications for other in trace.calls if other.started > call.finished)
            channels, *size = trace.map_shape(call)
            layers[name] = FeatureLayer(name, channels, tuple(size), after / max(1, whole))
    return list(layers.values())


def _is_between_blocks(call: Call, model: nn.Module, trace: Trace) -> bool:
    """Whether all that contains a call is a mere chain of modules, works on the image itself, or never runs.

    Or is most of the network, as a transformer's encoder is, and then nothing may lead around the call.
    """
    on_a_part = {other.name: other for other in trace.calls if trace.image not in other.inputs}
    parts = call.name.split(".")
    outer = [".".join(parts[:length]) for length in range(1, len(parts))]
    blocks = [above for above in outer if above in on_a_part and not _is_chain(model.get_submodule(above))]
    return not blocks or (all(_is_most(on_a_part[above], trace) for above in blocks) and _is_a_cut(call, trace))


def _is_most(module: Call, trace: Trace) -> bool:
    """Whether a module holds more than half of the layers with weights."""
    weighted = [call for call in trace.calls if call.weighted]
    inside = [call for call in weighted if module.started <= call.started and call.finished <= module.finished]
    return 2 * len(inside) > len(weighted)


def _is_a_cut(call: Call, trace: Trace) -> bool:
    """Whether every way from the image to the score leads through what a call returned; unknown counts as no."""
    return trace.ways is not None and call.node >= 0 and not trace.ways.beside([call.node])


def _is_chain(module: nn.Module) -> bool:
    return type(module).forward in (nn.Sequential.forward, nn.ModuleList.forward, nn.ModuleDict.forward)


def inner_layer(model: nn.Module, trace: Trace) -> str:
    """The layer at which a gradient that is averaged over a path tells most, by measurement.

    Of a transformer with one resolution throughout, the output of its first block: attention moves evidence from patch
    to patch, block by block, so that late tokens no longer stand for their places.

    Otherwise the latest layer after which the score is more than a linear function: the last spatial layer if two or
    more layers with weights follow it. If only one does, with an activation function on feature maps (SqueezeNet), the
    last layer of that resolution after which places still meet in a convolution: before that, each place would only be
    scored by itself. Else the last layer of the next finer resolution, 14 x 14 at 224 pixels, if there is one of at
    most half the image's sides.
    """
    last = last_spatial_layer(trace)
    first_block = _first_block_of_tokens(model, trace)
    if first_block is not None:
        return first_block
    after = _calls_after(last, trace)
    if sum(call.multiplications > 0 for call in after) > 1:
        return last
    areas = {layer.name: prod(layer.size) for layer in feature_layers(model, trace)}
    coarsest = areas.get(last, min(areas.values(), default=0))
    if any(_bends_maps(call, trace) for call in after):
        same = [name for name, area in areas.items() if area == coarsest]
        followed = [name for name in same if any(_joins_places(call, model) for call in _calls_after(name, trace))]
        return followed[-1] if followed else last
    finest = prod(trace.image_size) / 2 ** len(trace.image_size)
    finer = [area for area in areas.values() if coarsest < area <= finest]
    return [name for name, area in areas.items() if area == min(finer)][-1] if finer else last


def _first_block_of_tokens(model: nn.Module, trace: Trace) -> str | None:
    """The first layer between blocks that lies behind attention; None unless all of these are tokens of one grid."""
    attended = min((call.finished for call in trace.calls_on_image if call.is_attention), default=None)
    if attended is None:
        return None
    calls = {layer.name: trace.calls_of(layer.name.partition(":")[0])[-1] for layer in feature_layers(model, trace)}
    behind = {name: call for name, call in calls.items() if call.finished > attended}
    grids = {trace.map_shape(call)[1:] if trace.may_be_tokens(call) else None for call in behind.values()}
    return next(iter(behind)) if len(grids) == 1 and None not in grids else None


BY_WORD: dict[str, Callable[[nn.Module, Trace], str]] = {
    "last": lambda model, trace: last_spatial_layer(trace),
    "inner": inner_layer,
}
"""Layers a user may ask for without knowing their names; a module that is called so comes first."""


def is_word(layer: Layer, model: nn.Module) -> TypeGuard[str]:
    """Whether a layer is given by one of the words for it, not by its name."""
    return isinstance(layer, str) and layer in BY_WORD and layer not in dict(model.named_modules())


def _calls_after(layer: str, trace: Trace) -> list[Call]:
    end = max(call.finished for call in trace.calls_of(layer.partition(":")[0]))
    return [call for call in trace.calls if call.started > end]


def _joins_places(call: Call, model: nn.Module) -> bool:
    """Whether it is a convolution that sees neighbouring places together."""
    kernel = getattr(model.get_submodule(call.name), "kernel_size", 1) if call.multiplications else 1
    return max(kernel) > 1 if isinstance(kernel, tuple) else kernel > 1


def _bends_maps(call: Call, trace: Trace) -> bool:
    return call.bends and len(call.shape) == 1 + len(trace.image_shape) and prod(call.shape[2:]) > 1


def _refuse_unknown_origin(trace: Trace) -> None:
    """Without other inputs every layer works on the image; with them, gradients must show which do."""
    if trace.other_inputs and not any(call.sees_image for call in trace.calls):
        raise LayerError(
            "the network takes several inputs, and which of its layers depend on the image cannot be determined: it "
            "switches gradients off: name the layer, and, where it runs for each input, the call, e.g. layer='name:1'"
        )


def _is_feature_map(call: Call, trace: Trace) -> bool:
    """Whether a call returned one map for each channel, which the scores depend on."""
    if not _is_map_like(call, trace) or _is_class_map(call, trace) or not _has_places(call, trace):
        return False
    if trace.ways is not None and call.sees_image and call.node < 0:
        return False
    if _is_a_step(call, trace):
        return False
    if not works_on_tokens(trace):
        return True
    reaches = trace.reaches_output(call)
    return not trace.may_be_tokens(call) if reaches is None else reaches


def _is_a_step(call: Call, trace: Trace) -> bool:
    """Whether it is a run of a loop whose runs before or after it reach the scores beside it, as where these add up.

    A map of it would miss what they do. A mere activation function that blocks share is no loop: weights run again.
    """
    runs = trace.calls_of(call.name)
    if trace.ways is None or call.node < 0 or len(runs) < 2 or not trace.shares_weights:
        return False
    linked = [other for other in runs if _depend(call, other, trace)]
    beside = trace.ways.beside([call.node]) if linked else set()
    return any(other.node in beside for other in linked)


def _depend(first: Call, second: Call, trace: Trace) -> bool:
    """Whether one of two calls worked on what the other made."""
    if trace.ways is None or min(first.node, second.node) < 0 or first.node == second.node:
        return False
    return first.node in trace.ways.sources(second.node) or second.node in trace.ways.sources(first.node)


def _is_map_like(call: Call, trace: Trace) -> bool:
    # Inside attention, four dimensions are heads and tokens; other first dimensions are windows cut from the image.
    plain = bool(call.name) and not call.pooling and not call.in_attention
    has_axes = len(call.shape) == 1 + len(trace.image_shape) or trace.may_be_tokens(call)
    return plain and has_axes and call.shape[0] == 1


def _has_places(call: Call, trace: Trace) -> bool:
    if trace.may_be_tokens(call):
        # What a linear layer outputs inside a block may be queries and hidden units side by side.
        clear = trace.axis(call) is not None or not any(other.axis for other in trace.calls if len(other.shape) == 3)
        return clear and are_tokens(trace, call)
    _, *size = trace.map_shape(call)
    if len(call.shape_in) == len(call.shape) and prod(call.shape_in[2:]) == 1:
        return False  # places made of a single one, as by padding, say nothing of the image's
    return prod(size) > 1 and not _is_inside_tokens(call, trace)


def _is_inside_tokens(call: Call, trace: Trace) -> bool:
    """Whether a call is inside a module that makes tokens of tokens: its four dimensions may be heads and tokens."""
    return any(
        other.started < call.started and other.finished > call.finished and len(other.shape_in) != len(call.shape)
        for other in trace.calls
        if trace.may_be_tokens(other) and other.name
    )


def works_on_tokens(trace: Trace) -> bool:
    """Whether weights act on tokens (N, length, channels), so that not everything after a layer may depend on it."""
    calls = (call for call in trace.calls_on_image if call.weighted and trace.may_be_tokens(call))
    return any(_is_map_like(call, trace) and call.shape[1] > 1 for call in calls)


def _is_class_map(call: Call, trace: Trace) -> bool:
    comes_last = trace.may_be_tokens(call) or trace.axis(call) == "channels-last"
    if trace.is_headless:
        return False
    channels = call.shape[-1] if comes_last else call.shape[1]
    weighted_after = any(other.weighted and other.started > call.finished for other in trace.calls)
    return channels == trace.classes and not weighted_after


# -- why there is none ----------------------------------------------------------------------------


def _why_no_map(trace: Trace) -> LayerError:
    """The error for a network in which no module's output is a map of the image."""
    shapes = {call.name: call.shape for call in trace.calls if len(call.shape) == 1 + len(trace.image_shape)}
    maps = {name: shape for name, shape in shapes.items() if name and prod(shape[2:]) > 1}
    folded = [name for name, shape in maps.items() if shape[0] != 1]
    if folded:
        why = f"of one image {folded[-1]!r} makes {maps[folded[-1]]}: crops, windows or frames in place of images"
        return _no_layer(trace, why, f"layer={folded[-1]!r} and a callable reshape that puts them together")
    unreached = [call.name for call in trace.calls if call.name in maps and not call.sees_image]
    if unreached and any(call.sees_image for call in trace.calls):
        why = (
            f"no gradient leads through {unreached[-1]!r} back to the image: the network switches gradients off there, "
            "with torch.no_grad() or by torch.utils.checkpoint with use_reentrant=True"
        )
        return _no_layer(trace, why, "use_reentrant=False to the checkpoint, or another layer")
    why = f"none of its modules outputs feature maps {shape_in_words(len(trace.image_size))}"
    return _no_layer(trace, why, "layer='…' with reshape='tokens' or 'channels-last'")


def _refuse_unreadable_tokens(last: Call | None, trace: Trace) -> None:
    """A transformer's patch embedding is spatial too, but the network's work happens on tokens after it."""
    if last is not None and trace.may_be_tokens(last):
        return
    moment = -1 if last is None else last.finished
    weighted = [call for call in trace.calls_on_image if call.weighted and _is_map_like(call, trace)]
    tokens = [call for call in weighted if trace.may_be_tokens(call) and call.shape[1] > 1]
    after = [call for call in tokens if call.started > moment]
    if not after or len(tokens) <= sum(not trace.may_be_tokens(call) for call in weighted):
        return
    # Where only the class token is read, a map would be zero.
    after = [call for call in after if _is_read_widely(call, trace)] or after
    call = ([call for call in after if call.name.endswith(_BEFORE_ATTENTION)] or after)[-1]
    grid = shape_in_words(len(trace.image_size)).removeprefix("(N, channels, ").removesuffix(")")
    reshape = f"reshape=({grid}{',' if len(trace.image_size) == 1 else ''}), the grid of its tokens"
    reshape = "reshape='tokens'" if are_tokens(trace, call) else reshape
    raise _no_layer(trace, _why_unreadable(call, trace), f"layer={call.name!r} with {reshape}")


def _is_read_widely(call: Call, trace: Trace) -> bool:
    """Whether the scores depend on at least half of the tokens that a call returned; unknown counts as yes."""
    read = trace.tokens_read(call)
    return read is None or 2 * int(read.sum()) >= len(read)


def _why_unreadable(call: Call, trace: Trace) -> str:
    try:
        trace.grid(call)
    except LayerError as error:
        return str(error).partition(";")[0]
    return (
        "it works on tokens, and whether they are (N, length, channels) of the image, and which of them its scores "
        "depend on, cannot be determined: it switches gradients off or has no weights yet"
    )


def _no_layer(trace: Trace, why: str, proposal: str) -> LayerError:
    return LayerError(
        f"no layer to explain was found in this network: {why}. Pass {proposal}, or a layer and a callable reshape "
        f"that turns its output into {shape_in_words(len(trace.image_size))}"
    )
