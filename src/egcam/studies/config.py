"""From a study's file to a `Study`: every key checked, with errors that name the key and the near miss."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egcam.attribution import registry
from egcam.errors import EgcamError, MethodError, near_misses
from egcam.metrics.registry import MetricError, metric
from egcam.studies.datasets import DataError, files_of, kind_of, kinds, options_of, read_options
from egcam.studies.plugins import import_plugins
from egcam.studies.specs import (
    SAID,
    STUDY_FILE,
    DataSpec,
    MethodSpec,
    MetricSpec,
    ModelSpec,
    ReferenceSpec,
    RunSpec,
    Study,
    StudyFile,
    placed,
    reference_source,
)

if TYPE_CHECKING:
    from pydantic import ValidationError

_GIVEN_TO_METRICS = ("seed",)
_GIVEN_TO_METHODS = ("layer", "seed")
_TABLES = {"models": ModelSpec, "data": DataSpec, "reference": ReferenceSpec, "run": RunSpec}
_MISSING = {
    "models": 'models is missing: add a table for each model:  [[models]]  name = "resnet50"',
    "data": "[data] is missing: which images?",
    "methods": 'methods is missing:  methods = ["…", "…"]',
    "metrics": 'metrics is missing:  metrics = ["…", "…"]',
}


class StudyError(EgcamError):
    """A study that cannot be understood or cannot be run as it stands."""


def load_study(file: str | Path) -> Study:
    """The study in a TOML file; paths in it are relative to the file, and `~` and `$NAME` are expanded.

    Raises:
        StudyError: with the key, what is wrong with it, and what would be right.
    """
    path = Path(file)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise StudyError(f"there is no file {path}: `egcam study new --preset NAME > {path}` makes one") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{path} could not be read: {error}") from error
    return read_study(text, path.parent, str(path))


def read_study(text: str, folder: str | Path = ".", where: str = "the study") -> Study:
    """The study in a TOML text; `folder` is where its relative paths begin.

    Example:
        >>> study = read_study('''
        ... name = "tiny"
        ... methods = ["grad-cam", "slope-cam"]
        ... metrics = ["sparseness"]
        ... [data]
        ... kind = "folder"
        ... path = "photos"
        ... [[models]]
        ... name = "efficientnet-lite0"
        ... [method.slope-cam]
        ... samples = 8
        ... ''')
        >>> study.methods[1].options
        {'samples': 8}
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{where} is not valid TOML: {error}") from error
    except RecursionError as error:
        raise StudyError(f"{where} is nested too deeply to be a study") from error
    try:
        return _study(content, Path(folder))
    except StudyError as error:
        raise StudyError(f"{where}: {error}") from error


def _study(content: Mapping[str, Any], folder: Path) -> Study:
    from pydantic import ValidationError

    try:
        file = STUDY_FILE.validate_python(_with_data_options(content), context=folder)
    except ValidationError as error:
        raise StudyError(_sentence(error)) from error
    _check_models(file.models)
    import_plugins(file.run.plugins)
    if file.data.kind not in kinds():
        raise StudyError(f"data.kind is {file.data.kind!r}; {near_misses(file.data.kind, kinds())}")
    _check_names(file.method, file.methods, "method.", "an entry of methods")
    _check_names(file.metric, file.metrics, "metric.", "an entry of metrics")
    metrics = tuple(_metric(name, file.metric.get(name, {})) for name in file.metrics)
    named = {written: one.name for written, one in zip(file.metrics, metrics, strict=True)}
    primary = None if file.primary is None else named.get(file.primary, file.primary)
    if primary is not None and primary not in named.values():
        raise StudyError(f"primary is {primary!r}, no entry of metrics; {near_misses(primary, file.metrics)}")
    _check_masks(metrics, file.data)
    return Study(
        **{key: value for key, value in vars(file).items() if key not in ("method", "metric", "run")}
        | vars(file.run)
        | {
            "models": tuple(
                replace(one, name=placed(one.name, folder)) if ".py" in one.name else one for one in file.models
            ),
            "data": _data(file.data, folder),
            "methods": tuple(_method(name, file.method.get(name, {}), folder) for name in file.methods),
            "metrics": metrics,
            "primary": primary,
        }
    )


def _with_data_options(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a kind of data takes besides is written beside the rest in [data], and kept apart in the study."""
    table = content.get("data")
    if not isinstance(table, Mapping):
        return content
    own = [each.name for each in fields(DataSpec) if each.name != "options"]
    return {
        **content,
        "data": {
            **{key: value for key, value in table.items() if key in own},
            "options": {key: value for key, value in table.items() if key not in own},
        },
    }


def _data(spec: DataSpec, folder: Path) -> DataSpec:
    if kind_of(spec.kind).has_path and spec.path is None:
        raise StudyError('data.path is missing:  path = "…"')
    if not kind_of(spec.kind).has_path and spec.path is not None:
        raise StudyError(f"data.kind = {spec.kind!r} makes its images itself: leave data.path out")
    try:
        read = read_options(spec.kind, spec.options)
    except DataError as error:
        raise StudyError(f"data: {error}") from error
    # A default that is written out changes nothing of the study.
    given = {key: value for key, value in spec.options.items() if read[key] != options_of(spec.kind)[key]}
    files = files_of(spec.kind)
    return replace(
        spec, options={key: placed(value, folder) if key in files else value for key, value in given.items()}
    )


def _sentence(error: ValidationError) -> str:
    """What is wrong, in a sentence that begins with the key; a key that is not known first, for it explains others."""
    found = error.errors()
    one = next((one for one in found if one["type"] == "unexpected_keyword_argument"), found[0])
    *table, key = one["loc"]
    if one["type"] == "unexpected_keyword_argument":
        kind = _TABLES[str(table[0])] if table else StudyFile
        return f"{_place(one['loc'])} is not a known key; " + near_misses(
            str(key), [each.name for each in fields(kind)]
        )
    if one["type"] == "missing" or one["loc"] == ("models",):
        return _MISSING.get(str(key), f'{_place(one["loc"])} is missing:  {key} = "…"')
    if one["type"] == "literal_error":
        known = re.findall(r"'([^']*)'", one["ctx"]["expected"])
        return f"{_place(one['loc'])} is {one['input']!r}; {near_misses(str(one['input']), known)}"
    if one["type"] == SAID:
        return f"{_place(one['loc'])}{one['msg']}"
    if one["type"] in ("dataclass_type", "mapping_type", "dict_type"):
        return f"{_place(one['loc'])} must be a table:  [{_place(one['loc'])}]"
    return f"{_place(one['loc'])}: {one['msg']}"


def _place(loc: Sequence[str | int]) -> str:
    """Where in the file, as in "data.path" and "models (2.) label"."""
    text = ""
    for one in loc:
        text += f" ({one + 1}.) " if isinstance(one, int) else f"{'.' if text and text[-1] != ' ' else ''}{one}"
    return text


def _check_models(models: Sequence[ModelSpec]) -> None:
    if not models:
        raise StudyError(_MISSING["models"])
    labels = [one.label for one in models]
    for label in labels:
        if labels.count(label) > 1:
            raise StudyError(f'two models are called {label!r}: give each a label of its own:  label = "{label} (b)"')


def _method(name: str, options: Mapping[str, Any], folder: Path) -> MethodSpec:
    own = dict(options)
    base = own.pop("method", name)
    try:
        known = sorted(registry.takes(base) - set(_GIVEN_TO_METHODS))
    except MethodError as error:
        where = f"method.{name}.method" if "method" in options else "methods"
        raise StudyError(f"{where}: {error}") from error
    for key in own:
        if key not in known and key in registry.ELSEWHERE:
            raise StudyError(f"method.{name}.{key} is no option of {base}; {registry.ELSEWHERE[key]}")
    _check_names(own, known, f"method.{name}.", f"an option of {base}")
    if "reference" in own:
        from pydantic_core import PydanticCustomError

        try:
            own["reference"] = reference_source(own["reference"], folder)
        except PydanticCustomError as error:
            raise StudyError(f"method.{name}.reference{error}") from error
    return MethodSpec(name, base, own)


def _metric(name: str, options: Mapping[str, Any]) -> MetricSpec:
    try:
        known = metric(name)
    except MetricError as error:
        raise StudyError(f"metrics: {error}") from error
    takes = [key for key in known.options() if key not in _GIVEN_TO_METRICS]
    _check_names(options, takes, f"metric.{name}.", f"an option of {known.name}")
    return MetricSpec(known.name, options)


def _check_masks(metrics: Sequence[MetricSpec], data: DataSpec) -> None:
    needing = [one.name for one in metrics if "masks" in metric(one.name).needs]
    if needing and not kind_of(data.kind).masks:
        raise StudyError(f"metrics: {needing[0]} needs masks of the objects, and {kind_of(data.kind).title} has none")


def _check_names(given: Iterable[str], known: Sequence[str], where: str, what: str) -> None:
    for key in given:
        if key not in known:
            raise StudyError(f"{where}{key} is not {what}; {near_misses(key, known)}")
