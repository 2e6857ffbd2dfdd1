"""A small classifier and photographs that differ, for tests that need no real network."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import torch
from PIL import Image
from torch import nn

from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier

CLASSES = ("cat", "dog", "bird, fowl")


def _net() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 8, 3, padding=1), nn.Softplus()),
        *(nn.Flatten(), nn.Linear(8 * 16 * 16, 3)),
    )


def _weights() -> dict[str, torch.Tensor]:
    """Positive ones for every class, so that no map is zero."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = _net().state_dict()
    return found | {"6.weight": found["6.weight"].abs()}


# Drawn once, on import: threads that make the classifier at the same time would seed each other's draws.
_WEIGHTS = _weights()


def tiny_classifier() -> Classifier:
    """Two convolutions and a linear layer; the same at every call."""
    net = _net()
    net.load_state_dict(_WEIGHTS)
    seen = Preprocessing((32, 32), 32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    return Classifier(net.eval(), "tiny", CLASSES, seen)


def picture(seed: int = 0, size: tuple[int, int] = (48, 40)) -> Image.Image:
    """Coloured noise with a bright square whose place depends on the seed."""
    draw = np.random.default_rng(seed)
    pixels = draw.integers(0, 120, (size[1], size[0], 3), dtype=np.uint8)
    top, left = draw.integers(0, size[1] - 12), draw.integers(0, size[0] - 12)
    pixels[top : top + 12, left : left + 12] = 255
    return Image.fromarray(pixels)


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    """An image as the bytes of a file."""
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def bomb(side: int = 30_000) -> bytes:
    """A valid PNG of side x side black pixels: a few hundred kilobytes that unpack to gigabytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = zlib.crc32(kind + content)
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)

    packer = zlib.compressobj(1)
    row = bytes(1 + side // 8)
    rows = b"".join(packer.compress(row * 1000) for _ in range(side // 1000)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
