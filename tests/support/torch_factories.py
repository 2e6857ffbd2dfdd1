"""Jobs for the engines' tests that compute with torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from egcam.studies.engines.base import Job, Work
from egcam.studies.engines.worker import THREAD_VARIABLES
from egcam.studies.records import Outcome, Unit
from support import engine_factories
from support.engine_factories import outcome


def job(factory: str, *, threads: int = 1) -> Job:
    return engine_factories.job(factory, module=__name__, threads=threads)


def network(config: Mapping[str, Any]) -> Work:
    """A small network's answer to a random image, whose last digits depend on how sums are split among threads."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 8, 3), torch.nn.AdaptiveAvgPool2d(1)
        ).eval()

    def work(unit: Unit) -> Outcome:
        image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(unit.image))
        with torch.no_grad():
            answer = net(image).flatten()
        return outcome(unit, float(answer.sum()), coarse=answer.numpy().reshape(2, 4))

    return work


def settings(config: Mapping[str, Any]) -> Work:
    """The worker's threads, as its curves."""
    variables = [float(os.environ[name]) for name in THREAD_VARIABLES]

    def work(unit: Unit) -> Outcome:
        threads = [torch.get_num_threads(), torch.get_num_interop_threads()]
        return outcome(unit, float(os.getpid()), curves={"threads": np.array(threads + variables, np.float32)})

    return work
