"""Feature layers of networks that speak of places: detectors and segmenters.

What such a network says of a place is itself spatial, so the last spatial layer is its answer. The features are what
the answer is made of: what the backbone outputs, at all its scales for a detector and at the deepest for a segmenter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from math import prod

from egcam.models.trace import Call, Trace

_BACKBONE = re.compile(r"(^|\.)(backbone|encoder|features|body|trunk)$")


def place_layers(trace: Trace) -> list[str]:
    """The layers to explain a detector or segmenter at; none for other networks, and where no features are found."""
    # A module that outputs several maps is no layer itself; the modules that made them are.
    spatial = [call for call in trace.calls_on_image if _is_map(call, trace)]
    if trace.places is None or not _has_features(spatial, trace):
        return []
    found = _of_pyramid(spatial, trace) or _of_backbone(spatial, trace)
    found = found or _into_head(spatial, trace) or _coarsest(spatial, trace)
    chosen = found if trace.places == "boxes" else found[-1:]
    return list(dict.fromkeys(_name_of(call, spatial, trace) for call in chosen))


def _is_map(call: Call, trace: Trace) -> bool:
    """Whether a call returned (1, channels, height, width), and nothing else, with more than one place."""
    is_one = bool(call.name) and not call.maps and not call.pooling and not call.in_attention
    is_spatial = len(call.shape) == len(trace.image_size) + 2 and call.shape[0] == 1 and _places(call) > 1
    return is_one and is_spatial and trace.axis(call) != "channels-last"


def _places(call: Call) -> int:
    return prod(call.shape[2:])


def _name_of(call: Call, spatial: Sequence[Call], trace: Trace) -> str:
    """The outermost module that runs once and outputs what a call did; else which of the call's own runs it is."""
    times = Counter(other.name for other in trace.calls)
    same = [other for other in spatial if other.value == call.value and times[other.name] == 1]
    if same:
        return max(same, key=lambda other: other.finished).name
    return f"{call.name}:{sum(other.finished <= call.finished for other in trace.calls_of(call.name))}"


def _has_features(spatial: Sequence[Call], trace: Trace) -> bool:
    """Whether more than an image's patches, on whose tokens the network then works, is spatial."""
    return sum(call.weighted for call in spatial) > 1


def _of_pyramid(spatial: Sequence[Call], trace: Trace) -> list[Call]:
    """The maps of the first module that outputs maps in a list or dictionary, as far as they are used."""
    pyramids = [call for call in trace.calls_on_image if call.maps and call.name and _goes_on(call, trace)]
    outermost = [call for call in pyramids if not any(_is_inside(call, other) for other in pyramids)]
    if not outermost:
        return []
    first = min(outermost, key=lambda call: call.finished)
    used = {taken for call in trace.calls if call.started > first.finished for taken in call.inputs}
    maps = [one for one in first.maps if one in used] or list(first.maps)
    inside = [call for call in spatial if call.finished < first.finished]
    # The last one that wrote it: others may have worked on it in place.
    makers = [[call for call in inside if call.value[0] == one][-1:] for one in maps]
    return sorted((call for calls in makers for call in calls), key=lambda call: call.finished)


def _of_backbone(spatial: Sequence[Call], trace: Trace) -> list[Call]:
    """The map of the outermost module that is called a backbone."""
    named = [call for call in spatial if _BACKBONE.search(call.name) and _goes_on(call, trace)]
    return [min(named, key=lambda call: call.started)] if named else []


def _into_head(spatial: Sequence[Call], trace: Trace) -> list[Call]:
    """The maps of several resolutions that the last module takes in a list: the head of a detector, as YOLO's."""
    found: list[tuple[Call, list[Call]]] = []
    for call in trace.calls_on_image:
        before = [other for other in spatial if other.finished < call.started]
        makers = [[other for other in before if other.value[0] == one][-1:] for one in call.maps_taken]
        made = [maker for makers_of_one in makers for maker in makers_of_one]
        if call.name and len({_places(maker) for maker in made}) > 1:
            found.append((call, made))
    outermost = [pair for pair in found if not any(_is_inside(pair[0], other) for other, _ in found)]
    last = max(outermost, key=lambda pair: pair[0].started, default=None)
    return [] if last is None else sorted(last[1], key=lambda call: call.finished)


def _coarsest(spatial: Sequence[Call], trace: Trace) -> list[Call]:
    """The last map of the coarsest resolution, before the weights that make the answer."""
    answer = max(call.started for call in spatial if call.weighted)
    before = [call for call in spatial if call.finished < answer]
    taken = {one for call in trace.calls for one in call.inputs}
    possible = [call for call in before if call.value[0] in taken] or before
    if not possible:
        return []
    least = min(map(_places, possible))
    return [max((call for call in possible if _places(call) == least), key=lambda call: call.finished)]


def _goes_on(call: Call, trace: Trace) -> bool:
    """Whether more of the network's weights are used after a call."""
    return any(other.weighted and other.started > call.finished for other in trace.calls)


def _is_inside(call: Call, other: Call) -> bool:
    return other.started < call.started and call.finished < other.finished
