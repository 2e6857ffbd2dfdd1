"""Off-manifold: how far the points of a path lie from activations that the network really has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from egcam.errors import InputError
from egcam.imageops import in_double
from egcam.models.reading import Reshape
from egcam.models.restore import untouched
from egcam.rng import generator
from egcam.truth.cut import probe_at

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
_AT_ONCE = 32  # images in a pass
_SHRINKAGE = 0.1


@dataclass(frozen=True)
class Departure:
    """What sets activations apart from real ones.

    Attributes:
        active: the share of units that are above 0.
        distance: of the pooled channels, in units of what real activations have: 1 is as far as a real image.
    """

    active: float
    distance: float


@dataclass(frozen=True)
class OffManifold:
    """How real the points of paths are, at each share a of the way from a reference to the image.

    Attributes:
        shares: the values of a.
        real: what real images have.
        by_path: "stepwise", a random share a of the cells from A and the others from A' (where two steps meet a is a
            half); "latent", the straight line between activations, A' + a (A - A'); and "image", the activations of
            the image x' + a (x - x'), which conductance visits, too.
    """

    shares: tuple[float, ...]
    real: Departure
    by_path: dict[str, tuple[Departure, ...]]


def off_manifold(
    model: nn.Module,
    images: Tensor,
    layer: str,
    references: Tensor,
    real: Tensor,
    shares: Sequence[float] = SHARES,
    reshape: Reshape | None = None,
) -> OffManifold:
    """How far points between references and images lie from real activations, for each path.

        d(z)^2 = (m(z) - mu)^T (S + s I)^-1 (m(z) - mu) / K

    m(z) are the K channels' means over the map; mu and S are the mean and covariance of m over one half of the real
    images, s a tenth of its mean variance (Ledoit and Wolf, 2004, shrink alike). The distance is d divided by its mean
    over the other half. A mixture of two activations behind a ReLU has more active units than either, which `active`
    shows.

    Args:
        model: the classifier.
        images: (N, C, H, W).
        layer: by name; tokens that belong to no place of the image, such as a class token, are left out.
        references: (M, C, H, W); image n goes with reference n modulo M.
        real: (R, C, H, W) real images, at least four, of the same data.
        shares: the values of a.
        reshape: how the layer's output becomes maps, where it is not read rightly; see `egcam.Explainer`.

    Example:
        >>> net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 2))
        >>> found = off_manifold(net, torch.rand(2, 1, 6, 6), "1", torch.rand(2, 1, 6, 6), torch.rand(8, 1, 6, 6))
        >>> found.by_path["latent"][0] == found.by_path["image"][0], found.real.distance
        (True, 1.0)
    """
    if len(real) < 4:
        raise InputError(f"{len(real)} real images say nothing of how activations spread; pass at least four")
    if not len(references) or references.shape[1:] != images.shape[1:] or real.shape[1:] != images.shape[1:]:
        raise InputError(
            f"references {tuple(references.shape)} and real images {tuple(real.shape)} must be of the size of the "
            f"images, {tuple(images.shape)}, and at least one each"
        )
    with untouched(model, images.device), torch.no_grad():
        front = _maps_at(model, layer, images, reshape)
        known, held_out = front(real[0::2]), front(real[1::2])
        measure = _distance_from(known)
        usual = float(measure(held_out).mean())
        there = references[torch.arange(len(images)) % len(references)]
        here_a, there_a = front(images), front(there)

        def departure(activations: Tensor) -> Departure:
            active = float((activations > 0).float().mean())
            return Departure(active, float(measure(activations).mean()) / usual)

        points = {
            "stepwise": [_mixed(here_a, there_a, share) for share in shares],
            "latent": [there_a + share * (here_a - there_a) for share in shares],
            "image": [front(there + share * (images - there)) for share in shares],
        }
        by_path = {path: tuple(departure(at) for at in found) for path, found in points.items()}
        return OffManifold(tuple(shares), departure(held_out), by_path)


def _maps_at(model: nn.Module, layer: str, images: Tensor, reshape: Reshape | None) -> Callable[[Tensor], Tensor]:
    """From any number of images to what the layer outputs for them, (N, K, h, w)."""
    probe = probe_at(model, layer, reshape)

    def of_first(count: int) -> Tensor:
        return torch.zeros(count, dtype=torch.long, device="cpu")

    probe.forward(images[:1], of_first(1))  # to its end, which refuses a layer that runs twice

    def maps(images: Tensor) -> Tensor:
        return torch.cat([probe.features(some, of_first(len(some)))[0] for some in torch.split(images, _AT_ONCE)])

    return maps


def _mixed(here: Tensor, there: Tensor, share: float) -> Tensor:
    """(N, K, h, w) with a share of the cells of `here`; of each image others."""
    cells = here.shape[2] * here.shape[3]
    orders = [torch.randperm(cells, generator=generator(0, "mixed", row), device="cpu") for row in range(len(here))]
    chosen = (torch.stack(orders) < round(share * cells)).reshape(-1, 1, *here.shape[2:])
    return torch.where(chosen.to(here.device), here, there)


def _distance_from(known: Tensor) -> Callable[[Tensor], Tensor]:
    """(B,) d of activations (B, K, h, w), by the spread of the known ones."""
    pooled = in_double(known).mean((2, 3))
    middle = pooled.mean(0)
    spread = (pooled - middle).T @ (pooled - middle) / (len(pooled) - 1)
    channels = len(middle)
    variance = spread.diagonal().mean()
    if not float(variance) > 0:
        raise InputError("the real images are all alike at this layer; pass different ones")
    precision = torch.linalg.inv(spread + _SHRINKAGE * variance * torch.eye(channels).to(spread))

    def measure(activations: Tensor) -> Tensor:
        away = in_double(activations).mean((2, 3)) - middle
        squared: Tensor = ((away @ precision) * away).sum(1) / channels
        return squared.sqrt()

    return measure
