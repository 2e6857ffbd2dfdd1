"""Sorting and counting, each device's quickest way: on a CPU NumPy sorts some twenty times faster than torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def ascending(rows: Tensor) -> Tensor:
    """(N, K) each row's values from the smallest to the largest.

    Example:
        >>> ascending(torch.tensor([[3.0, 1.0, 2.0]]))
        tensor([[1., 2., 3.]])
    """
    if rows.device.type == "cpu":
        return torch.from_numpy(np.sort(rows.numpy(), axis=1))
    return rows.sort(1).values


def kth_largest(rows: Tensor, counts: Tensor) -> Tensor:
    """(N, 1) the `counts[n]`-th largest value of row n, counted from 1.

    Example:
        >>> kth_largest(torch.tensor([[3.0, 1.0, 2.0], [7.0, 8.0, 9.0]]), torch.tensor([1, 3]))
        tensor([[3.],
                [7.]])
    """
    if rows.device.type != "cpu":
        return rows.sort(1, descending=True).values.gather(1, counts[:, None] - 1)
    places = (rows.shape[1] - counts).tolist()
    found = [np.partition(row, place)[place] for row, place in zip(rows.numpy(), places, strict=True)]
    return torch.from_numpy(np.array(found))[:, None]


def count_true(rows: Tensor) -> Tensor:
    """(N,) how many values of each boolean row are true.

    Example:
        >>> count_true(torch.tensor([[True, False, True]]))
        tensor([2])
    """
    if rows.device.type != "cpu":
        return rows.sum(1)
    return torch.tensor([int(np.count_nonzero(row)) for row in rows.numpy()])
