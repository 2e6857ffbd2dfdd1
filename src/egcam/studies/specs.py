"""What a study is made of, as its file says it: plain values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

Options: TypeAlias = Mapping[str, Any]
Aim: TypeAlias = Literal["prediction", "label"]
Kept: TypeAlias = Literal["examples", "all", "none"]


@dataclass(frozen=True)
class ModelSpec:
    """A network of the study.

    Attributes:
        name: as `egcam.zoo.load` takes it.
        label: what tables call it; the name unless two models share it.
        layer: where it is explained; None lets egcam find it.
        weights: a file, "random", or None for the published ones.
        classes: a file with class names, or None.
    """

    name: str
    label: str
    layer: str | None = None
    weights: str | None = None
    classes: str | None = None


@dataclass(frozen=True)
class DataSpec:
    """The images of the study.

    Attributes:
        kind: how they lie on disk: one of `egcam.studies.datasets.kinds()`.
        path: the folder (or file) they are in.
        images: how many are taken, None for all; chosen by `seed`, evenly spread over the classes where known.
        size: side in pixels the network gets them at; None is the network's own.
        part: only the images of this part of the data, such as "train"; None takes all.
        seed: of the choice.
        options: what the kind takes besides: `egcam.studies.datasets.options_of(kind)`.
    """

    kind: str
    path: str
    images: int | None = None
    size: int | None = None
    part: str | None = None
    seed: int = 0
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class ReferenceSpec:
    """What Expected Grad-CAM compares with.

    Attributes:
        source: "data" for other images of the same data, a folder, or a name such as "blurred"; "mixed", as everywhere,
            unless given.
        count: how many images of data or a folder are in the pool.
    """

    source: str = "mixed"
    count: int = 64


@dataclass(frozen=True)
class MethodSpec:
    """A method of the study: a registered one under a name of its own, with options."""

    name: str
    method: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class MetricSpec:
    """A metric of the study, with options."""

    name: str
    options: Options = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """Models x methods x metrics over images: everything that determines the numbers.

    Attributes:
        name: short, for files and headings.
        title: what it is, in a sentence, as the report says it.
        models: the networks.
        data: the images.
        methods: what explains.
        metrics: what scores.
        reference: what Expected Grad-CAM compares with.
        target: explain the prediction or the image's label.
        protocol: "paper" or "default", for metrics with conventions of either.
        seed: of methods and metrics.
        batch_size: the most images in one pass.
        threads: a worker's threads; they change the last digits, so they are part of the study.
        maps: whether the coarse maps are kept: of the examples, of all images, or none.
        examples: how many images the report shows.
        device: where the models run; None is a GPU where there is one.
        plugins: Python files that register methods, imported by every worker.
    """

    name: str
    models: tuple[ModelSpec, ...]
    data: DataSpec
    methods: tuple[MethodSpec, ...]
    metrics: tuple[MetricSpec, ...]
    title: str = ""
    reference: ReferenceSpec = ReferenceSpec()
    target: Aim = "prediction"
    protocol: Literal["default", "paper"] = "default"
    seed: int = 0
    batch_size: int | None = None
    threads: int = 1
    maps: Kept = "examples"
    examples: int = 4
    device: str | None = None
    plugins: tuple[str, ...] = ()
