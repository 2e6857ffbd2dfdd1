"""Which networks end in a head, whatever its weights are made from."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import egcam


class Prototypes(nn.Module):
    """A head that compares directions: five prototypes under a name of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(torch.randn(5, 6))

    def forward(self, features: Tensor) -> Tensor:
        return 10 * functional.linear(functional.normalize(features), functional.normalize(self.prototypes))


HEADS = {
    "linear": lambda: nn.Linear(6, 5),
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 5)),
    "weight_norm without bias": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 5, bias=False)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 5)),
    "old weight_norm": lambda: nn.utils.weight_norm(nn.Linear(6, 5)),
    "old spectral_norm": lambda: nn.utils.spectral_norm(nn.Linear(6, 5)),
    "cosine": Prototypes,
}


def network(head: nn.Module) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        head,
    ).eval()


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", HEADS)
def test_a_head_is_one_whatever_its_weights_are_made_from(name: str) -> None:
    torch.manual_seed(0)
    model, images = network(HEADS[name]()), torch.rand(2, 3, 16, 16)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    found = egcam.explain(model, images, "hires-cam", signed=True)
    features = model[:6](images).detach().requires_grad_()
    scores = model[6:](features)
    assert torch.equal(found.targets, scores.argmax(1))
    (gradient,) = torch.autograd.grad(scores.amax(1).sum(), features)
    torch.testing.assert_close(found.maps, (gradient * features).sum(1).detach(), rtol=1e-4, atol=1e-7)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_an_embedding_is_none() -> None:
    with pytest.raises(egcam.EgcamError, match="no classification head: its 6 outputs are an embedding"):
        egcam.explain(network(nn.BatchNorm1d(6)), torch.rand(1, 3, 16, 16), "grad-cam")
