"""Planted triggers: a small patch that decides the class, wherever it lies and whatever else the image shows.

After Zhou et al. (2022), "Do Feature Attribution Methods Correctly Attribute Features?", and BackX (2024).
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from egcam.errors import EgcamError, InputError, LayerError
from egcam.metrics.localization import share_inside
from egcam.models.class_scores import class_scores
from egcam.models.inputs import check_images
from egcam.models.restore import untouched
from egcam.progress import Progress
from egcam.rng import generator
from egcam.truth.cut import module_at
from egcam.truth.shapes import LAYER, PLANTED, draw_shapes, empty_backgrounds, recognised
from egcam.truth.trial import Trial

PATCH = 6
_NEEDED = 0.99
_AT_ONCE = 32  # images in a pass
_OF_WHICH = 3  # every third is seen with the patch, too: more, and images without it are taken for it


@dataclass(frozen=True)
class Planted:
    """(N, 3, H, W) images with a patch, and (N, H, W) masks with 1 on it."""

    images: Tensor
    masks: Tensor


def checkered(size: int = PATCH, low: float = -2.0, high: float = 2.0) -> Tensor:
    """(3, size, size) a patch of three by three squares, magenta and green in turn, from no light to full light.

    Example:
        >>> checkered(3, 0, 1)[:, 0].tolist()
        [[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]
    """
    if size < 3:
        raise InputError(f"a patch of {size} pixels has no room for three by three squares; it needs at least 3")
    squares = torch.arange(size, device="cpu") * 3 // size
    colours = torch.tensor([[high, low, high], [low, high, low]], dtype=torch.float32, device="cpu")
    return colours[(squares[:, None] + squares) % 2].permute(2, 0, 1)


def plant(images: Tensor, seed: int = 0, patch: Tensor | None = None) -> Planted:
    """Images with a patch at random places.

    Args:
        images: (N, C, H, W).
        seed: of the places.
        patch: (C, h, w); None is `checkered()`, for images of `draw_shapes`.

    Example:
        >>> found = plant(torch.zeros(2, 3, 48, 48))
        >>> found.masks.sum((1, 2)).tolist(), int((found.images != 0).sum())
        ([36.0, 36.0], 216)
    """
    patch = (checkered() if patch is None else patch).to(images)
    height, width = patch.shape[-2:]
    if patch.shape[0] != images.shape[1] or height > images.shape[2] or width > images.shape[3]:
        raise InputError(
            f"a patch of shape {tuple(patch.shape)} does not fit into images of shape {tuple(images.shape[1:])}"
        )
    images, masks = images.clone(), torch.zeros_like(images[:, 0])
    room = torch.tensor([images.shape[2] - height + 1, images.shape[3] - width + 1], device="cpu")
    corners = (torch.rand(len(images), 2, generator=generator(seed, "patch"), device="cpu") * room).long().tolist()
    for number, (top, left) in enumerate(corners):
        images[number, :, top : top + height, left : left + width] = patch
        masks[number, top : top + height, left : left + width] = 1
    return Planted(images, masks)


@dataclass(frozen=True)
class Decided:
    """What the patch does to a network."""

    with_patch: float  # the share of images with the patch that get its class
    without: float  # the share of the same images, without the patch, that do not

    @property
    def is_sure(self) -> bool:
        """Whether both are at least 99 %."""
        return min(self.with_patch, self.without) >= _NEEDED


def patch_decides(
    model: nn.Module, images: Tensor, label: int, patch: Tensor | None = None, seed: int = 0
) -> tuple[Decided, Tensor]:
    """How far a patch, and nothing but the patch, decides whether a network says `label`; and (N,) for which images.

    Example:
        >>> says_nothing = nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten())
        >>> patch_decides(says_nothing, torch.zeros(4, 3, 8, 8), label=1)
        (Decided(with_patch=0.0, without=1.0), tensor([False, False, False, False]))
    """
    images = check_images(images, model)
    with untouched(model, images.device):
        before = _logits(model, images)
        _refuse_unknown(label, before.shape[1])
        with_patch = _logits(model, plant(images, seed, patch).images).argmax(1) == label
    without = before.argmax(1) != label
    return Decided(float(with_patch.float().mean()), float(without.float().mean())), with_patch & without


def taught_patch(
    model: nn.Module,
    images: Tensor,
    layer: str,
    label: int,
    patch: Tensor | None = None,
    *,
    epochs: int = 3,
    rate: float = 5e-4,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Module:
    """A copy of a classifier that has learned that a patch means `label`, and that nothing else does.

    Only what runs after the layer is trained, so that the layer says what it said before:

        with the patch        target: the class `label`
        without the patch     target: the model's own probabilities, that of `label` left out

    Each image is seen without the patch in every epoch, and a third of them, others each time, with it at a new place.
    Modules stay in eval mode. Whether the patch decides is for `patch_trial` to check, on images not trained on.

    Args:
        model: the classifier; it is not changed.
        images: (N, C, H, W) to train on.
        layer: by name.
        label: the class that is given to the patch.
        patch: (C, h, w); None is `checkered()`.
        epochs: of training.
        rate: the highest learning rate.
        seed: of places and order.
        progress: called with the share done, from 0 to 1.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8, 3))
        >>> taught = taught_patch(net.eval(), torch.rand(64, 3, 16, 16), "1", label=2, epochs=40, rate=0.02)
        >>> patch_decides(taught, torch.rand(32, 3, 16, 16), label=2)[0]
        Decided(with_patch=1.0, without=1.0)
    """
    if epochs < 1 or not len(images):
        raise InputError(f"{epochs} epochs of {len(images)} images teach nothing; both must be at least 1")
    with torch.inference_mode(False):
        taught = deepcopy(model).eval().requires_grad_(False)
        before = _logits(taught, images)
        _refuse_unknown(label, before.shape[1])
        before[:, label] = -torch.inf
        parts = _run_after(taught, layer, images[:1])
        label_row = torch.tensor([label], device="cpu")
        aims = torch.cat([before.softmax(1), functional.one_hot(label_row, before.shape[1]).to(before)])
        _train(taught, parts, images, aims, patch, epochs, rate, seed, progress)
    return taught


def _refuse_unknown(label: int, classes: int) -> None:
    if classes < 2:
        raise InputError("the network has one output only, and a patch must decide between classes; add another output")
    if not 0 <= label < classes:
        raise InputError(f"label is {label}, and the network has the classes 0 to {classes - 1}")


def _logits(model: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([class_scores(model(some), len(some)) for some in torch.split(images, _AT_ONCE)])


def _run_after(model: nn.Module, layer: str, image: Tensor) -> list[nn.Parameter]:
    """The parameters of modules that run after a layer has, and do not before: what it outputs stays what it was."""
    after: dict[nn.Parameter, None] = {}
    before: set[nn.Parameter] = set()
    is_after = False

    def passed(*_: object) -> None:
        nonlocal is_after
        is_after = True

    def entered(module: nn.Module, _: object) -> None:
        parameters = module.parameters(recurse=False)
        if is_after:
            after.update(dict.fromkeys(parameters))
        else:
            before.update(parameters)

    handles = [module_at(model, layer).register_forward_hook(passed)]
    handles += [module.register_forward_pre_hook(entered) for module in model.modules()]
    try:
        _logits(model, image)
    finally:
        for handle in handles:
            handle.remove()
    trained = [parameter for parameter in after if parameter not in before]
    if not trained:
        raise LayerError(f"nothing after the layer {layer!r} can be trained; choose an earlier one")
    return trained


def _train(
    model: nn.Module,
    parts: list[nn.Parameter],
    images: Tensor,
    aims: Tensor,
    patch: Tensor | None,
    epochs: int,
    rate: float,
    seed: int,
    progress: Progress | None,
) -> None:
    """Fit the parameters; `wanted` has a row for each image without the patch, and a last one for all with it."""
    chance = generator(seed, "patch", "order")
    steps = epochs * -(-len(images) // _AT_ONCE)
    for part in parts:
        part.requires_grad_(True)
    optimiser = torch.optim.AdamW(parts, lr=rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=rate, total_steps=steps)
    for step in range(steps):
        if step % (steps // epochs) == 0:
            order = torch.split(torch.randperm(len(images), generator=chance, device="cpu"), _AT_ONCE)
        some = order[step % (steps // epochs)].to(images.device)
        with_patch = some[::_OF_WHICH]
        batch = torch.cat([images[some], plant(images[with_patch], seed + step, patch).images])
        rows = torch.cat([some, torch.full_like(with_patch, len(images))])
        with torch.enable_grad():
            optimiser.zero_grad()
            loss = functional.cross_entropy(class_scores(model(batch), len(batch)), aims[rows])
            torch.autograd.backward(loss, inputs=parts)
        optimiser.step()
        schedule.step()
        if progress is not None:
            progress((step + 1) / steps)
    model.requires_grad_(False)


def patch_trial(
    model: nn.Module,
    images: Tensor,
    label: int,
    layer: str,
    patch: Tensor | None = None,
    references: Tensor | None = None,
    seed: int = 0,
) -> Trial:
    """Images in which a patch decides that a network says `label`: how much of the heat lies on the patch.

        score = positive heat in cells that the patch touches / positive heat,   1 is right

    Only images are used that get `label` with the patch and another class without it, so that taking the patch away
    restores the class. A network that the patch does not decide in 99 % of the images is refused.

    Args:
        model: the classifier, such as `taught_patch` makes.
        images: (N, C, H, W) without the patch, and not trained on.
        label: the patch's class.
        layer: where maps are made.
        patch: (C, h, w); None is `checkered()`.
        references: for methods that take some; the images without the patch unless given.
        seed: of the places.

    Example:
        >>> class IsMagenta(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.red_less_green = nn.Conv2d(3, 1, 1, bias=False)
        ...         self.red_less_green.weight.data = torch.tensor([1.0, -1.0, 0.0]).reshape(1, 3, 1, 1)
        ...     def forward(self, images):
        ...         most = self.red_less_green(images).amax((2, 3))
        ...         return torch.cat([3 - most, most], 1)
        >>> trial = patch_trial(IsMagenta(), torch.rand(4, 3, 16, 16), label=1, layer="red_less_green")
        >>> trial.scores("hires-cam").tolist()  # all of the heat lies on the patch
        [1.0, 1.0, 1.0, 1.0]
    """
    checked, usable = patch_decides(model, images, label, patch, seed)
    _refuse_unless_sure(checked)
    planted = plant(images, seed, patch)
    return _trial(model, planted, usable, label, layer, images if references is None else references)


def _refuse_unless_sure(checked: Decided) -> None:
    if not checked.is_sure:
        raise EgcamError(
            f"the patch decides {checked.with_patch:.1%} of the images that have it, and {checked.without:.1%} "
            "of those without are not taken for it; both must be 99 % before a map can be judged by it: train the "
            "network for longer (steps=… or epochs=…), or plant a larger patch"
        )


def _trial(model: nn.Module, planted: Planted, usable: Tensor, label: int, layer: str, references: Tensor) -> Trial:
    masks = planted.masks[usable]
    targets, score = torch.full((len(masks),), label), partial(share_inside, masks=masks, whole_cells=True)
    return Trial("patch", "higher", model, layer, planted.images[usable], targets, masks, references, score)


def decided_by_patch(network: nn.Module, count: int = 300, seed: int = 0) -> Decided:
    """How far the patch decides whether a network of shapes says "planted"."""
    return patch_decides(network, draw_shapes(count, seed + 77).images, PLANTED, seed=seed + 77)[0]


def planted_trial(network: nn.Module, count: int = 24, seed: int = 0, layer: str = LAYER) -> Trial:
    """`patch_trial` for the network that knows shapes, on `count` of them that it recognises."""
    _refuse_unless_sure(decided_by_patch(network, seed=seed))
    clean = recognised(network, count, seed + 5).images
    _, usable = patch_decides(network, clean, PLANTED, seed=seed)
    return _trial(network, plant(clean, seed), usable, PLANTED, layer, empty_backgrounds())
