"""Going on with a study notices whatever has changed since, and does just that; results of two things never mix."""

import os
import sys
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image

from egcam.studies.config import load_study
from egcam.studies.datasets import open_dataset
from egcam.studies.keys import source_checksums
from egcam.studies.records import Unit
from egcam.studies.report import write_report
from egcam.studies.runner import run_study
from egcam.studies.store import Store, StoreWarning
from support.tiny_study import MODEL, STUDY, InProcess, numbers, write_study

PLAIN = STUDY.replace('source = "data"', 'source = "mixed"')
FOLDER = STUDY.replace('source = "data"', 'source = "pool"')
METHODS = ("grad-cam", "expected", "layer-cam")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Meddles(InProcess):
    """Does something once, before the first unit or after a given one."""

    def __init__(self, meddle, after=None):
        super().__init__()
        self.meddle, self.after = meddle, after

    def outcomes(self, job, shards):
        if self.after is None:
            self.meddle()
        for outcomes in super().outcomes(job, shards):
            if outcomes[0].unit == self.after:
                self.meddle()
            yield outcomes


def ran(file, **options):
    engine = InProcess()
    return run_study(file, file.parent / "out", engine=engine, **options), set(engine.units)


def begun(folder, text=PLAIN, images=3):
    """The study's file, and how it comes out."""
    file = write_study(folder, images, text)
    results, units = ran(file)
    assert len(units) == images * 2 * 3
    return file, results


def repaint(photo, seed=99):
    """Other pixels in a file of another time, with the same name and shape."""
    with Image.open(photo) as image:
        shape = (image.height, image.width, 3)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)).save(photo)


def first_name(file, number=0):
    return open_dataset(load_study(file).data).names[number]


def check(file, before, change, undo, done_again):
    """After a change just what it concerns is done again; with it undone, all is there as it was."""
    change()
    changed, units = ran(file)
    assert units == done_again
    assert numbers(changed) == numbers(run_study(file, file.parent / "alone", engine=InProcess()))
    assert numbers(changed) != numbers(before) or not done_again
    undo()
    back, units = ran(file)
    assert units == set()
    assert numbers(back) == numbers(before)


def all_units(images=3, models="ab", methods=METHODS):
    return {Unit(model, method, image) for model in models for method in methods for image in range(images)}


def writing(path, text):
    return lambda: path.write_text(text)


def test_the_code_a_model_imports_from_its_folder(tmp_path):
    model = MODEL.replace("nn.MaxPool2d(2)", "__import__('blocks').Pool(2)") + "import blocks\n"
    blocks = tmp_path / "blocks.py"
    blocks.write_text("from torch.nn import MaxPool2d as Pool\n")
    file = write_study(tmp_path, 1, PLAIN)
    (tmp_path / "model.py").write_text(model)
    _, units = ran(file)
    assert units == all_units(1)
    assert ran(file)[1] == set()
    blocks.write_text("from torch.nn import AvgPool2d as Pool\n")
    assert ran(file)[1] == all_units(1)


def test_imports_are_followed_and_only_within_the_folder(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").write_text("")
    (tmp_path / "inner" / "deep.py").write_text("x = 1")
    (tmp_path / "model.py").write_text("def make():\n    import torch, one\n")
    (tmp_path / "one.py").write_text("import inner.deep\nimport model\n")
    (tmp_path / "other.py").write_text("")
    assert list(source_checksums(tmp_path / "model.py")) == ["inner/__init__.py", "inner/deep.py", "model.py", "one.py"]


def test_the_preprocessing(tmp_path):
    """Read from a file beside the code, so that the code is the same."""
    file = write_study(tmp_path, 1, PLAIN)
    told = MODEL.replace(
        "Preprocessing((16, 16), 16)", "eval((__import__('pathlib').Path(__file__).parent / 'seen').read_text())"
    )
    (tmp_path / "model.py").write_text(told)
    (tmp_path / "seen").write_text("Preprocessing((16, 16), 16)")
    before, _ = ran(file)
    change = writing(tmp_path / "seen", "Preprocessing((16, 16), 16, mean=(0.1, 0.2, 0.3))")
    check(file, before, change, writing(tmp_path / "seen", "Preprocessing((16, 16), 16)"), all_units(1))


def test_an_image_that_is_also_a_reference(tmp_path):
    file, before = begun(tmp_path, STUDY)
    photo = tmp_path / "photos" / first_name(file, 1)
    undo = partial(photo.write_bytes, photo.read_bytes())
    its_own = {unit for unit in all_units() if unit.image == 1}
    check(file, before, partial(repaint, photo), undo, its_own | all_units(methods=["expected"]))


def test_an_image_that_was_replaced(tmp_path):
    file, before = begun(tmp_path)
    photo = tmp_path / "photos" / first_name(file, 2)
    undo = partial(photo.write_bytes, photo.read_bytes())
    check(file, before, partial(repaint, photo), undo, {unit for unit in all_units() if unit.image == 2})


@pytest.mark.parametrize("after", [None, Unit("a", "layer-cam", 1)])
def test_an_image_that_changes_under_way_is_kept_for_what_it_is(tmp_path, after):
    """Scores of the new image stand nowhere as those of the old; the next run does what is missing for the present."""
    file = write_study(tmp_path, 3, PLAIN)
    whole = numbers(run_study(file, tmp_path / "whole", engine=InProcess()))
    name = first_name(file, 1)
    photo = tmp_path / "photos" / name
    old = photo.read_bytes()
    with pytest.warns(StoreWarning, match=rf"changed during the run: {name} on .*run it again"):
        results = run_study(file, tmp_path / "out", engine=Meddles(partial(repaint, photo), after))
    models = "ab" if after is None else "b"
    replaced = {unit for unit in all_units(models=models) if unit.image == 1}
    assert {one.unit for one in results.source.outcomes()} == all_units() - replaced
    assert not results.failures
    assert not results.complete
    # Either file: what was done from it is there already.
    changed, units = ran(file)
    assert units == {unit for unit in all_units() if unit.image == 1} - replaced
    assert numbers(changed) == numbers(run_study(file, tmp_path / "new", engine=InProcess()))
    photo.write_bytes(old)
    back, units = ran(file)
    assert units == replaced
    assert numbers(back) == whole


def test_a_model_that_changes_under_way(tmp_path):
    file = write_study(tmp_path, 1, STUDY.replace('source = "data"', 'source = "black"'))
    change = writing(tmp_path / "model.py", MODEL.replace("MaxPool2d", "AvgPool2d"))
    with pytest.warns(StoreWarning, match=r"changed during the run: 000\.png on b"):
        results = run_study(file, tmp_path / "out", engine=Meddles(change, Unit("a", "layer-cam", 0)))
    assert {one.unit.model for one in results.source.outcomes()} == {"a"}
    results, units = ran(file)
    assert units == all_units(1, "a")
    assert numbers(results) == numbers(run_study(file, tmp_path / "alone", engine=InProcess()))


def test_references_that_change_under_way(tmp_path):
    write_study(tmp_path, 1)
    (tmp_path / "pool").mkdir()
    Image.new("RGB", (28, 24), "red").save(tmp_path / "pool" / "000.png")
    file = write_study(tmp_path, 1, FOLDER)
    meddle = Meddles(partial(repaint, tmp_path / "pool" / "000.png"), Unit("a", "layer-cam", 0))
    with pytest.warns(StoreWarning, match=r"changed during the run: 000\.png on b"):
        results = run_study(file, tmp_path / "out", engine=meddle)
    assert {one.unit for one in results.source.outcomes()} == all_units(1) - {Unit("b", "expected", 0)}
    assert ran(file)[1] == {Unit("a", "expected", 0)}


def test_an_image_that_was_repaired_is_done_again(tmp_path):
    file = write_study(tmp_path, 3, PLAIN)
    photo = tmp_path / "photos" / "001.png"
    good = photo.read_bytes()
    photo.write_bytes(good[:50])
    assert len(ran(file)[0].failures) == 6
    assert ran(file)[1] == set()
    photo.write_bytes(good)
    results, units = ran(file)
    assert len(units) == 6
    assert not results.failures


def test_only_what_is_asked_for_is_looked_at(tmp_path):
    file, _ = begun(tmp_path, images=4)
    repaint(tmp_path / "photos" / first_name(file, 3))
    assert ran(file, limit=3)[1] == set()
    assert ran(file, part=(1, 2))[1] == set()
    assert {unit.image for unit in ran(file, part=(2, 2))[1]} == {3}


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
        assert not ran(file)[0].failures
    written = write_report(tmp_path / "out", tmp_path / "report")
    assert any(
        "b\\udcffd.png" in path.read_text(encoding="utf-8") for path in written if path.suffix in (".csv", ".html")
    )
