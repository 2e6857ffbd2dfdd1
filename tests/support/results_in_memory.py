"""Results of a study in memory: a store with scores made up by the test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from itertools import count
from typing import Any

import numpy as np
from PIL import Image

from egcam.evaluation.score import Score
from egcam.studies.manifest import DataRecord, Manifest, ModelRecord
from egcam.studies.records import Outcome, Unit, failed
from egcam.studies.specs import DataSpec, MethodSpec, MetricSpec, ModelSpec, Study
from egcam.studies.store import Store

_numbers = count()
METHODS = ("grad-cam", "layer-cam", "slope-cam")
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


def keys(of: Study) -> dict[str, Any]:
    """Made-up keys of all that a study asks for, as a manifest holds them."""
    recipes = {one.label: {method.name: f"{method.name} on {one.label}" for method in of.methods} for one in of.models}
    metrics = {"insertion", "deletion", *(metric.name for metric in of.metrics)}
    return {"recipes": recipes, "settings": {name: name for name in sorted(metrics)}}


class InMemory(Store):
    """A store in memory whose content tests change at will: it is written anew whenever it is read."""

    def __init__(self, of: Study, done: list[Outcome], units: int, models: Mapping[str, ModelRecord] = {}) -> None:
        super().__init__(f"memory://results-in-memory-{next(_numbers)}")
        self.of, self.done, self.units = of, done, units
        self.models = models or {model.label: ModelRecord("", 0, "", (8, 8)) for model in of.models}
        self.all_curves: dict[tuple[str, str], dict[str, dict[int, Any]]] = {}
        self.all_maps: dict[tuple[str, str], dict[int, Any]] = {}
        self.all_pictures: dict[str, dict[int, bytes]] = {}

    @property
    def manifest(self) -> Manifest:
        versions, created = {"egcam": "1.0", "torch": "2.0"}, "2026-01-02T03:04:05+00:00"
        names = {one.unit.image: one.name for one in self.done}
        count = max(names, default=-1) + 1
        return Manifest(
            self.of.model_dump(),
            DataRecord("six squares", {names.get(one, f"{one}.png"): f"{one}" for one in range(count)}),
            self.models,
            self.units,
            versions=versions,
            created=created,
            **keys(self.of),
        )

    def full(self) -> list[Outcome]:
        """The outcomes with their curves, maps and pictures."""
        return [
            replace(
                one,
                curves={
                    metric: by_method[one.unit.method][one.unit.image]
                    for (model, metric), by_method in self.all_curves.items()
                    if model == one.unit.model and one.unit.image in by_method.get(one.unit.method, {})
                },
                coarse=self.all_maps.get(one.unit[:2], {}).get(one.unit.image),
                picture=self.all_pictures.get(one.unit.model, {}).get(one.unit.image),
            )
            for one in self.done
        ]

    def _part_names(self) -> list[str]:
        for name in self._folder.names("parts"):
            self._folder.remove(f"parts/{name}")
        self.write(self.full())
        return super()._part_names()


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
        return unit.score(metric, float("nan"), 0.1, found)
    return unit.score(metric, found, 0.1)


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
