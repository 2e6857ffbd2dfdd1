"""Metrics of signals and volumes: the same numbers as those of images with the same places."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import egcam
from egcam import metrics
from egcam.errors import InputError
from egcam.metrics.similarity import ssim
from metrics.conftest import measured
from support.small_models import explainer
from support.twins import lifted, signals, solid, twin

MAPS = torch.rand(2, 16, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
MASKS = MAPS.roll(3, 1) > 0.6
OF_MAPS: dict[str, dict[str, Any]] = {
    "insertion": {"step": 3, "baseline": "black"},
    "deletion": {"step": 3},
    "insertion-deletion": {"step": 5, "insertion_baseline": "mean"},
    "pixel-flipping": {"step": 2, "baseline": "grey"},
    "faithfulness-estimate": {"step": 4},
    "monotonicity": {"step": 4, "baseline": "white"},
    "sensitivity-n": {"subsets": 3},
    "infidelity": {"patch": 1},
    "sufficiency": {},
    "average-drop": {},
    "average-gain": {},
    "increase-in-confidence": {},
}
OF_EXPLAINERS: dict[str, dict[str, Any]] = {
    "max-sensitivity": {"samples": 2},
    "local-lipschitz": {"samples": 2},
    "relative-input-stability": {"samples": 2},
    "adcc": {},
    "random-logit": {"similarity": "pearson"},  # windows of similarity have as many places as there are dimensions
}


def scores(name: str, dimensions: int, *given: Any, **options: Any) -> Tensor:
    images = lifted(signals(), dimensions)
    return measured(name, twin(dimensions), images, *given, **options)


@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize("name", OF_MAPS)
def test_metrics_of_maps(name: str, dimensions: int) -> None:
    image, other = (scores(name, count, lifted(MAPS, count), **OF_MAPS[name]) for count in (2, dimensions))
    torch.testing.assert_close(other, image)
    assert bool(other.isfinite().all())


@pytest.mark.parametrize("dimensions", [1, 3])
@pytest.mark.parametrize("name", OF_EXPLAINERS)
def test_metrics_that_explain_again(name: str, dimensions: int) -> None:
    image, other = (
        scores(name, count, explainer("hires-cam", twin(count), signed=True), **OF_EXPLAINERS[name])
        for count in (2, dimensions)
    )
    torch.testing.assert_close(other, image, equal_nan=True)


@pytest.mark.parametrize(
    "name", ["complexity", "sparseness", "pointing-game", "top-k-intersection", "attribution-localization"]
)
def test_metrics_without_a_model(name: str) -> None:
    kind = metrics.metric(name)
    options: dict[str, Any] = {"tolerance": 2} if name == "pointing-game" else {}
    found = []
    for count in (1, 2, 3):
        explained = egcam.explain(twin(count), lifted(signals(), count), "grad-cam", target=0)
        given = [explained, lifted(MASKS, count)] if "masks" in kind.needs else [explained]
        found.append(measured(kind, *given, **options))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[2], found[1])


def test_irof_with_segments_of_ones_own() -> None:
    segments = torch.arange(16) // 4
    image, other = (
        scores("irof", count, lifted(MAPS, count), segments=lifted(segments[None], count)[0]) for count in (2, 1)
    )
    torch.testing.assert_close(other, image)
    with pytest.raises(InputError, match="for signals pass segments"):
        scores("irof", 1, MAPS)


def test_road_is_refused() -> None:
    with pytest.raises(InputError, match="eight neighbours"):
        scores("road", 1, MAPS)


def test_insertion_into_a_blurred_signal() -> None:
    """The window is 11 samples wide along every axis, and an axis of one place is not changed by it."""
    image, other = (scores("insertion", count, lifted(MAPS, count), step=3) for count in (2, 1))
    torch.testing.assert_close(other, image)


def test_deletion_of_a_volume_by_brute_force() -> None:
    model, volumes = solid()
    maps = torch.rand(2, 4, 6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    curve = []
    flat = volumes[0].reshape(1, -1)
    target = int(model(volumes[:1]).argmax())
    order = maps[0].flatten().argsort(descending=True)
    for gone in range(0, 121, 30):
        altered = flat.clone()
        altered[:, order[:gone]] = 0
        curve.append(model(altered.reshape(1, 1, 4, 6, 5)).softmax(1)[0, target].item())
    area = sum((a + b) / 2 * 0.25 for a, b in pairwise(curve))
    assert metrics.Deletion(step=30)(model, volumes, maps)[0].item() == pytest.approx(area, abs=1e-12)
    # By default there are as many steps as places where these are few.
    assert metrics.Deletion().curve(metrics.Case(model, volumes, maps)).scores.shape == (2, 121)


def test_infidelity_of_a_volume_by_brute_force() -> None:
    model, volumes = solid()
    maps = torch.rand(2, 4, 6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    black = volumes[0].min()
    said, drops = [], []
    for depth in range(4):
        for row in range(6):
            for column in range(5):
                altered = volumes[:1].clone()
                altered[0, 0, depth, row, column] = black
                drops.append((model(volumes[:1]) - model(altered))[0, 2])
                said.append(maps[0, depth, row, column] * (volumes[0, 0, depth, row, column] - black))
    s, d = torch.stack(said), torch.stack(drops)
    wanted = ((s * d).mean() / (s * s).mean() * s - d).square().mean()
    found = metrics.Infidelity(baseline="darkest")(model, volumes, maps, 2)
    # A quarter of each side, rounded down, is a single place here.
    torch.testing.assert_close(found[0], wanted.detach())


def test_a_single_volume_and_its_explanation() -> None:
    model, volumes = solid()
    cam = explainer("grad-cam", model, signed=True)
    one, batch = cam(volumes[1]), cam(volumes)
    together = metrics.Deletion(step=20)(model, volumes, batch)[1:]
    torch.testing.assert_close(metrics.Deletion(step=20)(model, volumes[1], one), together)
    both = metrics.MaxSensitivity(samples=2)(model, volumes, cam)
    torch.testing.assert_close(metrics.MaxSensitivity(samples=2)(model, volumes[1], cam), both[1:])


def test_maps_that_do_not_fit() -> None:
    with pytest.raises(InputError, match=r"maps must be \(N, L\)"):
        metrics.Deletion()(twin(1), signals(), torch.rand(2, 4, 4))
    with pytest.raises(InputError, match=r"maps must be \(N, H, W\)"):
        metrics.Sparseness()(torch.rand(2, 3, 4, 4))
    assert metrics.Sparseness()(torch.rand(2, 1, 3, 4, 4)).shape == (2,)
    with pytest.raises(InputError, match="the explainer returned"):
        metrics.MaxSensitivity()(twin(1), signals(), lambda x, y: torch.rand(len(x), 3, 3))


def test_structural_similarity_of_volumes() -> None:
    a, b = torch.rand(2, 1, 3, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    spread = torch.stack([a, b]).max() - torch.stack([a, b]).min()
    c1, c2 = (0.01 * spread) ** 2, (0.03 * spread) ** 2
    covariance = torch.cov(torch.stack([a.flatten(), b.flatten()]))
    wanted = (2 * a.mean() * b.mean() + c1) * (2 * covariance[0, 1] + c2)
    wanted = wanted / ((a.mean() ** 2 + b.mean() ** 2 + c1) * (covariance[0, 0] + covariance[1, 1] + c2))
    torch.testing.assert_close(ssim(a, b)[0], wanted)


def test_evaluate_and_layers_of_signals() -> None:
    table = egcam.evaluate(twin(1), signals(), ["grad-cam", "hires-cam"], ["deletion", "sparseness", "infidelity"])
    maps = egcam.explain(twin(1), signals(), "grad-cam").heatmaps
    wanted = metrics.Deletion()(twin(1), signals(), maps)
    frame = table.frame
    found = frame[(frame.method == "grad-cam") & (frame.metric == "deletion")].sort_values("image").value.tolist()
    assert found == pytest.approx(wanted.tolist())
    assert [(layer.name, layer.size) for layer in egcam.candidate_layers(twin(1), signals())] == [
        ("0", (16,)),
        ("1", (16,)),
        ("2", (8,)),
        ("3", (8,)),
        ("4", (8,)),
    ]
    assert egcam.saturation(twin(1), signals(), steps=3, black=0.0).cosine.shape == (2, 3)
