from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(2)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tiny networks: a second thread has nothing to do and costs a wait at every operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
