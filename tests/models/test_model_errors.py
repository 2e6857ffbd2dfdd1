"""What torch says of a model's input, and of models that cannot be looked into, in a sentence that says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.errors import EgcamError


class WithAngles(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(5, 3)

    def forward(self, images: Tensor, angles: Tensor) -> Tensor:
        return self.head(torch.cat([self.features(images).mean((2, 3)), angles], 1))


class Predictor(nn.Module):
    """As ultralytics' YOLO: a module whose call prepares, runs and decodes, without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.model = small()

    @torch.inference_mode()
    def forward(self, images: Tensor) -> Tensor:
        return self.model(images.clone())


class Ensemble(nn.Module):
    """Four networks that differ in their first layer, run at once."""

    def __init__(self) -> None:
        super().__init__()
        self.base = small()
        self.weights = nn.Parameter(torch.randn(4, 6, 3, 3, 3))

    def forward(self, images: Tensor) -> Tensor:
        def one(weight: Tensor) -> Tensor:
            return torch.func.functional_call(self.base, {"0.weight": weight}, (images,))

        return torch.vmap(one)(self.weights).mean(0)


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(864, 4)
    ).eval()


@pytest.mark.parametrize("method", ["grad-cam", "slope-cam", "occlusion", "ablation-cam"])
def test_grey_images_in_a_network_for_colours(method: str) -> None:
    grey = torch.rand(2, 1, 16, 16)
    with pytest.raises(EgcamError, match=r"'0', takes 3 channels, the images have 1: pass images\.expand\(-1, 3, -1"):
        egcam.explain(small(), grey, method)
    assert egcam.explain(small(), grey.expand(-1, 3, -1, -1), method, signed=True).maps.any()


def test_a_missing_input_is_asked_for() -> None:
    with pytest.raises(EgcamError, match=r"missing 1 required positional argument: 'angles'.*inputs="):
        egcam.explain(WithAngles().eval(), torch.rand(2, 3, 16, 16), "grad-cam")


def test_a_list_for_a_network_that_takes_a_batch() -> None:
    with pytest.raises(EgcamError, match=r"pass torch\.stack\(images\)"):
        egcam.explain(small(), [torch.rand(3, 16, 16)] * 2, "grad-cam")


def test_sparse_images() -> None:
    with pytest.raises(EgcamError, match=r"to_dense\(\)"):
        egcam.explain(small(), torch.rand(2, 3, 16, 16).to_sparse(), "grad-cam")


def test_a_module_that_runs_in_inference_mode() -> None:
    with pytest.raises(EgcamError, match=r"inference_mode\(\).*pass the network inside it"):
        egcam.explain(Predictor().eval(), torch.rand(2, 3, 16, 16), "grad-cam")


def test_several_networks_at_once() -> None:
    with pytest.raises(EgcamError, match=r"vmap.*several networks at once"):
        egcam.explain(Ensemble().eval(), torch.rand(2, 3, 16, 16), "grad-cam", layer="base.2")
    with pytest.raises(EgcamError) as caught:
        egcam.explain(Ensemble().eval(), torch.rand(2, 3, 16, 16), "grad-cam")
    assert "no_grad" not in str(caught.value), "that is not why"


def test_an_error_of_the_users_own_callable_comes_through() -> None:
    def broken(output: Tensor) -> Tensor:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        egcam.explain(small(), torch.rand(2, 3, 16, 16), "grad-cam", target=broken)


def test_a_stream_of_dictionaries_says_how_to_pick_the_images() -> None:
    loader = [{"label": torch.tensor([1, 2]), "image": torch.rand(2, 3, 16, 16)}]
    cam = egcam.GradCAM(small(), signed=True)
    with pytest.raises(EgcamError, match=r"stream\(\(\(batch\['image'\], batch\['label'\]\) for batch in loader\)\)"):
        next(cam.stream(loader))
    found = next(cam.stream((batch["image"], batch["label"]) for batch in loader))
    assert found.targets.tolist() == [1, 2]


def test_weights_that_are_sharded(tmp_path: Path) -> None:
    """FSDP2's are tensors of another kind, of which every process holds a part."""
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not torch.distributed.is_available() or not hasattr(fsdp, "fully_shard"):
        pytest.skip("no FSDP2 here")
    images = torch.rand(2, 3, 16, 16)
    expected = egcam.explain(small(), images, "grad-cam", 1, signed=True).maps
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{tmp_path}/meet")
    try:
        model = small()
        fsdp.fully_shard(model)
        found = egcam.explain(model, images, "grad-cam", 1, signed=True)
    finally:
        torch.distributed.destroy_process_group()
    torch.testing.assert_close(found.maps, expected)
