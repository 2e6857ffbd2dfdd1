"""Kinds of data of one's own: registered by a plugin, named in a study's file, its options checked."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from egcam.studies import read_study, register_dataset, unregister_dataset
from egcam.studies.config import StudyError
from egcam.studies.datasets import DataError, files_of, kinds, open_dataset, options_of
from egcam.studies.specs import DataSpec, Study
from support.data_sets import opened

PLUGIN = """
from __future__ import annotations
from pathlib import Path
from PIL import Image
from egcam.studies import Dataset, Picture, register_dataset

class Greys(Dataset):
    has_labels, has_masks = True, False

    def __init__(self, count, table):
        self.count, self.table = count, table

    @property
    def description(self):
        return f"{self.count} greys"

    @property
    def names(self):
        return [f"grey {number}" for number in range(self.count)]

    def __getitem__(self, index):
        return Picture(self.names[index], Image.new("RGB", (4, 4), (index, index, index)), index)

@register_dataset("greys", title="Greys", class_names=("dark", "bright"), masks=False)
def open_greys(path: Path, *, count: int, table: Path | None = None, words: tuple[str, ...] = ()):
    return Greys(count, table)
"""
STUDY = """
name = "n"
methods = ["grad-cam"]
metrics = ["{metric}"]
models = [{{name = "vgg16"}}]
run = {{plugins = ["greys.py"]}}
[data]
kind = "greys"
path = "somewhere"
{keys}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "greys.py").write_text(PLUGIN)
    yield tmp_path
    if "greys" in kinds():
        unregister_dataset("greys")


def study(folder: Path, keys: str, metric: str = "sparseness"):
    return read_study(STUDY.format(keys=keys, metric=metric), folder)


def test_a_plugins_data_are_opened_with_the_options_of_the_file(folder):
    found = study(folder, 'count = 5\ntable = "t.csv"\nimages = 3\nseed = 2\nwords = []')
    assert found.data == DataSpec(
        "greys", str(folder / "somewhere"), images=3, seed=2, options={"count": 5, "table": str(folder / "t.csv")}
    ), "a file counts from the study's folder, and a default that is written out is no option"
    data = open_dataset(found.data)
    assert (data.whole.count, data.whole.table) == (5, folder / "t.csv")
    assert len(data) == 3
    assert {data[number].label for number in range(3)} < set(range(5))
    assert Study.model_validate(found.model_dump()) == found


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("", "data: count is missing"),
        ('count = "5"', "data: count must be a valid integer, not '5'"),
        ("count = true", "data: count must be a valid integer, not True"),
        ("count = 5\nwords = [1]", "data: words must be a valid string, not 1"),
        ('count = 5\nwords = "a"', "data: words must be a valid array, not 'a'"),
        ("count = 5\ntable = 3", "data: table must be a valid string, not 3"),
        (
            'count = 5\ntabel = "t.csv"',
            "data: kind = 'greys' does not take tabel; besides path, images, size, part and seed it takes count, "
            "table, words; did you mean 'table'?",
        ),
        ("count = 5\nimgaes = 3", "did you mean 'images'?"),
    ],
)
def test_a_wrong_option_says_what_would_be_right(folder, keys, said):
    with pytest.raises(StudyError) as error:
        study(folder, keys)
    assert said in str(error.value)


def test_what_the_kind_cannot_have_is_refused_before_anything_is_opened(folder):
    with pytest.raises(StudyError, match="top-k-intersection needs masks of the objects, and Greys has none"):
        study(folder, "count = 5", metric="top-k-intersection")


def test_an_option_without_a_type_takes_anything(folder):
    @register_dataset("greys")
    def open_greys(path, *, anything=None, needed):
        raise DataError(f"{path.name} {anything} {needed}")

    assert options_of("greys") == {"anything": None, "needed": inspect.Parameter.empty}
    assert files_of("greys") == set()
    with pytest.raises(DataError, match=r"there \[1, 'a'\] 0\.5"):
        opened("greys", "/is/there", anything=(1, "a"), needed=0.5)


def test_a_name_is_registered_once_and_no_more_after_it_was_taken_out():
    with pytest.raises(DataError, match="a kind of data called 'folder' is registered already"):
        register_dataset("folder")(lambda path: None)
    with pytest.raises(DataError, match="there is no kind of data 'greys'"):
        unregister_dataset("greys")
