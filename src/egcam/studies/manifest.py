"""What a folder of results says about itself: the configuration, the keys its results go by, and versions."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from egcam._version import __version__
from egcam.studies.storage import StoreError, listed

Plain: TypeAlias = Mapping[str, Any]

FORMAT = 4
# Another version of any of these can change the last digits of a score.
DECISIVE_PACKAGES = ("egcam", "torch", "torchvision", "timm", "numpy", "pillow", "scikit-image")
_PACKAGES = (*DECISIVE_PACKAGES, "pandas", "pyarrow")
_HARDWARE = ("cpu", "gpu")
_HELP = "restore it, or delete it and run the study again, which recreates it for the existing parts"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class DataRecord:
    """The images of a study."""

    description: str
    images: Mapping[str, str | None]  # by name, in order: the key of each one's content; None where no run has read it
    note: str = ""  # what a reader must know, such as a stand-in for unavailable data

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of all images, in order."""
        return tuple(self.images)


@dataclass(frozen=True)
class ModelRecord:
    """A model of a study."""

    checksum: str  # `state_checksum`
    parameters: int
    layer: str  # where it is explained
    size: tuple[int, int] | None = None  # (height, width) of what it sees, if known
    weights: str | None = None  # where they are from; None for published ones
    note: str = ""  # what a reader must know
    code: Mapping[str, str] = field(default_factory=dict)  # checksums of its own Python files; none of packages
    preprocessing: Plain = field(default_factory=dict)
    own_layers: Mapping[str, str] = field(default_factory=dict)  # of methods that find another layer for themselves


@dataclass(frozen=True)
class Environment:
    """Versions and hardware results were made with, and since when."""

    since: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Manifest:
    """The study a folder was last run for, and which of the results in it are its own.

    Example:
        >>> manifest = Manifest({"name": "small"}, DataRecord("a photograph", {"a.png": None}), {}, units=0)
        >>> Manifest.from_json(manifest.to_json()) == manifest
        True
    """

    study: Plain  # the full configuration
    data: DataRecord
    models: Mapping[str, ModelRecord]  # by label, in the study's order
    units: int  # how many there are in all
    recipes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by label and method: see `keys`
    settings: Mapping[str, str] = field(default_factory=dict)  # by metric: likewise
    versions: Mapping[str, str] = field(default_factory=lambda: versions())  # packages, Python, system and hardware
    created: str = field(default_factory=_now)
    further: tuple[Environment, ...] = ()  # other versions that were accepted since

    def __post_init__(self) -> None:
        # As `json` gives it back, so that a manifest equals the one that is read: no tuples, no paths.
        object.__setattr__(self, "study", _plain(self.study, "study"))
        plain = {
            label: replace(model, preprocessing=_plain(model.preprocessing, "preprocessing"))
            for label, model in self.models.items()
        }
        object.__setattr__(self, "models", plain)

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of the methods, in the study's order."""
        return tuple(method["name"] for method in self.study.get("methods", ()))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the metrics, in the study's order."""
        return tuple(metric["name"] for metric in self.study.get("metrics", ()))

    @property
    def environments(self) -> tuple[Mapping[str, str], ...]:
        """All versions that results may be of."""
        return (self.versions, *(environment.versions for environment in self.further))

    def to_json(self) -> str:
        """The manifest as text, always with the same keys in the same order."""
        values = asdict(self)
        return json.dumps({"format": FORMAT, "checksum": _checksum(values), **values}, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, where: str = "the manifest") -> Manifest:
        """The manifest that `to_json` wrote; `where` is for errors."""
        try:
            values = json.loads(text)
            written_in, checksum = values.pop("format"), values.pop("checksum", "")
            if written_in != FORMAT:
                raise StoreError(
                    f"{where} has format {written_in}, this egcam reads {FORMAT}: use the egcam it was made by, or "
                    "start again in another --out"
                )
            if checksum != _checksum(values):
                raise StoreError(f"{where} was changed since it was written: {_HELP}")
            values["data"] = DataRecord(**values["data"])
            values["models"] = {label: _model(model) for label, model in values["models"].items()}
            values["further"] = tuple(Environment(**environment) for environment in values["further"])
            return cls(**values)
        except StoreError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise StoreError(f"{where} is damaged ({error}): {_HELP}") from error

    def after(self, former: Manifest, where: str, mix_versions: bool = False) -> Manifest:
        """This run's manifest in the folder `where`, after that of a former run; an error where versions do not mix."""
        known = former.environments
        if not mix_versions and not any(same_packages(self.versions, versions) for versions in known):
            changes = [
                f"{name}: {former.versions[name]} -> {self.versions[name]}"
                for name in DECISIVE_PACKAGES
                if name in former.versions and name in self.versions and former.versions[name] != self.versions[name]
            ]
            raise StoreError(
                f"{where} holds results made with other versions, which may differ in their last digits:\n"
                f"{listed(changes)}\n"
                "Install the old versions, use another --out, or accept it with mix_versions=True (--mix-versions)."
            )
        images = {
            name: former.data.images.get(name) if content is None else content
            for name, content in self.data.images.items()
        }
        new = () if self.versions in known else (Environment(_now(), self.versions),)
        return replace(
            self,
            data=replace(self.data, images=images),
            versions=former.versions,
            created=former.created,
            further=(*former.further, *new),
        )

    def hardware_change(self, former: Manifest, where: str) -> str | None:
        """Why this run's numbers may differ from those of former ones in their last digits, if they may."""
        if any(_same(self.versions, versions, _HARDWARE) for versions in former.environments):
            return None
        old, new = (", ".join(one[key] for key in _HARDWARE if key in one) for one in (former.versions, self.versions))
        return f"{where} holds results from {old}; those from {new} may differ in their last digits"


def same_packages(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Whether results of both are alike to the last digit: a package that only one has made no number."""
    return _same(first, second, DECISIVE_PACKAGES)


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


def _checksum(values: Plain) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _same(one: Mapping[str, str], other: Mapping[str, str], keys: Iterable[str]) -> bool:
    return all(one[key] == other[key] for key in keys if key in one and key in other)
