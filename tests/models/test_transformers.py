"""Networks of all kinds without arguments: the layer found, how it is read, and the numbers, against plain autograd."""

from __future__ import annotations

import pytest
import torch

from support.plain_grad_cam import check, with_scores
from support.small_models import seeded
from support.timm_cases import CASES, Case

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("case", CASES, ids=[f"{case.name}-{case.size[0]}x{case.size[1]}" for case in CASES])
def test_timm(case: Case) -> None:
    model = with_scores(seeded(case.build))
    images = torch.rand(1, 3, *case.size, generator=torch.Generator().manual_seed(1))
    check(model, images, case.layer, case.layout, case.grid)


def test_there_are_many() -> None:
    assert len(CASES) >= 70
