import os
from collections.abc import Iterator

import pytest
import torch

# Side by side (-n), each process gets one core.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else 2)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """For tiny networks: a second thread has nothing to do and costs a wait at every operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
