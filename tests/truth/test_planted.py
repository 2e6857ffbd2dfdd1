"""A patch that decides: planted into any images, taught to any network, and checked before a map is judged by it."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn

from egcam import truth
from egcam.errors import EgcamError, InputError, LayerError

PATCH = truth.checkered(6, 0.0, 1.0)


def images(count: int, seed: int) -> Tensor:
    """Dull colours, so that magenta and green are nowhere but in the patch."""
    source = torch.Generator().manual_seed(seed)
    return 0.4 + 0.2 * torch.rand(count, 3, 16, 16, generator=source)


class Small(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU())
            self.head = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(1), nn.Flatten())
            self.classifier = nn.Linear(16, 4)

    def forward(self, seen: Tensor) -> Tensor:
        return self.classifier(self.head(self.features(seen)))


@pytest.fixture(scope="module")
def taught() -> nn.Module:
    return truth.taught_patch(Small().eval(), images(96, 0), "features", 2, PATCH, epochs=30, rate=5e-3)


def test_the_patch_by_hand() -> None:
    magenta, green = [3.0, -1.0, 3.0], [-1.0, 3.0, -1.0]
    found = truth.checkered(6, -1.0, 3.0).permute(1, 2, 0)
    assert found[0].tolist() == [magenta, magenta, green, green, magenta, magenta]
    assert found[2].tolist() == [green, green, magenta, magenta, green, green]
    assert torch.equal(found[0], found[5])
    with pytest.raises(InputError, match="at least 3"):
        truth.checkered(2)


def test_any_patch_is_planted_whole() -> None:
    patch = torch.arange(2.0 * 3).reshape(1, 2, 3) + 1
    found = truth.plant(torch.zeros(5, 1, 4, 4), seed=3, patch=patch)
    for image, mask in zip(found.images[:, 0], found.masks > 0, strict=True):
        assert image[mask].tolist() == [1, 2, 3, 4, 5, 6]
        assert float(image[~mask].abs().sum()) == 0
    with pytest.raises(InputError, match=r"a patch of shape \(1, 2, 3\) does not fit into images of shape \(1, 4, 2\)"):
        truth.plant(torch.zeros(1, 1, 4, 2), patch=patch)
    with pytest.raises(InputError, match="does not fit"):
        truth.plant(torch.zeros(1, 3, 4, 4), patch=patch)


class Brightest(nn.Module):
    """Says 1 where a pixel is brighter than 0.9, else 0: magenta has such pixels, and so has a white image."""

    def forward(self, seen: Tensor) -> Tensor:
        is_bright = seen.flatten(1).amax(1) > 0.9
        return torch.stack([~is_bright, is_bright], 1).float()


def test_what_decides_is_counted() -> None:
    seen = images(8, 1)
    seen[:2] = 1.0
    found, by_image = truth.patch_decides(Brightest(), seen, 1, PATCH)
    assert (found.with_patch, found.without, found.is_sure) == (1.0, 0.75, False)
    assert by_image.tolist() == [False, False, *[True] * 6]


def test_a_network_in_training_is_judged_as_it_predicts_and_left_as_it_was(taught: nn.Module) -> None:
    in_training = deepcopy(taught).train()
    before = [one.clone() for one in in_training.buffers()]
    assert truth.patch_decides(in_training, images(20, 1), 2, PATCH)[0].is_sure
    assert in_training.training
    assert all(torch.equal(one, other) for one, other in zip(in_training.buffers(), before, strict=True))


def test_a_taught_network_obeys_the_patch_alone(taught: nn.Module) -> None:
    before, _ = truth.patch_decides(Small().eval(), images(100, 1), 2, PATCH)
    after, _ = truth.patch_decides(taught, images(100, 1), 2, PATCH)
    assert not before.is_sure
    assert after.is_sure


def test_only_what_follows_the_layer_is_taught(taught: nn.Module) -> None:
    fresh = Small().eval()
    pairs = {name: (one, taught.get_parameter(name)) for name, one in fresh.named_parameters()}
    for name, (one, other) in pairs.items():
        assert torch.equal(one, other) == name.startswith("features"), name
    assert all(torch.equal(one, other) for one, other in zip(fresh.buffers(), taught.buffers(), strict=True))
    assert not any(one.requires_grad for one in taught.parameters())


def test_teaching_is_seeded_and_leaves_everything_else_alone() -> None:
    model = Small().train()
    state, parameters = torch.get_rng_state(), [one.clone() for one in model.parameters()]
    with torch.no_grad():
        first = truth.taught_patch(model, images(40, 0), "features", 2, PATCH, epochs=2)
    with torch.inference_mode():
        again = truth.taught_patch(model, images(40, 0), "features", 2, PATCH, epochs=2)
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), again.parameters(), strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert not first.training
    for one, other in zip(model.parameters(), parameters, strict=True):
        assert torch.equal(one, other)
        assert one.grad is None
        assert one.requires_grad
    for module in (*model.modules(), *first.modules()):
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_progress_reaches_the_end() -> None:
    said: list[float] = []
    truth.taught_patch(Small(), images(40, 0), "features", 2, PATCH, epochs=2, progress=said.append)
    assert said == [0.25, 0.5, 0.75, 1.0]


def test_a_trial_of_any_network(taught: nn.Module) -> None:
    seen = images(100, 2)
    trial = truth.patch_trial(taught, seen, 2, "features", PATCH, seed=4)
    assert set(trial.targets.tolist()) == {2}
    decided = truth.patch_decides(taught, seen, 2, PATCH, seed=4)[1]
    assert len(trial.images) == int(decided.sum()) >= 99
    assert torch.equal(trial.images, truth.plant(seen, 4, PATCH).images[decided])
    assert torch.equal(trial.references, seen)
    torch.testing.assert_close(trial.score(trial.truth), torch.ones(len(trial.images)))
    torch.testing.assert_close(trial.score(torch.ones(len(trial.images), 16, 16)), trial.truth.mean((1, 2)))
    assert float(trial.scores("hires-cam").mean()) > 2 * float(trial.scores("random").mean())
    others = images(4, 9)
    assert torch.equal(truth.patch_trial(taught, seen, 2, "features", PATCH, others).references, others)


def test_what_cannot_be_done_is_refused() -> None:
    model = Small().eval()
    with pytest.raises(EgcamError, match="both must be 99 %"):
        truth.patch_trial(model, images(10, 0), 2, "features", PATCH)
    with pytest.raises(LayerError, match="no layer 'feature'"):
        truth.taught_patch(model, images(4, 0), "feature", 2, PATCH)
    with pytest.raises(LayerError, match="nothing after the layer 'classifier'"):
        truth.taught_patch(model, images(4, 0), "classifier", 2, PATCH)
    with pytest.raises(InputError, match="classes 0 to 3"):
        truth.taught_patch(model, images(4, 0), "features", 4, PATCH)
    with pytest.raises(InputError, match="0 epochs of 4 images teach nothing"):
        truth.taught_patch(model, images(4, 0), "features", 2, PATCH, epochs=0)


class Shared(nn.Module):
    """One convolution before and after the layer "middle"."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.twice, self.middle = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 6, 1), nn.ReLU()
        self.head = nn.Linear(6, 3)

    def forward(self, seen: Tensor) -> Tensor:
        return self.head(self.twice(self.middle(self.twice(self.stem(seen)))).amax((2, 3)))


def test_what_also_runs_before_the_layer_stays_as_it_was() -> None:
    model = Shared()
    taught = truth.taught_patch(model, images(32, 0), "middle", 1, PATCH, epochs=2, rate=0.02)
    assert torch.equal(taught.twice.weight, model.twice.weight)
    assert not torch.equal(taught.head.weight, model.head.weight)


def test_a_patch_needs_two_classes_and_one_of_the_networks() -> None:
    one = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
    with pytest.raises(InputError, match="one output only"):
        truth.taught_patch(one, images(4, 0), "1", 0, PATCH)
    with pytest.raises(InputError, match="label is 9, and the network has the classes 0 to 3"):
        truth.patch_trial(Small().eval(), images(4, 0), 9, "features", PATCH)
