"""Results of a study in memory: what a store would give, from scores made up by the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from egcam.studies.records import Outcome, Score, Unit, failed
from egcam.studies.specs import DataSpec, MethodSpec, MetricSpec, ModelSpec, Study

METHODS = ("grad-cam", "layer-cam", "expected-grad-cam")
METRICS = ("insertion", "deletion", "sparseness")


def study(
    methods: Sequence[str] = METHODS,
    metrics: Sequence[str | MetricSpec] = METRICS,
    models: Sequence[str] = ("net",),
    **more: Any,
) -> Study:
    return Study(
        **{
            "name": "tiny",
            "models": tuple(ModelSpec(label, label) for label in models),
            "data": DataSpec("folder", "photos", size=8),
            "methods": tuple(MethodSpec(name, name) for name in methods),
            "metrics": tuple(MetricSpec(one) if isinstance(one, str) else one for one in metrics),
            **more,
        }
    )


@dataclass
class InMemory:
    """A source: what a store gives, from dictionaries."""

    of: Study
    done: list[Outcome]
    units: int
    all_curves: dict[tuple[str, str], dict[str, dict[int, Any]]] = field(default_factory=dict)
    all_maps: dict[tuple[str, str], dict[int, Any]] = field(default_factory=dict)
    all_pictures: dict[str, dict[int, bytes]] = field(default_factory=dict)
    models: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=lambda: {"description": "six squares", "images": 6})

    @property
    def manifest(self) -> Any:
        return SimpleNamespace(
            study=self.of.model_dump(),
            versions={"egcam": "1.0", "torch": "2.0"},
            data=self.data,
            models=self.models or {model.label: {"size": [8, 8]} for model in self.of.models},
            units=self.units,
            created="2026-01-02T03:04:05+00:00",
        )

    def outcomes(self) -> list[Outcome]:
        return list(self.done)

    def curves(self, model: str, metric: str) -> dict[str, dict[int, Any]]:
        return self.all_curves.get((model, metric), {})

    def maps(self, model: str, method: str) -> dict[int, Any]:
        return self.all_maps.get((model, method), {})

    def pictures(self, model: str) -> dict[int, bytes]:
        return self.all_pictures.get(model, {})


Value = Callable[[str, str, str, int], float | str]
"""(model, method, metric, image) -> the score, or the cause why there is none."""


def made(
    of: Study, images: int, value: Value, without: Sequence[Unit] = (), broken: Mapping[Unit, str] = {}
) -> InMemory:
    """A source with a score for every unit but those in `without`; those in `broken` failed."""
    outcomes = []
    metrics = [metric.name for metric in of.metrics]
    for model in of.models:
        for image in range(images):
            for method in of.methods:
                unit = Unit(model.label, method.name, image)
                if unit in broken:
                    outcomes.append(failed(unit, tuple(metrics), broken[unit], f"{image}.png"))
                elif unit not in without:
                    scores = tuple(_score(value, unit, metric) for metric in metrics)
                    outcomes.append(Outcome(unit, f"{image}.png", 3, 3 + image % 2, 0.5, scores))
    return InMemory(of, outcomes, len(of.models) * len(of.methods) * images)


def _score(value: Value, unit: Unit, metric: str) -> Score:
    found = value(unit.model, unit.method, metric, unit.image)
    if isinstance(found, str):
        return Score(metric, float("nan"), 0.1, found)
    return Score(metric, found, 0.1)


def with_pictures(source: InMemory, images: int, side: int = 8) -> InMemory:
    """The same with curves, coarse maps and pictures of all images."""
    random = np.random.default_rng(5)
    for model in source.of.models:
        source.all_pictures[model.label] = {image: png(random, side) for image in range(images)}
        for number, method in enumerate(source.of.methods):
            source.all_maps[model.label, method.name] = {
                image: random.random((3, 3), np.float32) for image in range(images)
            }
            for metric, rises in (("insertion", True), ("deletion", False)):
                share = np.linspace(0, 1, 11) ** (1 + 0.2 * number)
                kept = source.all_curves.setdefault((model.label, metric), {})
                kept[method.name] = {
                    image: np.float32((share if rises else 1 - share) * random.uniform(0.7, 1))
                    for image in range(images)
                }
    return source


def png(random: np.random.Generator, side: int) -> bytes:
    buffer = BytesIO()
    Image.fromarray(random.integers(0, 256, (side, side, 3), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()
