"""What a unit's numbers depend on, as keys: results are kept under them, so what is missing is what is absent.

A unit is known by two: its recipe (model, method, references and what the study sets for both) and its image's
content (name, pixels, label, mask). A score is known by its unit and its setting (metric, options, protocol). Whatever
changes, changes a key; versions of packages are compared beside them, since they can be accepted.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from egcam.models.weights import RANDOM
from egcam.studies.datasets.dataset import Dataset, Picture
from egcam.studies.plugins import plugin_checksum
from egcam.studies.specs import MethodSpec, ModelSpec, Study, is_path


def source_checksums(file: str | Path) -> dict[str, str]:
    """SHA-256 of a Python file and of the modules it imports from its own folder, by path from there.

    Imports are followed from file to file, wherever in the text they are; of a package, all files count. Installed
    packages are known by their versions instead.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> _ = (folder / "model.py").write_text("from blocks import Block")
        >>> _ = (folder / "blocks.py").write_text("class Block: pass")
        >>> list(source_checksums(folder / "model.py"))
        ['blocks.py', 'model.py']
    """
    root = Path(file).resolve().parent
    waiting, found = [Path(file).resolve()], dict[str, str]()
    while waiting:
        one = waiting.pop()
        name = one.relative_to(root).as_posix()
        if name not in found:
            text = one.read_bytes()
            found[name] = sha256(text).hexdigest()
            waiting += [near for module in _imported(text) for near in _files(root, module)]
    return dict(sorted(found.items()))


def _imported(text: bytes) -> Iterator[str]:
    """The first names of all modules a text imports."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _files(root: Path, module: str) -> list[Path]:
    if (root / module / "__init__.py").is_file():
        return sorted((root / module).rglob("*.py"))
    return [root / f"{module}.py"] if (root / f"{module}.py").is_file() else []


_LENGTH = 24
_READ_AT_ONCE = 8


def pixels_of(picture: Picture) -> str:
    """A checksum of the stored pixels."""
    return _checksum(f"{picture.image.mode} {picture.image.size}", picture.image.tobytes())


def content_of(picture: Picture) -> str:
    """The key of an image: its name, stored pixels, label and mask.

    Example:
        >>> from PIL import Image
        >>> first, other = (Picture("a.png", Image.new("RGB", (2, 2)), label) for label in (7, 8))
        >>> content_of(first) == content_of(first), content_of(first) == content_of(other)
        (True, False)
    """
    mask = picture.mask
    drawn = None if mask is None else _checksum(str(mask.shape), np.packbits(mask).tobytes())
    return _checksum(repr((picture.name, pixels_of(picture), picture.label, drawn)))


def contents_of(data: Dataset, numbers: Iterable[int]) -> dict[str, str]:
    """The keys of some images by name; one that cannot be read has a key of its own until it is mended."""

    def content(number: int) -> str:
        try:
            return content_of(data[number])
        except Exception as error:
            # The unit that needs it reports what is wrong.
            return _checksum(f"{data.names[number]!r} cannot be read: {type(error).__name__}")

    listed = list(numbers)
    with ThreadPoolExecutor(_READ_AT_ONCE, "egcam images") as pool:
        return dict(zip((data.names[number] for number in listed), pool.map(content, listed), strict=True))


def recipe_of(
    study: Study,
    model: ModelSpec,
    inputs: Mapping[str, Any],
    device: str,
    method: MethodSpec,
    source: str | None,
    references: Mapping[str, str],
) -> str:
    """The key of what one method does on one model.

    Args:
        study: what both belong to.
        model: which; files are known by their content, so they may lie elsewhere on another machine.
        inputs: its weights, code and preprocessing (`egcam.studies.networks.Network.inputs`).
        device: the kind it runs on.
        method: with its options.
        source: where its references come from, if it takes any.
        references: checksums of the pixels of those that are drawn, by name.
    """
    weights = model.weights if model.weights in (None, RANDOM) else "a file"
    name = Path(model.name).name if ".py" in model.name else model.name
    options = {key: _place(value) if key == "reference" else value for key, value in method.options.items()}
    return _key(
        model=[model.label, name, weights, model.layer, inputs],
        method=[method.name, method.method, options],
        references=[_place(source), references],
        study=[study.target, study.seed, study.threads, study.batch_size, study.data.size, device],
        plugins={Path(file).name: plugin_checksum(file) for file in study.plugins},
    )


def settings_of(study: Study) -> dict[str, str]:
    """The keys of a study's metrics as it asks for them, by name."""
    found = {metric.name: _key(metric=[metric.name, metric.options, study.protocol]) for metric in study.metrics}
    # It keeps the curves of both, also where they are no metrics of the study.
    both = dict.fromkeys(("insertion", "deletion"), found.get("insertion-deletion", ""))
    return {name: key for name, key in both.items() if key} | found


def _place(source: Any) -> Any:
    return "a folder" if isinstance(source, str) and is_path(source) else source


def _key(**values: Any) -> str:
    return _checksum(json.dumps(values, sort_keys=True, default=list))


def _checksum(about: str, data: bytes = b"") -> str:
    return sha256(about.encode("utf-8", "backslashreplace") + b"\n" + data).hexdigest()[:_LENGTH]
