"""What a study is made of: the types its file is checked against, and that a job and a manifest hold as plain data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import KW_ONLY, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from egcam.attribution.references import MADE_BY_NAME
from egcam.errors import MissingExtraError, near_misses
from egcam.models.weights import RANDOM

try:
    from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError, ValidationInfo, WrapValidator
    from pydantic.dataclasses import dataclass
    from pydantic_core import PydanticCustomError
except ModuleNotFoundError as error:
    raise MissingExtraError("a study needs the package 'pydantic': pip install 'egcam[study]'") from error

SAID = "said"
"""The type of a validation error whose message is the end of a sentence that begins with the key."""


def said(text: str) -> PydanticCustomError:
    """A validation error in our words."""
    return PydanticCustomError(SAID, "{text}", {"text": text})


def _must_be(what: str) -> WrapValidator:
    """Whatever a value fails at, say what it must be."""

    def check(value: Any, validate: Any) -> Any:
        try:
            return validate(value)
        except ValidationError:
            raise said(f" must be {what}, not {value!r}") from None

    return WrapValidator(check)


def placed(text: str, folder: Path) -> str:
    """An absolute path, `~` and `$NAME` filled in, or a URL as it is."""
    if "://" in text:
        return text
    return str((folder / os.path.expanduser(os.path.expandvars(text))).absolute())


def is_path(source: str) -> bool:
    """Whether a source of references is written as a path."""
    return "/" in source or os.sep in source


# Values of one kind. A path is made absolute where the study's folder is known, which is when its file is read.


def _placed(text: str, info: ValidationInfo) -> str:
    return text if info.context is None else placed(text, info.context)


def _weights(text: str, info: ValidationInfo) -> str:
    return text if text == RANDOM else _placed(text, info)


def _source(source: str, info: ValidationInfo) -> str:
    return source if info.context is None else reference_source(source, info.context)


def reference_source(source: Any, folder: Path) -> str:
    """What references are drawn from: "data", one of egcam's own by name, or a folder."""
    known = ("data", *MADE_BY_NAME)
    if source in known:
        return str(source)
    if isinstance(source, str) and (is_path(source) or Path(placed(source, folder)).exists()):
        return placed(source, folder)
    raise said(f" is {source!r}, which is neither a folder nor a known name; {near_misses(str(source), known)}")


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise said(f" names {twice[0]!r} twice")
    return names


def _some(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names:
        raise said(" is empty: name at least one")
    return names


Options: TypeAlias = Mapping[str, Any]
Aim: TypeAlias = Literal["prediction", "second", "label"]
Kept: TypeAlias = Literal["examples", "all", "none"]
Text: TypeAlias = Annotated[str, Field(pattern=r"\S"), _must_be("a text in quotes")]
Place: TypeAlias = Annotated[Text, AfterValidator(_placed)]
Natural: TypeAlias = Annotated[int, Field(strict=True, ge=0), _must_be("a whole number of at least 0")]
Count: TypeAlias = Annotated[int, Field(strict=True, ge=1), _must_be("a whole number of at least 1")]
Side: TypeAlias = Annotated[int, Field(strict=True, ge=8), _must_be("a whole number of at least 8")]
Texts: TypeAlias = Annotated[tuple[Text, ...], _must_be("a list of texts"), AfterValidator(_distinct)]
Places: TypeAlias = Annotated[tuple[Place, ...], _must_be("a list of texts"), AfterValidator(_distinct)]
Names: TypeAlias = Annotated[Texts, AfterValidator(_some)]

_CHECKED = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=_CHECKED)
class ModelSpec:
    """A network of the study.

    Attributes:
        name: as `egcam.zoo.load` takes it.
        label: what tables call it; the name unless two models share it.
        layer: where it is explained; None lets each method find its usual layer.
        weights: a file, "random", or None for the published ones.
        classes: a file with class names, or None.
    """

    name: Text
    label: str = ""
    layer: Text | None = None
    weights: Annotated[Text, AfterValidator(_weights)] | None = None
    classes: Place | None = None

    def __post_init__(self) -> None:
        if not self.label:
            object.__setattr__(self, "label", self.name)


@dataclass(frozen=True, config=_CHECKED)
class DataSpec:
    """The images of the study.

    Attributes:
        kind: how they are stored.
        path: the folder (or file) they are in; None for a kind that makes its images itself.
        images: how many are taken, None for all; chosen by `seed`, evenly spread over the classes if known.
        size: side in pixels the network gets them at; None is the network's own.
        part: only the images of this part of the data, such as "train"; None takes all.
        seed: of the choice.
        options: what the kind takes besides: `egcam.studies.datasets.options_of(kind)`.
    """

    kind: Text
    path: Place | None = None
    images: Count | None = None
    size: Side | None = None
    part: Text | None = None
    seed: Natural = 0
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, config=_CHECKED)
class ReferenceSpec:
    """What SlopeCAM compares with.

    Attributes:
        source: "data" for other images of the same data, a folder, or a name such as "blurred"; "usual", what each
            method takes by itself, unless given.
        count: how many images of data or a folder are in the pool.
    """

    source: Annotated[Text, AfterValidator(_source)] = "usual"
    count: Count = 64


@dataclass(frozen=True, config=_CHECKED)
class MethodSpec:
    """A method of the study: a registered one under a name of its own, with options."""

    name: Text
    method: Text
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, config=_CHECKED)
class MetricSpec:
    """A metric of the study, with options."""

    name: Text
    options: Options = field(default_factory=dict)


@dataclass(frozen=True, config=_CHECKED, kw_only=True)
class RunSpec:
    """How a study is run: the table [run] of its file.

    Attributes:
        batch_size: the most images in one pass.
        threads: a worker's threads; they change the last digits, so they are part of the study.
        maps: whether the coarse maps are kept: of the examples, of all images, or none.
        examples: how many images the report shows.
        device: where the models run; None is a GPU if there is one.
        plugins: Python files that register methods, imported by every worker.
    """

    batch_size: Count | None = None
    threads: Count = 1
    maps: Kept = "examples"
    examples: Natural = 4
    device: Text | None = None
    plugins: Places = ()


@dataclass(frozen=True, config=_CHECKED)
class Outline:
    """What a study and its file say in the same way; see `Study`."""

    name: Text
    models: tuple[ModelSpec, ...]
    data: DataSpec
    _: KW_ONLY
    title: str = ""
    reference: ReferenceSpec = ReferenceSpec()
    target: Aim = "prediction"
    protocol: Literal["default", "paper"] = "default"
    seed: Natural = 0
    primary: Text | None = None


@dataclass(frozen=True, config=_CHECKED)
class StudyFile(Outline):
    """A study as its file says it: methods and metrics by name, their options and how it is run in tables."""

    methods: Names
    metrics: Names
    _: KW_ONLY
    method: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    metric: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    run: RunSpec = RunSpec()


@dataclass(frozen=True, config=_CHECKED)
class Study(Outline, RunSpec):
    """Models x methods x metrics over images: everything that determines the numbers.

    Attributes:
        name: short, for files and headings.
        title: what it is, in a sentence, as the report says it.
        models: the networks.
        data: the images.
        methods: what explains.
        metrics: what scores.
        reference: what SlopeCAM compares with.
        target: explain the prediction, the class with the second highest score, or the image's label.
        protocol: "paper" or "default", for metrics with conventions of either.
        seed: of methods and metrics.
        primary: the metric that decides, named before there are scores; comparisons by it are corrected by themselves.

    How it is run is in the attributes of `RunSpec`.

    Example:
        >>> study = Study("tiny", (ModelSpec("vgg16"),), DataSpec("folder", "photos"), (), (MetricSpec("insertion"),))
        >>> Study.model_validate(study.model_dump()) == study
        True
    """

    methods: tuple[MethodSpec, ...]
    metrics: tuple[MetricSpec, ...]

    def model_dump(self) -> dict[str, Any]:
        """The study as plain data, as `json` could write it."""
        return dict(_STUDY.dump_python(self, mode="json"))

    @classmethod
    def model_validate(cls, values: Mapping[str, Any]) -> Study:
        """The study that `model_dump` wrote."""
        return _STUDY.validate_python(dict(values))


_STUDY = TypeAdapter(Study)
STUDY_FILE = TypeAdapter(StudyFile)
