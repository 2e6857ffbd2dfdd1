import gc
import os
from collections.abc import Iterator

# A second thread has nothing to do on tiny networks, and waits at every operation by turning round on its core. Set
# before torch is imported, and in the environment, so that processes that tests start do with one thread, too.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch

from egcam import metrics
from egcam.attribution.registry import methods, unregister
from egcam.studies.datasets import kinds, unregister_dataset
from egcam.studies.engines import engines, unregister_engine

torch.set_num_threads(1)


def pytest_configure(config: pytest.Config) -> None:
    """Side by side (-n), files come in the order of collection, not those with most tests first."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, lest one of them is begun last and all other processes wait for it."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What is imported by now stays; the garbage collector, which some tests call, need not look at it every time."""
    gc.freeze()


def pytest_unconfigure() -> None:
    """In the end all is taken down."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """What a test registers, a plugin of its study included, is gone after it."""
    rooms = (
        (lambda: methods(controls=True), unregister),
        (metrics.names, metrics.unregister),
        (engines, unregister_engine),
        (kinds, unregister_dataset),
    )
    before = [set(names()) for names, _ in rooms]
    yield
    for (names, remove), kept in zip(rooms, before, strict=True):
        for name in set(names()) - kept:
            remove(name)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tests whose numbers depend on it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
