"""Devices that cannot be had here: nothing asks a device without float64 for it."""

from __future__ import annotations

import pytest
import torch

import egcam
from egcam import imageops
from egcam.metrics import faithfulness
from support.small_models import METHODS, explainer, pictures, small_net
from support.without_double import WithoutDouble

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def _no_double(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (imageops, faithfulness):
        monkeypatch.setattr(module, "has_double", lambda device: False)


def test_such_tensors_refuse_float64_until_they_are_on_the_cpu() -> None:
    images = pictures(1).as_subclass(WithoutDouble)
    with pytest.raises(TypeError, match="no float64"):
        (2 * images).relu().double()
    assert (2 * images).cpu().double().dtype == torch.float64


# Guided methods replace ReLUs of plain tensors, so the stand-in would get their plain gradient.
@pytest.mark.parametrize("method", [name for name in METHODS if not name.startswith("guided")])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_methods(method: str) -> None:
    found = explainer(method, small_net(), signed=True)(pictures(2).as_subclass(WithoutDouble), 1)
    plain = explainer(method, small_net(), signed=True)(pictures(2), 1)
    assert isinstance(found.maps, WithoutDouble)
    scale = float(plain.maps.abs().max())
    torch.testing.assert_close(found.maps.cpu(), plain.maps, rtol=0, atol=1e-3 * scale)


@pytest.mark.parametrize("name", [name for name in egcam.metrics.names() if name != "running-time"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_metrics(name: str) -> None:
    images = pictures(3)
    masks = torch.zeros(3, *images.shape[2:], dtype=torch.bool)
    masks[:, 2:6, 2:6] = True
    methods = [explainer("grad-cam", small_net())]
    tables = [
        egcam.evaluate(small_net(), some, methods, [name], 1, masks=masks)
        for some in (images, images.as_subclass(WithoutDouble))
    ]
    plain, found = (torch.tensor(table.frame["value"].to_numpy(), dtype=torch.float64) for table in tables)
    assert plain.isfinite().any()
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-4, equal_nan=True)
