"""From a study's file to a `Study` and back: every key checked, with errors that name the key and the near miss."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar, get_args

from egcam.attribution import registry
from egcam.attribution.references import MADE_BY_NAME
from egcam.errors import EgcamError, MethodError, near_misses
from egcam.metrics.registry import MetricError, metric
from egcam.models.zoo import RANDOM
from egcam.studies.datasets import DataError, files_of, kind_of, kinds, options_of, read_options
from egcam.studies.plugins import import_plugins
from egcam.studies.specs import (
    Aim,
    DataSpec,
    Kept,
    MethodSpec,
    MetricSpec,
    ModelSpec,
    ReferenceSpec,
    Study,
)

T = TypeVar("T")

_TOP = ("name", "title", "seed", "target", "protocol", "methods", "metrics")
_TABLES = ("models", "data", "reference", "method", "metric", "run")
_MODEL = ("name", "label", "layer", "weights", "classes")
_DATA = tuple(field.name for field in fields(DataSpec) if field.name != "options")
_REFERENCE = ("source", "count")
_RUN = ("batch_size", "threads", "device", "maps", "examples", "plugins")
_GIVEN_TO_METRICS = ("model", "images", "heatmaps", "masks", "explainer", "target", "seed", "protocol", "batch_size")
_GIVEN_TO_METHODS = ("layer", "seed")


class StudyError(EgcamError):
    """A study that cannot be understood or cannot be run as it stands."""


def load_study(file: str | Path) -> Study:
    """The study in a TOML file; paths in it count from the file's folder, and `~` and `$NAME` are filled in.

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
        ... methods = ["grad-cam", "expected-grad-cam"]
        ... metrics = ["sparseness"]
        ... [data]
        ... kind = "folder"
        ... path = "photos"
        ... [[models]]
        ... name = "efficientnet-lite0"
        ... [method.expected-grad-cam]
        ... samples = 8
        ... ''')
        >>> study.methods[1].options
        {'samples': 8}
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{where} is not valid TOML: {error}") from error
    try:
        return _study(content, Path(folder))
    except StudyError as error:
        raise StudyError(f"{where}: {error}") from error


def as_dict(study: Study) -> dict[str, Any]:
    """The study as plain data, as `json` could write it; `study_from` reads it."""
    return _plain(asdict(study))  # type: ignore[no-any-return]


def study_from(values: Mapping[str, Any]) -> Study:
    """The study that `as_dict` wrote.

    Example:
        >>> study = read_study('''
        ... name = "tiny"
        ... methods = ["cam"]
        ... metrics = ["sparseness"]
        ... models = [{name = "vgg16"}]
        ... data = {kind = "folder", path = "photos"}
        ... ''')
        >>> study_from(as_dict(study)) == study
        True
    """
    return Study(
        **{
            **values,
            "models": tuple(ModelSpec(**one) for one in values["models"]),
            "data": DataSpec(**values["data"]),
            "methods": tuple(MethodSpec(**one) for one in values["methods"]),
            "metrics": tuple(MetricSpec(**one) for one in values["metrics"]),
            "reference": ReferenceSpec(**values["reference"]),
            "plugins": tuple(values["plugins"]),
        }
    )


def identity(study: Study) -> dict[str, Any]:
    """What of a study determines its numbers, as plain data: all but where files lie and what is shown or kept.

    Data and weights are known by their checksums, so a folder may have another name on another machine.
    """
    values = as_dict(study)
    options, files = values["data"].pop("options"), files_of(study.data.kind)
    values["data"].pop("path")
    values["data"].update((key, value) for key, value in options.items() if key not in files)
    for one in values["models"]:
        one["weights"] = one["weights"] if one["weights"] in (None, RANDOM) else "a file"
        one["name"] = Path(one["name"]).name if ".py" in one["name"] else one["name"]
        one.pop("classes")
    for where, key in ((values["reference"], "source"), *((one["options"], "reference") for one in values["methods"])):
        if _is_path(where.get(key, "")):
            where[key] = "a folder"
    for key in ("title", "maps", "examples", "plugins"):
        values.pop(key)
    return values


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value


# The tables of the file, one by one


def _study(content: Mapping[str, Any], folder: Path) -> Study:
    _known(content, (*_TOP, *_TABLES), "")
    run = _table(content, "run")
    _known(run, _RUN, "run.")
    plugins = tuple(_path(one, folder) for one in _strings(run, "plugins", "run.", ()))
    import_plugins(plugins)
    methods = _methods(content, folder)
    metrics = _metrics(content)
    data = _data(_table(content, "data", needed="which images?"), folder)
    _check_masks(metrics, data)
    return Study(
        name=_text(content, "name", ""),
        title=_text(content, "title", "", ""),
        models=_models(content, folder),
        data=data,
        methods=methods,
        metrics=metrics,
        reference=_reference(_table(content, "reference"), folder),
        target=_one_of(content, "target", "", get_args(Aim), "prediction"),
        protocol=_one_of(content, "protocol", "", ("default", "paper"), "default"),
        seed=_number(content, "seed", "", 0, least=0),
        batch_size=_number(run, "batch_size", "run.", None),
        threads=_number(run, "threads", "run.", 1),
        maps=_one_of(run, "maps", "run.", get_args(Kept), "examples"),
        examples=_number(run, "examples", "run.", 4, least=0),
        device=_text(run, "device", "run.", None),
        plugins=plugins,
    )


def _models(content: Mapping[str, Any], folder: Path) -> tuple[ModelSpec, ...]:
    listed = content.get("models")
    if not isinstance(listed, list) or not listed or not all(isinstance(one, Mapping) for one in listed):
        raise StudyError('models is missing: add a table for each model:  [[models]]  name = "resnet50"')
    found = []
    for number, one in enumerate(listed, 1):
        where = f"models ({number}.) "
        _known(one, _MODEL, where)
        name = _text(one, "name", where)
        weights = _text(one, "weights", where, None)
        classes = _text(one, "classes", where, None)
        found.append(
            ModelSpec(
                name=_path(name, folder) if ".py" in name else name,
                label=_text(one, "label", where, name),
                layer=_text(one, "layer", where, None),
                weights=weights if weights in (None, RANDOM) else _path(weights, folder),
                classes=None if classes is None else _path(classes, folder),
            )
        )
    labels = [one.label for one in found]
    for label in labels:
        if labels.count(label) > 1:
            raise StudyError(f'two models are called {label!r}: give each a label of its own:  label = "{label} (b)"')
    return tuple(found)


def _data(table: Mapping[str, Any], folder: Path) -> DataSpec:
    kind = _one_of(table, "kind", "data.", kinds())
    given = {key: value for key, value in table.items() if key not in _DATA}
    try:
        read = read_options(kind, given)
    except DataError as error:
        raise StudyError(f"data: {error}") from error
    # A default that is written out changes nothing of the study.
    options = {key: given[key] for key in given if read[key] != options_of(kind)[key]}
    return DataSpec(
        kind=kind,
        path=_path(_text(table, "path", "data."), folder),
        images=_number(table, "images", "data.", None),
        size=_number(table, "size", "data.", None, least=8),
        part=_text(table, "part", "data.", None),
        seed=_number(table, "seed", "data.", 0, least=0),
        options={key: _path(value, folder) if key in files_of(kind) else value for key, value in options.items()},
    )


def _reference(table: Mapping[str, Any], folder: Path) -> ReferenceSpec:
    _known(table, _REFERENCE, "reference.")
    source = _source(_text(table, "source", "reference.", ReferenceSpec.source), "reference.source", folder)
    return ReferenceSpec(source, _number(table, "count", "reference.", 64))


def _source(source: Any, where: str, folder: Path) -> str:
    """What references are drawn from: "data", one of egcam's own by name, or a folder."""
    known = ("data", *MADE_BY_NAME)
    if source in known:
        return str(source)
    if isinstance(source, str) and (_is_path(source) or Path(_path(source, folder)).exists()):
        return _path(source, folder)
    raise StudyError(
        f"{where} is {source!r}, which is neither a folder nor a known name; {near_misses(str(source), known)}"
    )


def _methods(content: Mapping[str, Any], folder: Path) -> tuple[MethodSpec, ...]:
    names = _strings(content, "methods", "", None)
    tables = _table(content, "method")
    _known(tables, names, "method.", "an entry of methods")
    return tuple(_method(name, _table(tables, name, "method."), folder) for name in names)


def _method(name: str, options: Mapping[str, Any], folder: Path) -> MethodSpec:
    base = _text(options, "method", f"method.{name}.", name)
    try:
        known = sorted(registry.takes(base) - set(_GIVEN_TO_METHODS))
    except MethodError as error:
        where = f"method.{name}.method" if "method" in options else "methods"
        raise StudyError(f"{where}: {error}") from error
    own = {key: value for key, value in options.items() if key != "method"}
    for key in own:
        if key not in known and key in registry.ELSEWHERE:
            raise StudyError(f"method.{name}.{key} is no option of {base}; {registry.ELSEWHERE[key]}")
    _known(own, known, f"method.{name}.", f"an option of {base}")
    if "reference" in own:
        own["reference"] = _source(own["reference"], f"method.{name}.reference", folder)
    return MethodSpec(name, base, own)


def _metrics(content: Mapping[str, Any]) -> tuple[MetricSpec, ...]:
    from inspect import signature

    names = _strings(content, "metrics", "", None)
    tables = _table(content, "metric")
    _known(tables, names, "metric.", "an entry of metrics")
    found = []
    for name in names:
        try:
            known = metric(name)
        except MetricError as error:
            raise StudyError(f"metrics: {error}") from error
        options = dict(_table(tables, name, "metric."))
        takes = [key for key in signature(known.function).parameters if key not in _GIVEN_TO_METRICS]
        _known(options, takes, f"metric.{name}.", f"an option of {known.name}")
        found.append(MetricSpec(known.name, options))
    return tuple(found)


def _check_masks(metrics: Sequence[MetricSpec], data: DataSpec) -> None:
    needing = [one.name for one in metrics if "masks" in metric(one.name).needs]
    if needing and not kind_of(data.kind).masks:
        raise StudyError(f"metrics: {needing[0]} needs masks of the objects, and {kind_of(data.kind).title} has none")


# Values of one kind


def _known(table: Mapping[str, Any], known: Sequence[str], where: str, what: str = "a key") -> None:
    for key in table:
        if key not in known:
            raise StudyError(f"{where}{key} is not {what} that is known; {near_misses(key, known)}")


def _table(content: Mapping[str, Any], key: str, where: str = "", needed: str | None = None) -> Mapping[str, Any]:
    if key not in content and needed is not None:
        raise StudyError(f"[{where}{key}] is missing: {needed}")
    found = content.get(key, {})
    if not isinstance(found, Mapping):
        raise StudyError(f"{where}{key} must be a table:  [{where}{key}]")
    return found


_MISSING: Any = object()


def _text(table: Mapping[str, Any], key: str, where: str, default: Any = _MISSING) -> Any:
    value = table.get(key, default)
    if value is _MISSING:
        raise StudyError(f'{where}{key} is missing:  {key} = "…"')
    if value is default:
        return value
    if not isinstance(value, str) or not value.strip():
        raise StudyError(f"{where}{key} must be a text in quotes, not {value!r}")
    return value


def _number(table: Mapping[str, Any], key: str, where: str, default: Any, least: int = 1) -> Any:
    value = table.get(key, default)
    if value is default:
        return value
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise StudyError(f"{where}{key} must be a whole number of at least {least}, not {value!r}")
    return value


def _strings(table: Mapping[str, Any], key: str, where: str, default: tuple[str, ...] | None) -> tuple[str, ...]:
    value = table.get(key, default)
    if value is None:
        raise StudyError(f'{where}{key} is missing:  {key} = ["…", "…"]')
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) and one for one in value):
        raise StudyError(f"{where}{key} must be a list of texts, not {value!r}")
    if default is None and not value:
        raise StudyError(f"{where}{key} is empty: name at least one")
    twice = [one for one in value if list(value).count(one) > 1]
    if twice:
        raise StudyError(f"{where}{key} names {twice[0]!r} twice")
    return tuple(value)


def _one_of(table: Mapping[str, Any], key: str, where: str, known: Sequence[str], default: Any = _MISSING) -> Any:
    value = _text(table, key, where, default)
    if value not in known:
        raise StudyError(f"{where}{key} is {value!r}; {near_misses(value, known)}")
    return value


def _path(text: str, folder: Path) -> str:
    """An absolute path, or a URL as it is."""
    if "://" in text:
        return text
    filled = os.path.expanduser(os.path.expandvars(text))
    return str((folder / filled).absolute())


def _is_path(source: str) -> bool:
    return "/" in source or os.sep in source
