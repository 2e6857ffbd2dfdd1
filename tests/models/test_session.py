"""What names a model's weights: the same for the same numbers, another for others."""

import pytest
import torch
from torch import nn

from egcam.models.session import weights_of


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(40, 40)).eval()


def test_the_same_numbers_have_the_same_checksum_wherever_they_lie() -> None:
    known = weights_of(network()).checksum
    assert weights_of(network().to(memory_format=torch.channels_last)).checksum == known
    shifted = network()
    # A view into the middle of a larger tensor.
    shifted[2].weight.data = torch.cat([torch.zeros(40, 40), shifted[2].weight.data])[40:]
    assert weights_of(shifted).checksum == known


@pytest.mark.parametrize("place", ["0.weight", "1.running_mean", "2.bias"])
def test_other_numbers_have_another(place: str) -> None:
    model = network()
    known = weights_of(model)
    model.state_dict()[place].data.mul_(1.5).add_(0.1)
    assert weights_of(model).checksum != known.checksum


def test_a_write_that_torch_sees_is_seen_even_if_no_number_that_is_read_changes() -> None:
    model = nn.Linear(1000, 1000)
    known = weights_of(model)
    with torch.no_grad():
        model.weight[0, 1] += 1  # of a million numbers every 1,953rd is read
    found = weights_of(model)
    assert found.checksum == known.checksum
    assert found.places != known.places


def test_weights_without_numbers_or_versions_are_no_error() -> None:
    with torch.inference_mode():
        made_there = nn.Linear(2, 2)
    for model in (nn.Linear(2, 2, device="meta"), nn.Linear(0, 2), made_there, nn.ReLU()):
        assert len(weights_of(model).checksum) == 16
