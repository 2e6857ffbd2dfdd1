"""A warning for maps that are the same whatever class is asked for."""

from __future__ import annotations

from torch import Tensor

from egcam.attribution.explainer import Explainer
from egcam.errors import SameForNextClassWarning, warn_user
from egcam.metrics.sanity import ClassSensitivity
from egcam.models.targets import Target


def warn_same_for_next_class(
    explainer: Explainer, images: Tensor, target: Target = None, share: float = 0.1, limit: float = 0.5
) -> Tensor:
    """(N,) the class sensitivity of maps, with a warning for images whose map says little of the class.

    Such a map shows where something is, not why it is this class rather than the next. `ClassSensitivity(share)` has
    the formula; 1 is the same places, 0 is chance, and what is above `limit` is warned of.

    Example:
        >>> import torch, warnings
        >>> from egcam.attribution.controls import MeanActivation
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Sigmoid(), torch.nn.Flatten(),
        ...                           torch.nn.Linear(72, 3))
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     scores = warn_same_for_next_class(MeanActivation(net), torch.rand(2, 1, 8, 8))
        >>> scores.tolist(), caught[0].category.__name__
        ([1.0, 1.0], 'SameForNextClassWarning')
    """
    scores = ClassSensitivity(share)(explainer.model, images, explainer, target)
    same = [number for number, score in enumerate(scores.tolist()) if score > limit]
    if same:
        shown = ", ".join(map(str, same[:5])) + (" and more" if len(same) > 5 else "")
        warn_user(
            f"{explainer.method}: the map of image {shown} points at nearly the same places for the next likely class; "
            "it shows where something is, not why it is this class. A target that subtracts the other class's score "
            "tells them apart",
            SameForNextClassWarning,
        )
    return scores
