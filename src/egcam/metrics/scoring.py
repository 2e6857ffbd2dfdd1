"""Run a model on many altered copies of a few images, batch by batch, and read one score from each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from egcam.errors import TargetError
from egcam.imageops import size_of
from egcam.metrics.inputs import check_positive, chunks
from egcam.models.class_scores import Score, by_class, class_scores, known_classes
from egcam.models.inputs import ExtraInputs, Layout
from egcam.models.restore import untouched
from egcam.models.targets import Setting, Target, Targets, image_part

CPU_BATCH = 8
"""On a CPU, batches of about 8 take the least time per image: larger ones fall out of its caches."""

ACCELERATOR_BATCH = 32

CurveScore: TypeAlias = Score | Literal["accuracy"]
"""What is read from the model: also 1 or 0 for "is the class still the prediction"."""


@contextmanager
def forward_only(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Eval mode, no gradient graph, and a model that comes back as it was."""
    with untouched(model, device), torch.no_grad():
        yield


def fitting_batch(batch_size: int | None, device: torch.device) -> int:
    """The most images in one pass: as given, else 8 on a CPU and 32 elsewhere.

    Example:
        >>> fitting_batch(None, torch.device("cpu"))
        8
    """
    if batch_size is None:
        return CPU_BATCH if device.type == "cpu" else ACCELERATOR_BATCH
    return check_positive("batch_size", batch_size)


class Scorer:
    """The score of each image's class, for the images and for altered copies of them.

    To be made and used inside `forward_only`. Making it costs one pass over the images: that pass settles
    which class is scored (with target None) and is the unaltered end of every curve.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        target: as everywhere in egcam, also by a name that the model carries; None is the prediction.
        score: "probability", "logit", "sigmoid" or "accuracy".
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.
        known: (N, classes) what the model outputs for the images, if that is known: a class target then needs no
            pass.
        names: the class names; None are those the model carries. With a single output they say which class its number
            is.
        extra: further inputs of the model.
    """

    def __init__(
        self,
        model: nn.Module,
        images: Tensor,
        target: Target,
        score: CurveScore = "probability",
        batch_size: int | None = None,
        known: Tensor | None = None,
        names: Sequence[str] | None = None,
        extra: ExtraInputs | None = None,
    ) -> None:
        self.model = model
        self._layout = Layout()
        self.images = images
        self.batch_size = fitting_batch(batch_size, images.device)
        self.accuracy = score == "accuracy"
        names = known_classes(model, None) if names is None else names
        self._extra = ExtraInputs(len(images)) if extra is None else extra
        setting = Setting(size=size_of(images), run=self._output_of)
        self.targets = Targets(target, len(images), "logit" if score == "accuracy" else score, names, setting)
        if self.accuracy and not self.targets.are_classes:
            raise TargetError("accuracy compares predictions: it needs class targets, not a callable")
        classes, clean, outputs = [], [], []
        known = known if self.targets.are_classes else None
        for part in chunks(len(images), self.batch_size):
            # Copies, here and below, because a model may write into its input.
            rows = torch.arange(part.start, part.stop, device="cpu")
            output = self._run(images[part].clone(), rows) if known is None else known[part]
            of_part = self.targets.part(part.start, part.stop)
            indices, _, of_classes = of_part.read(output)
            clean.append(self._read(of_part, output, indices, part.stop - part.start))
            if indices is not None and of_classes is not None:
                classes.append(indices)
                outputs.append(of_classes)
        self.clean = _precise(torch.cat(clean))
        self.classes = torch.cat(classes) if classes else None
        self.outputs = torch.cat(outputs) if outputs else None
        self.logits = None if self.outputs is None else _precise(self.outputs)

    def __call__(self, batch: Tensor, rows: Tensor) -> Tensor:
        """(B,) scores of altered images; `rows` says which image each one was made from."""
        indices = None if self.classes is None else self.classes[rows]
        output = self._layout.run(batch, lambda layout: self._run(batch.clone(memory_format=layout), rows))
        return _precise(self._read(self.targets, output, indices, len(batch), rows))

    def _run(self, images: Tensor, rows: Tensor) -> Any:
        args, kwargs = self._extra.rows(rows)
        return self.model(images, *args, **kwargs)

    def _output_of(self, image: Tensor) -> Any:
        """The model's output for another image, whose further inputs are those of the first one."""
        first = torch.zeros(1, dtype=torch.long, device="cpu")
        return image_part(self._run(image[None].to(self.images, copy=True), first), 1, 0)

    def _read(
        self, targets: Targets, output: object, indices: Tensor | None, count: int, rows: Tensor | None = None
    ) -> Tensor:
        if not self.accuracy:
            return targets.scores(output, indices, count, rows)
        assert indices is not None
        outputs = class_scores(output, count)
        return by_class(outputs, targets.classes).argmax(1).eq(indices).to(outputs)

    def altered(self, rows: Tensor, make: Callable[[slice], Tensor]) -> Tensor:
        """(J,) the scores of J altered images that exist only `batch_size` at a time.

        Args:
            rows: (J,) the image each altered copy was made from.
            make: gets a slice of the J jobs and returns those altered images.
        """
        # Written into one tensor: thousands of small results kept between large batches would fragment the heap.
        scores = self.clean.new_empty(len(rows))
        for part in chunks(len(rows), self.batch_size):
            scores[part] = self(make(part), rows[part])
        return scores


def _precise(scores: Tensor) -> Tensor:
    """Half-precision outputs as float32, so that areas and correlations are not rounded again."""
    return scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
