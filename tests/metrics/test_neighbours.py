"""Sufficiency of many maps: the short way agrees with the formula, in blocks and from cells."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from egcam.imageops import upsampled
from egcam.metrics import neighbours
from egcam.metrics.faithfulness import sufficiency_of, sufficiency_of_cells
from support import numpy_metrics as slow


def maps_of(count: int, side: int = 5, signed: bool = False) -> torch.Tensor:
    source = torch.Generator().manual_seed(count)
    kinds = torch.rand(3, side, side, generator=source)
    found = kinds[torch.arange(count) % 3] + 0.6 * torch.rand(count, side, side, generator=source)
    found[:, 0, 0] = 0.0
    return found - 0.7 if signed else found


def by_formula(maps: torch.Tensor, predictions: torch.Tensor, threshold: float) -> list[float]:
    return slow.sufficiency(lambda _: np.eye(5)[predictions.numpy()], None, maps.double().numpy(), threshold)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("threshold", [0.5, 0.7, 0.9])
def test_cells_give_what_the_enlarged_maps_do(signed, threshold, monkeypatch):
    monkeypatch.setattr(neighbours, "_BLOCK", 7)
    cells, predictions = maps_of(24, signed=signed), torch.arange(24) % 4
    large = upsampled(cells, (20, 20))
    expected = by_formula(large, predictions, threshold)
    assert len(set(expected)) > 2
    np.testing.assert_allclose(sufficiency_of(large, predictions, threshold), expected, atol=1e-6)
    np.testing.assert_allclose(sufficiency_of_cells(cells, (20, 20), predictions, threshold), expected, atol=1e-6)


def test_blocks_that_are_not_kept_give_the_same(monkeypatch):
    rows, predictions = maps_of(30).flatten(1), torch.arange(30) % 3
    expected = neighbours.neighbour_shares(rows, predictions, 0.6)
    monkeypatch.setattr(neighbours, "_BLOCK", 8)
    monkeypatch.setattr(neighbours, "_KEPT", 0)
    assert torch.equal(neighbours.neighbour_shares(rows, predictions, 0.6), expected)


def test_signed_or_very_many_cells_take_the_long_way(monkeypatch):
    assert neighbours.standardised_cells(maps_of(4), (20, 20)) is not None
    assert neighbours.standardised_cells(maps_of(4, signed=True), (20, 20)) is None
    assert neighbours.standardised_cells(maps_of(4), (5, 5)) is None
    monkeypatch.setattr(neighbours, "_LARGEST_MATRIX", 25 * 400 - 1)
    assert neighbours.standardised_cells(maps_of(4), (20, 20)) is None


def test_equal_maps_are_neighbours_at_any_threshold():
    cells = maps_of(6).repeat(2, 1, 1)
    predictions = torch.arange(12) % 6
    assert sufficiency_of_cells(cells, (20, 20), predictions, threshold=0.0).tolist() == [1.0] * 12
    same = cells[:1].expand(4, -1, -1)
    found = sufficiency_of_cells(same, (20, 20), torch.tensor([1, 1, 1, 2]))
    assert found.tolist() == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0.0])
