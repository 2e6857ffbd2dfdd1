"""Train a fully connected head of three layers on the real features of AlexNet or VGG-16.

    EGCAM_DATA=… python research/heads.py alexnet --out heads/

Eight classes of things, or with `--groups` 16 groups of classes that look alike, from the labels of the ImageNet
validation images at hand: part "reference" and every other image of part "explain" are trained on, in two crops each
and mirrored; the remaining images are held out, and the share of them that is classified rightly is printed.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

import torch
from networks import body, class_groups, coarse_class
from PIL import ImageOps
from torch import Tensor, nn

from egcam.models.preprocessing import Preprocessing
from egcam.photos.files import read_image

Images = list[tuple[Path, int]]
VIEWS = (Preprocessing(), Preprocessing(resize=224))


def listed(classes: list[int]) -> tuple[Images, Images]:
    """(file, class) of the images trained on, and of those held out; `classes` holds that of each ImageNet class."""
    data = Path(os.environ["EGCAM_DATA"])
    with open(data / "imagenet.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    every = [(data / "imagenet" / row["file"], classes[int(row["class_index"])]) for row in rows]
    explain = [place for place, row in enumerate(rows) if row["part"] == "explain"]
    held_out = set(explain[1::2])
    return [every[place] for place in range(len(rows)) if place not in held_out], [every[place] for place in held_out]


@torch.inference_mode()
def features(model: nn.Module, images: Images, views: tuple[Preprocessing, ...], mirror: bool) -> tuple[Tensor, Tensor]:
    """What the head gets, for every view of every image (and its mirror image), and the classes."""
    found, classes = [], []
    for number, (file, label) in enumerate(images):
        image = read_image(file)
        pictures = [view(one) for view in views for one in ((image, ImageOps.mirror(image)) if mirror else (image,))]
        seen = model.avgpool(model.features(torch.stack(pictures))).flatten(1)
        found.append(seen.half())
        classes += [label] * len(pictures)
        if number % 100 == 0:
            print(f"\r{number} of {len(images)} images", end="", flush=True)
    print()
    return torch.cat(found), torch.tensor(classes)


def train(head: nn.Module, inputs: Tensor, classes: Tensor, epochs: int) -> None:
    """Fit the head; rare classes count for more."""
    source = torch.Generator().manual_seed(0)
    weights = len(classes) / classes.bincount().float().clamp(min=1)
    loss_of = nn.CrossEntropyLoss(weights / weights.mean(), label_smoothing=0.05)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    head.train()
    torch.manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(classes), generator=source).split(128):
            optimizer.zero_grad()
            loss_of(head(inputs[rows].float()), classes[rows]).backward()
            optimizer.step()
        schedule.step()
    head.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["alexnet", "vgg16"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="one crop of each image, not mirrored")
    parser.add_argument("--groups", action="store_true", help="16 groups of classes, none of them a rest")
    options = parser.parse_args()
    name = f"{options.name}_groups" if options.groups else options.name
    known = class_groups() if options.groups else [coarse_class(label) for label in range(1000)]
    model = body(options.name, max(known) + 1)
    trained, held_out = listed(known)
    views = VIEWS[:1] if options.plain else VIEWS
    inputs, classes = features(model, trained, views, mirror=not options.plain)
    train(model.classifier, inputs, classes, options.epochs)
    unseen, truth = features(model, held_out, VIEWS[:1], mirror=False)
    with torch.inference_mode():
        right = (model.classifier(unseen.float()).argmax(1) == truth).float().mean()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.classifier.state_dict(), options.out / f"{name}.pth")
    most = truth.bincount().max() / len(truth)
    print(f"{name}: {right:.1%} of {len(truth)} held-out images right (the most frequent class alone: {most:.1%})")


if __name__ == "__main__":
    main()
