"""Train a fully connected head of three layers on the real features of AlexNet or VGG-16.

    EGCAM_DATA=… python research/heads.py alexnet --out heads/

Eight classes of things, or with `--groups` 16 groups of classes that look alike, from the labels of the ImageNet
validation images at hand: part "reference" and every other image of part "explain" are trained on, in two crops each
and mirrored; the remaining images are held out, and the share of them that is classified rightly is printed.

With `--teacher` ImageNet's 1,000 classes, whose labels are too few: the head learns EfficientNet-Lite0's logits, of
every image but those of part "confirm" (`research/halves.py`), in one crop and another one mirrored. Printed is how
often its first class is among the teacher's first five, on the images left.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path

import torch
from networks import body, class_groups, coarse_class, efficientnet_lite0, in_bfloat16
from PIL import ImageOps
from torch import Tensor, nn

from egcam.models.preprocessing import Preprocessing
from egcam.models.zoo import Classifier
from egcam.photos.files import read_image

Images = list[tuple[Path, int]]
VIEWS = (Preprocessing(), Preprocessing(resize=224))


def _folder() -> Path:
    return Path(os.environ["EGCAM_DATA"]) / "imagenet"


def _rows() -> list[dict[str, str]]:
    with open(_folder().parent / "imagenet.csv", newline="") as file:
        return list(csv.DictReader(file))


def listed(classes: list[int]) -> tuple[Images, Images]:
    """(file, class) of the images trained on, and of those held out; `classes` holds that of each ImageNet class."""
    rows = _rows()
    every = [(_folder() / row["file"], classes[int(row["class_index"])]) for row in rows]
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


@torch.inference_mode()
def taught(model: nn.Module, teacher: Classifier, files: list[Path], mirror: bool) -> tuple[Tensor, Tensor]:
    """What the head gets, and the teacher's logits for the same pixels, less their mean."""
    seen, logits = [], []
    for file in files:
        image = read_image(file)
        pictures = torch.stack([VIEWS[0](image), *([VIEWS[1](ImageOps.mirror(image))] if mirror else [])])
        seen.append(model.avgpool(model.features(pictures)).flatten(1).half())
        logits.append(teacher.model(_for_teacher(pictures, teacher.preprocessing)))
    found = torch.cat(logits)
    return torch.cat(seen), found - found.mean(1, keepdim=True)


def _for_teacher(pictures: Tensor, wanted: Preprocessing) -> Tensor:
    """The same pixels, normalised as the teacher wants them."""
    mean, std, its_mean, its_std = (
        torch.tensor(values).reshape(-1, 1, 1) for values in (VIEWS[0].mean, VIEWS[0].std, wanted.mean, wanted.std)
    )
    return (pictures * std + mean - its_mean) / its_std


def learn(head: nn.Module, inputs: Tensor, logits: Tensor, epochs: int) -> None:
    """Fit the head to a teacher's logits, by least squares."""
    for module in head:
        if isinstance(module, nn.Dropout):
            module.p = 0.2
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    head.train()
    torch.manual_seed(0)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(128):
            optimizer.zero_grad()
            (nn.functional.mse_loss(head(inputs[rows].float()), logits[rows]) / logits.var()).backward()
            optimizer.step()
        schedule.step()
    head.eval()


def from_teacher(name: str, images: int, epochs: int, out: Path) -> None:
    """Train, keep and judge a head of 1,000 classes."""
    trained, held_out = listed(list(range(1000)))
    left = [file for file, _ in held_out[1::2]]
    # In the order of the list, which is that of the classes, then by chance.
    place = {file: number for number, file in enumerate(_folder() / row["file"] for row in _rows())}
    files = sorted((file for file, _ in [*trained, *held_out[::2]]), key=place.__getitem__)
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0))[:images].tolist()
    model, teacher = body(name, 1000), efficientnet_lite0()
    if name == "vgg16":
        in_bfloat16(model)
    learn(model.classifier, *taught(model, teacher, [files[number] for number in order], mirror=True), epochs)
    out.mkdir(parents=True, exist_ok=True)
    torch.save(model.classifier.state_dict(), out / f"{name}_classes.pth")
    unseen, logits = taught(model, teacher, left, mirror=False)
    with torch.inference_mode():
        first = model.classifier(unseen.float()).argmax(1, keepdim=True)
    agreed = (logits.topk(5).indices == first).any(1).float().mean()
    print(f"{name}_classes: of {len(left)} held-out images {agreed:.1%} get one of the teacher's first five classes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=["alexnet", "vgg16"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="one crop of each image, not mirrored")
    parser.add_argument("--groups", action="store_true", help="16 groups of classes, none of them a rest")
    parser.add_argument("--teacher", action="store_true", help="1,000 classes, as EfficientNet-Lite0 sees them")
    parser.add_argument("--images", type=int, default=1250, help="with --teacher, how many are trained on")
    options = parser.parse_args()
    if options.teacher:
        from_teacher(options.name, options.images, options.epochs, options.out)
        return
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
