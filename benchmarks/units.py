"""Work for the engines' benchmarks, importable by their workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

from egcam.studies.engines.base import Shard, Work
from egcam.studies.records import Outcome, Unit

METRICS = ("insertion", "deletion", "sparseness")


def shards(count: int, size: int) -> Iterator[Shard]:
    """Units 0 to count - 1 in shards of `size`, made as they are asked for."""
    for start in range(0, count, size):
        yield [Unit("model", "method", image) for image in range(start, min(start + size, count))]


def outcome(unit: Unit, seconds: float = 0.0) -> Outcome:
    scores = tuple(unit.score(metric, unit.image / 7) for metric in METRICS)
    return Outcome(unit, f"{unit.image}.jpg", 0, 0, seconds, scores)


def tiny(config: Mapping[str, Any]) -> Work:
    """Nothing to compute: what remains is the cost of scheduling."""
    return outcome


def forward(config: Mapping[str, Any]) -> Work:
    """A unit is `passes` forward passes of a network on one image."""
    import torch
    import torchvision

    model = torchvision.models.get_model(config["model"], weights=None).eval()
    image = torch.randn(1, 3, 224, 224)

    def work(unit: Unit) -> Outcome:
        start = perf_counter()
        with torch.inference_mode():
            for _ in range(config["passes"]):
                model(image)
        return outcome(unit, perf_counter() - start)

    return work
