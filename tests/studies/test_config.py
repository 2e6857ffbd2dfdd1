import json

import pytest

from egcam.studies.config import StudyError, load_study, read_study
from egcam.studies.specs import DataSpec, MethodSpec, MetricSpec, ModelSpec, ReferenceSpec, Study
from support.tiny_study import STUDY, write_study


def test_a_file_is_read_as_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setenv("SOMEWHERE", "/data")
    study = read_study(
        """
        name = "n"
        title = "t"
        seed = 3
        target = "label"
        protocol = "paper"
        methods = ["grad-cam", "mine"]
        metrics = ["Pixel_Flipping", "infidelity"]
        [method.mine]
        method = "slope-cam"
        samples = 7
        [metric.infidelity]
        patch = 32
        [data]
        kind = "coco"
        path = "$SOMEWHERE/images"
        annotations = "a.json"
        images = 9
        classes = ["zebra"]
        [reference]
        source = "blurred"
        [[models]]
        name = "vgg16"
        layer = "features.30"
        weights = "w.pth"
        [[models]]
        name = "vgg16"
        label = "untrained"
        weights = "random"
        [run]
        threads = 2
        maps = "all"
        """,
        tmp_path,
    )
    assert study.methods == (
        MethodSpec("grad-cam", "grad-cam"),
        MethodSpec("mine", "slope-cam", {"samples": 7}),
    )
    assert study.metrics == (MetricSpec("pixel-flipping"), MetricSpec("infidelity", {"patch": 32}))
    assert study.models == (
        ModelSpec("vgg16", "vgg16", "features.30", str(tmp_path / "w.pth")),
        ModelSpec("vgg16", "untrained", weights="random"),
    )
    assert study.data == DataSpec(
        "coco",
        "/data/images",
        images=9,
        options={"classes": ["zebra"], "annotations": str(tmp_path / "a.json")},
    )
    assert study.reference == ReferenceSpec("blurred", 64)
    assert (study.seed, study.target, study.protocol, study.threads, study.maps) == (3, "label", "paper", 2, "all")


def test_plain_data_and_back(tmp_path):
    study = load_study(write_study(tmp_path))
    assert Study.model_validate(json.loads(json.dumps(study.model_dump()))) == study


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('name = "tiny"', 'nam = "tiny"'), "nam is not a known key; did you mean 'name'"),
        (('name = "tiny"', 'name = "tiny"\nprimary = "insertoin"'), "primary is 'insertoin', no entry of metrics"),
        (('name = "tiny"', ""), 'name is missing:  name = "…"'),
        (('name = "tiny"', "name = 3"), "name must be a text in quotes, not 3"),
        (('"layer-cam"', '"layr-cam"'), "methods: there is no method 'layr-cam'; did you mean 'layer-cam'"),
        (('"sparseness"', '"sparsness"'), "metrics: there is no metric 'sparsness'; did you mean 'sparseness'"),
        (('"sparseness"', '"insertion"'), "metrics names 'insertion' twice"),
        (("[method.expected]", "[method.expcted]"), "method.expcted is not an entry of methods; did you mean"),
        (("samples = 4", "sample = 4"), "method.expected.sample is not an option of slope-cam; did you mean"),
        (
            ("samples = 4", "sharpness = 2"),
            "method.expected.sharpness is no option of slope-cam; sharpness is an ",
        ),
        (("samples = 4", "sharpness = 2"), "explanation.overlay(sharpness=2) or --sharpness 2"),
        (("samples = 2", "sampels = 2"), "metric.max-sensitivity.sampels is not an option of max-sensitivity"),
        (('kind = "folder"', 'kind = "foldr"'), "data.kind is 'foldr'; did you mean 'folder'"),
        (('path = "photos"', ""), 'data.path is missing:  path = "…"'),
        (('path = "photos"', 'path = "photos"\nimages = 0'), "data.images must be a whole number of at least 1, not 0"),
        (("count = 4", "count = true"), "reference.count must be a whole number of at least 1, not True"),
        (('"data"', '"blured"'), "reference.source is 'blured', which is neither a folder nor a known"),
        (('label = "b"', 'label = "a"'), "two models are called 'a': give each a label of its own"),
        (('label = "b"', 'lable = "b"'), "models (2.) lable is not a known key; did you mean 'label'"),
        (('method = "slope-cam"', 'method = "expected"'), "method.expected.method: there is no method"),
        (("[reference]", "[refrence]"), "refrence is not a known key; did you mean 'reference'"),
        (("[reference]", "[reference"), "is not valid TOML"),
        (('title = "A study for tests"', 'target = "labels"'), "target is 'labels'; did you mean 'label'"),
        (('kind = "folder"', 'kind = "cifar10"\n#'), None),
    ],
)
def test_mistakes_are_named_with_what_would_be_right(tmp_path, change, said):
    assert change[0] in STUDY
    file = write_study(tmp_path, text=STUDY.replace(*change, 1))
    if said is None:
        load_study(file)
        return
    with pytest.raises(StudyError) as error:
        load_study(file)
    assert said in str(error.value)
    assert str(error.value).startswith(str(file))


def test_a_missing_file_says_how_to_make_one(tmp_path):
    with pytest.raises(StudyError, match=r"there is no file .*egcam study new"):
        load_study(tmp_path / "none.toml")


def test_no_masks_in_cifar():
    with pytest.raises(StudyError, match="top-k-intersection needs masks of the objects, and CIFAR-10 has none"):
        read_study(
            'name = "n"\nmethods = ["grad-cam"]\nmetrics = ["top-k-intersection"]\nmodels = [{name = "vgg16"}]\n'
            'data = {kind = "cifar10", path = "p"}'
        )


def test_plugins_register_methods(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import egcam\nfrom functools import partial\n"
        "egcam.register('config-test-cam', partial(egcam.GradCAM, signed=True))\n"
    )
    text = STUDY.replace('"layer-cam"', '"config-test-cam"') + '\n[run]\nplugins = ["mine.py"]\n'
    file = write_study(tmp_path, text=text)
    try:
        assert load_study(file).methods[2].method == "config-test-cam"
        assert load_study(file).plugins == (str(tmp_path / "mine.py"),)
    finally:
        from egcam.attribution.registry import unregister

        unregister("config-test-cam")
    with pytest.raises(ValueError, match="there is no plugin"):
        load_study(write_study(tmp_path, text=text.replace("mine.py", "yours.py")))


def test_a_primary_metric_is_named_before_there_are_numbers(tmp_path):
    file = write_study(tmp_path)
    text = file.read_text().replace('"sufficiency"', '"pixel_flipping"')
    assert read_study('primary = "pixel_flipping"\n' + text, tmp_path).primary == "pixel-flipping"
