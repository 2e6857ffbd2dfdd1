"""What one visitor asks for, computed with the shared network: pure functions, no web in them.

Each takes all it needs and gives back all it made, so that no visitor's work can reach another's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image
from torch import Tensor

from egcam.evaluation.evaluate import evaluate
from egcam.evaluation.score import Score
from egcam.models.classifier import Prediction
from egcam.photos.comparison import Result, explain_one
from egcam.progress import Progress
from egcam.saturation_check.measure import normalised_black, saturation
from egcam.saturation_check.result import Saturation
from egcam.web.choices import Choices
from egcam.web.shared_model import SharedModel

METRICS = ("insertion", "deletion", "average-drop", "sparseness", "complexity")
"""Those that take few passes: a page's visitor waits for them."""

# Pixels along a side of what is kept for showing: sessions stay in memory, and photographs can be large.
_LARGEST_SHOWN = 640
_SATURATION_STEPS = 15
# How many points the insertion and deletion curves have.
CURVE_POINTS = 16


@dataclass(frozen=True, eq=False)
class Photo:
    """What is kept of a photograph; the full-sized image is not."""

    name: str  # what its owner calls it
    images: Tensor  # (1, C, H, W) as the network takes it
    seen: Image.Image  # the part of it that the network sees, at most 640 pixels wide or high
    predictions: tuple[Prediction, ...]  # all classes, the most probable first
    whole_name: str = ""  # what its owner calls it, where `name` is a shortened form of that

    def prediction(self, index: int) -> Prediction:
        """What the network says about one class."""
        return next(prediction for prediction in self.predictions if prediction.index == index)


def open_photo(shared: SharedModel, image: Image.Image, name: str, whole_name: str = "") -> Photo:
    """Show the network a photograph."""
    classifier = shared.classifier
    with shared.lock:
        images = classifier.images(image)
        seen = classifier.crop(image)
        # A copy: a crop may be the image itself, which is the caller's.
        shown = seen.copy() if max(seen.size) <= _LARGEST_SHOWN else seen.reduce(max(seen.size) // _LARGEST_SHOWN)
        shown.thumbnail((_LARGEST_SHOWN, _LARGEST_SHOWN), Image.Resampling.LANCZOS)
        return Photo(name, images, shown, tuple(classifier.predict(images)), whole_name)


def explain(shared: SharedModel, photo: Photo, choices: Choices, method: str, progress: Progress) -> Result:
    """One method's map and overlay for the chosen class."""
    with shared.lock:
        options = choices.options(shared)
        return explain_one(shared.classifier, photo.images, photo.seen, method, choices.target, options, progress)


def measure(shared: SharedModel, photo: Photo, choices: Choices, method: str, progress: Progress) -> tuple[Score, ...]:
    """One method's scores by the quick metrics, in the order of `METRICS`."""
    height, width = photo.images.shape[-2:]
    step = max(1, round(height * width / CURVE_POINTS))
    # evaluate reports once for the maps and once before each metric: about five times.
    spoken = _Steps(progress, 5)
    with shared.lock:
        table = evaluate(
            shared.classifier,
            photo.images,
            [method],
            METRICS,
            choices.target,
            method_options={method: shared.classifier.options_for(method, choices.options(shared))},
            metric_options={"insertion": {"step": step}, "deletion": {"step": step}},
            progress=spoken,
        )
    return tuple(table.rows)


def saturate(shared: SharedModel, photo: Photo, choices: Choices, progress: Progress) -> Saturation:
    """The network's output and gradient while the photograph is scaled up from black."""
    seen = shared.classifier.preprocessing
    with shared.lock:
        return saturation(
            shared.classifier.model,
            photo.images,
            choices.named_layer or "inner",
            _SATURATION_STEPS,
            choices.target,
            black=normalised_black(seen.mean, seen.std),
            progress=lambda done, total: progress(done / max(1, total)),
        )


class _Steps:
    """Lines of progress, counted into shares."""

    def __init__(self, progress: Callable[[float], None], expected: int) -> None:
        self.progress, self.expected, self.done = progress, expected, 0

    def __call__(self, line: str) -> None:
        self.progress(min(self.done / self.expected, 1.0))
        self.done += 1
