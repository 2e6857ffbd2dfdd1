"""The photographs a visitor can take instead of an own one: those of the demonstration, where scikit-image is there."""

from __future__ import annotations

from importlib.util import find_spec

from egcam.photos.demo import PHOTOGRAPHS, Photograph


def sample_photographs() -> dict[str, Photograph]:
    """By name, each once; none without scikit-image.

    Example:
        >>> set(sample_photographs()) <= {"chelsea", "coffee", "astronaut", "rocket"}
        True
    """
    if find_spec("skimage") is None:
        return {}
    found: dict[str, Photograph] = {}
    for photograph in PHOTOGRAPHS:
        found.setdefault(photograph.name, photograph)
    return found
