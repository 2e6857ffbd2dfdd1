"""CIFAR-10's 10,000 test images, 32 x 32 pixels, from any of its published forms.

    cifar-10-batches-py/test_batch         the Python version, https://www.cs.toronto.edu/~kriz/cifar.html
    cifar-10-batches-bin/test_batch.bin    the binary version
    any.npz                                x (N, 32, 32, 3) uint8 and y (N,)

Images stay at 32 pixels here; `size` in the study enlarges them (`egcam.studies.geometry`). Names are the images'
numbers, "00000" to "09999", the same in every form; labels are 0 airplane to 9 truck.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from egcam.errors import near_misses
from egcam.studies.datasets.dataset import DataError, Dataset, Picture, looked
from egcam.studies.datasets.registry import register_dataset

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIDE = 32
LAYOUT = (
    "the folder cifar-10-batches-py (with test_batch) or cifar-10-batches-bin (with test_batch.bin) as unpacked from "
    "https://www.cs.toronto.edu/~kriz/cifar.html, or an .npz with x (N, 32, 32, 3) uint8 and y (N,)"
)

Pixels = npt.NDArray[np.uint8]
_PLACES = ("cifar-10-batches-py/test_batch", "test_batch", "cifar-10-batches-bin/test_batch.bin", "test_batch.bin")
_ARCHIVES = ("cifar-10-python.tar.gz", "cifar-10-binary.tar.gz")


class Cifar10(Dataset):
    """Images and labels in memory: all 10,000 take 30 megabytes."""

    has_labels = True

    def __init__(self, images: Pixels, labels: npt.NDArray[np.int64], classes: tuple[int, ...] = ()) -> None:
        self._images, self._labels = images, labels
        self._numbers = [number for number in range(len(labels)) if not classes or int(labels[number]) in classes]
        self.names = [f"{number:05d}" for number in self._numbers]
        of = f" of {', '.join(CLASSES[index] for index in classes)}" if classes else ""
        self.description = f"CIFAR-10 test: {len(self):,} images{of}, labels, no masks"

    @property
    def groups(self) -> list[str]:
        """The class names."""
        return [CLASSES[int(self._labels[number])] for number in self._numbers]

    def require_masks(self) -> None:
        """CIFAR-10 has no masks."""
        raise DataError("CIFAR-10 has no masks; leave metrics that need masks out")

    def __getitem__(self, index: int) -> Picture:
        number = self._numbers[index]
        return Picture(self.names[index], Image.fromarray(self._images[number]), int(self._labels[number]))


@register_dataset("cifar10", title="CIFAR-10", class_names=CLASSES, masks=False)
def open_cifar10(path: Path, *, classes: tuple[str, ...] = ()) -> Dataset:
    """CIFAR-10's test images in or below a folder, or in a file; only those of `classes`, if given."""
    file, read = _find(path)
    images, labels = read(file)
    return Cifar10(*_checked(images, labels, file), tuple(sorted({_class(word) for word in classes})))


def _class(word: str) -> int:
    if word.lower() not in CLASSES:
        raise DataError(f"CIFAR-10 has no class {word!r}; {near_misses(word, CLASSES)}")
    return CLASSES.index(word.lower())


Reader = Callable[[Path], tuple[Any, Any]]


def _find(path: Path) -> tuple[Path, Reader]:
    if path.is_file():
        return path, _reader(path)
    if not path.is_dir():
        raise DataError(f"{path} does not exist; expected is {LAYOUT}")
    places = [path / place for place in _PLACES]
    there = next((place for place in places if place.is_file()), None)
    arrays = sorted(path.glob("*.npz"))
    if there is None and len(arrays) == 1:
        there = arrays[0]
    if there is not None:
        return there, _reader(there)
    archive = next((path / name for name in _ARCHIVES if (path / name).is_file()), None)
    if archive is not None:
        raise DataError(f"{archive} is still packed: run tar -xzf {archive.name} in {path}")
    if arrays:
        raise DataError(f"{path} holds {len(arrays)} .npz files: set path to one of them, such as {arrays[0]}")
    raise DataError(
        f"there are no CIFAR-10 test images in {path}; {looked([*places, path / '*.npz'])}; expected is {LAYOUT}"
    )


def _reader(file: Path) -> Reader:
    return {".npz": _read_npz, ".bin": _read_binary}.get(file.suffix.lower(), _read_pickle)


def _read_npz(file: Path) -> tuple[Any, Any]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            missing = [name for name in ("x", "y") if name not in arrays]
            if missing:
                raise DataError(f"{file} has no {' and no '.join(missing)}, only {', '.join(arrays)}; {LAYOUT}")
            return arrays["x"], arrays["y"]
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{file} is not a NumPy archive ({error}); expected is {LAYOUT}") from error


def _read_binary(file: Path) -> tuple[Any, Any]:
    """Each image is a byte with its label and 3,072 bytes: red, green and blue, row by row."""
    record = 1 + 3 * SIDE * SIDE
    content = np.fromfile(file, dtype=np.uint8)
    if len(content) == 0 or len(content) % record:
        raise DataError(f"{file} has {len(content)} bytes, which is not a number of images of {record} bytes each")
    rows = content.reshape(-1, record)
    return _upright(rows[:, 1:]), rows[:, 0]


def _read_pickle(file: Path) -> tuple[Any, Any]:
    try:
        with file.open("rb") as stream:
            content = _PlainUnpickler(stream, encoding="bytes").load()
        by_name = {_text(key): value for key, value in content.items()}
        rows = np.asarray(by_name["data"])
        if rows.ndim != 2 or rows.shape[1] != 3 * SIDE * SIDE:
            raise DataError(f"{file}: the data have shape {rows.shape}, not (N, 3072)")
        return _upright(rows), by_name["labels"]
    except DataError:
        raise
    # A file that is no pickle can fail in every way while being read as one.
    except Exception as error:
        raise DataError(f"{file} is not CIFAR-10's test_batch ({error}); expected is {LAYOUT}") from error


def _text(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)


def _upright(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


class _PlainUnpickler(pickle.Unpickler):
    """Reads dicts, lists, numbers, bytes and arrays; a pickle that asks for anything else may run code."""

    _ALLOWED = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.numeric", "_frombuffer"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        # NumPy renamed `core`, which old files name; the old name still works there but warns.
        if (module.replace("numpy.core", "numpy._core"), name) in self._ALLOWED:
            return super().find_class(module.replace("numpy.core", _NUMPY_CORE), name)
        raise DataError(
            f"the file asks for {module}.{name}, which CIFAR-10's own file does not: it was not read, since it may "
            "run code"
        )


_NUMPY_CORE = "numpy._core" if int(np.__version__.split(".")[0]) >= 2 else "numpy.core"


def _checked(images: Any, labels: Any, file: Path) -> tuple[Pixels, npt.NDArray[np.int64]]:
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim != 4 or images.shape[1:] != (SIDE, SIDE, 3) or images.dtype != np.uint8:
        raise DataError(f"{file}: the images are {images.dtype} {images.shape}, not uint8 (N, 32, 32, 3)")
    labels = labels.reshape(-1)
    if len(labels) != len(images) or len(images) == 0:
        raise DataError(f"{file}: {len(images)} images and {len(labels)} labels")
    if labels.dtype.kind not in "iu" or labels.min() < 0 or labels.max() >= len(CLASSES):
        raise DataError(f"{file}: labels must be whole numbers from 0 to 9, not {labels.min()} to {labels.max()}")
    return np.ascontiguousarray(images), labels.astype(np.int64)
