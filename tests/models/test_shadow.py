"""Copies of a model in which some modules are replaced."""

from __future__ import annotations

import torch
from torch import nn

from egcam.models.shadow import replace_modules


def test_what_holds_a_replaced_module_is_copied_and_the_rest_is_shared() -> None:
    shared = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), shared, nn.Sequential(nn.ReLU(), shared), nn.Linear(2, 2))
    tanh, other = shared[1], nn.Sigmoid()
    copy = replace_modules(model, {id(tanh): other})
    assert copy is not model
    assert copy[1] is copy[2][1], "a module that stands in two places is one module in the copy as well"
    assert copy[1][1] is other
    assert copy[1][0] is shared[0]
    assert copy[0] is model[0]
    assert copy[2][0] is model[2][0]
    assert model[1][1] is tanh
    assert model[2][1] is shared
    images = torch.rand(3, 2)
    by_hand = model[3](other(shared[0](torch.relu(other(shared[0](model[0](images)))))))
    torch.testing.assert_close(copy(images), by_hand)


def test_a_module_within_a_replaced_one_is_left_alone() -> None:
    inner = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    model = nn.Sequential(inner, nn.Linear(2, 2))
    whole = nn.Identity()
    copy = replace_modules(model, {id(inner): whole, id(inner[1]): nn.Sigmoid()})
    assert copy[0] is whole
    assert copy[1] is model[1]


def test_nothing_to_replace_gives_the_model_itself() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert replace_modules(model, {}) is model
