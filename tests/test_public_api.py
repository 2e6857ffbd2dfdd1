"""The names users rely on: a change here is a change of the interface, and is meant to be seen."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import egcam
from egcam.attribution.explainer import Common

SNAPSHOT = Path(__file__).with_name("public_names.txt")
METHODS = {
    "cam": "CAM",
    "grad-cam": "GradCAM",
    "grad-cam++": "GradCAMPlusPlus",
    "smooth-grad-cam++": "SmoothGradCAMPlusPlus",
    "integrated-grad-cam": "IntegratedGradCAM",
    "hires-cam": "HiResCAM",
    "xgrad-cam": "XGradCAM",
    "layer-cam": "LayerCAM",
    "score-cam": "ScoreCAM",
    "ablation-cam": "AblationCAM",
    "attention-relevance": "AttentionRelevance",
    "attention-rollout": "AttentionRollout",
    "slope-cam": "SlopeCAM",
    "expected-grad-cam": "ExpectedGradCAM",
    "input-gradient": "InputGradient",
    "smooth-grad": "SmoothGrad",
    "integrated-gradients": "IntegratedGradients",
    "expected-gradients": "ExpectedGradients",
    "eigen-cam": "EigenCAM",
    "kpca-cam": "KPCACAM",
    "shapley-cam": "ShapleyCAM",
    "ss-cam": "SSCAM",
    "is-cam": "ISCAM",
    "eigen-grad-cam": "EigenGradCAM",
    "finer-cam": "FinerCAM",
    "guided-backprop": "GuidedBackprop",
    "guided-grad-cam": "GuidedGradCAM",
    "full-grad": "FullGrad",
    "occlusion": "Occlusion",
    "rise": "RISE",
    "lrp": "LRP",
    "lime": "LIME",
    "kernel-shap": "KernelSHAP",
    "superpixel-shapley": "SuperpixelShapley",
}
HEAVY = (
    "torchvision",
    "timm",
    "transformers",
    "matplotlib",
    "pandas",
    "pydantic",
    "skimage",
    "captum",
    "zennit",
    "sklearn",
    "typer",
    "rich",
    "efficientnet_lite_pytorch",
)


def parameters(thing: object) -> list[str]:
    """The parameter names of a callable, the options all explainers share written as `**common`."""
    found = inspect.signature(thing).parameters.values()
    return [f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name for one in found]


def public_names() -> list[str]:
    lines = []
    for name in sorted(egcam.__all__):
        thing = getattr(egcam, name)
        described = inspect.isclass(thing) and not issubclass(thing, Exception)
        lines.append(f"{name}({', '.join(parameters(thing))})" if described or inspect.isfunction(thing) else name)
    lines.append(f"common: {', '.join(Common.__annotations__)}")
    lines.append(f"Explainer.__call__({', '.join(parameters(egcam.Explainer.__call__))})")
    lines.append(f"Explainer.stream({', '.join(parameters(egcam.Explainer.stream))})")
    public = sorted(name for name in dir(egcam.Explanation) if not name.startswith("_"))
    lines.append(f"Explanation: {', '.join(public)}")
    lines.extend(f"method {name}" for name in sorted(egcam.methods()))
    for name in sorted(egcam.__all__):
        if inspect.ismodule(getattr(egcam, name)):
            lines.extend(members_of(name))
    return lines


def members_of(module: str) -> list[str]:
    """What a public module shows: its functions and classes with their parameters, exceptions by name."""
    lines = []
    offered = vars(getattr(egcam, module))
    for name in sorted(offered.get("__all__", offered)):
        thing = offered.get(name)
        own = getattr(thing, "__module__", "").startswith("egcam") and not name.startswith("_")
        if own and (inspect.isclass(thing) or inspect.isfunction(thing)):
            is_plain = inspect.isclass(thing) and issubclass(thing, Exception)
            lines.append(f"{module}.{name}" + ("" if is_plain else f"({', '.join(parameters(thing))})"))
    return lines


def test_the_public_names_are_those_written_down():
    """To accept a change on purpose: python tests/test_public_api.py"""
    assert public_names() == SNAPSHOT.read_text(encoding="utf-8").splitlines()


def test_the_registered_methods():
    assert set(egcam.methods()) == set(METHODS)
    assert len(egcam.methods()) == len(METHODS)


@pytest.mark.parametrize(("name", "kind"), METHODS.items())
def test_methods_by_name_are_their_classes(name, kind):
    from support.small_models import small_net

    assert type(egcam.attribution.registry.create(name, small_net())) is getattr(egcam, kind)


@pytest.mark.parametrize("name", [*METHODS.values(), "Vanilla", "Smooth", "Integrated", "Expected", "Explanation"])
def test_the_promised_classes_are_public_and_say_what_they_are(name):
    assert name in egcam.__all__
    assert inspect.getdoc(getattr(egcam, name))


def test_everything_public_is_there():
    for name in egcam.__all__:
        assert hasattr(egcam, name)
    with pytest.raises(AttributeError, match="GradKAM"):
        _ = egcam.GradKAM


def test_importing_and_explaining_bring_in_nothing_optional():
    script = f"""
import sys, torch
from torch import nn
before = set(sys.modules)
def heavy():
    return sorted({{name.split(".")[0] for name in set(sys.modules) - before}} & set({HEAVY!r}))
import egcam
print(heavy())
net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3))
for method in egcam.methods():
    if method.startswith("attention-") or egcam.attribution.registry.method(method).package:
        continue
    egcam.explain(net, torch.rand(1, 1, 8, 8), method, signed=True).heatmaps
print(heavy())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(public_names()) + "\n", encoding="utf-8")
