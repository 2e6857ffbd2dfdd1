"""Make networks: with weights that are the same every time, or with those of a hub."""

from __future__ import annotations

import importlib
import socket
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit
from urllib.request import getproxies

import torch

from egcam.errors import ModelError
from egcam.models.weights import one_line
from egcam.rng import OwnDraws

Made = TypeVar("Made")


def seeded(build: Callable[[], Made]) -> Made:
    """A network whose first weights are the same every time, without touching the global random state."""
    with OwnDraws(torch.Generator().manual_seed(0)), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build()


def downloaded(name: str, build: Callable[[], Made]) -> Made:
    """A network with its published weights, or another part of it."""
    try:
        return build()
    except Exception as error:
        raise ModelError(
            f"the weights of {name} could not be downloaded ({one_line(error)}): connect to the Internet, "
            'or set weights (--weights on the command line) to a file, or to "random" for an untrained network'
        ) from error


def of_torchvision(name: str, published: Any | None, **untrained: Any) -> Any:
    """The network of that name, with published weights; where these are None, made with the `untrained` options."""
    from torchvision.models import get_model

    if published is None:
        return seeded(lambda: get_model(name, weights=None, **untrained))
    return downloaded(name, lambda: get_model(name, weights=published, progress=sys.stderr.isatty()))


@contextmanager
def no_vain_retries() -> Iterator[None]:
    """Without a network, let the hub look into its cache only: it would retry for most of a minute."""
    hub: Any = importlib.import_module("huggingface_hub.constants")
    host = urlsplit(hub.ENDPOINT).hostname or "huggingface.co"
    offline = hub.HF_HUB_OFFLINE
    try:
        if not getproxies():
            socket.getaddrinfo(host, 443)
    except OSError:
        hub.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = offline
