"""Grad-CAM by plain autograd at a layer whose output lies as the test says, to compare with what egcam finds out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

import egcam

Layout = int | Literal["chw", "hwc"]
"""How many tokens come before those of the patches, or in which order the axes are."""

# XCiT and LeViT mix all tokens so strongly, without training, that a token does not depend most on its own patch.
NOT_LOCAL = ("cls_attn_blocks", "stages.1")


def with_scores(model: nn.Module, classes: int = 5) -> nn.Module:
    """Heads that say something, and no residual branch switched off, as some first weights have it."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and len(parameter) == classes:
            nn.init.normal_(parameter)
        elif name.endswith(("gamma", "gamma1", "gamma2", "gamma_1", "gamma_2", "gamma3", "ls1", "ls2")):
            nn.init.constant_(parameter, 0.5)
    return model.eval()


def at_layer(
    model: nn.Module, images: Tensor, layer: str, keywords: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """What a layer outputs for images that gradients start from, and the gradient of class 1 there."""
    kept: list[Tensor] = []

    def keep(module: nn.Module, args: object, output: object) -> None:
        values = output.values() if isinstance(output, dict) else [output] if isinstance(output, Tensor) else output
        kept.append(next(iter(values)))

    handle = model.get_submodule(layer).register_forward_hook(keep)
    images = images.clone().requires_grad_()
    output = model(images, **keywords)
    handle.remove()
    scores = output if isinstance(output, Tensor) else output.logits
    return kept[0], torch.autograd.grad(scores[:, 1].sum(), kept[0], retain_graph=True)[0], images


def as_maps(tensor: Tensor, layout: Layout, grid: tuple[int, int]) -> Tensor:
    """(K, h, w) of one image: written out cell by cell, so that nothing can be turned."""
    if layout == "chw":
        return tensor[0]
    cells = []
    for place in range(grid[0] * grid[1]):
        row, column = place // grid[1], place % grid[1]
        cells.append(tensor[0, row, column] if layout == "hwc" else tensor[0, layout + place])
    return torch.stack(cells, 1).reshape(-1, *grid)


def check(model: nn.Module, images: Tensor, layer: str, layout: Layout, grid: tuple[int, int], **keywords: Any) -> None:
    """The map found without arguments is sum_k mean(dy/dA_k) A_k at the layer, on the grid."""
    found = egcam.explain(model, images, "grad-cam", target=1, signed=True, keywords=keywords)
    assert found.layer == layer
    activations, gradient, leaf = at_layer(model, images, layer, keywords)
    weights = as_maps(gradient, layout, grid).mean((1, 2))
    wanted = (weights[:, None, None] * as_maps(activations, layout, grid)).sum(0)[None]
    assert found.maps.shape == wanted.shape == (1, *grid)
    wanted = wanted.detach()
    assert float(wanted.abs().max()) > 0
    torch.testing.assert_close(found.maps, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))
    if layout != "chw" and not layer.startswith(NOT_LOCAL):
        assert sees_itself(as_maps(activations, layout, grid), leaf)


def sees_itself(maps: Tensor, images: Tensor) -> bool:
    """Whether a cell off the diagonal depends more on the part of the image it lies over than on others."""
    row, column = maps.shape[1] - 1, 0
    direction = torch.randn(len(maps), generator=torch.Generator().manual_seed(0))
    seen = torch.autograd.grad((maps[:, row, column] * direction).sum(), images)[0].square().sum(1)
    shares = functional.adaptive_avg_pool2d(seen, maps.shape[1:])[0]
    return bool(shares[row, column] > shares.mean())
