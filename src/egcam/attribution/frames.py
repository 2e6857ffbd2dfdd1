"""An explanation as a table: one row for each image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from egcam.errors import require
from egcam.imageops import in_double

if TYPE_CHECKING:
    import pandas as pd

    from egcam.attribution.explanation import Explanation

_AXES = {1: ("x",), 2: ("y", "x"), 3: ("z", "y", "x")}


def frame_of(explanation: Explanation) -> pd.DataFrame:
    """One row for each image; see `Explanation.to_frame`."""
    require("pandas", "study", "explanation.to_frame()")
    import pandas as pd

    count, sides = len(explanation), explanation.completeness
    columns: dict[str, Any] = {
        "image": range(explanation.start, explanation.start + count),
        "target": _whole(explanation.targets, count),
        "label": [explanation.label(number) for number in range(count)],
        "score": _numbers(explanation.scores, count),
        "prediction": _whole(explanation.predictions, count),
        "method": explanation.method,
        "layer": explanation.layer,
        "reference": explanation.reference,
        **hottest_points(explanation),
        "total": _numbers(None if sides is None else sides.total, count),
        "expected": _numbers(None if sides is None else sides.expected, count),
        "around": _numbers(None if sides is None else sides.around, count),
        "passes": explanation.passes / count,
    }
    return pd.DataFrame(columns, index=pd.RangeIndex(count))


def hottest_points(explanation: Explanation) -> dict[str, Any]:
    """By axis, x first, where each heat map is highest; missing where it is nowhere above zero."""
    axes = len(explanation.size)
    heat = explanation.heatmaps.detach().float().cpu().reshape(-1, *explanation.size).flatten(1)
    places = torch.unravel_index(heat.argmax(1), explanation.size)
    nowhere = ~(heat.amax(1) > 0)
    found = {name: _whole(place, len(heat), nowhere) for name, place in zip(_AXES[axes], places, strict=True)}
    return dict(reversed(found.items()))


def _whole(values: Tensor | None, count: int, missing: Tensor | None = None) -> Any:
    """Whole numbers, which pandas would turn into floats where one is missing."""
    import pandas as pd

    numbers: list[int | None] = [None] * count if values is None else values.reshape(-1).tolist()
    if missing is not None:
        numbers = [None if gone else number for number, gone in zip(numbers, missing.tolist(), strict=True)]
    return pd.array(numbers, dtype="Int64")


def _numbers(values: Tensor | None, count: int) -> list[float]:
    return [float("nan")] * count if values is None else in_double(values).reshape(-1).tolist()
