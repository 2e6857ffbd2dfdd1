"""Removed pixels get the exact solution of their equations, whatever the shape of the image and of the holes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from egcam import metrics
from egcam.errors import InputError


def solved_at_once(image: Tensor, removed: Tensor) -> Tensor:
    """(H, W): the same equations written out as one dense matrix."""
    height, width = image.shape
    weights = torch.zeros(height * width, height * width, dtype=torch.double)
    for row in range(height):
        for column in range(width):
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    other = row + down, column + right
                    if (down or right) and 0 <= other[0] < height and 0 <= other[1] < width:
                        weight = 1 / 12 if down and right else 1 / 6
                        weights[row * width + column, other[0] * width + other[1]] = weight
    gone = removed.flatten()
    matrix = torch.diag(weights.sum(1)) - weights
    known = weights[gone][:, ~gone] @ image.flatten()[~gone]
    result = image.flatten().clone()
    result[gone] = torch.linalg.solve(matrix[gone][:, gone], known)
    return result.view(height, width)


@pytest.mark.parametrize("shape", [(9, 9), (16, 8), (7, 13), (1, 12), (11, 2), (3, 1)])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_equals_a_dense_solver(shape: tuple[int, int], share: float) -> None:
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(2, 3, *shape, generator=generator, dtype=torch.double)
    removed = torch.rand(2, *shape, generator=generator) < share
    removed[:, 0, 0] = False
    found = metrics.fill_in(images, removed)
    single = metrics.fill_in(images.float(), removed)
    for row in range(2):
        for channel in range(3):
            exact = solved_at_once(images[row, channel], removed[row])
            assert torch.allclose(found[row, channel], exact, atol=1e-8)
            assert torch.allclose(single[row, channel].double(), exact, atol=2e-3)


@pytest.mark.parametrize("shape", [(224, 224), (225, 127)])
def test_one_pixel_is_enough_to_fill_an_image(shape: tuple[int, int]) -> None:
    """All become what is left: the hardest hole, which sweeps alone would take thousands of steps for."""
    removed = torch.ones(1, *shape, dtype=torch.bool)
    removed[0, 5, 7] = False
    images = torch.rand(1, 1, *shape, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(metrics.fill_in(images, removed), images[..., 5, 7], atol=5e-3)


def test_nothing_removed_is_nothing_changed() -> None:
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(metrics.fill_in(images, torch.zeros(2, 8, 8, dtype=torch.bool)), images)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_filled_in_as_well_as_they_can_hold(dtype: torch.dtype) -> None:
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    removed = torch.zeros(1, 64, 64, dtype=torch.bool)
    removed[:, 5:60, 9:50] = True
    found = metrics.fill_in(images, removed)
    assert found.dtype == dtype
    assert torch.allclose(found.float(), metrics.fill_in(images.float(), removed), atol=1e-2)


def test_nothing_left_is_refused() -> None:
    removed = torch.zeros(2, 8, 8, dtype=torch.bool)
    removed[1] = True
    with pytest.raises(InputError, match="leave at least one"):
        metrics.fill_in(torch.rand(2, 3, 8, 8), removed)
