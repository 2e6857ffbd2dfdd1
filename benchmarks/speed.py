"""Speed against peers, in multiples of one plain forward pass measured in the same run.

    python benchmarks/speed.py               # everything, about 20 minutes on two cores
    python benchmarks/speed.py --part cams   # one part: cams, memory, ablation, score
    python benchmarks/speed.py --markdown docs/speed.md

Random weights serve: speed does not depend on them (but for Score-CAM, where trained networks have more channels that
are zero everywhere and so need fewer passes). Calls take turns; each figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from peak_memory import peak_memory
from torch import Tensor, nn

import egcam

THREADS = 2
LAYERS = {"resnet50": "layer4", "vgg16": "features.30"}
PEERS = ("captum LayerGradCam", "torchcam GradCAM", "pytorch-grad-cam GradCAM")
LINES: list[str] = []


def say(line: str = "") -> None:
    print(line, flush=True)
    LINES.append(line)


def network(name: str) -> nn.Module:
    import torchvision

    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None).eval()


def medians(calls: dict[str, Callable[[], object]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds for each call, and its multiple of the first call in the same round: medians over rounds."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    first = times[next(iter(times))]
    ratios = {
        name: statistics.median(value / base for value, base in zip(values, first, strict=True))
        for name, values in times.items()
    }
    return {name: statistics.median(values) for name, values in times.items()}, ratios


def plain_forward(model: nn.Module, images: Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.no_grad():
            return model(images)

    return run


def peers(name: str, model: nn.Module, images: Tensor) -> dict[str, Callable[[], object]]:
    """Grad-CAM of the three other libraries, as their documentation calls it."""
    import pytorch_grad_cam
    import torchcam.methods
    from captum.attr import LayerGradCam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    layer = model.get_submodule(LAYERS[name])
    targets = [ClassifierOutputTarget(5)] * len(images)
    theirs = pytorch_grad_cam.GradCAM(model=model, target_layers=[layer])
    captum = LayerGradCam(model, layer)

    def with_torchcam() -> object:
        with torchcam.methods.GradCAM(model, target_layer=LAYERS[name]) as extractor:
            return extractor([5] * len(images), model(images))

    return {
        "captum LayerGradCam": lambda: captum.attribute(images, target=5),
        "torchcam GradCAM": with_torchcam,
        "pytorch-grad-cam GradCAM": lambda: theirs(input_tensor=images, targets=targets),
    }


def part_cams(repeats: int) -> None:
    say("## Gradient CAMs, batch 8, 224 px\n")
    say("| network | call | seconds | multiple of one no_grad forward |\n|---|---|---|---|")
    for name in LAYERS:
        images = torch.rand(8, 3, 224, 224)
        model = network(name)
        calls: dict[str, Callable[[], object]] = {"plain forward": plain_forward(model, images)}
        for method in ("grad-cam", "grad-cam++", "xgrad-cam", "hires-cam", "layer-cam"):
            explainer = egcam.attribution.registry.create(method, model, layer=LAYERS[name], signed=True)
            calls[f"egcam {method}"] = lambda explainer=explainer, images=images: explainer(images, target=5)
        calls |= peers(name, network(name), images)
        found, ratios = medians(calls, repeats)
        for call, seconds in found.items():
            say(f"| {name} | {call} | {seconds:.3f} | {ratios[call]:.2f} |")
    say()


def part_ablation(repeats: int) -> None:
    import pytorch_grad_cam
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    say("## Ablation-CAM, one image, ResNet-50 at layer4 (2,048 channels)\n")
    image = torch.rand(1, 3, 224, 224)
    model = network("resnet50")
    ours = egcam.AblationCAM(model, "layer4", signed=True)
    ours(image, target=5)
    start = time.perf_counter()
    for _ in range(repeats):
        found = ours(image, target=5)
    own_seconds = (time.perf_counter() - start) / repeats
    other = network("resnet50")
    theirs = pytorch_grad_cam.AblationCAM(model=other, target_layers=[other.layer4], batch_size=32)
    start = time.perf_counter()
    their_map = theirs(input_tensor=image, targets=[ClassifierOutputTarget(5)])[0]
    their_seconds = time.perf_counter() - start
    same = same_map(found.maps[0].relu(), torch.from_numpy(their_map))
    say("| library | seconds |\n|---|---|")
    say(f"| egcam | {own_seconds:.2f} |\n| pytorch-grad-cam | {their_seconds:.1f} |\n")
    say(f"{their_seconds / own_seconds:.0f} times faster; correlation of the two heat maps {same:.6f}\n")


def same_map(ours: Tensor, theirs: Tensor) -> float:
    """Correlation of our map, brought to their size as they do it, with their heat map."""
    large = nn.functional.interpolate(ours[None, None], size=theirs.shape, mode="bilinear", align_corners=False)[0, 0]
    return float(torch.corrcoef(torch.stack([large.flatten(), theirs.float().flatten()]))[0, 1])


def in_own_process(library: str, kind: str, name: str) -> dict[str, float]:
    """Seconds and peak memory above the loaded model of one call, in a process that does nothing else."""
    command = [sys.executable, __file__, "--child", library, kind, name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def child(library: str, kind: str, name: str) -> None:
    """The other side of `in_own_process`."""
    import psutil

    torch.set_num_threads(THREADS)
    model = network(name)
    images = torch.rand(1 if kind == "score" else 8, 3, 224, 224)
    call = (score_calls if kind == "score" else grad_calls)(name, model, images)[library]
    with torch.no_grad():
        model(images[:1])
    before = psutil.Process().memory_info().rss
    start = time.perf_counter()
    call()
    seconds = time.perf_counter() - start
    peak = peak_memory()
    print(json.dumps({"seconds": seconds, "megabytes": max(0, peak - before) / 2**20}))


def score_calls(name: str, model: nn.Module, image: Tensor) -> dict[str, Callable[[], object]]:
    import pytorch_grad_cam
    import torchcam.methods
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    layer = LAYERS[name]

    def with_torchcam() -> object:
        with torchcam.methods.ScoreCAM(model, target_layer=layer, batch_size=16) as extractor, torch.no_grad():
            return extractor(5, model(image))

    theirs = pytorch_grad_cam.ScoreCAM(model=model, target_layers=[model.get_submodule(layer)])
    return {
        "egcam": lambda: egcam.ScoreCAM(model, layer)(image, target=5),
        "pytorch-grad-cam": lambda: theirs(input_tensor=image, targets=[ClassifierOutputTarget(5)]),
        "torchcam": with_torchcam,
    }


def grad_calls(name: str, model: nn.Module, images: Tensor) -> dict[str, Callable[[], object]]:
    def plain() -> None:
        with torch.no_grad():
            model(images)

    return {
        "plain forward": plain,
        "egcam grad-cam": lambda: egcam.GradCAM(model, LAYERS[name], signed=True)(images, target=5),
        **peers(name, model, images),
    }


def part_memory(repeats: int) -> None:
    say("## Memory of Grad-CAM, batch 8, 224 px, each run in a process of its own\n")
    say("| network | call | peak memory above the loaded model, MB |\n|---|---|---|")
    for name in LAYERS:
        for library in ("plain forward", "egcam grad-cam", *PEERS):
            megabytes = statistics.median(in_own_process(library, "grad", name)["megabytes"] for _ in range(repeats))
            say(f"| {name} | {library} | {megabytes:.0f} |")
    say()


def part_score(repeats: int) -> None:
    say("## Score-CAM, one image, 224 px, each run in a process of its own\n")
    say("| network | library | seconds | peak memory above the loaded model, MB |\n|---|---|---|---|")
    for name in LAYERS:
        for library in ("egcam", "pytorch-grad-cam", "torchcam"):
            runs = [in_own_process(library, "score", name) for _ in range(repeats)]
            seconds = statistics.median(run["seconds"] for run in runs)
            megabytes = statistics.median(run["megabytes"] for run in runs)
            say(f"| {name} | {library} | {seconds:.1f} | {megabytes:.0f} |")
    say()


PARTS = {
    "cams": part_cams,
    "memory": part_memory,
    "ablation": part_ablation,
    "score": part_score,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), action="append", help="only this part (may be repeated)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--markdown", type=Path, help="also write the report here")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(*arguments.child)
        return
    torch.set_num_threads(THREADS)
    say("# Speed\n")
    say(f"torch {torch.__version__}, {THREADS} threads, {platform.machine()}, made by `python benchmarks/speed.py`.\n")
    for part in arguments.part or PARTS:
        PARTS[part](1 if part in ("score", "memory") else arguments.repeats)
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(LINES) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
