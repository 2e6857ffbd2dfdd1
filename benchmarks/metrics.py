"""Our metrics beside Quantus 0.6.0 and torchcam, in one run: same network, images, maps and settings.

    python benchmarks/metrics.py [--images 2] [--threads 1] [--quick]

Times are CPU seconds (all threads), the best of alternating runs in one process, so that other work on the machine
does not decide. Each library is called as its users call it: Quantus with arrays and its own batching over images,
ours with tensors.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from time import process_time

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from egcam import metrics
from egcam.evaluation.evaluate import evaluate

QUIET = {"disable_warnings": True, "display_progressbar": False}


class Counting(nn.Module):
    """Counts the images a network is shown."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.seen = inner, 0

    def forward(self, images: Tensor) -> Tensor:
        """Count and pass on."""
        self.seen += len(images)
        return self.inner(images)


def grad_cam(network: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """One Grad-CAM for both sides, so that only the metrics differ."""
    head = nn.Sequential(network.avgpool, nn.Flatten(), network.fc)
    body = nn.Sequential(*list(network.children())[:-2])

    def explain(images: Tensor, target: Tensor) -> Tensor:
        with torch.no_grad():
            features = body(images)
        features.requires_grad_()
        with torch.enable_grad():
            score = head(features).gather(1, torch.as_tensor(target)[:, None]).sum()
        gradient = torch.autograd.grad(score, features)[0]
        maps = (gradient.mean((2, 3), keepdim=True) * features).sum(1, keepdim=True).relu().detach()
        maps = functional.interpolate(maps, images.shape[-2:], mode="bilinear")[:, 0]
        return maps / maps.amax((1, 2), keepdim=True).clamp(min=1e-12)

    return explain


def uniform(arr: np.ndarray, indices: np.ndarray, **_: object) -> np.ndarray:
    """U(-0.2, 0.2) on every pixel, for Quantus."""
    return arr + np.random.default_rng().uniform(-0.2, 0.2, arr.shape)


def seconds(*runs: Callable[[], object], repeats: int) -> list[float]:
    """The least CPU time of each run, taken in turns."""
    taken: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for place, run in enumerate(runs):
            start = process_time()
            run()
            taken[place].append(process_time() - start)
    return [min(one) for one in taken]


def line(name: str, ours: float, theirs: float, wanted: float, note: str = "") -> bool:
    ratio = theirs / ours
    verdict = "ok" if ratio >= wanted else "BELOW"
    print(f"| {name} | {ours:.4f} | {theirs:.4f} | {ratio:.1f}x | {wanted:g}x | {verdict} | {note} |", flush=True)
    return ratio >= wanted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="larger steps: the same comparison in a minute or two")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    import quantus
    from torchvision.models import resnet18

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    network = resnet18(weights=None).eval()
    images = torch.randn(options.images, 3, 224, 224)
    with torch.no_grad():
        target = network(images).argmax(1)
    explain = grad_cam(network)
    maps = explain(images, target)
    masks = torch.zeros(options.images, 224, 224, dtype=torch.bool)
    masks[:, 60:160, 70:170] = True
    x, y, a, s = (value.numpy() for value in (images, target, maps[:, None], masks[:, None]))

    def ask(metric: Callable[..., object], **more: object) -> Callable[[], object]:
        return lambda: metric(model=network, x_batch=x, y_batch=y, a_batch=a.copy(), s_batch=s, device="cpu", **more)

    def quantus_explain(model: nn.Module, inputs: np.ndarray, targets: np.ndarray, **_: object) -> np.ndarray:
        return explain(torch.as_tensor(inputs).float(), torch.as_tensor(targets))[:, None].numpy()

    step = 1792 if options.quick else 224
    passed = []
    print(f"ResNet-18, 224 px, {options.images} image(s), {options.threads} thread(s), step {step}")
    print("| metric | ours, CPU s | theirs, CPU s | faster | wanted | | note |")
    print("|---|---:|---:|---:|---:|---|---|")

    once = 1
    with torch.no_grad():
        network(images), network(images[:1].expand(8, -1, -1, -1))
    flip = quantus.PixelFlipping(features_in_step=step, **QUIET)
    ours, theirs = seconds(
        lambda: metrics.PixelFlipping(step=step)(network, images, maps, target), ask(flip), repeats=once
    )
    passed.append(line("pixel flipping", ours, theirs, 3, "Quantus flips channels one by one: 3x the passes"))
    estimate = quantus.FaithfulnessEstimate(features_in_step=step, **QUIET)
    ours, theirs = seconds(
        lambda: metrics.FaithfulnessEstimate(step=step)(network, images, maps, target), ask(estimate), repeats=once
    )
    passed.append(line("faithfulness estimate", ours, theirs, 3, "the same"))

    for repeats, wanted in ((10, 10.0), (1, 1.0)):
        infidelity = quantus.Infidelity(perturb_patch_sizes=[56], n_perturb_samples=repeats, **QUIET)
        ours, theirs = seconds(
            lambda: metrics.Infidelity(patch=56)(network, images, maps, target), ask(infidelity), repeats=2
        )
        note = "Quantus's default of 10 samples repeats the same patches" if repeats > 1 else "one sample each"
        passed.append(line(f"infidelity, n_perturb_samples={repeats}", ours, theirs, wanted, note))

    samples = 10
    five = [
        quantus.LocalLipschitzEstimate,
        quantus.MaxSensitivity,
        quantus.AvgSensitivity,
        quantus.RelativeInputStability,
        quantus.RelativeOutputStability,
    ]
    names = [name for name in metrics.names() if metrics.metric(name).group == "robustness"]
    alike = metrics.Noise("uniform", -0.2, 0.2)
    for shared in (True, False):
        given = {"perturb_func": uniform} if shared else {}
        asked = [ask(one(nr_samples=samples, **given, **QUIET), explain_func=quantus_explain) for one in five]
        settings = {name: {"samples": samples, **({"noise": alike} if shared else {})} for name in names}
        ours, theirs = seconds(
            lambda settings=settings: evaluate(
                network, images, {"grad-cam": explain}, names, target=target, metric_options=settings
            ),
            lambda asked=asked: [run() for run in asked],
            repeats=once,
        )
        note = "one noise for all five" if shared else "each its default noise: two sets of explanations"
        passed.append(line("five robustness metrics", ours, theirs, 3, f"{samples} perturbations, {note}"))

    many = 9
    cheap: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "complexity": (lambda: metrics.Complexity()(maps), ask(quantus.Complexity(**QUIET))),
        "sparseness": (lambda: metrics.Sparseness()(maps), ask(quantus.Sparseness(**QUIET))),
        "attribution localization": (
            lambda: metrics.AttributionLocalization()(maps, masks),
            ask(quantus.AttributionLocalisation(**QUIET)),
        ),
        "top-k intersection": (
            lambda: metrics.TopKIntersection()(maps, masks),
            ask(quantus.TopKIntersection(k=1000, **QUIET)),
        ),
        "relevance rank accuracy": (
            lambda: metrics.RelevanceRankAccuracy()(maps, masks),
            ask(quantus.RelevanceRankAccuracy(**QUIET)),
        ),
        "relevance mass accuracy": (
            lambda: metrics.RelevanceMassAccuracy()(maps, masks),
            ask(quantus.RelevanceMassAccuracy(**QUIET)),
        ),
    }
    for name, (mine, quantus_run) in cheap.items():
        mine()
        ours, theirs = seconds(mine, quantus_run, repeats=many)
        passed.append(line(name, ours, theirs, 20))

    passed.append(against_torchcam(network, images, maps, target, once))
    print()
    passed.append(model_passes(network, images, maps, target, explain))
    return 0 if all(passed) else 1


class FixedMaps:
    """As much of a torchcam extractor as its metric uses, around maps that are given."""

    def __init__(self, model: nn.Module, maps: Tensor) -> None:
        self.model, self.maps = model, maps

    def __call__(self, *_: object, **__: object) -> list[Tensor]:
        """The maps."""
        return [self.maps]

    def fuse_cams(self, maps: list[Tensor]) -> Tensor:
        """There is one layer only."""
        return maps[0]

    def _hooks_off(self) -> torch.no_grad:
        return torch.no_grad()


def against_torchcam(network: nn.Module, images: Tensor, maps: Tensor, target: Tensor, repeats: int) -> bool:
    """Both curves with torchcam's settings: 20 steps, one zero baseline for both."""
    from torchcam.metrics import DeletionInsertionMetric

    step = -(-maps[0].numel() // 20)
    theirs_metric = DeletionInsertionMetric(FixedMaps(network, maps), lambda out: out.softmax(1), steps=20)

    def theirs() -> None:
        with torch.no_grad():
            theirs_metric.update(images, target.tolist())

    def ours() -> Tensor:
        return metrics.InsertionDeletion(step=step, insertion_baseline="zero")(network, images, maps, target)

    mine, other = seconds(ours, theirs, repeats=3 * repeats)
    return line("insertion and deletion, torchcam", mine, other, 0.95, "20 steps; no slower within 5 %")


def model_passes(
    network: nn.Module, images: Tensor, maps: Tensor, target: Tensor, explain: Callable[[Tensor, Tensor], Tensor]
) -> bool:
    """Images shown to the network against what the definition needs, unaltered image included."""
    count, step = len(images), 3584
    steps = 224 * 224 // step
    needed = {
        "faithfulness_estimate": 1 + steps,
        "pixel_flipping": 1 + steps,
        "insertion": 1 + steps,
        "deletion": 1 + steps,
        "insertion_deletion": 1 + 2 * steps,
        "infidelity": 1 + 16,
        "relative_output_stability": 1 + 5,
    }
    print("| metric | passes per image | needed |")
    print("|---|---:|---:|")
    fine = True
    for name, wanted in needed.items():
        counting = Counting(network).eval()
        options = {} if name in ("infidelity", "relative_output_stability") else {"step": step}
        of_what = explain if name == "relative_output_stability" else maps
        metrics.metric(name).made(**options)(counting, images, of_what, target)
        print(f"| {name} | {counting.seen / count:g} | {wanted} |")
        fine &= counting.seen <= 1.05 * wanted * count
    return fine


if __name__ == "__main__":
    sys.exit(main())
