"""Study files to begin with: one for each of the paper's tables, and one for images of your own."""

from __future__ import annotations

import json
import re
from importlib.resources import files

from egcam.errors import near_misses
from egcam.studies.config import StudyError, read_study
from egcam.studies.specs import Study


def presets() -> dict[str, str]:
    """The names of all presets with what they are.

    Example:
        >>> "paper-faithfulness" in presets()
        True
    """
    folder = files("egcam.studies") / "presets"
    names = sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
    return {name: read_study(_text(name)).title for name in names}


def preset(name: str, data: str | None = None, annotations: str | None = None, images: int | None = None) -> str:
    """A preset's TOML text, with its size in the first lines.

    Args:
        name: one of `presets()`.
        data: where the images are, in place of the preset's path.
        annotations: the file beside them, likewise.
        images: how many, likewise.

    Example:
        >>> print(preset("paper-stability", images=20).splitlines()[1])
        # 20 images x 2 models x 11 methods = 440 units.
    """
    text = _text(name)
    for key, value in (("path", data), ("annotations", annotations), ("images", images)):
        if value is not None:
            text = _with(text, key, value)
    study = read_study(text)
    return "".join(f"# {line}\n" for line in _head(study)) + "\n" + text


def _text(name: str) -> str:
    file = files("egcam.studies") / "presets" / f"{name}.toml"
    if not re.fullmatch(r"[a-z-]+", name) or not file.is_file():
        raise StudyError(f"there is no preset {name!r}; {near_misses(name, presets())}")
    return file.read_text(encoding="utf-8")


def _with(text: str, key: str, value: str | int) -> str:
    """The text with another value in [data]; the rest of the line, its comment, stays."""
    written = json.dumps(value, ensure_ascii=False)
    head, mark, tail = text.partition("[data]\n")
    table, gap, rest = tail.partition("\n\n")
    line = re.compile(rf'^{key} = ("[^"]*"|\d+)', re.MULTILINE)
    if line.search(table):
        table = line.sub(lambda _: f"{key} = {written}", table)
    else:
        table += f"\n{key} = {written}"
    return head + mark + table + gap + rest


def _head(study: Study) -> list[str]:
    models, methods = len(study.models), len(study.methods)
    text = f"{models} model{'s' * (models > 1)} x {methods} methods"
    if study.data.images is not None:
        text = f"{study.data.images:,} images x {text} = {study.data.images * models * methods:,} units"
    return [f"{study.title}.", f"{text}.", "How long that takes here:  egcam study estimate STUDY.toml"]
