"""What a refusal proposes works."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

import egcam


class VideoTransformer(nn.Module):
    """Patches of 2 frames of 4 x 4 pixels, cut without a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Linear(32, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, video: Tensor) -> Tensor:
        n, c, d, h, w = video.shape
        cut = video.reshape(n, c, d // 2, 2, h // 4, 4, w // 4, 4).permute(0, 2, 4, 6, 1, 3, 5, 7)
        return self.head(self.block(self.patch(cut.reshape(n, -1, 32 * c))).mean(1))


def test_the_grid_of_a_video_has_three_axes() -> None:
    torch.manual_seed(0)
    model, video = VideoTransformer().eval(), torch.rand(1, 1, 6, 20, 12)
    with pytest.raises(egcam.EgcamError) as caught:
        egcam.explain(model, video, "grad-cam")
    found = re.search(r"layer='([\w.]+)' with reshape=\(([^)]*)\), the grid", str(caught.value))
    assert found is not None
    assert found[2] == "depth or frames, height, width"
    maps = egcam.explain(model, video, "grad-cam", layer=found[1], reshape=(3, 5, 3), signed=True).maps
    assert maps.shape == (1, 3, 5, 3)
    assert maps.any()


def test_offloaded_weights_are_not_to_be_emptied() -> None:
    accelerate = pytest.importorskip("accelerate")
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(72, 2)).eval()
    accelerate.cpu_offload(model, torch.device("cpu"))
    with pytest.raises(egcam.EgcamError, match="offloaded") as caught:
        egcam.explain(model, torch.rand(1, 1, 8, 8), "grad-cam")
    assert "to_empty" not in str(caught.value)
