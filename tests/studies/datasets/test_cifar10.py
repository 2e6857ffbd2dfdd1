"""CIFAR-10 in its published forms."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from egcam.studies.datasets import DataError
from support.data_sets import opened

LABELS = [3, 8, 8, 0, 6]
ALL = range(5)


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)


def planes(pixels):
    """As the official files have them: (N, 3072), all red, then all green, then all blue."""
    return pixels.transpose(0, 3, 1, 2).reshape(len(pixels), 3072)


def write_pickle(folder: Path, pixels, protocol: int = 2) -> None:
    folder.mkdir(parents=True)
    content = {b"batch_label": b"testing batch 1 of 1", b"labels": LABELS, b"data": planes(pixels)}
    content[b"filenames"] = [b"%d.png" % number for number in ALL]
    (folder / "test_batch").write_bytes(pickle.dumps(content, protocol))


def write_binary(folder: Path, pixels) -> None:
    folder.mkdir(parents=True)
    rows = np.concatenate([np.array(LABELS, np.uint8)[:, None], planes(pixels)], axis=1)
    rows.tofile(folder / "test_batch.bin")


def write_npz(folder: Path, pixels) -> None:
    folder.mkdir(parents=True)
    np.savez(folder / "cifar.npz", x=pixels, y=np.array(LABELS, np.uint8))


def check(path: Path, pixels) -> None:
    data = opened("cifar10", str(path))
    found = {picture.name: picture for picture in (data[index] for index in ALL)}
    assert sorted(found) == ["00000", "00001", "00002", "00003", "00004"]
    for number in ALL:
        picture = found[f"{number:05d}"]
        assert picture.label == LABELS[number]
        assert picture.mask is None
        assert np.array_equal(np.asarray(picture.image), pixels[number])


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_python_version(tmp_path, pixels, protocol):
    write_pickle(tmp_path / "cifar-10-batches-py", pixels, protocol)
    check(tmp_path, pixels)
    check(tmp_path / "cifar-10-batches-py", pixels)


def test_the_official_pickle_names_old_numpy(tmp_path, pixels):
    """The official file was written by Python 2 with a NumPy whose arrays were in numpy.core.multiarray."""
    write_pickle(tmp_path / "cifar-10-batches-py", pixels)
    file = tmp_path / "cifar-10-batches-py" / "test_batch"
    content = file.read_bytes().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")
    assert b"cnumpy.core.multiarray\n_reconstruct" in content
    file.write_bytes(content)
    check(tmp_path, pixels)


def test_binary_version(tmp_path, pixels):
    write_binary(tmp_path / "cifar-10-batches-bin", pixels)
    check(tmp_path, pixels)
    check(tmp_path / "cifar-10-batches-bin" / "test_batch.bin", pixels)


def test_npz(tmp_path, pixels):
    write_npz(tmp_path / "data", pixels)
    check(tmp_path / "data", pixels)
    check(tmp_path / "data" / "cifar.npz", pixels)


def test_classes_and_choice(tmp_path, pixels):
    write_npz(tmp_path / "data", pixels)
    data = opened("cifar10", str(tmp_path / "data"), classes=("ship", "cat"))
    assert sorted(data.names) == ["00000", "00001", "00002"]
    assert set(data.groups[:2]) == {"ship", "cat"}
    assert data.description == "CIFAR-10 test: 3 images of cat, ship, labels, no masks"
    assert data.has_labels
    with pytest.raises(DataError, match="CIFAR-10 has no masks"):
        data.require_masks()
    with pytest.raises(DataError, match="CIFAR-10 has no class 'shipp'; did you mean 'ship'"):
        opened("cifar10", str(tmp_path / "data"), classes=("shipp",))


class Evil:
    def __reduce__(self):
        return os.system, ("touch egcam_was_here",)


def test_a_pickle_cannot_run_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test_batch").write_bytes(pickle.dumps({b"labels": LABELS, b"data": Evil()}))
    with pytest.raises(DataError, match=r"the file asks for \w+\.system, .* it was not read, since it may run code"):
        opened("cifar10", str(tmp_path))
    assert not (tmp_path / "egcam_was_here").exists()


def test_missing_data_say_where_was_looked(tmp_path):
    with pytest.raises(DataError) as error:
        opened("cifar10", str(tmp_path))
    text = str(error.value)
    for place in ("cifar-10-batches-py/test_batch", "cifar-10-batches-bin/test_batch.bin", "*.npz"):
        assert str(tmp_path / place) in text
    assert "expected is the folder cifar-10-batches-py (with test_batch)" in text
    (tmp_path / "cifar-10-python.tar.gz").touch()
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz is still packed: run tar -xzf cifar-10-python.tar.gz"):
        opened("cifar10", str(tmp_path))
    with pytest.raises(DataError, match="nowhere does not exist; expected is the folder"):
        opened("cifar10", str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"x": np.zeros((2, 32, 32, 3), np.uint8)}, "has no y, only x"),
        ({"x": np.zeros((2, 32, 32, 3)), "y": [0, 1]}, r"the images are float64 \(2, 32, 32, 3\), not uint8"),
        ({"x": np.zeros((2, 32, 32, 3), np.uint8), "y": [0, 1, 2]}, "2 images and 3 labels"),
        ({"x": np.zeros((2, 32, 32, 3), np.uint8), "y": [0, 10]}, "whole numbers from 0 to 9, not 0 to 10"),
    ],
)
def test_wrong_arrays(tmp_path, arrays, text):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=text):
        opened("cifar10", str(tmp_path))


def test_wrong_files(tmp_path):
    (tmp_path / "test_batch").write_bytes(b"<html>not found</html>")
    with pytest.raises(DataError, match="is not CIFAR-10's test_batch"):
        opened("cifar10", str(tmp_path))
    (tmp_path / "short.bin").write_bytes(b"1234")
    with pytest.raises(DataError, match="has 4 bytes, which is not a number of images of 3073 bytes each"):
        opened("cifar10", str(tmp_path / "short.bin"))
    (tmp_path / "a.npz").write_bytes(b"1234")
    with pytest.raises(DataError, match="is not a NumPy archive"):
        opened("cifar10", str(tmp_path / "a.npz"))
