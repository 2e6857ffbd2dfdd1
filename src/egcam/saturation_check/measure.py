"""Scale images up from black and measure, at each step, the layer's embedding, the output and the gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from egcam.attribution.task import Meter, Progress, Task, chunks
from egcam.errors import InputError, LayerError, TargetError, check_known, is_whole
from egcam.imageops import by_row, places
from egcam.metrics.scoring import fitting_batch
from egcam.models.capture import GradientPass, Probe
from egcam.models.class_names import Classes
from egcam.models.class_scores import by_class, class_scores, known_classes, probabilities
from egcam.models.dimensions import dimensions_of
from egcam.models.inputs import ExtraInputs, check_images, plain_model
from egcam.models.layer_output import Reshape, as_reshape
from egcam.models.layers import BY_WORD, is_word, resolve
from egcam.models.model_errors import check_rows
from egcam.models.restore import untouched
from egcam.models.targets import Target, Targets
from egcam.models.trace import dry_run
from egcam.rng import generator
from egcam.saturation_check.result import Saturation

Spacing: TypeAlias = Literal["even", "uniform"]
Black: TypeAlias = float | Sequence[float] | Tensor | None

SPACINGS: tuple[Spacing, ...] = ("even", "uniform")


def saturation(
    model: nn.Module,
    images: Tensor,
    layer: nn.Module | str | None = "inner",
    steps: int = 25,
    target: Target = None,
    *,
    spacing: Spacing = "even",
    seed: int = 0,
    black: Black = None,
    classes: Classes | None = None,
    reshape: Reshape | None = None,
    inputs: Sequence[Any] = (),
    keywords: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    progress: Progress | None = None,
) -> Saturation:
    """Measure the network's output while each image is faded in from black: x_a = black + a (x - black), 0 <= a <= 1.

    At each a: the cosine similarity of the layer's embedding A(x_a), all its values as one vector, to A(x); the logit
    y and the softmax score of the label, which is the top label of the full image unless `target` says otherwise; and
    the length of the gradient dy/dA. Also, how well the gradient at the image agrees with its mean over the path:

        agreement = cos( g(1), ∫ g(a) da ),   g(a) = dy/dA at x_a        (trapezoid)

    Cosines with one zero vector are 0, of two zero vectors 1. A network with one output has its sigmoid as the score.

    One pass per image and a gives all of these; black is run once per distinct label in a batch. The model, its mode,
    gradients and the random state stay as they are.

    Args:
        model: the classifier.
        images: (N, C, H, W), preprocessed as the model expects.
        layer: a module or its dotted name; "inner" is the one that SlopeCAM explains, "last" or None the last one
            with spatial extent.
        steps: how many values of a.
        target: the label followed, for all or each of the images; None is the prediction for the full image.
        spacing: "even", from 0 to 1 in equal steps; or "uniform", as in the paper: `steps` draws from U(0, 1), sorted,
            the same for all images, to which the two ends 0 and 1 are added.
        seed: of the draws.
        black: what black pixels are after preprocessing: a number, one for each channel, or an image; for pixels that
            were normalised (0 - mean) / std, which `normalised_black` gives. None is 0, for images in [0, 1] only.
        classes: the class names, for targets by name.
        reshape: for layers that do not output (N, channels, height, width); see `egcam.Explainer`.
        inputs: additional positional inputs of the model, the same at every a: tensors with N rows go with the images
            row by row; pass what all images share as `egcam.shared(…)`.
        keywords: additional keyword inputs of the model, treated alike.
        batch_size: the most images in one pass; None is 8 on a CPU and 32 elsewhere.
        progress: called with (passes made, passes expected).

    Example:
        >>> linear = nn.Sequential(nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(72, 3))
        >>> measured = saturation(linear, torch.rand(2, 1, 8, 8), layer="0", steps=5)
        >>> [round(value, 3) for value in measured.reach(0.9).tolist()]
        [0.9, 0.9]
    """
    network = plain_model(model)
    dimensions = dimensions_of(network, images, None, inputs, keywords) if isinstance(images, Tensor) else 2
    images = check_images(images, network, dimensions)
    extra = ExtraInputs(len(images), tuple(inputs), dict(keywords or {}))
    targets = Targets(target, len(images), classes=known_classes(model, classes) or known_classes(network, classes))
    if not targets.are_classes:
        raise TargetError("saturation follows the score of a class: pass a class index or name, not a callable")
    alphas = scales(steps, spacing, seed)
    start = _as_black(black, images)
    size = fitting_batch(batch_size, images.device)
    meter = Meter(progress)
    parts = []
    with untouched(network, images.device):
        check_rows(network, images, extra)
        word = "last" if layer is None else layer if is_word(layer, network) else None
        points = resolve(
            network, None if word else layer, lambda: BY_WORD[str(word)](network, dry_run(network, images, extra))
        )
        if len(points) != 1:
            raise LayerError("saturation looks at one layer: pass one, and call it again for others")
        probe = Probe(network, points, extra, as_reshape(reshape))
        for first in meter.each(range(0, len(images), size)):
            last = min(first + size, len(images))
            rows = torch.arange(first, last, device="cpu")
            task = Task(probe, images[first:last], rows, targets.part(first, last), size, meter, {})
            parts.append(_measured(task, start, alphas))
    cosine, logit, probability, gradient, agreement, labels = (torch.cat(kind) for kind in zip(*parts, strict=True))
    at = points[0].name
    return Saturation(alphas, cosine, logit, probability, gradient, agreement, labels, at, spacing, meter.passes)


def scales(steps: int = 25, spacing: Spacing = "even", seed: int = 0) -> Tensor:
    """(S,) the values of a, rising from 0 to 1: `steps` of them evenly spaced, or `steps` + 2 uniformly drawn.

    Example:
        >>> scales(5)
        tensor([0.0000, 0.2500, 0.5000, 0.7500, 1.0000])
        >>> len(scales(5, "uniform"))
        7
    """
    check_known(spacing, SPACINGS, "spacing")
    if not is_whole(steps) or steps < 2:
        raise InputError(f"steps must be a whole number of at least 2 (black and the image), not {steps!r}")
    if spacing == "even":
        return torch.linspace(0, 1, steps, device="cpu")
    drawn = torch.rand(steps, generator=generator(seed, "saturation"), device="cpu").sort().values
    return torch.cat([torch.zeros(1, device="cpu"), drawn, torch.ones(1, device="cpu")])


def normalised_black(mean: Sequence[float], std: Sequence[float]) -> tuple[float, ...]:
    """What black pixels become under a normalisation: (0 - mean) / std, channel by channel.

    Example:
        >>> normalised_black((0.5, 0.25), (0.5, 0.5))
        (-1.0, -0.5)
    """
    return tuple(-middle / spread for middle, spread in zip(mean, std, strict=True))


def scaled(images: Tensor, black: Tensor, alphas: Tensor) -> Tensor:
    """Images scaled up from black, each by its own a: (B, C, H, W) for (B,) values of a.

    Example:
        >>> scaled(torch.ones(2, 1, 1, 1), torch.zeros(1, 1, 1, 1), torch.tensor([0.25, 1.0])).flatten()
        tensor([0.2500, 1.0000])
    """
    return black + by_row(alphas.to(images), images) * (images - black)


def _as_black(black: Black, images: Tensor) -> Tensor:
    """(1, C, H, W) the black image."""
    if black is None:
        low, high = float(images.min()), float(images.max())
        if low < 0 or high > 1:
            raise InputError(
                f"the pixels run from {low:.3g} to {high:.3g}, so they were normalised, and black cannot be derived "
                "from them: pass black=(0 - mean) / std, one number for each channel; with ImageNet's mean and "
                "std that is black=(-2.118, -2.036, -1.804)"
            )
        black = 0.0
    value = torch.as_tensor(black, dtype=images.dtype, device=images.device)
    value = value.reshape(-1, *[1] * len(places(images))) if value.ndim <= 1 else value
    try:
        whole = value.expand(1, *images.shape[1:])
    except RuntimeError:
        raise InputError(
            f"black has shape {tuple(value.shape)}, the images {tuple(images.shape[1:])}: pass one number, one for "
            f"each of the {images.shape[1]} channels, or one image"
        ) from None
    if not bool(whole.isfinite().all()):
        raise InputError("black holds NaN or infinite values")
    return whole


def _measured(task: Task, black: Tensor, alphas: Tensor) -> tuple[Tensor, ...]:
    """Cosine, logit, probability and gradient length, (n, S) each, the agreement and the labels, (n,), of a task."""
    table = _Table(task, alphas)
    count, steps = len(task.images), len(alphas)
    labels = table.labels.cpu()
    # Black looks the same for all images, and its gradient for all images of one label, unless they have inputs of
    # their own besides.
    alike = [(labels == label).nonzero()[:, 0] for label in sorted(set(labels.tolist()))]
    if task.probe.extra.by_row():
        alike = list(torch.arange(count, device="cpu")[:, None])
    for part in chunks(alike, task.batch_size):
        first_of_each = torch.stack([rows[0] for rows in part])
        values = table.read(task.gradients(black.expand(len(part), *black.shape[1:]), first_of_each))
        for place, rows in enumerate(part):
            table.write(rows, torch.zeros_like(rows), *(value[[place] * len(rows)] for value in values))
    pairs = [(row, step) for row in range(count) for step in range(1, steps - 1)]
    for batch in task.meter.each(chunks(pairs, task.batch_size)):
        image, step = torch.tensor(batch, device="cpu").T
        table.write(image, step, *table.read(task.gradients(scaled(task.images[image], black, alphas[step]), image)))
    return table.columns()


class _Table:
    """The measurements of a task's images, filled in as passes are made; the pass over the images comes first."""

    def __init__(self, task: Task, alphas: Tensor) -> None:
        seen = task.first_gradients()
        assert task.indices is not None
        self.labels = task.indices
        self.classes = task.targets.classes
        embedding, gradient, outputs = self.read(seen)
        self.full_embedding, self.full_gradient = embedding, gradient
        self.mean_gradient = torch.zeros_like(gradient)
        self.weights = _trapezoid_weights(alphas).to(gradient)
        empty = outputs.new_empty(len(embedding), len(alphas))
        self.cosine, self.logit, self.probability, self.length = (torch.empty_like(empty) for _ in range(4))
        everyone = torch.arange(len(embedding), device="cpu")
        self.write(everyone, torch.full_like(everyone, len(alphas) - 1), embedding, gradient, outputs)

    @staticmethod
    def read(seen: GradientPass) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings and gradients as rows of numbers, and the model's outputs, of one pass."""
        embedding, gradient = _precise(seen.activations[0]).flatten(1), _precise(seen.gradients[0]).flatten(1)
        return embedding, gradient, _precise(class_scores(seen.output, len(embedding)).detach())

    def write(self, image: Tensor, step: Tensor, embedding: Tensor, gradient: Tensor, outputs: Tensor) -> None:
        """Put down what a pass showed of some images, each at a step."""
        image, step = image.to(outputs.device), step.to(outputs.device)
        labels = self.labels[image][:, None]
        self.logit[image, step] = by_class(outputs, self.classes).gather(1, labels)[:, 0]
        self.probability[image, step] = probabilities(outputs, self.classes).gather(1, labels)[:, 0]
        self.cosine[image, step] = _cosine(embedding, self.full_embedding[image])
        self.length[image, step] = gradient.norm(dim=1)
        self.mean_gradient.index_add_(0, image, gradient * self.weights[step][:, None])

    def columns(self) -> tuple[Tensor, ...]:
        """All measurements, in the order of `Saturation`."""
        agreement = _cosine(self.full_gradient, self.mean_gradient)
        return self.cosine, self.logit, self.probability, self.length, agreement, self.labels


def _trapezoid_weights(alphas: Tensor) -> Tensor:
    """(S,) the weight of each point in the trapezoid rule over [0, 1]."""
    widths = functional.pad(alphas.double().diff(), (1, 1))
    return (widths[:-1] + widths[1:]) / 2


def _cosine(first: Tensor, second: Tensor) -> Tensor:
    """(B,) the cosines of two sets of rows; 0 where one row is zero, 1 where both are."""
    lengths = first.norm(dim=1), second.norm(dim=1)
    product = lengths[0] * lengths[1]
    cosines = (first * second).sum(1) / torch.where(product > 0, product, torch.ones_like(product))
    both_zero = (lengths[0] == 0) & (lengths[1] == 0)
    return torch.where(both_zero, torch.ones_like(cosines), cosines).clamp(-1, 1)


def _precise(values: Tensor) -> Tensor:
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values
