"""What methods are made with: options meant for several methods, and references as a network sees images.

The command, studies, pages and Python all come through here, so that the same words mean the same maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter
from typing import Any

from egcam.attribution.references import Normalisation, Reference, ReferenceLike, as_reference
from egcam.attribution.registry import method


def options_for(
    name: str,
    shared: Mapping[str, Any],
    own: Mapping[str, Any] | None = None,
    normalisation: Normalisation | None = None,
) -> dict[str, Any]:
    """The options that a method is made with.

    Args:
        name: the method's.
        shared: options meant for several methods; those that are None, or that this one does not take, are left out.
        own: options of this method, which come before the shared ones; none is left out.
        normalisation: how the network's images are normalised, if that is known. Then black, white and photographs
            are normalised in the same way.

    Example:
        >>> options_for("grad-cam", {"samples": 8, "signed": True})
        {'signed': True}
        >>> options_for("occlusion", {"reference": "white"}, normalisation=((0.5,), (0.5,)))["reference"].normalisation
        ((0.5,), (0.5,))
    """
    left_out = ignored(name, shared)
    used = {key: value for key, value in shared.items() if value is not None and key not in left_out}
    used |= own or {}
    takes = method(name).options()
    if normalisation is not None and "reference" in takes:
        given = used.get("reference")
        used["reference"] = _normalised(_default(takes) if given is None else given, normalisation)
    return used


def ignored(name: str, shared: Mapping[str, Any]) -> list[str]:
    """The options among those meant for several methods that this one does not take.

    Example:
        >>> ignored("grad-cam", {"samples": 8, "signed": True}), ignored("occlusion", {"reference": "photographs"})
        (['samples'], ['reference'])
    """
    takes = method(name).options()
    return [
        key
        for key, value in shared.items()
        if value is not None and (key not in takes or (key == "reference" and not _suits(name, value)))
    ]


def starts_from_one_image(name: str) -> bool:
    """Whether the method compares with a single image, by default its own, where others average over many."""
    return isinstance(_default(method(name).options()), str)


def _suits(name: str, reference: ReferenceLike) -> bool:
    """Whether a reference meant for several methods is one for this method."""
    return not (starts_from_one_image(name) and as_reference(reference).is_collection)


def _default(takes: Mapping[str, Any]) -> Any:
    default = takes.get("reference")
    return None if default is Parameter.empty else default


def _normalised(reference: ReferenceLike, normalisation: Normalisation) -> Any:
    if reference is None or isinstance(reference, str | Reference):
        return as_reference(reference).normalised(normalisation)
    return reference
