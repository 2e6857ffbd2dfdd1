"""What a folder of results says about itself: the whole configuration, checksums and versions."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from egcam._version import __version__
from egcam.studies.inputs import difference, other_images
from egcam.studies.storage import StoreError, listed

Plain: TypeAlias = Mapping[str, Any]

FORMAT = 3
# Another version of any of these can change the last digits of a score.
DECISIVE_PACKAGES = ("egcam", "torch", "torchvision", "timm", "numpy", "pillow", "scikit-image")
_PACKAGES = (*DECISIVE_PACKAGES, "pandas", "pyarrow")
_HARDWARE = ("cpu", "gpu")
_ABSENT: Any = object()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


_HELP = "restore it, or delete it and run the study again, which recreates it for the existing parts"


@dataclass(frozen=True)
class DataRecord:
    """The images of a study.

    Attributes:
        description: for people.
        names: of the images, in order; results go by them. None where images are known by their numbers alone.
        contents: of some of them by name (`egcam.studies.inputs.content_of`); those of two runs must agree.
        note: what a reader must know, such as a stand-in for unavailable data.
    """

    description: str
    names: tuple[str, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class ModelRecord:
    """A model of a study.

    Attributes:
        checksum: `state_checksum` of it.
        parameters: how many.
        layer: where it is explained.
        size: (height, width) of what it sees, if known.
        weights: where its weights are from; None for published ones.
        note: what a reader must know.
        code: checksums of a model's own Python files, by name; none for models of packages.
        preprocessing: how it gets its images: size, resize, interpolation, mean, std.
        own_layers: where no layer was given, that of each method which finds another one for itself.
    """

    checksum: str
    parameters: int
    layer: str
    size: tuple[int, int] | None = None
    weights: str | None = None
    note: str = ""
    code: Mapping[str, str] = field(default_factory=dict)
    preprocessing: Plain = field(default_factory=dict)
    own_layers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Environment:
    """Versions and hardware results were made with, and since when."""

    since: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Manifest:
    """A study, and everything its numbers depend on.

    Attributes:
        study: the full configuration as plain data.
        data: the images.
        models: the models by label, in the study's order.
        units: how many there are in all.
        seed: of methods and metrics.
        threads: a worker's.
        device: where the models run.
        decisive: what of the configuration determines the numbers; None is all of it.
        checksums: of whatever else determines them, such as plugins, by name.
        references: checksums of the images methods compare with, by source and name.
        versions: of packages, Python, the system, processor and graphics card.
        created: when, UTC.
        further: other versions that were used since.
        settings: what determines the numbers, of everything there ever was in the folder: "study" for what all
            numbers depend on, "study.methods.cam", "models.vgg16" and so on for what some do.
        earlier: the identities it had before it grew.

    Example:
        >>> data = DataRecord("2 photographs", ("a.png", "b.png"))
        >>> manifest = Manifest({"name": "small"}, data, {}, units=0)
        >>> Manifest.from_json(manifest.to_json()) == manifest
        True
    """

    study: Plain
    data: DataRecord
    models: Mapping[str, ModelRecord]
    units: int
    seed: int = 0
    threads: int = 1
    device: str = "cpu"
    decisive: Plain | None = None
    checksums: Mapping[str, str] = field(default_factory=dict)
    references: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=lambda: versions())
    created: str = field(default_factory=_now)
    further: tuple[Environment, ...] = ()
    settings: Plain = field(default_factory=dict)
    earlier: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # As `json` gives it back, so that a manifest equals the one that is read: no tuples, no paths.
        for name in ("study", "decisive", "checksums", "references", "versions"):
            object.__setattr__(self, name, _plain(getattr(self, name), name))
        plain = {
            label: replace(one, preprocessing=_plain(one.preprocessing, "preprocessing"))
            for label, one in self.models.items()
        }
        object.__setattr__(self, "models", plain)
        object.__setattr__(self, "settings", {**self.settings, **self._own_settings()})

    @property
    def identity(self) -> str:
        """SHA-256 of what determines the numbers, versions aside."""
        return sha256(json.dumps(self.settings, sort_keys=True).encode()).hexdigest()

    @property
    def identities(self) -> frozenset[str]:
        """Those of all results that may lie in the folder."""
        return frozenset((self.identity, *self.earlier))

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods, in the study's order."""
        return tuple(one["name"] if isinstance(one, Mapping) else str(one) for one in self.study.get("methods", ()))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics, in the study's order."""
        return tuple(one["name"] if isinstance(one, Mapping) else str(one) for one in self.study.get("metrics", ()))

    def to_json(self) -> str:
        """The manifest as text, always with the same keys in the same order."""
        values = {"format": FORMAT, "identity": self.identity, **asdict(self)}
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "the manifest") -> Manifest:
        """The manifest that `to_json` wrote; `where` is for errors."""
        try:
            values = json.loads(text)
            written_in, identity = values.pop("format"), values.pop("identity")
            if written_in != FORMAT:
                raise StoreError(
                    f"{where} has format {written_in}, this egcam reads {FORMAT}: use the egcam it was made by, or "
                    "start again in another --out"
                )
            values["data"] = DataRecord(**{**values["data"], "names": tuple(values["data"]["names"])})
            values["models"] = {label: _model(one) for label, one in values["models"].items()}
            values["further"] = tuple(Environment(**one) for one in values["further"])
            values["earlier"] = tuple(values["earlier"])
            manifest = cls(**values)
        except StoreError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(f"{where} is damaged ({error}): {_HELP}") from error
        if manifest.identity != identity:
            raise StoreError(f"{where} was changed since it was written: {_HELP}")
        return manifest

    def differences(self, new: Manifest) -> list[str]:
        """What determines the numbers of both and is not the same in `new`: a line "key: old -> new" each."""
        return [
            line
            for key, old in self.settings.items()
            if key in new.settings
            for line in _differences(dict(_flat(old, key)), dict(_flat(new.settings[key], key)))
        ]

    def joined(self, new: Manifest, where: str, mix_versions: bool = False) -> Manifest:
        """The manifest after the run that `new` describes joins this one, or an error where their results do not mix.

        Images, models, methods and metrics may come and go; what both have must have the same settings.

        Args:
            new: the run's own manifest.
            where: the folder, for errors.
            mix_versions: whether other versions of packages are accepted.
        """
        differences = self.differences(new)
        if differences:
            raise StoreError(
                f"{where} holds results of another configuration, and they do not mix:\n"
                + listed(differences)
                + "\nUse another --out, or the old study file."
            )
        self._check_contents(new, where)
        known = [self.versions, *(one.versions for one in self.further)]
        if not mix_versions:
            self._check_packages(known, new.versions, where)
        contents = {**new.data.contents, **self.data.contents}
        joined = replace(
            new,
            data=replace(new.data, contents=contents),
            versions=self.versions,
            created=self.created,
            further=self.further,
            settings={**self.settings, **new.settings},
            earlier=self.earlier,
        )
        if joined.identity != self.identity:
            joined = replace(joined, earlier=(*self.earlier, self.identity))
        if new.versions in known:
            return joined
        return replace(joined, further=(*self.further, Environment(_now(), new.versions)))

    def hardware_change(self, new: Manifest, where: str) -> str | None:
        """Why the numbers of the run that `new` describes may differ in their last digits, if they may."""
        known = [self.versions, *(one.versions for one in self.further)]
        if any(_same(new.versions, one, _HARDWARE) for one in known):
            return None
        old, own = (", ".join(_of(one, _HARDWARE)) for one in (self.versions, new.versions))
        return f"{where} holds results from {old}; those from {own} may differ in their last digits"

    def _check_contents(self, new: Manifest, where: str) -> None:
        old = self.data.contents
        changes = [
            f"{name}: {difference(old[name], content)}"
            for name, content in new.data.contents.items()
            if name in old and old[name] != content
        ]
        if changes:
            raise other_images(where, changes)

    def _check_packages(self, known: list[Mapping[str, str]], new: Mapping[str, str], where: str) -> None:
        if any(_same(new, one, DECISIVE_PACKAGES) for one in known):
            return
        both = [package for package in DECISIVE_PACKAGES if package in self.versions and package in new]
        changed = {package: (self.versions[package], new[package]) for package in both}
        raise StoreError(
            f"{where} holds results made with other versions, which may differ in their last digits:\n"
            + listed([f"{name}: {old} -> {own}" for name, (old, own) in changed.items() if old != own])
            + "\nInstall the old versions, use another --out, or accept it with mix_versions=True (--mix-versions)."
        )

    def _own_settings(self) -> dict[str, Any]:
        study = dict(self.study if self.decisive is None else self.decisive)
        found: dict[str, Any] = {}
        for kind in ("models", "methods", "metrics"):
            if names := _names(study.get(kind, [])):
                found |= {f"study.{kind}.{name}": one for name, one in zip(names, study.pop(kind), strict=True)}
        found["study"] = study
        found |= {key: getattr(self, key) for key in ("seed", "threads", "device")}
        found |= {f"models.{label}": _decisive(model) for label, model in self.models.items()}
        found |= {f"checksums.{name}": checksum for name, checksum in self.checksums.items()}
        return found | {f"references.{source}": images for source, images in self.references.items()}


def versions(device: str | torch.device | None = None) -> dict[str, str]:
    """Versions of packages that are installed, of Python and the system, and what computes.

    Args:
        device: where the models run; the graphics card is named when it is one.

    Example:
        >>> versions()["torch"] == torch.__version__
        True
    """
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    # What is imported says more than what was installed: the build (CPU, CUDA) too.
    found |= {"egcam": __version__, "torch": str(torch.__version__)}
    found |= {"python": platform.python_version(), "platform": platform.platform(), "cpu": _processor()}
    if device is not None and torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(torch.device(device))
    return found


def state_checksum(model: nn.Module) -> str:
    """SHA-256 of a model's weights and buffers: names, types, shapes and bits, wherever they lie and in whatever order.

    Example:
        >>> layer = nn.Linear(2, 1)
        >>> before = state_checksum(layer)
        >>> with torch.no_grad():
        ...     _ = layer.bias.add_(1)
        >>> state_checksum(layer) == before
        False
    """
    digest = sha256()
    for name, value in sorted(model.state_dict().items()):
        if isinstance(value, Tensor):
            value = value.detach().to_dense() if value.layout != torch.strided else value.detach()
            digest.update(f"{name!r} {value.dtype} {tuple(value.shape)}\n".encode())
            digest.update(value.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        else:
            digest.update(f"{name!r} {value!r}\n".encode())
    return digest.hexdigest()


def _model(values: Plain) -> ModelRecord:
    size = values["size"]
    return ModelRecord(**{**values, "size": None if size is None else (size[0], size[1])})


def _decisive(model: ModelRecord) -> dict[str, Any]:
    size = None if model.size is None else list(model.size)
    plain = {key: getattr(model, key) for key in ("checksum", "parameters", "layer")}
    return {**plain, "size": size, "code": dict(model.code), "preprocessing": dict(model.preprocessing)}


def _processor() -> str:
    name = platform.processor() or platform.machine()
    described = Path("/proc/cpuinfo")
    if described.exists():
        lines = described.read_text(errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    # Which instructions torch uses decides the last digits more than the name does.
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def _plain(values: Any, what: str) -> Any:
    try:
        return json.loads(json.dumps(values))
    except (TypeError, ValueError) as error:
        raise StoreError(f"{what} must be plain values, as json can write them: {error}") from error


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """("models.vgg16.layer", value) for all that is in nested plain data."""
    if isinstance(value, Mapping) and value:
        for name, one in value.items():
            yield from _flat(one, f"{key}.{name}" if key else str(name))
    else:
        yield key, value


def _names(values: list[Any]) -> list[str]:
    """The names of a list's entries, where all have one and no two the same."""
    if not all(isinstance(one, Mapping) and ("label" in one or "name" in one) for one in values):
        return []
    names = [str(one.get("label") or one.get("name")) for one in values]
    return names if len(set(names)) == len(names) else []


def _differences(old: Plain, new: Plain) -> list[str]:
    keys = [*old, *(key for key in new if key not in old)]
    shown = ((key, _shown(old.get(key, _ABSENT)), _shown(new.get(key, _ABSENT))) for key in keys)
    return [f"{key}: {before} -> {after}" for key, before, after in shown if before != after]


def _shown(value: Any) -> str:
    """A value as JSON, the number 1 unlike the text "1"; of a checksum only the beginning."""
    if value is _ABSENT:
        return "(absent)"
    if isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef"):
        return f"{value[:12]}…"
    return json.dumps(value, sort_keys=True, ensure_ascii=False)


def _same(one: Mapping[str, str], other: Mapping[str, str], keys: Iterable[str]) -> bool:
    """Whether both agree on what both have: a package that is not there made no number."""
    return all(one[key] == other[key] for key in keys if key in one and key in other)


def _of(versions: Mapping[str, str], keys: Iterable[str]) -> list[str]:
    return [versions[key] for key in keys if key in versions]
