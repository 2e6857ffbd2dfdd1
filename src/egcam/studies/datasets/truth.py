"""Images of the tests with a known answer, drawn from a seed: nothing is read from disk.

    [data]
    kind = "truth"
    test = "patch"            # the network is egcam.truth.networks:shapes

The label is the class to explain, so a study says `target = "label"`, and the mask is where the evidence is.
`TESTS` has the network of each test.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from egcam.errors import check_known
from egcam.studies.datasets.dataset import DataError, Dataset, Picture
from egcam.studies.datasets.registry import register_dataset
from egcam.truth import networks
from egcam.truth.grids import make_grids
from egcam.truth.planted import planted_trial
from egcam.truth.shapes import CLASSES, LAYER, recognised
from egcam.truth.walls import walls_trial

Test = Literal["shapes", "patch", "gridpg", "difull", "dipart", "walls"]

TESTS: dict[str, str] = {
    test: f"egcam.truth.networks:{'shapes' if test == 'patch' else test}" for test in get_args(Test)
}


class KnownAnswers(Dataset):
    """The images of one test, in memory."""

    has_labels = has_masks = True

    def __init__(self, test: Test, images: Tensor, labels: Tensor, masks: Tensor) -> None:
        pixels = ((images * 0.25 + 0.5).clamp(0, 1) * 255).round().byte()
        self._images = pixels.permute(0, 2, 3, 1).contiguous().numpy()
        self._labels, self._masks = labels.tolist(), np.ascontiguousarray((masks > 0).numpy())
        self.names = [f"{test} {number:04d}" for number in range(len(images))]
        self.description = f"{test}: {len(self):,} images with a known answer, labels, masks"

    @property
    def groups(self) -> list[str]:
        """The classes."""
        return [str(label) for label in self._labels]

    def __getitem__(self, index: int) -> Picture:
        image = Image.fromarray(self._images[index])
        return Picture(self.names[index], image, int(self._labels[index]), self._masks[index])


@register_dataset("truth", title="tests with a known answer")
def open_truth(*, test: Test, count: int = 60, draw: int = 0) -> Dataset:
    """`count` images of a test, the same for the same `draw`; "patch" has those of them that the patch decides."""
    check_known(test, TESTS, "test", DataError)
    if count < 1:
        raise DataError(f"count = {count}: a test needs at least one image")
    network = networks.trained()
    if test == "patch":
        planted = planted_trial(network, count, draw)
        return KnownAnswers(test, planted.images, planted.targets, planted.truth)
    if test == "shapes":
        drawn = recognised(network, count, draw + 1)
        return KnownAnswers(test, drawn.images, drawn.labels, drawn.masks)
    known = recognised(network, 2 * count, draw + 3)
    if test == "walls":
        walled = walls_trial(network, known.images[:count], LAYER, networks.HIDDEN_ROWS)
        return KnownAnswers(test, walled.images, walled.targets, walled.truth)
    grids = make_grids(known.images, known.labels, networks.CELLS, count, draw)
    heads = torch.zeros_like(grids.cells) if test == "gridpg" else grids.cells * len(CLASSES)
    return KnownAnswers(test, grids.images, heads + grids.explained, grids.masks)
