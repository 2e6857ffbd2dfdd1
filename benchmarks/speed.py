"""Speed against peers, in multiples of one plain forward pass measured in the same run.

    python benchmarks/speed.py               # everything, about 20 minutes on two cores
    python benchmarks/speed.py --part cams   # one part: cams, sampled, ablation, score
    python benchmarks/speed.py --markdown docs/speed.md

Random weights serve: speed does not depend on them (but for Score-CAM, where trained networks have more channels that
are zero everywhere and so need fewer passes). Each figure is the median of interleaved repetitions.
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
from torch import Tensor, nn

import egcam

THREADS = 2
LAYERS = {"resnet50": "layer4", "vgg16": "features.30"}
LINES: list[str] = []


def say(line: str = "") -> None:
    print(line, flush=True)
    LINES.append(line)


def network(name: str) -> nn.Module:
    import torchvision

    torch.manual_seed(0)
    return torchvision.models.get_model(name, weights=None).eval()


def medians(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds for each call: one warm-up, then `repeats` rounds over all calls, medians."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


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
            explainer = egcam.registry.create(method, model, layer=LAYERS[name], signed=True)
            calls[f"egcam {method}"] = lambda explainer=explainer, images=images: explainer(images, target=5)
        calls |= peers(name, network(name), images)
        found = medians(calls, repeats)
        for call, seconds in found.items():
            say(f"| {name} | {call} | {seconds:.3f} | {seconds / found['plain forward']:.2f} |")
    say()


def part_sampled(repeats: int) -> None:
    say("## Sampled methods, one image, 224 px, 16 samples or steps\n")
    say("`needed` is the number of forward passes the definition needs, `made` the number made; the multiple is the")
    say("time over that of `needed` plain forward passes, run in batches of the same size.\n")
    say("| network | method | needed | made | seconds | multiple |\n|---|---|---|---|---|---|")
    count = 16
    for name in LAYERS:
        model = network(name)
        image = torch.rand(1, 3, 224, 224)
        options = {"layer": LAYERS[name], "signed": True}
        explainers = {
            "expected-grad-cam": egcam.ExpectedGradCAM(model, reference="black", samples=count, **options),
            "integrated-grad-cam": egcam.IntegratedGradCAM(model, steps=count, **options),
            "smooth-grad-cam++": egcam.SmoothGradCAMPlusPlus(model, samples=count, **options),
        }
        needed = {"expected-grad-cam": count + 1, "integrated-grad-cam": count + 2, "smooth-grad-cam++": count + 1}
        size = explainers["expected-grad-cam"]._images_at_once(
            image, explainers["expected-grad-cam"]._points, egcam.models.inputs.ExtraInputs(1)
        )
        batches = [torch.rand(1, 3, 224, 224), *torch.rand(count, 3, 224, 224).split(size)]

        def plain(model: nn.Module = model, batches: list[Tensor] = batches) -> None:
            with torch.no_grad():
                for batch in batches:
                    model(batch)

        calls: dict[str, Callable[[], object]] = {"plain": plain}
        for method, explainer in explainers.items():
            calls[method] = lambda explainer=explainer, image=image: explainer(image, target=5)
        found = medians(calls, repeats)
        one = found["plain"] / (count + 1)
        for method, explainer in explainers.items():
            made = explainer(image, target=5).passes
            ratio = found[method] / (one * needed[method])
            say(f"| {name} | {method} | {needed[method]} | {made} | {found[method]:.2f} | {ratio:.2f} |")
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


SCORE_CALLS = {
    "egcam": "egcam.ScoreCAM(model, layer)(image, target=5)",
    "pytorch-grad-cam": "pytorch_grad_cam.ScoreCAM(model=model, target_layers=[model.get_submodule(layer)])("
    "input_tensor=image, targets=[ClassifierOutputTarget(5)])",
    "torchcam": "torchcam_score()",
}


def score_child(library: str, name: str) -> None:
    """Run Score-CAM once in a process of its own and print seconds and peak memory above the loaded model."""
    import resource

    import psutil
    import pytorch_grad_cam
    import torchcam.methods
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget

    torch.set_num_threads(THREADS)
    layer, model = LAYERS[name], network(name)
    image = torch.rand(1, 3, 224, 224)

    def torchcam_score() -> object:
        with torchcam.methods.ScoreCAM(model, target_layer=layer, batch_size=16) as extractor, torch.no_grad():
            return extractor(5, model(image))

    with torch.no_grad():
        model(image)
    before = psutil.Process().memory_info().rss
    names = {
        "egcam": egcam,
        "pytorch_grad_cam": pytorch_grad_cam,
        "ClassifierOutputTarget": ClassifierOutputTarget,
    }
    start = time.perf_counter()
    eval(
        SCORE_CALLS[library],
        {**names, "model": model, "image": image, "layer": layer, "torchcam_score": torchcam_score},
    )
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "peak": max(0, peak - before)}))


def part_score(repeats: int) -> None:
    say("## Score-CAM, one image, 224 px, each run in a process of its own\n")
    say("| network | library | seconds | peak memory above the loaded model, MB |\n|---|---|---|---|")
    for name in LAYERS:
        for library in SCORE_CALLS:
            runs = []
            for _ in range(repeats):
                command = [sys.executable, __file__, "--score-child", library, name]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs.append(json.loads(done.stdout.strip().splitlines()[-1]))
            seconds = statistics.median(run["seconds"] for run in runs)
            peak = statistics.median(run["peak"] for run in runs)
            say(f"| {name} | {library} | {seconds:.1f} | {peak / 2**20:.0f} |")
    say()


PARTS = {"cams": part_cams, "sampled": part_sampled, "ablation": part_ablation, "score": part_score}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=list(PARTS), action="append", help="only this part (may be repeated)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--markdown", type=Path, help="also write the report here")
    parser.add_argument("--score-child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.score_child:
        score_child(*arguments.score_child)
        return
    torch.set_num_threads(THREADS)
    say("# Speed\n")
    say(f"torch {torch.__version__}, {THREADS} threads, {platform.machine()}, made by `python benchmarks/speed.py`.\n")
    for part in arguments.part or PARTS:
        PARTS[part](1 if part == "score" else arguments.repeats)
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(LINES) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
