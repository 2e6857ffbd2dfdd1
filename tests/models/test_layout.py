"""The fast memory layout changes no number, and models that do not take it are run as usual."""

from __future__ import annotations

from collections import deque

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.models.inputs import Layout
from support.forms import along_images

pytestmark = pytest.mark.usefixtures("one_thread")


class Viewing(nn.Module):
    """Flattens with `view`, which a channels-last tensor does not allow; remembers the layouts it was given."""

    def __init__(self, flatten_with_view: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.fc = nn.Linear(6 * 8 * 8, 4)
        self.with_view = flatten_with_view
        self.layouts: deque[bool] = deque()  # of a list, the content would count as a part of the network

    def forward(self, images: Tensor) -> Tensor:
        self.layouts.append(images.is_contiguous())
        hidden = self.conv(images).relu()
        return self.fc(hidden.view(len(hidden), -1) if self.with_view else hidden.flatten(1))


@pytest.mark.parametrize("method", ["slope-cam", "expected-grad-cam", "score-cam", "expected-gradients"])
def test_maps_do_not_depend_on_the_layout(method):
    images = torch.rand(2, 3, 8, 8)
    flexible, strict = Viewing(False), Viewing(True)
    options = {"signed": True, "batch_size": 4}
    fast = egcam.explain(flexible, images, method, target=1, **options)
    usual = egcam.explain(strict, images, method, target=1, **options)
    torch.testing.assert_close(fast.maps, usual.maps, rtol=1e-4, atol=1e-6)


def test_a_model_that_does_not_take_the_layout_is_asked_once():
    model = Viewing(True)
    cam = along_images(model, "conv", samples=12, batch_size=4, signed=True)
    cam(torch.rand(1, 3, 8, 8), target=0)
    asked = model.layouts.count(False)
    cam(torch.rand(1, 3, 8, 8), target=0)
    if torch.backends.mkldnn.is_available():
        up_to_the_layer = 1 + 3  # one image, and nine in batches of four, to see where the layer's cells lie
        assert asked == up_to_the_layer + 1
        assert model.layouts.count(False) == asked
    a_dry_run = 1
    assert model.layouts.count(True) == a_dry_run + 2 * (1 + 3)


def test_only_float32_on_a_cpu_is_laid_out_anew():
    seen = []
    layout = Layout()
    layout.run(torch.rand(1, 3, 4, 4, dtype=torch.float64), seen.append)
    layout.run(torch.rand(1, 3, 4, 4).contiguous(memory_format=torch.channels_last), seen.append)
    assert seen == [torch.preserve_format, torch.preserve_format]


def test_an_error_of_the_models_own_comes_through():
    def fail(layout: torch.memory_format) -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        Layout().run(torch.rand(1, 3, 4, 4), fail)
