"""Feature layers of networks that speak of places: detectors and segmenters.

What such a network says of a place is itself spatial, so the last spatial layer is its answer. The features are what
the answer is made of: what the backbone outputs, at all its scales for a detector and at the deepest for a segmenter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod

from egcam.models.trace import Call, Trace

_BACKBONE = re.compile(r"(^|\.)(backbone|encoder|features|body|trunk)$")


def place_layers(trace: Trace) -> list[str]:
    """The layers to explain a detector or segmenter at; none for other networks, and where no features are found."""
    # A module that outputs several maps is no layer itself; the modules that made them are.
    maps = [call for call in trace.calls_on_image if _is_map(call, trace)]
    if trace.places is None or sum(call.weighted for call in maps) < 2:  # no more than an image's patches
        return []
    calls = _of_pyramid(maps, trace) or _of_backbone(maps, trace) or _into_head(maps, trace) or _coarsest(maps, trace)
    chosen = calls if trace.places == "boxes" else calls[-1:]
    return list(dict.fromkeys(_name_of(call, maps, trace) for call in chosen))


def _is_map(call: Call, trace: Trace) -> bool:
    """Whether a call returned (1, channels, height, width), and nothing else, with more than one place."""
    is_alone = bool(call.name) and not call.maps and not call.pooling and not call.in_attention
    is_spatial = len(call.shape) == len(trace.image_size) + 2 and call.shape[0] == 1 and _places(call) > 1
    return is_alone and is_spatial and trace.axis(call) != "channels-last"


def _places(call: Call) -> int:
    return prod(call.shape[2:])


def _name_of(call: Call, maps: Sequence[Call], trace: Trace) -> str:
    """The outermost module that runs once and outputs what a call did; else which of the call's own runs it is."""
    times = Counter(other.name for other in trace.calls)
    same = [other for other in maps if other.value == call.value and times[other.name] == 1]
    if same:
        return max(same, key=lambda other: other.finished).name
    return f"{call.name}:{sum(other.finished <= call.finished for other in trace.calls_of(call.name))}"


def _makers(tensors: Iterable[int], calls: Sequence[Call]) -> list[Call]:
    """The last of some calls that wrote each tensor, for others may have worked on it in place."""
    makers = [next((call for call in reversed(calls) if call.value[0] == tensor), None) for tensor in tensors]
    return sorted((call for call in makers if call is not None), key=lambda call: call.finished)


def _of_pyramid(maps: Sequence[Call], trace: Trace) -> list[Call]:
    """The maps of the first module that outputs maps in a list or dictionary, as far as they are used."""
    pyramids = _outermost([call for call in trace.calls_on_image if call.maps and call.name and _goes_on(call, trace)])
    if not pyramids:
        return []
    first = min(pyramids, key=lambda call: call.finished)
    used = {taken for call in trace.calls if call.started > first.finished for taken in call.inputs}
    tensors = [tensor for tensor in first.maps if tensor in used] or first.maps
    return _makers(tensors, [call for call in maps if call.finished < first.finished])


def _of_backbone(maps: Sequence[Call], trace: Trace) -> list[Call]:
    """The map of the outermost module that is called a backbone."""
    named = [call for call in maps if _BACKBONE.search(call.name) and _goes_on(call, trace)]
    return [min(named, key=lambda call: call.started)] if named else []


def _into_head(maps: Sequence[Call], trace: Trace) -> list[Call]:
    """The maps of several resolutions that the last module takes in a list: the head of a detector, as YOLO's."""
    makers: dict[int, list[Call]] = {}
    heads: list[Call] = []
    for call in trace.calls_on_image:
        before = _makers(call.maps_taken, [other for other in maps if other.finished < call.started])
        if call.name and len({_places(maker) for maker in before}) > 1:
            heads.append(call)
            makers[call.started] = before
    return makers[max(call.started for call in _outermost(heads))] if heads else []


def _coarsest(maps: Sequence[Call], trace: Trace) -> list[Call]:
    """The last map of the coarsest resolution, before the weights that make the answer."""
    answer = max(call.started for call in maps if call.weighted)
    before = [call for call in maps if call.finished < answer]
    taken = {tensor for call in trace.calls for tensor in call.inputs}
    possible = [call for call in before if call.value[0] in taken] or before
    return [min(possible, key=lambda call: (_places(call), -call.finished))] if possible else []


def _goes_on(call: Call, trace: Trace) -> bool:
    """Whether more of the network's weights are used after a call."""
    return any(other.weighted and other.started > call.finished for other in trace.calls)


def _outermost(calls: Sequence[Call]) -> list[Call]:
    """Those of some calls that run inside none of the others."""
    return [
        call
        for call in calls
        if not any(other.started < call.started and call.finished < other.finished for other in calls)
    ]
