"""Going on with a study notices whatever has changed since, and says what; bits of two studies never mix."""

import csv
import os
import sys
import time
import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from egcam.studies.config import load_study
from egcam.studies.datasets import open_dataset
from egcam.studies.inputs import StoredInput, check_unchanged, content_of
from egcam.studies.records import Unit
from egcam.studies.report import write_report
from egcam.studies.runner import run_study
from egcam.studies.source_files import source_checksums
from egcam.studies.store import Store, StoreError
from support.tiny_study import MODEL, STUDY, InProcess, numbers, write_study

PLAIN = STUDY.replace('source = "data"', 'source = "mixed"')
FOLDER = STUDY.replace('source = "data"', 'source = "pool"')


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def begun(folder, text=PLAIN, images=5, limit=2):
    file = write_study(folder, images, text)
    run_study(file, folder / "out", engine=InProcess(), limit=limit)
    return file


def go_on(file, **options):
    return run_study(file, file.parent / "out", engine=InProcess(), **options)


def repaint(photo, seed=99):
    """Other pixels in a file of another time, with the same name and shape."""
    with Image.open(photo) as image:
        shape = (image.height, image.width, 3)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)).save(photo)


def first_name(file, number=0):
    return open_dataset(load_study(file).data).names[number]


def test_the_code_of_an_own_model(tmp_path):
    file = begun(tmp_path)
    (tmp_path / "model.py").write_text(MODEL.replace("MaxPool2d", "AvgPool2d"))
    with pytest.raises(StoreError, match=r"models\.a\.code\.model\.py: \w{12}… -> \w{12}…"):
        go_on(file)


def test_the_code_a_model_imports_from_its_folder(tmp_path):
    (tmp_path / "blocks.py").write_text("from torch.nn import MaxPool2d as Pool\n")
    file = write_study(tmp_path, text=PLAIN)
    (tmp_path / "model.py").write_text(
        MODEL.replace("nn.MaxPool2d(2)", "__import__('blocks').Pool(2)") + "import blocks\n"
    )
    run_study(file, tmp_path / "out", engine=InProcess(), limit=1)
    (tmp_path / "blocks.py").write_text("from torch.nn import AvgPool2d as Pool\n")
    with pytest.raises(StoreError, match=r"models\.a\.code\.blocks\.py"):
        go_on(file)


def test_imports_are_followed_and_only_within_the_folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").write_text("")
    (tmp_path / "inner" / "deep.py").write_text("x = 1")
    (tmp_path / "model.py").write_text("def make():\n    import torch, one\n")
    (tmp_path / "one.py").write_text("import inner.deep\nimport model\n")
    (tmp_path / "other.py").write_text("")
    assert list(source_checksums(tmp_path / "model.py")) == ["inner/__init__.py", "inner/deep.py", "model.py", "one.py"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("mean=(0.1, 0.2, 0.3)", r"models\.a\.preprocessing\.mean"),
        ("std=(0.5, 0.5, 0.5)", r"models\.a\.preprocessing\.std"),
        ("interpolation='bicubic'", r"models\.a\.preprocessing\.interpolation"),
    ],
)
def test_the_preprocessing(tmp_path, change, said):
    """Read from a file beside the code, so that the code is the same."""
    file = write_study(tmp_path, text=PLAIN)
    told = MODEL.replace(
        "Preprocessing((16, 16), 16)", "eval((__import__('pathlib').Path(__file__).parent / 'seen').read_text())"
    )
    (tmp_path / "model.py").write_text(told)
    (tmp_path / "seen").write_text("Preprocessing((16, 16), 16)")
    run_study(file, tmp_path / "out", engine=InProcess(), limit=1)
    go_on(file, limit=1)
    (tmp_path / "seen").write_text(f"Preprocessing((16, 16), 16, {change})")
    with pytest.raises(StoreError, match=said):
        go_on(file)


def test_the_images_of_the_reference_folder(tmp_path):
    write_study(tmp_path)
    (tmp_path / "pool").mkdir()
    for name in ("000.png", "001.png"):
        (tmp_path / "pool" / name).write_bytes((tmp_path / "photos" / name).read_bytes())
    file = begun(tmp_path, FOLDER)
    go_on(file, limit=2)
    repaint(tmp_path / "pool" / "001.png")
    with pytest.raises(StoreError, match=r'references\.folder 1\.001\.png: "\w+" -> "\w+"'):
        go_on(file)


def test_references_from_the_data(tmp_path):
    file = begun(tmp_path, STUDY, images=8, limit=1)
    repaint(tmp_path / "photos" / first_name(file, 7))
    with pytest.raises(StoreError, match=rf"references\.data\.{first_name(file, 7)}"):
        go_on(file)


def test_references_that_no_method_uses_do_not_matter(tmp_path):
    methods = STUDY.replace('["grad-cam", "expected", "layer-cam"]', '["grad-cam", "layer-cam"]')
    begun(tmp_path, methods.replace('[method.expected]\nmethod = "slope-cam"\nsamples = 4\n', ""), limit=1)
    assert Store(tmp_path / "out").manifest.references == {}


def test_every_image_that_was_explained(tmp_path, monkeypatch):
    """Also one that is not among those the manifest knows."""
    monkeypatch.setattr("egcam.studies.runner._CONTENTS_READ", 2)
    file = begun(tmp_path, images=9, limit=9)
    known = Store(tmp_path / "out").manifest.data.contents
    changed = next(name for name in open_dataset(load_study(file).data).names if name not in known)
    repaint(tmp_path / "photos" / changed)
    with pytest.raises(StoreError, match=rf"(?s)other images under the same names.*{changed}: other pixels"):
        go_on(file)


def test_labels(tmp_path):
    text = PLAIN.replace('path = "photos"', 'path = "photos"\nlabels = "labels.csv"').replace(
        'title = "A study for tests"', 'target = "label"'
    )

    def label(number):
        with (tmp_path / "labels.csv").open("w", newline="") as table:
            csv.writer(table).writerows([("file", "label"), ("000.png", number)])

    label(0)
    file = begun(tmp_path, text, images=1)
    go_on(file)
    label(1)
    with pytest.raises(StoreError, match=r"000\.png: label 0 -> 1"):
        go_on(file)


def test_masks(tmp_path):
    (tmp_path / "masks").mkdir()
    half = np.zeros((24, 28), np.uint8)
    half[:, :14] = 255
    for number in range(3):
        Image.fromarray(half).save(tmp_path / "masks" / f"{number:03}.png")
    text = PLAIN.replace('path = "photos"', 'path = "photos"\nmasks = "masks"').replace(
        '"sparseness"', '"pointing-game"'
    )
    file = begun(tmp_path, text, images=3, limit=3)
    go_on(file)
    Image.fromarray(255 - half).save(tmp_path / "masks" / "001.png")
    with pytest.raises(StoreError, match=r"001\.png: another mask"):
        go_on(file)


def test_an_image_that_changes_in_mid_run_fails_its_units(tmp_path):
    """The second model is not to explain another image than the first."""
    file = write_study(tmp_path, images=3, text=PLAIN)
    whole = numbers(run_study(file, tmp_path / "whole", engine=InProcess()))
    name = first_name(file, 1)
    photo = tmp_path / "photos" / name
    old = photo.read_bytes()

    class Meddled(InProcess):
        def outcomes(self, job, shards):
            for outcomes in super().outcomes(job, shards):
                if outcomes[0].unit == Unit("a", "layer-cam", 1):
                    repaint(photo)
                yield outcomes

    results = run_study(file, tmp_path / "out", engine=Meddled())
    assert [failure.unit for failure in results.failures] == [
        Unit("b", method, 1) for method in ("grad-cam", "expected", "layer-cam")
    ]
    assert f"{name} is not what it was when its other units were done: other pixels" in results.failures[0].cause
    with pytest.raises(StoreError, match=rf"{name}: other pixels"):
        go_on(file, retry_failed=True)
    photo.write_bytes(old)
    assert numbers(go_on(file, retry_failed=True)) == whole


def test_a_model_that_changes_in_mid_run_fails_its_units(tmp_path):
    file = write_study(tmp_path, images=1, text=STUDY.replace('source = "data"', 'source = "black"'))

    class Meddled(InProcess):
        def outcomes(self, job, shards):
            for outcomes in super().outcomes(job, shards):
                (tmp_path / "model.py").write_text(MODEL.replace("MaxPool2d", "AvgPool2d"))
                yield outcomes

    results = run_study(file, tmp_path / "out", engine=Meddled())
    assert {failure.unit.model for failure in results.failures} == {"b"}
    assert "the model b is not the one the study began with: model.py changed" in results.failures[0].cause


def test_references_that_change_in_mid_run_fail_the_units_that_use_them(tmp_path):
    write_study(tmp_path)
    (tmp_path / "pool").mkdir()
    (tmp_path / "pool" / "000.png").write_bytes((tmp_path / "photos" / "004.png").read_bytes())
    file = write_study(tmp_path, images=1, text=FOLDER)

    class Meddled(InProcess):
        def outcomes(self, job, shards):
            for outcomes in super().outcomes(job, shards):
                if outcomes[0].unit.model == "a":
                    repaint(tmp_path / "pool" / "000.png")
                yield outcomes

    failures = run_study(file, tmp_path / "out", engine=Meddled()).failures
    assert {failure.unit.method for failure in failures} == {"expected"}
    assert "the references (folder 1) have changed since the study began: 000.png" in failures[0].cause


def test_an_image_that_was_repaired_is_done_again(tmp_path):
    file = write_study(tmp_path, images=3, text=PLAIN)
    photo = tmp_path / "photos" / "001.png"
    good = photo.read_bytes()
    photo.write_bytes(good[:50])
    assert len(run_study(file, tmp_path / "out", engine=InProcess()).failures) == 6
    photo.write_bytes(good)
    assert not go_on(file, retry_failed=True).failures


def test_copies_with_other_times_are_the_same_images_and_the_rest_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr("egcam.studies.runner._CONTENTS_READ", 1)
    file = begun(tmp_path, images=6, limit=6)
    data = open_dataset(load_study(file).data)
    seen = Store(tmp_path / "out").inputs()
    assert [one.image for one in seen] == list(range(6))
    assert [one.content for one in seen] == [content_of(data[image]) for image in range(6)]

    class Counted:
        def __init__(self, data):
            self.data, self.read, self.names = data, [], data.names

        def stamp(self, index):
            return self.data.stamp(index)

        def __getitem__(self, index):
            self.read.append(index)
            return self.data[index]

    untouched = Counted(data)
    check_unchanged(untouched, seen, "out")
    assert untouched.read == []
    os.utime(tmp_path / "photos" / data.names[4], (time.time() + 5, time.time() + 5))
    touched = Counted(data)
    assert check_unchanged(touched, seen, "out") == {one.image: one.content for one in seen}
    assert touched.read == [4]
    go_on(file)


def test_two_contents_of_one_image_are_named_even_where_one_is_right(tmp_path):
    data = open_dataset(load_study(write_study(tmp_path, images=1)).data)
    now = content_of(data[0])
    seen = [
        StoredInput(0, now, data.stamp(0)),
        StoredInput(0, "0" + now[1:] if now[0] != "0" else "1" + now[1:], "elsewhere"),
    ]
    with pytest.raises(StoreError, match=r"000\.png: other pixels"):
        check_unchanged(data, seen, "out")


def test_what_is_not_asked_for_is_not_compared(tmp_path, monkeypatch):
    monkeypatch.setattr("egcam.studies.runner._CONTENTS_READ", 1)
    file = begun(tmp_path, images=4, limit=4)
    repaint(tmp_path / "photos" / first_name(file, 3))
    go_on(file, limit=3)
    go_on(file, part=(1, 2))
    with pytest.raises(StoreError, match=first_name(file, 3)):
        go_on(file, part=(2, 2))


class ReplacesFirst(InProcess):
    """Puts another picture in the place of the first one, just before the first unit."""

    def __init__(self, photo):
        super().__init__()
        self.photo, self.kept = photo, photo.read_bytes()

    def outcomes(self, job, shards):
        repaint(self.photo)
        yield from super().outcomes(job, shards)


def test_an_image_replaced_before_its_first_unit_fails_and_can_be_put_back(tmp_path):
    file = write_study(tmp_path, 3, PLAIN)
    photo = tmp_path / "photos" / first_name(file)
    engine = ReplacesFirst(photo)
    results = run_study(file, tmp_path / "out", engine=engine)
    failed = {unit.image for unit in Store(tmp_path / "out").errors()}
    assert failed == {0}
    assert "other pixels; put the old file back" in next(iter(Store(tmp_path / "out").errors().values()))
    assert len(results.failures) == 2 * 3
    # With the old file the study goes on, and has what it would have had.
    photo.write_bytes(engine.kept)
    mended = run_study(file, tmp_path / "out", engine=InProcess(), retry_failed=True)
    assert not mended.failures
    assert numbers(mended) == numbers(run_study(file, tmp_path / "undisturbed", engine=InProcess()))


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux")
def test_a_file_name_that_is_no_text(tmp_path):
    file = write_study(tmp_path, 2, PLAIN)
    odd = os.fsdecode(b"b\xffd.png")
    os.rename(tmp_path / "photos" / first_name(file), tmp_path / "photos" / odd)
    results = run_study(file, tmp_path / "out", engine=InProcess())
    assert not results.failures
    assert Store(tmp_path / "out").manifest.data.names == tuple(open_dataset(load_study(file).data).names)
    assert odd in Store(tmp_path / "out").manifest.data.names
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not go_on(file).failures
    written = write_report(tmp_path / "out", tmp_path / "report")
    assert any(
        "b\\udcffd.png" in path.read_text(encoding="utf-8") for path in written if path.suffix in (".csv", ".html")
    )
