"""Small networks with every habit that gets in the way of an explanation, and a record of all they must keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import egcam
from egcam.attribution import registry

# Those that any network can be explained with; those of other packages are asked for their manners in test_foreign.py.
METHODS = tuple(
    name for name in egcam.methods() if registry.method(name).group != "attention" and not registry.method(name).package
)
# Those that other packages do the work of.
PEERS = tuple(name for name in egcam.methods() if registry.method(name).package)
AT_LAYER = tuple(name for name in METHODS if "layer" in registry.takes(name))
# CAM needs a linear head, and it and Finer-CAM a class rather than a callable.
HEAD_FREE = tuple(name for name in METHODS if name not in ("cam", "finer-cam"))
CLASSES = 5
_CHEAP = {"samples": 5, "score": "logit", "window": 4, "stride": 4}


def options(method: str, **more: Any) -> dict[str, Any]:
    """Few samples, and of `more` what the method takes."""
    taken = registry.takes(method)
    return {name: value for name, value in {**_CHEAP, **more}.items() if name in taken}


FEW = ("grad-cam", "slope-cam", "score-cam", "ablation-cam")


def covering(methods: Iterable[str], values: Iterable[Any]) -> list[tuple[str, Any]]:
    """Each value with a few methods, one of each way through the network, and each method with the last value.

    For what the same code does for all methods.
    """
    values = list(values)
    return [(method, value) for method in methods for value in values if method in FEW or value is values[-1]]


def explainer(method: str, model: nn.Module, **more: Any) -> egcam.Explainer:
    """A cheap explainer of the method."""
    return registry.create(method, model, **options(method, **more))


def pictures(count: int = 2, seed: int = 0, side: int = 12, dtype: torch.dtype = torch.float32) -> Tensor:
    """(count, 3, side, side) pixels around zero."""
    drawn = torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn.to(dtype)


class SmallNet(nn.Module):
    """Two convolutions with BatchNorm and in-place ReLU, dropout, global pooling and one linear layer."""

    def __init__(self, inplace: bool = True, classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu1 = nn.ReLU(inplace)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.bn2 = nn.BatchNorm2d(6)
        self.relu2 = nn.ReLU(inplace)
        self.dropout2d = nn.Dropout2d(0.3)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(6, classes)

    def features(self, images: Tensor) -> Tensor:
        first = self.relu1(self.bn1(self.conv1(images)))
        return self.dropout2d(self.relu2(self.bn2(self.conv2(first))))

    def forward(self, images: Tensor) -> Any:
        return self.fc(self.dropout(self.pool(self.features(images)).flatten(1)))


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network with weights, running statistics and positive biases of its own; the global generator is kept."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build()
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d) and module.track_running_stats:
                nn.init.uniform_(module.running_mean, -0.5, 0.5)
                nn.init.uniform_(module.running_var, 0.5, 2.0)
                nn.init.uniform_(module.bias, 0.0, 1.0)
    return network


def small_net(train: bool = False, inplace: bool = True, classes: int = CLASSES, seed: int = 0) -> SmallNet:
    """A `SmallNet`, in training mode on request."""
    network = seeded(lambda: SmallNet(inplace, classes), seed)
    assert isinstance(network, SmallNet)
    return network.train(train)


class WithOutput(nn.Module):
    """A `SmallNet` whose logits (and features) come out in another form."""

    def __init__(self, form: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.net = small_net()
        self.form = form

    def forward(self, images: Tensor) -> Any:
        features = self.net.features(images)
        return self.form(self.net.fc(self.net.pool(features).flatten(1)), features)


HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)


class Kept:
    """All that an explanation must leave as it was: of a model, its images and torch's global state."""

    def __init__(self, model: nn.Module, images: Tensor | None = None) -> None:
        self.model = model
        self.images = images
        self.facts = self._facts()
        self.values = self._values()

    def check(self) -> None:
        """Fail on the first thing that differs."""
        facts, values = self._facts(), self._values()
        assert facts.keys() == self.facts.keys()
        for name, fact in facts.items():
            assert fact == self.facts[name], name
        assert values.keys() == self.values.keys()
        for name, value in values.items():
            assert torch.equal(value, self.values[name]) or torch.allclose(
                value, self.values[name], rtol=0, atol=0, equal_nan=True
            ), name

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "grad mode": torch.is_grad_enabled(),
            "inference mode": torch.is_inference_mode_enabled(),
            "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled()),
            "threads": torch.get_num_threads(),
        }
        for name, module in self.model.named_modules():
            facts[f"{name}: training"] = module.training
            facts[f"{name}: attributes"] = sorted(module.__dict__)
            facts[f"{name}: children"] = [(key, id(child)) for key, child in module._modules.items()]
            facts[f"{name}: buffers"] = [(key, id(buffer)) for key, buffer in module._buffers.items()]
            for hooks in HOOKS:
                facts[f"{name}: {hooks}"] = list(getattr(module, hooks).items())
        for name, parameter in self.model.named_parameters():
            facts[f"{name}: parameter"] = (id(parameter), parameter.requires_grad, id(parameter.grad))
            if not parameter.is_inference():
                facts[f"{name}: version"] = parameter._version
        if self.images is not None:
            facts["images"] = (self.images.requires_grad, id(self.images.grad), self.images.is_inference())
        return facts

    def _values(self) -> dict[str, Tensor]:
        values = {"random state": torch.get_rng_state()}
        for name, parameter in self.model.named_parameters():
            values[name] = parameter.detach().clone()
            if parameter.grad is not None:
                values[f"{name}: grad"] = parameter.grad.clone()
        for name, buffer in self.model.named_buffers():
            values[name] = buffer.clone()
        if self.images is not None:
            values["images"] = self.images.detach().clone()
        return values
