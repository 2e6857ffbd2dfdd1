"""Shapes with exact masks, and a small network that learns them in about a minute.

Six classes, as in the benchmark of Domeniconi et al. (2026), "How to Evaluate and Refine your CAM": a circle, a square
or a triangle, full or as a frame, on noise or on a photograph. A seventh class is for images in which a patch was
planted; see `egcam.truth.planted`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from egcam.attribution.references import crops_of_photographs
from egcam.errors import EgcamError, InputError
from egcam.metrics.localization import share_inside
from egcam.models.restore import untouched
from egcam.progress import Progress
from egcam.rng import OwnDraws, generator
from egcam.truth.trial import Trial

CLASSES = ("circle", "square", "triangle", "circle frame", "square frame", "triangle frame", "planted")
SHAPES = 6
PLANTED = 6
SIDE = 48
LAYER = "features"
_BATCH, _STEPS = 64, 350
_ENOUGH = 0.9
_RECIPE = 2  # of the network in the cache: to be raised when drawing, network or training change

Background = Literal["noise", "photographs", "both"]


@dataclass(frozen=True)
class Shapes:
    """Images, their classes, and where the shape is."""

    images: Tensor  # (N, 3, 48, 48) around 0
    labels: Tensor  # (N,) from 0 to 5
    masks: Tensor  # (N, 48, 48) 1 on the shape's pixels, 0 elsewhere

    def __getitem__(self, chosen: Tensor) -> Shapes:
        return Shapes(self.images[chosen], self.labels[chosen], self.masks[chosen])


def draw_shapes(count: int, seed: int = 0, background: Background = "both") -> Shapes:
    """Shapes of random size, place and colour; the pixels of a shape are of one colour, and the mask has exactly those.

        circle: sqrt(u^2 + v^2) <= 1,   square: max(|u|, |v|) <= 0.85,   triangle: max(v, 0.87 |u| - v / 2) <= 0.65

    u and v are measured from the shape's middle in units of its radius; a frame leaves out what is within 0.6 of that.

    Args:
        count: how many; classes go in turn.
        seed: same seed, same images.
        background: noise, crops of the photographs that come with the package, or half of each.
    """
    chance = generator(seed, "shapes", background)

    def drawn(*size: int) -> Tensor:
        return torch.rand(size, generator=chance, device="cpu")

    labels = torch.arange(count, device="cpu") % SHAPES
    radius = 7 + 7 * drawn(count)
    reach = 1.3 * radius  # of the triangle's corners
    middle = (reach + (SIDE - 2 * reach) * drawn(2, count))[:, :, None, None]
    across = torch.arange(SIDE, device="cpu") + 0.5
    u = (across - middle[0]) / radius[:, None, None]
    v = (across[:, None] - middle[1]) / radius[:, None, None]
    levels = torch.stack(
        [
            (u.square() + v.square()).sqrt(),
            torch.maximum(u.abs(), v.abs()).expand(count, SIDE, SIDE) / 0.85,
            torch.maximum(v, 3**0.5 / 2 * u.abs() - v / 2) / 0.65,
        ]
    )
    level = levels[labels % 3, torch.arange(count)]
    masks = (level <= 1) & ((labels < 3)[:, None, None] | (level > 0.6))
    below = _backgrounds(count, background, drawn)
    dark = below.mean((2, 3)) > 0.5  # so that the shape stands out
    colour = torch.where(dark, 0.3 * drawn(count, 3), 1 - 0.3 * drawn(count, 3))
    pixels = torch.where(masks[:, None], colour[:, :, None, None], below)
    return Shapes((pixels - 0.5) / 0.25, labels, masks.float())


def _backgrounds(count: int, kind: Background, drawn: Callable[..., Tensor]) -> Tensor:
    """(N, 3, S, S) in [0, 1]."""
    if kind not in ("noise", "photographs", "both"):
        raise InputError(f"the background is 'noise', 'photographs' or 'both', not {kind!r}")
    noise = (0.3 + 0.4 * drawn(count, 3, 1, 1) + 0.6 * (drawn(count, 3, SIDE, SIDE) - 0.5)).clamp(0, 1)
    if kind == "noise":
        return noise
    photographs = crops_of_photographs(2 * SIDE, 2 * SIDE)
    which = (len(photographs) * drawn(count)).long()
    tops, lefts = (SIDE * drawn(2, count)).long().tolist()
    corners = zip(which.tolist(), tops, lefts, strict=True)
    crops = torch.stack([photographs[place, :, top : top + SIDE, left : left + SIDE] for place, top, left in corners])
    if kind == "photographs":
        return crops
    # By chance, not in turn: classes go in turn, and the background must not give them away.
    return torch.where(drawn(count, 1, 1, 1) < 0.5, noise, crops)


class ShapesNetwork(nn.Module):
    """Five convolutions and two linear layers; the layer "features" outputs (N, 32, 12, 12).

    What follows it is far from linear, and takes images of any size.
    """

    classes = CLASSES

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *_block(3, 16, 5, stride=2), *_block(16, 32, 3), nn.MaxPool2d(2), *_block(32, 32, 3)
        )
        self.head = nn.Sequential(
            *_block(32, 48, 3), nn.MaxPool2d(2), *_block(48, 64, 3), nn.AdaptiveMaxPool2d(1), nn.Flatten()
        )
        self.classifier = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, len(CLASSES)))

    def forward(self, images: Tensor) -> Tensor:
        """(N, 7) logits."""
        logits: Tensor = self.classifier(self.head(self.features(images)))
        return logits


def _block(inputs: int, outputs: int, size: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2), nn.BatchNorm2d(outputs), nn.ReLU()


def shapes_network(
    seed: int = 0, steps: int = _STEPS, cache: bool = True, progress: Progress | None = None
) -> ShapesNetwork:
    """A network trained on shapes, a fifth of them with a planted patch; in eval mode.

    It is kept in the user's cache folder (`$XDG_CACHE_HOME/egcam`, else `~/.cache/egcam`), so that it is trained once.
    A network that gets fewer than 90 % of new images right is refused.

    Args:
        seed: of weights and images.
        steps: of training, 64 images each.
        cache: look for it there and keep it there.
        progress: called with the share done, from 0 to 1.
    """
    file = _cache_file(seed, steps)
    with OwnDraws(torch.Generator().manual_seed(seed)):
        network = ShapesNetwork().eval()
    if not (cache and _loaded(network, file)):
        _train(network, seed, steps, progress)
        if cache:
            _save(network, file)
    right = accuracy(network, draw_shapes(240, seed=seed + 1))
    if right < _ENOUGH:
        raise EgcamError(
            f"the network learned only {right:.0%} of the shapes in {steps} steps, so its answers prove nothing; "
            "train it for longer (steps=…)"
        )
    return network


def accuracy(network: nn.Module, shapes: Shapes) -> float:
    """The share of the images whose class the network gets right."""
    with torch.no_grad():
        return float((network(shapes.images).argmax(1) == shapes.labels).float().mean())


def _train(network: nn.Module, seed: int, steps: int, progress: Progress | None) -> None:
    from egcam.truth.planted import plant

    with OwnDraws(torch.Generator().manual_seed(seed)):
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
                module.reset_parameters()
    with torch.enable_grad():
        network.train()
        optimiser = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=6e-3, total_steps=steps)
        for step in range(steps):
            drawn = draw_shapes(_BATCH + step % SHAPES, seed=10_000 * (seed + 1) + step)
            planted = torch.arange(len(drawn.labels)) % 5 == 4
            images, labels = drawn.images.clone(), drawn.labels.clone()
            images[planted] = plant(images[planted], seed=step).images
            labels[planted] = PLANTED
            optimiser.zero_grad()
            torch.autograd.backward(functional.cross_entropy(network(images), labels))
            optimiser.step()
            schedule.step()
            if progress is not None:
                progress((step + 1) / steps)
    network.eval().requires_grad_(False)


def _cache_file(seed: int, steps: int) -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "egcam" / f"shapes-{_RECIPE}-{seed}-{steps}.pt"


def _loaded(network: nn.Module, file: Path) -> bool:
    """Whether a network was found; one that cannot be read is trained anew."""
    try:
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception:
        return False
    network.requires_grad_(False)
    return True


def _save(network: nn.Module, file: Path) -> None:
    """Whole or not at all: another process may be reading."""
    part = file.with_suffix(f".{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), part)
        part.replace(file)
    except OSError:  # no room, or not ours: it is trained again next time
        part.unlink(missing_ok=True)


def recognised(network: nn.Module, count: int, seed: int = 0) -> Shapes:
    """Shapes that the network gets right, its surest of twice as many that were drawn, classes in turn."""
    drawn = draw_shapes(2 * count + SHAPES, seed)
    with untouched(network, drawn.images.device), torch.no_grad():
        sure = network(drawn.images).softmax(1)
    sureness = sure.gather(1, drawn.labels[:, None])[:, 0]
    right = sure.argmax(1) == drawn.labels
    by_class = [(right & (drawn.labels == label)).nonzero()[:, 0] for label in range(SHAPES)]
    by_class = [numbers[sureness[numbers].argsort(descending=True, stable=True)] for numbers in by_class]
    order = [int(numbers[place]) for place in range(count) for numbers in by_class if place < len(numbers)]
    if len(order) < count:
        raise EgcamError(
            f"the network gets only {len(order)} of {2 * count} shapes right; train it for longer (steps=…)"
        )
    return drawn[torch.tensor(order[:count])]


def shapes_trial(network: nn.Module, count: int = 24, seed: int = 0, layer: str = LAYER) -> Trial:
    """Shapes that the network recognises: how much of the heat lies on the shape.

        score = positive heat in cells that the shape touches / positive heat,   1 is right

    Nothing but the shape tells the classes apart, so a network that knows the class has looked at it.
    """
    drawn = recognised(network, count, seed)
    score = partial(share_inside, masks=drawn.masks, whole_cells=True)
    return Trial(
        "shapes", "higher", network, layer, drawn.images, drawn.labels, drawn.masks, empty_backgrounds(), score
    )


def empty_backgrounds(count: int = 16, seed: int = 0) -> Tensor:
    """(N, 3, 48, 48) backgrounds without a shape, half noise and half photographs: what images are compared with."""
    chance = generator(seed, "empty")
    return (_backgrounds(count, "both", lambda *size: torch.rand(size, generator=chance, device="cpu")) - 0.5) / 0.25
