"""A study grows in its folder: what is done with the same settings stays done, and the table is that of a new study."""

import warnings

import pytest
import torch

from egcam.studies.progress import status
from egcam.studies.results import Results
from egcam.studies.runner import run_study
from egcam.studies.store import StoreWarning
from support.tiny_study import STUDY, InProcess, numbers, write_study

MIXED = STUDY.replace('source = "data"', 'source = "mixed"')
METHODS = ("grad-cam", "expected", "layer-cam")
FEWER_METHODS = MIXED.replace(', "layer-cam"]', "]")
FEWER_METRICS = MIXED.replace('"sparseness", ', "")
NO_WHOLE_SET = MIXED.replace('"sufficiency", ', "") + '\n[run]\nmaps = "none"\n'


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error", StoreWarning)
        yield


def taking(images, text=MIXED):
    return text.replace('path = "photos"', f'path = "photos"\nimages = {images}')


@pytest.fixture(scope="module")
def anew(tmp_path_factory):
    """The numbers of the study with all methods and metrics on 4 images, run at once."""
    folder = tmp_path_factory.mktemp("anew")
    return numbers(run_study(write_study(folder, 4, MIXED), folder / "out", engine=InProcess()))


def go(folder, text, images=4, **options):
    engine = InProcess()
    results = run_study(write_study(folder, images, text), folder / "out", engine=engine, **options)
    return results, engine.units


def test_more_of_the_same_images(tmp_path, anew):
    _, first = go(tmp_path, taking(2))
    results, second = go(tmp_path, taking(4))
    assert {unit.image for unit in first} == {0, 1}
    assert {unit.image for unit in second} == {2, 3}
    assert numbers(results) == anew
    fewer, none = go(tmp_path, taking(3))
    assert none == []
    assert fewer.units == 3 * 2 * 3 == len(fewer.source.outcomes())
    assert fewer.complete


def test_new_files_in_the_folder_whatever_their_place_in_the_order(tmp_path, anew):
    go(tmp_path, MIXED, images=3)
    results, second = go(tmp_path, MIXED, images=4)
    names = {one.unit.image: one.name for one in results.source.outcomes()}
    assert {names[unit.image] for unit in second} == {"003.png"}
    assert len(second) == 2 * 3
    assert numbers(results) == anew


@pytest.mark.parametrize(("before", "again"), [(FEWER_METHODS, 4 * 2), (FEWER_METRICS, 4 * 2 * 3)])
def test_one_more_method_or_metric(tmp_path, anew, before, again):
    """A unit that lacks a metric is done again as a whole, so its numbers are those of a new study."""
    go(tmp_path, before)
    results, second = go(tmp_path, MIXED)
    assert len(second) == again
    assert numbers(results) == anew
    assert results.complete
    assert go(tmp_path, MIXED)[1] == []
    less, none = go(tmp_path, before)
    assert none == []
    assert less.complete
    assert len(less.source.outcomes()) == less.units


def test_a_metric_over_all_images_needs_their_maps(tmp_path, anew):
    go(tmp_path, NO_WHOLE_SET)
    results, second = go(tmp_path, MIXED)
    assert len(second) == 4 * 2 * 3
    assert numbers(results) == anew


def test_a_unit_that_failed_is_not_done_again_for_want_of_a_map(tmp_path):
    write_study(tmp_path, 2, MIXED)
    (tmp_path / "photos" / "001.png").write_bytes(b"no image")
    file = tmp_path / "study.toml"
    run_study(file, tmp_path / "out", engine=InProcess())
    again = InProcess()
    run_study(file, tmp_path / "out", engine=again)
    assert again.units == []


def test_halfway_through_a_new_metric(tmp_path):
    go(tmp_path, FEWER_METRICS, images=2)
    engine = InProcess(stop_after=2)
    with pytest.raises(KeyboardInterrupt):
        run_study(write_study(tmp_path, 2, MIXED), tmp_path / "out", engine=engine)
    results = Results.of(tmp_path / "out")
    assert not results.complete
    assert (status(tmp_path / "out").done, status(tmp_path / "out").total) == (2, 12)
    causes = {row.cause for row in results.tables["b"].rows if row.metric == "sparseness"}
    assert causes == {"it was not computed"}


@pytest.mark.parametrize(
    ("old", "new", "done_again"),
    [
        ("samples = 4", "samples = 5", {(model, "expected") for model in "ab"}),
        ("samples = 2", "samples = 3", {(model, method) for model in "ab" for method in METHODS}),
        ('layer = "1"', 'layer = "4"', {("b", method) for method in METHODS}),
        ('title = "A study for tests"', 'title = "Another title"', set()),
    ],
)
def test_other_settings_are_other_units_and_the_old_ones_wait(tmp_path, old, new, done_again):
    first, units = go(tmp_path, MIXED, images=1)
    assert len(units) == 6
    changed, units = go(tmp_path, MIXED.replace(old, new), images=1)
    assert {unit[:2] for unit in units} == done_again
    (tmp_path / "alone").mkdir()
    assert numbers(changed) == numbers(go(tmp_path / "alone", MIXED.replace(old, new), images=1)[0])
    back, units = go(tmp_path, MIXED, images=1)
    assert units == []
    assert numbers(back) == numbers(first)


def test_an_image_that_vanished_is_named_and_forgiven(tmp_path):
    go(tmp_path, MIXED, images=4)
    photo = tmp_path / "photos" / "001.png"
    kept = photo.read_bytes()
    photo.unlink()
    engine = InProcess()
    file = tmp_path / "study.toml"
    with pytest.warns(StoreWarning, match=r"no longer in the data: 001\.png; results of it"):
        results = run_study(file, tmp_path / "out", engine=engine)
    assert engine.units == []
    assert results.complete
    assert {one.name for one in results.source.outcomes()} == {"000.png", "002.png", "003.png"}
    alone = run_study(file, tmp_path / "alone", engine=InProcess())
    assert numbers(results) == numbers(alone)
    photo.write_bytes(kept)
    back = run_study(file, tmp_path / "out", engine=engine)
    assert engine.units == []
    assert len(back.source.outcomes()) == 4 * 2 * 3
