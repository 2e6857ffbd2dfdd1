"""Whole runs: the numbers are those of `evaluate`, and nothing on the way changes them."""

import math

import numpy as np
import pytest
import torch

import egcam
from egcam.attribution.references import Images
from egcam.imageops import heatmaps
from egcam.models.zoo import load
from egcam.photos.files import read_image
from egcam.studies.config import StudyError, load_study
from egcam.studies.datasets import open_dataset
from egcam.studies.datasets.dataset import DataError
from egcam.studies.engines.local import LocalEngine
from egcam.studies.geometry import reference_pool
from egcam.studies.networks import describe_networks
from egcam.studies.records import Unit
from egcam.studies.report import provenance
from egcam.studies.runner import Watcher, run_study
from egcam.studies.store import Store
from egcam.studies.worker import open_worker
from support.tiny_study import MODEL, STUDY, InProcess, numbers, write_study


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("study")
    write_study(found)
    return found


@pytest.fixture(scope="module")
def whole(folder):
    return run_study(folder / "study.toml", folder / "whole", engine=InProcess())


def test_the_numbers_are_those_of_evaluate(folder, whole):
    study = load_study(folder / "study.toml")
    data = open_dataset(study.data)
    for spec in study.models:
        classifier = load(spec.name)
        images = torch.stack([classifier.preprocess(read_image(folder / "photos" / name)) for name in data.names])
        reference = Images(reference_pool(data, classifier.preprocessing, None, 4, 0))
        table = egcam.evaluate(
            classifier.model,
            images,
            {"grad-cam": "grad-cam", "expected": "slope-cam", "layer-cam": "layer-cam"},
            [one.name for one in study.metrics],
            reference=reference,
            layer=spec.layer,
            method_options={"expected": {"samples": 4}},
            metric_options={"max-sensitivity": {"samples": 2}},
        )
        assert whole.tables[spec.label].metrics == table.metrics
        for metric in table.metrics:
            for method in table.methods:
                ours, expected = whole.tables[spec.label].values(method, metric), table.values(method, metric)
                np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-6)
                assert np.isfinite(ours).all()


def test_processes_give_the_same_bits(folder, whole):
    two = run_study(folder / "study.toml", folder / "two", workers=2)
    assert numbers(two) == numbers(whole)


@pytest.mark.parametrize("stop_after", [0, 1, 7, 29])
def test_an_interrupted_run_ends_with_the_same_bits(folder, whole, stop_after, tmp_path):
    first, second = InProcess(stop_after), InProcess()
    with pytest.raises(KeyboardInterrupt):
        run_study(folder / "study.toml", tmp_path / "out", engine=first)
    results = run_study(folder / "study.toml", tmp_path / "out", engine=second)
    assert sorted(first.units + second.units) == sorted(one.unit for one in whole.source.outcomes())
    assert numbers(results) == numbers(whole)


def test_limits_and_parts_add_up(folder, whole, tmp_path):
    seen = [InProcess() for _ in range(4)]
    run_study(folder / "study.toml", tmp_path, engine=seen[0], limit=2)
    run_study(folder / "study.toml", tmp_path, engine=seen[1], part=(2, 2))
    run_study(folder / "study.toml", tmp_path, engine=seen[2], part=(1, 2), limit=4)
    partial = Store(tmp_path)
    assert {unit.image for unit in partial.done()} == {0, 1, 2, 3}
    results = run_study(folder / "study.toml", tmp_path, engine=seen[3])
    assert [len(one.units) for one in seen] == [12, 6, 6, 6]
    assert numbers(results) == numbers(whole)


def test_nothing_is_left_to_do_twice(folder, tmp_path):
    run_study(folder / "study.toml", tmp_path, engine=InProcess(), limit=1)
    again = InProcess()
    run_study(folder / "study.toml", tmp_path, engine=again, limit=1)
    assert again.units == []


def test_an_image_that_cannot_be_read_is_recorded(tmp_path):
    file = write_study(tmp_path)
    (tmp_path / "photos" / "002.png").write_bytes(b"no image at all")
    results = run_study(file, tmp_path / "out", engine=InProcess())
    bad = open_dataset(load_study(file).data).names.index("002.png")
    assert {failure.unit.image for failure in results.failures} == {bad}
    assert len(results.failures) == 2 * 3
    assert "002.png" in results.failures[0].cause
    table = results.tables["a"]
    assert [math.isnan(value) for value in table.values("grad-cam", "deletion")] == [image == bad for image in range(5)]


def test_a_method_that_cannot_apply_is_recorded_and_can_be_tried_again(tmp_path):
    file = write_study(tmp_path, images=2, text=STUDY.replace('"layer-cam"]', '"layer-cam", "cam"]'))
    results = run_study(file, tmp_path / "out", engine=InProcess())
    table = results.tables["a"]
    assert np.isfinite(table.values("grad-cam", "deletion")).all()
    assert np.isnan(table.values("cam", "deletion")).all()
    assert any("cam" in cause.lower() for cause in table.causes["cause"])


def test_failed_units_are_done_again_on_request(tmp_path):
    file = write_study(tmp_path)
    good = (tmp_path / "photos" / "002.png").read_bytes()
    (tmp_path / "photos" / "002.png").write_bytes(good[:50])
    run_study(file, tmp_path / "out", engine=InProcess())
    kept = InProcess()
    run_study(file, tmp_path / "out", engine=kept)
    assert kept.units == []
    again = InProcess()
    run_study(file, tmp_path / "out", engine=again, retry_failed=True)
    bad = open_dataset(load_study(file).data).names.index("002.png")
    methods = ("grad-cam", "expected", "layer-cam")
    assert again.units == [Unit(model, method, bad) for model in "ab" for method in methods]


def test_the_same_study_from_another_place_does_mix(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    run_study(write_study(here), tmp_path / "out", engine=InProcess(), part=(1, 2))
    elsewhere = InProcess()
    run_study(write_study(there), tmp_path / "out", engine=elsewhere)
    assert {unit.image for unit in elsewhere.units} == {1, 3}


def test_what_the_data_lack_is_said_before_the_work(tmp_path):
    file = write_study(tmp_path, text=STUDY.replace('title = "A study for tests"', 'target = "label"'))
    with pytest.raises(DataError, match="or use target = 'prediction'"):
        run_study(file, tmp_path / "out", engine=InProcess())
    file = write_study(tmp_path, text=STUDY.replace('"sparseness"', '"pointing-game"'))
    with pytest.raises(DataError, match="or leave metrics that need masks out"):
        run_study(file, tmp_path / "out", engine=InProcess())
    assert not (tmp_path / "out").exists()


def test_the_second_class_is_explained_where_a_study_asks_for_it(folder, whole, tmp_path):
    text = STUDY.replace('title = "A study for tests"', 'target = "second"')
    second = run_study(write_study(tmp_path, text=text), tmp_path / "out", engine=InProcess())
    frame = second.frame.drop_duplicates(["model", "name"])
    assert len(frame) == 10
    for row in frame.itertuples():
        classifier = load(next(one.name for one in second.study.models if one.label == row.model))
        image = classifier.preprocess(read_image(folder / "photos" / row.name))[None]
        best = classifier.model(image)[0].topk(2).indices.tolist()
        assert [row.prediction, row.target] == best
    values = [set(one.frame.value) for one in (second, whole)]
    assert values[0] != values[1]


def test_a_layer_that_is_not_there_is_refused_before_the_work(tmp_path):
    file = write_study(tmp_path, text=STUDY.replace('layer = "1"', 'layer = "nolayer"'))
    with pytest.raises(StudyError, match=r"the model b: .*nolayer"):
        run_study(file, tmp_path / "out", engine=InProcess())
    assert not (tmp_path / "out").exists()


def test_a_call_of_a_layer_is_a_layer(tmp_path):
    """The same module twice in a row: its second call may be explained, a third there is not."""
    file = write_study(
        tmp_path, images=1, text=STUDY.replace('layer = "1"', 'layer = "1:2"').replace('"data"', '"mixed"')
    )
    model = tmp_path / "model.py"
    twice = "body = nn.Sequential(body[0], body[1], nn.Identity(), *body[2:]); body[2] = body[1]; return Classifier("
    model.write_text(model.read_text().replace("return Classifier(", twice))
    assert not [one for one in run_study(file, tmp_path / "out", engine=InProcess()).failures if one.unit.model == "b"]
    file.write_text(file.read_text().replace('"1:2"', '"1:3"'))
    with pytest.raises(StudyError, match=r"the model b: .*'1:3' runs 2 time"):
        run_study(file, tmp_path / "other", engine=InProcess())


def test_a_layer_that_does_not_run_is_refused_before_the_work(tmp_path):
    file = write_study(tmp_path, text=STUDY.replace('layer = "1"', 'layer = "idle"'))
    model = tmp_path / "model.py"
    unused = "    class Net(nn.Module):\n        def __init__(self):\n            super().__init__()\n"
    unused += "            self.net, self.idle = nn.Sequential(*body, *head), nn.Sigmoid()\n"
    unused += "        def forward(self, x):\n            return self.net(x)\n"
    model.write_text(
        model.read_text().replace(
            "    return Classifier(nn.Sequential(*body, *head)", unused + "    return Classifier(Net()"
        )
    )
    file.write_text(file.read_text().replace('layer = "4"', 'layer = "net.4"'))
    with pytest.raises(StudyError, match="the model b: the layer 'idle' does not run"):
        run_study(file, tmp_path / "out", engine=InProcess())
    assert not (tmp_path / "out").exists()


def test_maps_curves_and_pictures_are_kept_where_wanted(folder, whole, tmp_path):
    store = Store(folder / "whole")
    # Sufficiency compares all images, so all maps are there.
    assert sorted(store.maps("a")["expected"]) == [0, 1, 2, 3, 4]
    assert store.maps("a")["expected"][0].shape == (8, 8)
    assert sorted(store.pictures("a")) == [0, 1, 2, 3]
    curves = store.curves("a", "deletion")["grad-cam"]
    area = np.trapezoid(curves[3], dx=1 / 50)
    assert area == pytest.approx(whole.tables["a"].values("grad-cam", "deletion")[3], abs=2e-3)
    bare = write_study(tmp_path, text=STUDY.replace('"sufficiency", ', "") + '\n[run]\nmaps = "none"\n')
    run_study(bare, tmp_path / "out", engine=InProcess(), limit=1)
    assert not Store(tmp_path / "out").maps("a")
    assert not Store(tmp_path / "out").pictures("a")


def test_only_whole_set_metrics(tmp_path):
    text = STUDY.replace('["insertion", "deletion", "sparseness", "sufficiency", "max-sensitivity"]', '["sufficiency"]')
    file = write_study(tmp_path, text=text.replace("[metric.max-sensitivity]\nsamples = 2", ""))
    results = run_study(file, tmp_path / "out", engine=InProcess())
    assert np.isfinite(results.tables["b"].values("expected", "sufficiency")).all()


def test_the_watcher_is_told_everything(folder, tmp_path):
    class Told(Watcher):
        def __init__(self):
            self.agenda, self.outcomes = None, []

        def begins(self, agenda):
            self.agenda = agenda

        def came(self, outcomes):
            self.outcomes += outcomes

    told = Told()
    run_study(folder / "study.toml", tmp_path / "out", engine=InProcess(), limit=2, watcher=told)
    assert len(told.agenda.todo) == len(told.outcomes) == 12
    assert [one.unit for one in told.outcomes] == list(told.agenda.todo)


def test_a_unit_does_not_depend_on_those_before_it(folder):
    config = load_study(folder / "study.toml").model_dump()
    units = [Unit("a", "expected", 1), Unit("b", "grad-cam", 0), Unit("a", "grad-cam", 1), Unit("a", "expected", 3)]
    bench = open_worker(config)
    together = {unit: bench(unit) for unit in units}
    for unit in units:
        alone = open_worker(config)(unit)
        assert [score.value for score in alone.scores] == [score.value for score in together[unit].scores]
        np.testing.assert_array_equal(alone.coarse, together[unit].coarse)


def test_without_a_layer_each_method_finds_its_own_and_the_record_names_them(tmp_path):
    file = write_study(tmp_path, text=STUDY.replace('layer = "4"\n', "").replace('layer = "1"\n', ""))
    text = MODEL.replace("nn.Conv2d(3, 6, 3, padding=1)", "nn.Conv2d(3, 6, 3, stride=2, padding=1)")
    head = "nn.Linear(8 * 8 * 8, 12), nn.Sigmoid(), nn.Linear(12, 4)"
    (tmp_path / "model.py").write_text(text.replace(head, "nn.Linear(8 * 4 * 4, 4)"))
    study = load_study(file)
    record = describe_networks(study, open_dataset(study.data))["a"].record
    assert (record.layer, record.own_layers) == ("4", {"expected": "1"})
    assert "layer 4, expected at 1" in provenance._model(study.models[0], record)
    bench = open_worker(study.model_dump())
    assert bench(Unit("a", "grad-cam", 1)).coarse.shape == (4, 4)
    assert bench(Unit("a", "expected", 1)).coarse.shape == (8, 8)


def test_a_method_may_have_a_reference_of_its_own(tmp_path):
    text = STUDY.replace('["grad-cam", "expected", "layer-cam"]', '["expected", "black", "data"]').replace(
        "[method.expected]",
        '[method.black]\nmethod = "slope-cam"\nsamples = 4\nreference = "black"\n'
        '[method.data]\nmethod = "slope-cam"\nsamples = 4\nreference = "data"\n[method.expected]',
    )
    study = load_study(write_study(tmp_path, text=text))
    bench = open_worker(study.model_dump())
    coarse = {method: bench(Unit("a", method, 1)).coarse for method in ("expected", "black", "data")}
    np.testing.assert_array_equal(coarse["data"], coarse["expected"])
    classifier = bench.network("a").classifier
    image = classifier.preprocess(bench.data[1].image)[None]
    black = egcam.attribution.references.black(classifier.preprocessing.mean, classifier.preprocessing.std)
    cam = egcam.SlopeCAM(classifier.model, "4", reference=black, samples=4)
    found = cam(image)
    np.testing.assert_array_equal(coarse["black"], found.maps[0].numpy())
    kept = torch.from_numpy(coarse["black"])[None]
    assert torch.equal(heatmaps(kept, found.size), found.heatmaps), "what is kept is what is shown"
    assert not np.allclose(coarse["black"], coarse["data"], rtol=1e-2)
    with pytest.raises(StudyError, match=r"method.black.reference is 'blak'.* did you mean 'black'"):
        load_study(write_study(tmp_path, text=text.replace('"black"\n[', '"blak"\n[')))


def test_maps_are_kept_also_where_methods_are_made_by_name(folder, tmp_path):
    text = STUDY.replace('"max-sensitivity"]', '"model-randomization"]').replace(
        "[metric.max-sensitivity]\nsamples = 2", "[metric.model-randomization]\nstages = 1"
    )
    by_name = open_worker(load_study(write_study(tmp_path, text=text)).model_dump())(Unit("a", "expected", 1))
    usual = open_worker(load_study(folder / "study.toml").model_dump())(Unit("a", "expected", 1))
    np.testing.assert_array_equal(by_name.coarse, usual.coarse)
    assert [score.metric for score in by_name.scores] == ["insertion", "deletion", "sparseness", "model-randomization"]
    assert by_name.scores[0].value == pytest.approx(usual.scores[0].value, rel=1e-5)


def test_time_is_measured_by_one_worker_alone(tmp_path):
    text = STUDY.replace('"insertion", "deletion", "sparseness", "sufficiency", "max-sensitivity"', '"running-time"')
    file = write_study(tmp_path, images=1, text=text.replace("[metric.max-sensitivity]\nsamples = 2\n", ""))
    for asked in ({"workers": 2}, {"engine": LocalEngine()}, {"engine": LocalEngine(3)}):
        with pytest.raises(StudyError, match="running-time is measured while nothing else runs: it takes 1"):
            run_study(file, tmp_path / "out", **asked)
    assert not (tmp_path / "out").exists()

    class Told(Watcher):
        def begins(self, agenda):
            self.workers = agenda.workers

    told = Told()
    results = run_study(file, tmp_path / "out", watcher=told)
    assert told.workers == 1
    assert (results.tables["a"].values("grad-cam", "running-time") > 0).all()
