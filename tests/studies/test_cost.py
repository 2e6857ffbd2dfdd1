"""The passes a study announces are those it makes."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from egcam.attribution import registry
from egcam.evaluation.evaluate import evaluate
from egcam.metrics.registry import records
from egcam.studies.config import load_study
from egcam.studies.cost import estimated, image_passes, study_passes, unit_passes, usual_passes
from egcam.studies.networks import NetworkFacts, describe_networks
from egcam.studies.records import Unit
from egcam.studies.specs import DataSpec, MethodSpec, MetricSpec, ModelSpec, Study
from egcam.studies.worker import UnitWorker
from support.small_models import METHODS, PEERS
from support.tiny_study import STUDY, write_study

CHANNELS, SIZE = 12, 32
# IROF has as many steps as the image has segments; randomisation as many stages as the model has layers.
AT_MOST = {"irof", "model-randomization", "smooth-model-randomization"}
EACH = {known.name: known for known in records() if not known.whole_set}
# Where the paper's protocol sets nothing, it is the default.
IN_PROTOCOLS = [(name, "default") for name in EACH] + [(name, "paper") for name in EACH if EACH[name].paper_options]
# Permutations run what follows the layer, which is no pass.
FEW = {"shapley-agreement": MetricSpec("shapley-agreement", {"permutations": 8})}


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 3))
    with torch.no_grad():
        # Every channel speaks for every class, so no map is zero.
        head[-1].weight.abs_()
    return nn.Sequential(nn.Conv2d(3, CHANNELS, 3, padding=1), nn.Sigmoid(), *head).eval()


def study(method, metrics, protocol="default"):
    found = tuple(MetricSpec(name) if isinstance(name, str) else name for name in metrics)
    spec = MethodSpec(method, method, {})
    return Study("s", (ModelSpec("m", "m"),), DataSpec("folder", "p"), (spec,), found, protocol=protocol)


def counted(net, of, size=SIZE):
    """Single images that enter the network's first layer, the explainer being warm."""
    images, masks = torch.rand(1, 3, size, size, generator=torch.Generator().manual_seed(1)), torch.ones(1, size, size)
    [method] = of.methods
    layer = {"layer": "1"} if "layer" in registry.takes(method.method) else {}
    explainer = registry.create(method.method, net, **layer, **method.options)
    seen = []
    # Hooked before the first call: a new hook might change what references look like, so they are passed again.
    hook = net[0].register_forward_pre_hook(lambda module, arguments: seen.append(len(arguments[0])))
    explainer(images, torch.tensor([1]))
    seen.clear()
    options = {one.name: one.options for one in of.metrics if one.options}
    try:
        evaluate(
            net,
            images,
            {method.name: explainer},
            [one.name for one in of.metrics],
            masks=masks,
            protocol=of.protocol,
            metric_options=options,
        )
    finally:
        hook.remove()
    return sum(seen)


# This network's scores hardly change, too little for LIME's sparse model.
@pytest.mark.filterwarnings("ignore:lime:egcam.errors.ZeroMapWarning")
@pytest.mark.parametrize("method", [*METHODS, *PEERS])
def test_every_method(net, method):
    of = study(method, ["sparseness"])
    assert unit_passes(of, of.methods[0], CHANNELS, SIZE) == counted(net, of)


@pytest.mark.parametrize(("metric", "protocol"), IN_PROTOCOLS)
def test_every_metric(net, metric, protocol):
    of = study("grad-cam", [FEW.get(metric, metric)], protocol)
    said, made = unit_passes(of, of.methods[0], CHANNELS, SIZE), counted(net, of)
    assert said == made if metric not in AT_MOST else said >= made


@pytest.mark.parametrize("size", [32, 90, 96, 224])
@pytest.mark.parametrize("protocol", ["default", "paper"])
@pytest.mark.parametrize(
    "metric", ["infidelity", MetricSpec("infidelity", {"patch": 20}), "deletion", "pixel-flipping"]
)
def test_every_size(net, metric, protocol, size):
    of = study("grad-cam", [metric], protocol)
    assert unit_passes(of, of.methods[0], CHANNELS, size) == counted(net, of, size)


def test_nothing_is_announced_for_a_patch_that_does_not_fit():
    of = study("grad-cam", ["infidelity", MetricSpec("infidelity", {"patch": 33})], "paper")
    assert unit_passes(of, of.methods[0], CHANNELS, 31) == 2


@pytest.mark.parametrize(
    "together",
    [
        ["insertion", "deletion", "insertion-deletion"],
        [MetricSpec("insertion", {"step": 64}), MetricSpec("insertion-deletion", {"step": 64}), MetricSpec("deletion")],
        ["max-sensitivity", "avg-sensitivity", "local-lipschitz", "relative-input-stability"],
        ["relative-output-stability", MetricSpec("max-sensitivity", {"samples": 3})],
        ["average-drop", "average-gain"],
    ],
)
def test_shared_work_counts_once(net, together):
    of = study("smooth-grad-cam++", together)
    assert unit_passes(of, of.methods[0], CHANNELS, SIZE) == counted(net, of)


def test_what_is_known_of_the_network_is_found_out_once_an_image(tmp_path):
    """The bench's own count: three methods on one image, by the network's first layer."""
    # Not with two images that are each other's reference: each is new to the network when its turn comes.
    known = load_study(write_study(tmp_path, images=2, text=STUDY.replace('source = "data"', 'source = "black"')))
    bench = UnitWorker(replace(known, metrics=(MetricSpec("infidelity"), MetricSpec("deletion"))))
    spec = bench.study.models[0]
    network = bench.network(spec.label)
    methods = [method.name for method in bench.study.methods]
    seen = []
    first = next(one for one in network.classifier.model.modules() if isinstance(one, nn.Conv2d))
    first.register_forward_pre_hook(lambda module, arguments: seen.append(len(arguments[0])))
    for method in methods:
        bench(Unit(spec.label, method, 0))
    seen.clear()
    for method in methods:
        assert bench(Unit(spec.label, method, 1)).error is None
    assert sum(seen) == image_passes(bench.study, 8, 16)


def test_a_whole_study_adds_up():
    of = study("grad-cam", ["deletion"])
    assert study_passes(of, 10, {"m": 32}, {"m": 12}) == 10 * (1 + 1 + 32)
    assert usual_passes(of, 10) == 10 * (1 + 1 + 224)


def test_the_estimate_says_what_costs_most_and_how_sure_it_is():
    of = study("grad-cam", ["deletion", "sparseness"])
    of = replace(of, methods=(*of.methods, MethodSpec("score-cam", "score-cam")))
    facts = NetworkFacts(None, 98, 32, "cpu", 0.01, None, probes=(0.008, 0.01, 0.02))
    found = estimated(of, {"m": facts}, 10)
    assert found.total_seconds == pytest.approx(0.01 * found.total_passes)
    assert (found.fastest, found.slowest) == pytest.approx((0.008 * found.total_passes, 0.02 * found.total_passes))
    deletion, alone = 32, {"grad-cam": 1, "score-cam": 99}
    passes = {name: 1 + one + deletion for name, one in alone.items()}
    assert found.by_method == pytest.approx({name: 10 * 0.01 * count for name, count in passes.items()})
    # Deletion has the clean pass with it; sparseness runs nothing.
    assert found.by_metric == pytest.approx({"deletion": 2 * 10 * 0.01 * (deletion + 1), "sparseness": 0.0})
    assert found.report_rows == 10 * 2 * 2


def test_probes_are_several_and_the_median_counts(tmp_path):
    facts = describe_networks(load_study(write_study(tmp_path, images=1)))["a"]
    assert len(facts.probes) == 5
    assert facts.seconds_per_pass == sorted(facts.probes)[2]
