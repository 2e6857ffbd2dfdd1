"""A small study and its outcomes, for the tests of the store."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

from egcam.studies.manifest import DataRecord, Manifest, ModelRecord
from egcam.studies.records import Outcome, Unit

MODELS = ("vgg16", "alexnet")
METHODS = ("grad-cam", "cam", "slope-cam")
METRICS = ("insertion", "deletion", "sparseness")
IMAGES = 4
UNITS = tuple(Unit(model, method, image) for model in MODELS for image in range(IMAGES) for method in METHODS)


def sample_manifest(**changes: Any) -> Manifest:
    study = {
        "name": "sample",
        "title": "A sample",
        "methods": [{"name": name, "method": name, "options": {}} for name in METHODS],
        "metrics": [{"name": name, "options": {}} for name in METRICS],
        "seed": 0,
    }
    values = {
        "study": study,
        "data": DataRecord("photographs", {f"photograph {number}.jpg": f"content {number}" for number in range(3000)}),
        "recipes": {model: {method: f"{method} on {model}" for method in METHODS} for model in MODELS},
        "settings": {metric: f"{metric}, as it is" for metric in METRICS},
        "models": {name: ModelRecord(letter * 64, 10, "features") for name, letter in zip(MODELS, "ab", strict=True)},
        "units": len(UNITS),
        "versions": {"egcam": "0.1.0", "torch": "2.4.0", "numpy": "2.0.0", "python": "3.11.7", "cpu": "one"},
        "created": "2026-01-01T00:00:00+00:00",
    }
    return Manifest(**{**values, **changes})


def sample_outcome(unit: Unit) -> Outcome:
    """The same for the same unit, different for any other."""
    source = np.random.default_rng([MODELS.index(unit.model), METHODS.index(unit.method), unit.image])
    return Outcome(
        unit,
        f"photograph {unit.image}.jpg",
        int(source.integers(1000)),
        int(source.integers(1000)),
        float(source.random()),
        tuple(unit.score(metric, float(source.standard_normal()), float(source.random())) for metric in METRICS),
        curves={metric: source.random(51, dtype=np.float32) for metric in METRICS[:2]},
        coarse=source.standard_normal((3, 5), dtype=np.float32),
        picture=source.bytes(40),
    )


def bits(outcome: Outcome) -> tuple[Any, ...]:
    """All of an outcome but curves, map and picture, with floats as their bits: NaN equals the same NaN only."""
    scores = [(score.metric, _bits(score.value), _bits(score.seconds), score.cause) for score in outcome.scores]
    seconds = _bits(outcome.seconds)
    return (outcome.unit, outcome.name, outcome.target, outcome.prediction, seconds, tuple(scores), outcome.error)


def _bits(value: float) -> bytes:
    return struct.pack("<d", value)
