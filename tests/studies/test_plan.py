import pytest

from egcam.studies.config import StudyError, load_study
from egcam.studies.plan import planned, read_part, shard_size, shards
from egcam.studies.records import Unit
from support.tiny_study import write_study


@pytest.fixture
def study(tmp_path):
    return load_study(write_study(tmp_path))


def test_all_methods_of_an_image_before_the_next(study):
    units = list(planned(study, 2))
    assert units[:4] == [
        Unit("a", "grad-cam", 0),
        Unit("a", "expected", 0),
        Unit("a", "layer-cam", 0),
        Unit("a", "grad-cam", 1),
    ]
    assert len(units) == len(set(units)) == 2 * 2 * 3
    assert [unit.model for unit in units] == ["a"] * 6 + ["b"] * 6


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_divide_the_work(study, parts):
    pieces = [list(planned(study, 5, (mine, parts))) for mine in range(1, parts + 1)]
    together = [unit for piece in pieces for unit in piece]
    assert sorted(together) == sorted(planned(study, 5))
    # An image stays in one part, so each part compares all methods.
    assert all(len({unit.image for unit in piece} & {unit.image for unit in pieces[0]}) == 0 for piece in pieces[1:])


def test_shards_hold_one_image_of_one_model(study):
    units = list(planned(study, 3))
    made = list(shards(units, 2))
    assert [unit for shard in made for unit in shard] == units
    assert all(len({(unit.model, unit.image) for unit in shard}) == 1 and len(shard) <= 2 for shard in made)


def test_shard_size():
    assert shard_size(10_000, 4, 11) == 11
    assert shard_size(20, 2, 11) == 1
    assert shard_size(100, 2, 11) == 6
    assert shard_size(0, 2, 11) == 1


@pytest.mark.parametrize("text", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2", "1/2/3"])
def test_parts_that_are_none(text):
    with pytest.raises(StudyError, match="i/n with i from 1 to n"):
        read_part(text)
