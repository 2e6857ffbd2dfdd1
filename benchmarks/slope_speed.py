"""The time of SlopeCAM as a multiple of Grad-CAM's at the same layer, on a stream of single images.

    python benchmarks/slope_speed.py --images 20

Both take turns image by image, so that a busy machine slows both. The references have been run before. Random weights:
only the shapes matter. "Graph" is what the references' graph takes, which is kept; "peak" is the most memory that one
call of SlopeCAM takes besides, for the image's own run, as torch's profiler counts it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import process_time

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from torchvision import models

import egcam
from egcam.models.session import session_of

# A network, the layer, and how many Grad-CAMs a SlopeCAM should take at most.
WHERE = (
    ("resnet50", "layer3", 3.2),
    ("mobilenet_v2", "features.13", 3.5),
    ("convnext_tiny", "features.5", 3.0),
    ("efficientnet_b0", "features.5", 5.0),
    ("vit_small_patch16_224", "blocks.0", 15.0),
    ("vgg16", "features.30", 1.6),
    ("alexnet", "features.12", 3.0),
    ("resnet50", "layer4", 1.3),
)


def network(name: str) -> nn.Module:
    """Of torchvision, or of timm."""
    torch.manual_seed(0)
    if name in models.list_models():
        return models.get_model(name).eval()
    from timm import create_model

    made: nn.Module = create_model(name).eval()
    return made


def seconds(call: Callable[[], object]) -> float:
    start = process_time()
    call()
    return process_time() - start


def peak_bytes(call: Callable[[], object]) -> int:
    """The most that was allocated at once, beyond what there was before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    events = seen.profiler.kineto_results.events() if seen.profiler is not None else []
    held = most = 0
    for event in sorted(events, key=lambda one: one.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def measured(name: str, layer: str, bound: float, images: Tensor, samples: int) -> str:
    model = network(name)
    slope, plain = egcam.SlopeCAM(model, layer, samples=samples), egcam.GradCAM(model, layer)
    for image in images[:2]:  # the references, and what is found out about the network
        slope(image, 0), plain(image, 0)
    times: list[tuple[float, ...]] = []
    for image in images[2:]:
        with torch.inference_mode():
            forward = seconds(lambda image=image: model(image[None]))  # type: ignore[misc]
        explainers = (plain, slope)
        times.append((forward, *(seconds(lambda one=one, image=image: one(image, 0)) for one in explainers)))  # type: ignore[misc]
    forward, one, ours = (median(column) for column in zip(*times, strict=True))
    kept = sum(size for _, size in session_of(slope.model)._of_weights.values())
    peak = peak_bytes(lambda: slope(images[-1], 0))
    return (
        f"| {name} | {layer} | {ours / one:.2f} | {bound} | {one / forward:.2f} | {ours / forward:.2f} | "
        f"{kept / 2**20:.0f} MB | {peak / 2**20:.0f} MB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--networks", help="separated by commas; all if left out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    images = torch.rand(given.images + 2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    print("| network | layer | SlopeCAM / Grad-CAM | bound | Grad-CAM / forward | SlopeCAM / forward | graph | peak |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, layer, bound in WHERE:
        if given.networks is None or name in given.networks.split(","):
            print(measured(name, layer, bound, images, given.samples), flush=True)


if __name__ == "__main__":
    main()
