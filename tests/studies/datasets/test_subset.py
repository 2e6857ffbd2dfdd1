"""Which images a study takes: even over classes, nested, the same on every machine."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from PIL import Image

from egcam.studies.datasets import DataError, Dataset, Picture, kinds
from egcam.studies.datasets.subset import even_order, take
from support.data_sets import opened


class Letters(Dataset):
    """Images that are nothing but a name and a class."""

    description = "letters"
    has_labels = has_masks = True

    def __init__(self, classes: dict[str, int]) -> None:
        pairs = [(f"{group}{number}", group) for group, count in classes.items() for number in range(count)]
        self._names, self._groups = [name for name, _ in pairs], [group for _, group in pairs]

    @property
    def names(self):
        return self._names

    @property
    def groups(self):
        return self._groups

    @property
    def parts(self):
        return ["odd" if int(name[1:]) % 2 else "even" for name in self._names]

    def __getitem__(self, index):
        return Picture(self._names[index], Image.new("RGB", (1, 1)), index)


def test_a_choice_is_even_over_the_classes():
    data = Letters({"a": 50, "b": 20, "c": 3})
    taken = Counter(take(data, 30).groups)
    # Three rounds of three, then a and b in turn: 9 + 21.
    assert taken["c"] == 3
    assert {taken["a"], taken["b"]} == {13, 14}


def test_the_first_of_a_large_choice_are_the_small_choice():
    data = Letters({"a": 50, "b": 20, "c": 3})
    all_names = take(data, None).names
    assert sorted(all_names) == sorted(data.names)
    for count in (1, 7, 30, 72):
        assert take(data, count).names == all_names[:count]


EXPECTED = ["a0", "b1", "a1", "b2"]


def test_the_choice_is_the_same_on_every_machine():
    """Worked out once and written down: neither the platform nor the order of files may change it."""
    data = Letters({"a": 3, "b": 3})
    assert take(data, 4, seed=0).names == EXPECTED
    names, groups = data.names[::-1], data.groups[::-1]
    assert [names[index] for index in even_order(names, groups, 0)][:4] == EXPECTED


def test_seeds_choose_differently_and_leave_the_global_state():
    import torch

    data = Letters({"a": 40})
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert take(data, 10, seed=0).names != take(data, 10, seed=1).names
    assert torch.equal(before, torch.get_rng_state())


def test_more_images_of_a_class_leave_the_order_of_the_others():
    few, many = even_order(list("acegi"), [""] * 5), even_order(list("abcdefghi"), [""] * 9)
    kept = [list("abcdefghi")[index] for index in many if list("abcdefghi")[index] in "acegi"]
    assert kept == [list("acegi")[index] for index in few]


def test_backwards_meets_the_choice_only_where_data_are_few():
    data = Letters({"a": 5, "b": 5, "c": 5, "d": 1})
    forward = even_order(data.names, data.groups, 4)
    backward = even_order(data.names, data.groups, 4, backwards=True)
    assert sorted(backward) == sorted(forward)
    assert not set(forward[:6]) & set(backward[:6]) - {data.names.index("d0")}
    assert {data.groups[index] for index in backward[:4]} == set("abcd")


def test_a_part_and_pictures_of_the_choice():
    data = take(Letters({"a": 6, "b": 4}), 5, part="odd")
    assert sorted(data.names) == ["a1", "a3", "a5", "b1", "b3"]
    assert set(data.parts) == {"odd"}
    assert [data[index].name for index in range(5)] == data.names
    assert len(data.whole) == 10
    assert data.description == "letters; 5 of them taken, seed 0, part 'odd'"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"images": 11}, "images = 11, but there are 10 (letters); set images = 10"),
        ({"images": 6, "part": "odd"}, "images = 6, but there are 5 in part 'odd' (letters); set images = 5"),
        ({"images": 0}, "images = 0: a study needs at least one image"),
        ({"part": "ood"}, "no image is in part 'ood'; did you mean 'odd'?"),
    ],
)
def test_wrong_choices_say_what_there_is(arguments, text):
    with pytest.raises(DataError) as error:
        take(Letters({"a": 6, "b": 4}), **arguments)
    assert str(error.value) == text


def test_unknown_kind():
    assert kinds() == ["cifar10", "coco", "folder", "imagenet", "truth"]
    with pytest.raises(DataError, match="there is no kind of data 'imagnet'; did you mean 'imagenet'"):
        opened("imagnet", ".")


def test_a_part_of_data_without_parts(tmp_path):
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match='the data have no parts \\(no column "part" in their CSV\\)'):
        opened("folder", str(tmp_path), part="train")
