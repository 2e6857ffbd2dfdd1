"""The presets are the paper's tables, and they run: on tiny data, with random weights and few perturbations."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from egcam.attribution import references, registry
from egcam.attribution.references import by_name
from egcam.studies.config import StudyError, read_study
from egcam.studies.preset_files import preset, presets
from egcam.studies.runner import run_study
from egcam.studies.specs import MetricSpec
from support.tiny_study import InProcess

NINE = [
    "grad-cam",
    "grad-cam++",
    "smooth-grad-cam++",
    "integrated-grad-cam",
    "hires-cam",
    "xgrad-cam",
    "layer-cam",
    "score-cam",
    "ablation-cam",
]
LAYERS = {"vgg16": "features.30", "resnet50": "layer4", "alexnet": "features.12"}
ALL = ["vgg16", "resnet50", "alexnet"]
PAPER = {
    "paper-faithfulness": ("imagenet", 5000, ALL, ["insertion", "deletion", "insertion-deletion"]),
    "paper-main": (
        "imagenet",
        500,
        ["vgg16"],
        [
            "pixel-flipping",
            "sufficiency",
            "infidelity",
            "local-lipschitz",
            "max-sensitivity",
            "avg-sensitivity",
            "complexity",
            "sparseness",
            "faithfulness-estimate",
            "irof",
        ],
    ),
    "paper-localization": (
        "coco",
        500,
        ALL,
        ["attribution-localization", "top-k-intersection", "relevance-rank-accuracy", "relevance-mass-accuracy"],
    ),
    "paper-stability": (
        "imagenet",
        500,
        ["vgg16", "resnet50"],
        ["relative-input-stability", "relative-output-stability"],
    ),
    "paper-infidelity": ("cifar10", 500, ALL, ["infidelity"]),
    "paper-runtime": ("cifar10", 100, ["vgg16"], ["running-time"]),
}


@pytest.mark.parametrize("name", PAPER)
def test_a_preset_is_the_papers_table(name):
    kind, images, models, metrics = PAPER[name]
    study = read_study(preset(name))
    assert study.name == name
    assert (study.data.kind, study.data.images) == (kind, images)
    assert [(model.name, model.layer, model.weights) for model in study.models] == [
        (model, LAYERS[model], None) for model in models
    ]
    assert [method.name for method in study.methods] == ["slope-cam", "expected-grad-cam", *NINE]
    assert all(method.method == method.name for method in study.methods)
    assert [method.options for method in study.methods if method.options] == [{"reference": "usual"}]
    assert [metric.name for metric in study.metrics] == metrics
    assert study.protocol == "paper"


def test_details_of_presets():
    infidelity = read_study(preset("paper-infidelity"))
    assert infidelity.data.size == 96
    assert infidelity.metrics[0].options == {"patch": 32}
    localization = read_study(preset("paper-localization"))
    assert localization.data.options["classes"] == ["zebra", "stop sign"]
    assert localization.target == "label"
    assert read_study(preset("paper-runtime")).metrics[0].options["repeats"] == 1


GUESSES = {
    "paper-main": ["target =", "protocol =", "images =", "pixel flipping (55 to 62"],
    "paper-faithfulness": ["target =", "library of IROF"],
    "paper-localization": ["target =", "path =", "images ="],
    "paper-stability": ["target =", "leaves Integrated Grad-CAM, HiResCAM and Ablation-CAM out"],
    "paper-infidelity": ["target =", "divided by 1e7, 1e8 or 1e9"],
    "paper-runtime": ["target =", "size =", "warmup =", "repeats =", "order of the paper's times"],
}


@pytest.mark.parametrize("name", PAPER)
def test_every_guess_is_marked_in_the_file(name):
    marked = [line for line in preset(name).splitlines() if "guess" in line]
    for what in ["source =", "count =", "over how many samples", *GUESSES[name]]:
        assert any(what in line for line in marked), what


def test_the_numbers_of_samples_the_files_name_are_those_of_the_methods():
    text = preset("paper-runtime")
    assert "16 for both\n# forms of SlopeCAM, 25 noisy copies for Smooth Grad-CAM++, 50 path points" in text
    assert "`expected-grad-cam` takes 33 passes, more than Smooth (26), fewer than Integrated Grad-CAM (52)" in text
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    image, pool = torch.rand(1, 3, 8, 8), references.Images(torch.rand(80, 3, 8, 8))

    def passes(name, **options):
        return registry.create(name, net, **options)(image, 0).passes

    named = (passes("expected-grad-cam", reference=pool), passes("smooth-grad-cam++"), passes("integrated-grad-cam"))
    assert named == (33, 26, 52)
    # 0.115 s over 0.006 s.
    assert passes("expected-grad-cam", reference=pool, samples=9) == round(0.115 / 0.006) == 19


@pytest.mark.parametrize("name", presets())
def test_the_default_is_measured_as_people_get_it(name):
    """Its own references, whatever the other forms compare with."""
    study = read_study(preset(name))
    usual = registry.create("slope-cam", nn.Identity()).reference.description
    of_method = {one.method: one.options.get("reference", study.reference.source) for one in study.methods}
    assert by_name(of_method["slope-cam"]).description == usual
    if "expected-grad-cam" in of_method:
        assert of_method["expected-grad-cam"] == "data"


def test_the_head_says_what_it_costs():
    head = preset("paper-stability", images=20).splitlines()[:4]
    assert head[1] == "# 20 images x 2 models x 11 methods = 440 units."
    assert head[2] == "# How long that takes here:  egcam study estimate STUDY.toml"


def test_data_can_be_named_beforehand(tmp_path):
    text = preset("paper-faithfulness", data='odd "path"', annotations="a.csv", images=7)
    data = read_study(text, tmp_path).data
    assert data.path == str(tmp_path / 'odd "path"')
    assert data.options["annotations"] == str(tmp_path / "a.csv")
    assert data.images == 7


def test_an_unknown_preset():
    with pytest.raises(StudyError, match="there is no preset 'paper-man'; did you mean 'paper-main'"):
        preset("paper-man")
    with pytest.raises(StudyError, match="there is no preset"):
        preset("../../secrets")
    assert set(presets()) == {*PAPER, "own-images"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two images of each kind of data, in its own layout."""
    root = tmp_path_factory.mktemp("data")
    source = np.random.default_rng(0)

    def picture(size):
        pixels = source.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)

    for wnid in ("n01440764", "n02391049"):
        (root / "ILSVRC2012" / wnid).mkdir(parents=True)
        for number in range(2):
            picture((260, 240)).save(root / "ILSVRC2012" / wnid / f"{number}.jpg")
    np.savez(root / "cifar.npz", x=source.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8), y=np.arange(4))
    (root / "coco").mkdir()
    content = {
        "categories": [{"id": 24, "name": "zebra"}, {"id": 13, "name": "stop sign"}],
        "images": [],
        "annotations": [],
    }
    for number, category in enumerate((24, 13, 24, 13), 1):
        picture((300, 260)).save(root / "coco" / f"{number}.jpg")
        content["images"].append({"id": number, "file_name": f"{number}.jpg", "width": 300, "height": 260})
        box = [100, 80, 200, 80, 200, 180, 100, 180]
        content["annotations"].append(
            {"id": number, "image_id": number, "category_id": category, "segmentation": [box], "iscrowd": 0}
        )
    (root / "instances.json").write_text(json.dumps(content))
    return root


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPER)
def test_a_preset_runs_with_its_own_networks(data, tmp_path, name):
    pytest.importorskip("torchvision", reason="the paper's networks come from torchvision")
    where = {"imagenet": "ILSVRC2012", "cifar10": "cifar.npz", "coco": "coco"}[PAPER[name][0]]
    annotations = str(data / "instances.json") if where == "coco" else None
    study = read_study(preset(name, data=str(data / where), annotations=annotations, images=2))
    assert {method.name for method in study.methods} >= {"grad-cam", "layer-cam"}
    # One preset has all three networks; making VGG-16 takes seconds, so the others do with their last.
    models = study.models if name == "paper-faithfulness" else study.models[-1:]
    few = {"step": 1024, "samples": 1, "n_segments": 4}
    study = replace(
        study,
        data=replace(study.data, size=96),  # the least that leaves AlexNet's last layer a map
        models=tuple(replace(model, weights="random") for model in models),
        methods=tuple(method for method in study.methods if method.name in ("grad-cam", "layer-cam")),
        metrics=tuple(MetricSpec(one.name, {**one.options, **_taken(one.name, few)}) for one in study.metrics),
        reference=replace(study.reference, count=2),
    )
    results = run_study(study, tmp_path / "out", engine=InProcess())
    assert not results.failures
    assert {label: record.layer for label, record in results.source.manifest.models.items()} == {
        model.name: LAYERS[model.name] for model in models
    }
    for table in results.tables.values():
        assert len(table.rows) == 2 * 2 * len(study.metrics)
        # Random weights can give a zero map, which has no score; then the table says so. No other cause is allowed.
        assert all(np.isfinite(row.value) or "zero" in row.cause for row in table.rows), table.rows


def _taken(metric, options):
    from egcam.metrics.registry import metric as called

    return {key: value for key, value in options.items() if key in called(metric).options()}
