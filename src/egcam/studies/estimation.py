"""How long a study will take, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from egcam.studies.config import load_study
from egcam.studies.cost import image_passes
from egcam.studies.datasets import open_dataset
from egcam.studies.networks import Described, describe_networks
from egcam.studies.specs import Study


@dataclass(frozen=True)
class Estimate:
    """What a study costs.

    Attributes:
        images: how many.
        units: how many.
        passes: of one image through a model, by label.
        seconds: of one worker's time, by label: the passes at the speed of a short probe.
    """

    images: int
    units: int
    passes: dict[str, int]
    seconds: dict[str, float]

    @property
    def total_passes(self) -> int:
        """All models together."""
        return sum(self.passes.values())

    @property
    def total_seconds(self) -> float:
        """All models together, for one worker."""
        return sum(self.seconds.values())


def estimate(study: Study | str | Path, limit: int | None = None) -> Estimate:
    """Count the passes of a study and, after a short probe of each model, say how long they take.

    The probe passes a few blank images through each model with the study's threads. Backward passes, tails behind the
    layer and reading images come on top, so expect somewhat more.

    Args:
        study: a study or its TOML file.
        limit: only the first so many images.
    """
    found = study if isinstance(study, Study) else load_study(study)
    available = len(open_dataset(found.data))
    return estimated(found, describe_networks(found), min(available, limit or available))


def estimated(study: Study, networks: dict[str, Described], images: int) -> Estimate:
    """The estimate, the models having been looked at."""
    passes = {label: images * image_passes(study, one.channels, one.size) for label, one in networks.items()}
    seconds = {label: passes[label] * one.seconds_per_pass for label, one in networks.items()}
    return Estimate(images, images * len(study.models) * len(study.methods), passes, seconds)
