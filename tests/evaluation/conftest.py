"""The scenes metrics are tested on serve tables of them as well."""

from metrics.conftest import _one_thread as _one_thread
from metrics.conftest import scene as scene
