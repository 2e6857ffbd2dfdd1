"""Where the command's files go, and what its answers look like."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from egcam.cli.console import out, readable, table
from egcam.evaluation.numbers import counted

if TYPE_CHECKING:
    from egcam.attribution.explanation import Explanation
    from egcam.models.classifier import Prediction
    from egcam.photos.comparison import Comparison, Result

_RECORD = "result.json"
_LONGEST_NAME = 255  # bytes, in nearly every file system


@dataclass(frozen=True)
class Explained:
    """One image file that was explained, and where its pictures are."""

    file: Path
    folder: Path
    target: Prediction
    predictions: tuple[Prediction, ...]
    result: Result
    sharpness: float = 1.0
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The record of this image for `--json` and for the folder."""
        explanation = self.result.explanation
        return {
            "file": str(self.file),
            "target": prediction_dict(self.target),
            "predictions": [prediction_dict(prediction) for prediction in self.predictions],
            "score": float(explanation.scores[0]),
            "method": self.result.method,
            "layer": explanation.layer,
            "reference": explanation.reference,
            "passes": explanation.passes,
            "completeness": _completeness(explanation),
            "seconds": round(self.result.seconds, 4),
            "sharpness": self.sharpness,
            "warnings": list(self.warnings),
            "folder": str(self.folder),
            "overlay": str(self.folder / "overlay.png"),
            "heatmap": str(self.folder / "heatmap.png"),
        }

    def save(self) -> None:
        """Overlay, heat map, the explanation itself and this record, in the image's folder."""
        from egcam.drawing.overlays import heatmap_image

        self.folder.mkdir(parents=True, exist_ok=True)
        # The overlay below is sharper than one drawn from the network's small input.
        self.result.explanation.save(self.folder, pictures=False)
        self.result.overlay(self.sharpness).save(self.folder / "overlay.png")
        heatmap = self.result.explanation.heatmaps[0].float().cpu().numpy()
        heatmap_image(heatmap, sharpness=self.sharpness).save(self.folder / "heatmap.png")
        record = readable(json.dumps(self.as_dict(), indent=2, ensure_ascii=False))
        (self.folder / _RECORD).write_text(record + "\n", encoding="utf-8")


def _completeness(explanation: Explanation) -> dict[str, float] | None:
    """What the map adds up to, what it should, and what of it the hottest tenth holds, in units of the score."""
    found = explanation.completeness
    if found is None:
        return None
    hottest = explanation.share(explanation.hottest())
    sides = {"total": found.total, "expected": found.expected, "around": found.around, "hottest_tenth": hottest}
    return {name: float(side[0]) for name, side in sides.items()}


def prediction_dict(prediction: Prediction) -> dict[str, Any]:
    """A predicted class for JSON."""
    chance = round(prediction.probability, 6)
    return {"index": prediction.index, "name": prediction.name, "probability": chance}


def comparison_dict(found: Comparison) -> dict[str, Any]:
    """A comparison for JSON."""
    return {
        "title": found.title,
        "model": found.model,
        "target": prediction_dict(found.target),
        "predictions": [prediction_dict(prediction) for prediction in found.predictions],
        "methods": [
            {
                "method": result.method,
                "layer": result.explanation.layer,
                "seconds": round(result.seconds, 4),
                "passes": result.explanation.passes,
            }
            for result in found.results
        ],
        "skipped": dict(found.skipped),
    }


def own_folder(out_folder: Path, file: Path, method: str, taken: set[Path]) -> Path:
    """The folder for one image's files: the same on every run, and never that of another image.

    Args:
        out_folder: where all results go.
        file: the image.
        method: the method's name, part of the folder's.
        taken: the folders given out so far in this run; the answer is added.
    """
    for number in range(1, 10**6):
        suffix = "" if number == 1 else f"-{number}"
        folder = out_folder / fitting_name(file.stem, f"{suffix}-{method}")
        if folder not in taken and _may_be_ours(folder, file):
            taken.add(folder)
            return folder
    raise AssertionError("a million images of one name")


def fitting_name(stem: str, ending: str) -> str:
    """`stem` and `ending` as one file name, the stem cut where that would be longer than file systems allow.

    Example:
        >>> fitting_name("cat", "-grad-cam"), len(fitting_name("x" * 300, "-grad-cam"))
        ('cat-grad-cam', 255)
    """
    room = _LONGEST_NAME - len(ending.encode())
    bytes_of_stem = os.fsencode(stem)
    if len(bytes_of_stem) > room:
        # No half of a character may be left at the end.
        stem = bytes_of_stem[:room].decode("utf-8", "ignore")
    return stem + ending


def _may_be_ours(folder: Path, file: Path) -> bool:
    try:
        record = json.loads((folder / _RECORD).read_text(encoding="utf-8"))
        return Path(record["file"]).resolve() == file.resolve()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (ValueError, KeyError, TypeError):
        return False
    except OSError:
        # Another's, if it is there; else no folder can be made here under any name.
        if not folder.exists():
            raise
        return False


def print_table(explained: Sequence[Explained], folder: Path) -> None:
    """One row for each image: file, class, probability, what the hottest tenth is worth, seconds; then the layers.

    At 80 columns a file's name must still be readable.
    """
    rows = [
        (
            readable(str(one.file)),
            one.target.name,
            f"{one.target.probability:.1%}",
            one.result.explanation.worth() or "–",
            f"{one.result.seconds:.2f}",
        )
        for one in explained
    ]
    heads = ("file", "class", "probability", "hottest tenth", "seconds")
    console = out()
    numbers = {"probability", "hottest tenth", "seconds"}
    console.print(table(heads, rows, right=numbers, whole=numbers))
    if any(one.result.explanation.worth() for one in explained):
        console.print("hottest tenth: what a tenth of the image adds to the score, of all that the image adds")
    layers = ", ".join(dict.fromkeys(str(one.result.explanation.layer) for one in explained))
    how = f"{explained[0].result.method} at {layers}"
    said = f"{counted(len(explained), 'image')} explained by {how}; pictures are in {folder}"
    console.print(readable(said), markup=False)
