"""What every method returns: the maps and all that is needed to read, show and keep them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor
from torch.nn import functional

from egcam.drawing.palette import OPACITY
from egcam.errors import InputError, MethodError
from egcam.imageops import heatmaps

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, eq=False)
class Completeness:
    """Whether an attribution adds up: both sides of sum(attributions) = y(x) - E[y(x')], for each image.

    What goes around the layer is held at the image's own values: there y(x') stands for the score when the layer alone
    puts out what it does for the reference.

    Attributes:
        total: (N,) the sum of the signed attributions over all channels and positions (and tokens that belong to none).
        expected: (N,) y(x) - E[y(x')], over the references that were drawn.
        attributions: (N, h, w) the signed map that adds up, in units of the score.
    """

    total: Tensor
    expected: Tensor
    attributions: Tensor | None = None

    @property
    def gap(self) -> Tensor:
        """(N,) total - expected: the error of the path integral, which tends to 0 as samples grow."""
        return self.total - self.expected


@dataclass(frozen=True, eq=False)
class Explanation:
    """Maps for a batch of images, or for one image without a batch dimension (then every tensor lacks it, too).

    Attributes:
        maps: (N, h, w) at the layer's resolution: raw values after the ReLU (signed: before it), on the device.
        size: (H, W) of the explained images.
        targets: (N,) the classes explained, or None with a callable target.
        scores: (N,) the explained numbers: logits unless another score was asked for.
        predictions: (N,) the predicted classes, or None where the output has none.
        layer: the name of the layer, or several joined with " + ".
        method: the registered name of the method.
        reference: what references were used, or None.
        error: (N, h, w) the standard error of `maps` before the ReLU (so an upper bound after it) for sampled methods,
            else None.
        passes: how many single-image passes through the network it took, those that end at the layer included.
        tails: how many runs of what follows the layer, with or without a gradient.
        completeness: what the attributions add up to and should, where the method is complete, else None.
        options: what the method was set to.
        classes: the class names, where known.
        images: the explained tensor, for drawing; not saved.
        start: in a stream, the number of its first image.
        outputs: (N, outputs) the model's class scores before any softmax, or None where there are none; not saved.
    """

    maps: Tensor
    size: tuple[int, int]
    targets: Tensor | None
    scores: Tensor
    predictions: Tensor | None
    layer: str
    method: str
    reference: str | None = None
    error: Tensor | None = None
    passes: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    images: Tensor | None = field(default=None, repr=False)
    start: int = 0
    tails: int = 0
    completeness: Completeness | None = None
    outputs: Tensor | None = field(default=None, repr=False)

    @cached_property
    def heatmaps(self) -> Tensor:
        """(N, H, W) in [0, 1], or [-1, 1] for signed maps.

        Bilinear upsampling (corners not aligned), then division by the largest absolute value; a zero map stays zero.
        """
        batch = self.maps[None] if self.is_single else self.maps
        found = heatmaps(batch, self.size)
        return found[0] if self.is_single else found

    @property
    def is_single(self) -> bool:
        """Whether one image without a batch dimension was explained."""
        return self.maps.ndim == 2

    def __len__(self) -> int:
        return 1 if self.is_single else len(self.maps)

    def __repr__(self) -> str:
        targets = "callable" if self.targets is None else self.targets.reshape(-1).tolist()
        count = f"{len(self)} map{'s' if len(self) != 1 else ''}"
        reference = "" if self.reference is None else f", reference={self.reference!r}"
        return (
            f"Explanation({self.method!r}, {count} {tuple(self.maps.shape[-2:])} at layer {self.layer!r}, "
            f"targets={targets}{reference})"
        )

    def label(self, index: int = 0) -> str:
        """The explained class of one image in words: its name where known, else its number."""
        if self.targets is None:
            return "callable target"
        number = int(self.targets.reshape(-1)[index])
        if self.classes is None or number >= len(self.classes):
            return f"class {number}"
        return self.classes[number]

    def share(self, mask: Tensor) -> Tensor:
        """(N,) how much of the score a region is worth: the attributions inside it, in units of the score.

        A cell of the map counts by the part of it that the region covers, so disjoint regions add up. Only methods
        that are complete have it: Expected Grad-CAM with a latent path, a latent difference and the summed weighting.

        Args:
            mask: (H, W) for all images or (N, H, W); True, or 1, inside the region.
        """
        if self.completeness is None or self.completeness.attributions is None:
            raise MethodError(
                "only a complete attribution can be added up over a region: use "
                "egcam.ExpectedGradCAM(model, path='latent', difference='latent', weighting='summed')"
            )
        attributions = self.completeness.attributions
        if tuple(mask.shape[-2:]) != self.size or mask.ndim not in (2, 3):
            raise InputError(f"the mask is {tuple(mask.shape)}; it must be {self.size}, or one of that size per image")
        inside = mask.to(attributions.device, attributions.dtype).reshape(-1, 1, *self.size)
        height, width = attributions.shape[-2:]
        covered = functional.adaptive_avg_pool2d(inside, (height, width))[:, 0]
        return (attributions * (covered[0] if mask.ndim == 2 or self.is_single else covered)).sum((-2, -1))

    def overlay(
        self,
        images: Tensor | Image | Sequence[Image] | None = None,
        alpha: float = OPACITY,
        sharpness: float = 1.0,
    ) -> list[Image]:
        """The heat maps over the images, as PIL images.

        Args:
            images: a tensor (N, C, H, W) or (C, H, W), one PIL image or a list of them, of any size; by default the
                tensor that was explained. Tensors outside [0, 1] are stretched to it.
            alpha: how opaque the most important place is; places of no importance show the bare picture.
            sharpness: an exponent of what is shown, sign(v) |v|^sharpness: the order of the pixels stays, what is
                small gets smaller. `heatmaps`, and so every metric, are as they are without it.
        """
        from egcam.drawing.overlays import overlay_image

        pictures = self._pictures(images)
        return [
            overlay_image(picture, heat, alpha=alpha, sharpness=sharpness)
            for picture, heat in zip(pictures, self._arrays(), strict=True)
        ]

    def _pictures(self, images: Tensor | Image | Sequence[Image] | None) -> list[Image]:
        from egcam.drawing.overlays import to_pil

        images = self.images if images is None else images
        if images is None:
            raise InputError("this explanation was loaded without its images; pass them: explanation.overlay(images)")
        if isinstance(images, Tensor):
            pictures = to_pil(images)
        else:
            given = list(images) if isinstance(images, list | tuple) else [images]
            pictures = [picture.convert("RGB") for picture in given]  # type: ignore[union-attr]
        if len(pictures) != len(self):
            raise InputError(f"{len(pictures)} images for {len(self)} maps: pass one image for each map")
        return pictures

    def _arrays(self) -> list[np.ndarray[Any, Any]]:
        batch = self.heatmaps[None] if self.is_single else self.heatmaps
        return list(batch.detach().float().cpu().numpy())

    def show(self, images: Tensor | Image | Sequence[Image] | None = None, sharpness: float = 1.0) -> None:
        """Draw the overlays with matplotlib; `sharpness` as for `overlay`."""
        from matplotlib import pyplot

        self._figure(images, sharpness)
        pyplot.show()

    def _figure(self, images: Tensor | Image | Sequence[Image] | None = None, sharpness: float = 1.0) -> Any:
        from matplotlib import pyplot

        known = images is not None or self.images is not None
        shown = self.overlay(images, sharpness=sharpness) if known else self._heat_pictures(sharpness)
        columns = min(4, len(shown))
        rows = -(-len(shown) // columns)
        figure, axes = pyplot.subplots(rows, columns, figsize=(3 * columns, 3.3 * rows), squeeze=False)
        for axis in axes.flat:
            axis.axis("off")
        for index, (axis, picture) in enumerate(zip(axes.flat, shown, strict=False)):
            axis.imshow(picture)
            axis.set_title(self.label(index), fontsize=9)
        figure.suptitle(f"{self.method} at {self.layer}", fontsize=10)
        figure.tight_layout()
        return figure

    def _heat_pictures(self, sharpness: float = 1.0) -> list[Image]:
        from egcam.drawing.overlays import heatmap_image

        return [heatmap_image(heat, sharpness=sharpness) for heat in self._arrays()]

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        from matplotlib import pyplot

        figure = self._figure()
        buffer = BytesIO()
        figure.savefig(buffer, format="png", dpi=100)
        pyplot.close(figure)
        return buffer.getvalue()

    def save(self, folder: str | Path, pictures: bool = True) -> Path:
        """Write `explanation.npz` (numbers), `explanation.json` (facts) and one PNG for each heat map, and overlay.

        Nothing is pickled. `load` gives the same explanation back, without its images. The batches of a stream go into
        one folder: the one that begins with image 64 is `explanation_64.npz`, `explanation_64.json`, `heatmap_64.png`
        and so on. An explanation that begins with image 0 replaces what was saved there before; no other file is
        deleted.

        Args:
            folder: made where it does not exist.
            pictures: whether the PNGs are written.
        """
        from egcam.attribution.explanation_files import save

        return save(self, folder, pictures)

    @staticmethod
    def load(folder: str | Path, start: int | None = None) -> Explanation:
        """Read what `save` wrote.

        Args:
            folder: where to.
            start: of a stream, the batch that begins with this image; None is all of them, joined.
        """
        from egcam.attribution.explanation_files import load

        return load(folder, start)
