"""What every method returns: the maps and all that is needed to read, show and keep them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from egcam.drawing.palette import OPACITY
from egcam.errors import InputError, MethodError
from egcam.imageops import Size, area_mean, heatmaps
from egcam.models.layer_output import Reshape, picklable_reshape

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from egcam.attribution.own_colours import Colour
    from egcam.attribution.regions import Box
    from egcam.models.crops import Crop
    from egcam.models.preprocessing import Preprocessing


@dataclass(frozen=True, eq=False)
class Completeness:
    """Whether an attribution adds up: y(x) - E[y(x')] = sum(attributions) + what goes around the layer - gap.

    Attributes:
        total: (N,) the sum of the signed attributions over all channels and positions (and tokens that belong to none).
        expected: (N,) y(x) - E[y(x')], over the references that were drawn.
        around: (N,) how much of that does not pass through the layer: the score when only the layer returns what it
            does for a reference, less the reference's own.
        exact: (N,) whether slopes were taken throughout, rather than derivatives at nodes.
        attributions: (N, h, w) the signed map that adds up, in units of the score.
    """

    total: Tensor
    expected: Tensor
    around: Tensor
    exact: Tensor
    attributions: Tensor | None = field(default=None, repr=False)

    @property
    def gap(self) -> Tensor:
        """(N,) what the sum is off by, as it was found; nothing is corrected."""
        return self.total - (self.expected - self.around)

    def each(self, change: Callable[[Tensor], Tensor]) -> Completeness:
        """With a change made to each of the tensors."""
        known = {one.name: value for one in fields(self) if (value := getattr(self, one.name)) is not None}
        return Completeness(**{name: change(value) for name, value in known.items()})


@dataclass(frozen=True, eq=False)
class Explanation:
    """Maps for a batch of images, or for one image without a batch dimension (then every tensor lacks it, too).

    Attributes:
        maps: (N, h, w) at the layer's resolution: raw values after the ReLU (signed: before it), on the device.
        size: (H, W) of the explained images, (L,) of signals, (D, H, W) of volumes, (T, H, W) of video. Shapes here
            are those for images; maps of signals are (N, l), and so on.
        targets: (N,) the classes explained, or None with a callable target.
        scores: (N,) the explained scores; logits by default.
        predictions: (N,) the predicted classes, or None if the output has none.
        layer: the name of the layer, or several joined with " + ".
        method: the registered name of the method.
        reference: what references were used, or None.
        error: (N, h, w) the standard error of `maps` before the ReLU (so an upper bound after it) for sampled methods,
            else None.
        passes: how many single-image passes through the network it took, including those that end at the layer.
        tails: how many runs of what follows the layer, with or without a gradient.
        completeness: what the attributions add up to and should, if the method is complete, else None.
        options: the method's settings.
        classes: the class names, if known.
        images: the explained tensor, for drawing; not saved.
        start: in a stream, the number of its first image.
        outputs: (N, outputs) the model's class scores before any softmax, or None if there are none; not saved.
        described: a description of each image's target, if it is not a class.
        preprocessing: how a `Classifier` normalised the images, if one did; for drawing, not saved.
        weights_checksum: the first digits of a sha256 of the model's weights; large tensors are read in part.
        image_checksums: checksums of the images, if the explanation was loaded without them.
        reshape: how the layer's output was made a map, if that was said; a callable is not saved.
        crop: the part of the photograph that was explained, if a `Classifier` prepared it.
    """

    maps: Tensor
    size: Size
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
    described: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = field(default=None, repr=False)
    weights_checksum: str | None = None
    image_checksums: tuple[str, ...] | None = None
    reshape: Reshape | None = field(default=None, repr=False)
    crop: Crop | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All of it, but for a `reshape` that another process could not find."""
        return {**vars(self), "reshape": picklable_reshape(self.reshape)}

    @cached_property
    def heatmaps(self) -> Tensor:
        """(N, H, W) in [0, 1], or [-1, 1] for signed maps.

        Linear upsampling along every axis (corners not aligned), then division by the largest absolute value; a zero
        map stays zero.
        """
        batch = self.maps[None] if self.is_single else self.maps
        found = heatmaps(batch, self.size)
        return found[0] if self.is_single else found

    @property
    def is_single(self) -> bool:
        """Whether one image without a batch dimension was explained."""
        return self.maps.ndim == len(self.size)

    def __len__(self) -> int:
        return 1 if self.is_single else len(self.maps)

    def __getitem__(self, which: SupportsIndex | slice) -> Explanation:
        """One of the images without a batch dimension, `explanation[2]`, or several in a row, `explanation[2:5]`.

        All that belongs to an image goes with it. `start` counts on; `passes` and `tails`, which are counted for the
        batch, go by the number of images.

        Example:
            >>> import egcam
            >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Sigmoid(), torch.nn.Flatten(),
            ...                           torch.nn.Linear(72, 2))
            >>> explanation = egcam.explain(net, torch.rand(3, 1, 8, 8), "hires-cam", target=[0, 1, 0], signed=True)
            >>> explanation[1].maps.shape, int(explanation[1].targets), explanation[1:].targets.tolist()
            (torch.Size([6, 6]), 1, [1, 0])
            >>> [one.label() for one in explanation]
            ['class 0', 'class 1', 'class 0']
        """
        from egcam.attribution.derived import selected

        return selected(self, which)

    def __iter__(self) -> Iterator[Explanation]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        count = f"{len(self)} map{'s' if len(self) != 1 else ''}"
        reference = "" if self.reference is None else f", reference={self.reference!r}"
        size = tuple(self.maps.shape[-len(self.size) :])
        shown = [self._described(index) for index in range(min(3, len(self)))]
        said = "; ".join([*shown, "…"] if len(self) > 3 else shown)
        return f"Explanation({self.method!r}, {said}, {count} {size} at layer {self.layer!r}{reference})"

    def _described(self, index: int) -> str:
        """The label, the score, and what the map explains of it."""
        worth = self.worth(index)
        score = float(self.scores.reshape(-1)[index])
        return f"{self.label(index)} {score:.2f}" + (f", hottest tenth {worth}" if worth else "")

    def label(self, index: int = 0) -> str:
        """What was explained for one image: the class's name if known, else its number; or the target's description."""
        if self.targets is None:
            return "callable target" if self.described is None else self.described[index]
        number = int(self.targets.reshape(-1)[index])
        if self.classes is None or number >= len(self.classes):
            return f"class {number}"
        return self.classes[number]

    def share(self, region: Tensor | Sequence[float]) -> Tensor:
        """(N,) how much of the score a region adds: the attributions inside it, in units of the score.

        A cell of the map counts by the part of it that the region covers, so disjoint regions add up. Only complete
        methods have it, such as SlopeCAM at one layer.

        Args:
            region: a mask, (H, W) for all images or (N, H, W), True or 1 inside; or a box (left, top, right, bottom)
                in pixels of the explained image.
        """
        if self.completeness is None or self.completeness.attributions is None:
            raise MethodError(
                f"only a complete attribution can be added up over a region, and {self.method!r} with these options is "
                "none: use egcam.SlopeCAM(model) at one layer"
            )
        attributions, axes = self.completeness.attributions, len(self.size)
        mask = region if isinstance(region, Tensor) else _box(region, self.size)
        if tuple(mask.shape[-axes:]) != self.size or mask.ndim not in (axes, axes + 1):
            raise InputError(f"the mask is {tuple(mask.shape)}; it must be {self.size}, or one of that size per image")
        inside = mask.to(attributions.device, attributions.dtype).reshape(-1, 1, *self.size)
        covered = area_mean(inside, attributions.shape[-axes:])[:, 0]
        shares: Tensor = attributions * (covered[0] if mask.ndim == axes or self.is_single else covered)
        return shares.sum(tuple(range(-axes, 0)))

    def worth(self, index: int = 0) -> str:
        """What the hottest tenth of an image adds to the score, "+6.1 of +8.9"; empty unless the method is complete.

        The whole is y(x) - E[y(x')]. Where the signed map lacks more than a tenth of it, that is said: "+3.7 of +7.6
        (+2.1 go around the layer)", "+3.7 of +7.6 (gap +5.2)".
        """
        if self.completeness is None or self.completeness.attributions is None:
            return ""
        hottest = self.share(self.hottest()).reshape(-1)[index]
        whole, around, gap = (
            float(sides.reshape(-1)[index])
            for sides in (self.completeness.expected, self.completeness.around, self.completeness.gap)
        )
        missed = f" ({around:+.1f} go around the layer)" if abs(around) > 0.1 * abs(whole) else ""
        missed += f" (gap {gap:+.1f})" if abs(gap) > 0.1 * abs(whole) else ""
        return f"{float(hottest):+.1f} of {whole:+.1f}{missed}"

    def hottest(self, part: float = 0.1) -> Tensor:
        """(N, H, W) masks of the hottest part of each heat map, of what is above zero."""
        heat = self.heatmaps.flatten(-len(self.size))
        least = heat.float().quantile(1 - part, dim=-1, keepdim=True)
        return ((heat >= least) & (heat > 0)).reshape(self.heatmaps.shape)

    def mask(self, threshold: float = 0.5) -> Tensor:
        """(N, H, W) bool: where each heat map has `threshold` times its maximum or more.

        A map without positive values has an empty mask.

        Example:
            >>> maps = torch.tensor([[[0.0, 2.0], [3.0, 4.0]]])
            >>> Explanation(maps, (2, 2), None, torch.zeros(1), None, "layer4", "grad-cam").mask(0.5).tolist()
            [[[False, True], [True, True]]]
        """
        from egcam.attribution.regions import at_or_above

        return at_or_above(self.heatmaps, threshold, len(self.size))

    def boxes(self, threshold: float = 0.5) -> list[list[Box]]:
        """For each image the boxes (left, top, right, bottom) around the connected regions of `mask(threshold)`.

        The largest region comes first; pixels that share an edge are connected. Right and bottom are the first
        column and row beyond the region, as `share` takes them.

        Example:
            >>> maps = torch.tensor([[[4.0, 0.0, 0.0, 3.0], [0.0, 0.0, 3.0, 3.0]]])
            >>> Explanation(maps, (2, 4), None, torch.zeros(1), None, "layer4", "grad-cam").boxes()
            [[(2, 0, 4, 2), (0, 0, 1, 1)]]
        """
        from egcam.attribution.regions import boxes_around

        if len(self.size) != 2:
            raise InputError(f"a box is a region of images, and this is of size {self.size}: use explanation.mask()")
        masks = self.mask(threshold).reshape(-1, *self.size).cpu().numpy()
        return [boxes_around(mask) for mask in masks]

    def class_means(self) -> dict[int, Tensor]:
        """(H, W) the mean heat map of each class that was explained, by the class's number, rising.

        Every image counts alike, as each heat map is divided by its own maximum first.

        Example:
            >>> maps = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[3.0, 3.0]]])
            >>> made = Explanation(maps, (1, 2), torch.tensor([7, 7, 2]), torch.zeros(3), None, "layer4", "grad-cam")
            >>> {number: mean.tolist() for number, mean in made.class_means().items()}
            {2: [[1.0, 1.0]], 7: [[0.5, 0.5]]}
        """
        if self.targets is None:
            raise InputError("these are no explanations of classes: the target was a callable or one of egcam.targets")
        heat, targets = self.heatmaps.reshape(-1, *self.size), self.targets.reshape(-1)
        return {number: heat[targets == number].mean(0) for number in sorted(set(targets.tolist()))}

    def difference(self, other: Explanation) -> Explanation:
        """This explanation minus another of the same images: why this class rather than that, or this checkpoint.

        The raw maps are subtracted, and drawn from blue (the other) to red (this one), whatever their signs. Scores
        and completeness are subtracted, too; `error` is the sum of both, which holds even if they used the same
        samples. Both must have the same method, layer, score, `signed` and images.

        Example:
            >>> import egcam
            >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Sigmoid(), torch.nn.Flatten(),
            ...                           torch.nn.Linear(72, 2))
            >>> images = torch.rand(1, 1, 8, 8)
            >>> cat, dog = (egcam.explain(net, images, "hires-cam", target=one, signed=True) for one in (0, 1))
            >>> why = cat.difference(dog)
            >>> why.label(), torch.equal(why.maps, cat.maps - dog.maps)
            ('class 0 rather than class 1', True)
        """
        from egcam.attribution.derived import difference_of

        return difference_of(self, other)

    def to_frame(self) -> pd.DataFrame:
        """A pandas table with one row for each image; pandas is in the extra `study`.

        Columns: image (counted from `start`), target and prediction (class numbers), label (what was explained, in
        words), score, method, layer, reference, x and y (the hottest pixel; missing for a map without positive
        values; z for volumes), total and expected (of `completeness`), passes (for each image, on average).

        Example:
            >>> maps = torch.tensor([[[0.0, 2.0], [3.0, 4.0]]])
            >>> made = Explanation(maps, (2, 2), torch.tensor([7]), torch.ones(1), None, "layer4", "grad-cam")
            >>> made.to_frame()[["image", "label", "score", "x", "y"]].values.tolist()
            [[0, 'class 7', 1.0, 1, 1]]
        """
        from egcam.attribution.derived import frame_of

        return frame_of(self)

    def overlay(
        self,
        images: Tensor | Image | Sequence[Image] | None = None,
        alpha: float = OPACITY,
        sharpness: float = 1.0,
        *,
        regions: bool = False,
        colormap: str | None = None,
        mean: Colour | None = None,
        std: Colour | None = None,
        crop: Crop | Sequence[Crop] | None = None,
    ) -> list[Image]:
        """The heat maps over the images, as PIL images.

        Over a photograph the map lies where the model looked, if that is known: a `Classifier` that explained the
        photograph knows it, and `egcam.crop(transform, photograph)` measures it. A picture of the explained images'
        proportions is otherwise taken for what the model saw, and one of other proportions is refused.

        A signal is drawn as a line with the colours behind it, a volume or video as slices side by side; see
        `egcam.drawing.traces.trace`, and `montage` and `animation` in `egcam.drawing.montages`.

        Args:
            images: a tensor (N, C, H, W) or (C, H, W), one PIL image or a list of them, of any resolution; by default
                the tensor that was explained. Signals and volumes: a tensor. Normalised tensors are shown in their own
                colours, undone by `mean` and `std`, by the classifier that normalised them, or by a guess from their
                values: [-1, 1], or ImageNet's mean and std. Others outside [0, 1] are stretched to it.
            alpha: how opaque the most important place is; places of no importance show the bare picture.
            sharpness: an exponent for display, sign(v) |v|^sharpness: the order of the pixels stays, small values
                fade. `heatmaps`, and so every metric, do not use it.
            regions: outline the two regions that add most to the score, with what they add and how sure that is at
                worst, "+2.0 ± 0.3 of 9.3", and fade what is less than two standard errors. Of methods that are not
                complete the maps alone are shown.
            colormap: a matplotlib colour map, such as "magma"; by default viridis, or blue-white-red for signed maps.
            mean: with which the tensor was normalised, (pixels - mean) / std: one number, or one per channel.
            std: likewise.
            crop: which part of its photograph each image is, or of every one: `egcam.crop(transform, photograph)`.

        Example:
            >>> white = (torch.ones(1, 3, 4, 4) - 0.4) / 0.2
            >>> made = Explanation(torch.zeros(1, 2, 2), (4, 4), None, torch.zeros(1), None, "layer4", "grad-cam")
            >>> made.overlay(white, mean=0.4, std=0.2)[0].getpixel((0, 0))
            (255, 255, 255)
        """
        from egcam.drawing.by_dimension import drawn
        from egcam.models.crops import boxes_of_maps

        if len(self.size) != 2:
            below = self._colours(self._tensors(images), mean, std, is_own=False)
            return [
                drawn(image, heat, alpha, sharpness, colormap, self._is_drawn_signed)
                for image, heat in zip(below, self._arrays(), strict=True)
            ]
        pictures = self._pictures(images, mean, std)
        boxes = boxes_of_maps([picture.size for picture in pictures], self.size, crop, self.crop)
        return [
            self._laid_over(index, picture, box, regions, (alpha, colormap, sharpness))
            for index, (picture, box) in enumerate(zip(pictures, boxes, strict=True))
        ]

    def _laid_over(
        self,
        index: int,
        picture: Image,
        box: tuple[float, float, float, float] | None,
        regions: bool,
        look: tuple[float, str | None, float],
    ) -> Image:
        from egcam.attribution.worth import certainty, regions_of
        from egcam.drawing.marks import with_outline
        from egcam.drawing.overlays import overlay_image, placed, smoothed

        heat = smoothed(self._arrays()[index], tuple(self.maps.shape[-2:]))
        certain = certainty(self, index) if regions else None
        made = overlay_image(picture, heat, *look, self._is_drawn_signed, box, certain)
        for number, region in enumerate(regions_of(self, index) if regions else ()):
            outline = placed(region.mask, box, made.size)
            made = with_outline(made, outline, "#ffffff", region.label, below=number > 0)
        return made

    @property
    def _is_drawn_signed(self) -> bool | None:
        """Whether the maps are drawn from -1 to 1 whatever their values; None is where there are negative ones."""
        return True if self.options.get("difference") else None

    def _colours(self, images: Tensor, mean: Colour | None, std: Colour | None, is_own: bool) -> Tensor:
        """Images in the colours they are shown in; `is_own` says that they are the explained ones."""
        from egcam.attribution.own_colours import in_own_colours, unnormalised

        if (mean is None) != (std is None):
            raise InputError("mean and std go together: an image was normalised as (pixels - mean) / std")
        if mean is not None and std is not None:
            return unnormalised(images, mean, std, len(self.size))
        # Another tensor may be passed, such as the plain photograph: then its values decide.
        return in_own_colours(images, self.preprocessing if is_own else None) if len(self.size) == 2 else images

    def _pictures(
        self,
        images: Tensor | Image | Sequence[Image] | None,
        mean: Colour | None = None,
        std: Colour | None = None,
    ) -> list[Image]:
        from egcam.drawing.overlays import to_pil

        is_own = images is None
        images = self.images if images is None else images
        if images is None:
            raise InputError("this explanation was loaded without its images; pass them: explanation.overlay(images)")
        if isinstance(images, Tensor):
            pictures = to_pil(self._colours(images, mean, std, is_own))
        elif mean is not None or std is not None:
            raise InputError("mean and std are those of a normalised tensor; pictures are in their own colours already")
        else:
            given = list(images) if isinstance(images, list | tuple) else [images]
            pictures = [picture.convert("RGB") for picture in given]  # type: ignore[union-attr]
        if len(pictures) != len(self):
            raise InputError(f"{len(pictures)} images for {len(self)} maps: pass one image for each map")
        return pictures

    def _tensors(self, images: object) -> Tensor:
        """(N, C, *size) what is drawn under the maps of signals and volumes."""
        images = self.images if images is None else images
        if images is None:
            raise InputError("this explanation was loaded without its images; pass them: explanation.overlay(images)")
        wanted = (len(self), "C", *self.size)
        if isinstance(images, Tensor):
            images = images[None] if images.ndim == len(self.size) + 1 else images
            if images.ndim == len(wanted) and (len(images), *images.shape[2:]) == (len(self), *self.size):
                return images
        found = tuple(images.shape) if isinstance(images, Tensor) else type(images).__name__
        raise InputError(f"what to draw the maps over is a tensor ({', '.join(map(str, wanted))}), not {found}")

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
        shown = self.overlay(images, sharpness=sharpness, regions=True) if known else self._heat_pictures(sharpness)
        columns = min(4, len(shown)) if len(self.size) == 2 else 1
        rows = -(-len(shown) // columns)
        # Traces and montages fill the page's width, and are as high as they are.
        inches = (3.0, 3.3) if len(self.size) == 2 else (9.0, 9 * shown[0].height / shown[0].width + 0.3)
        size = (inches[0] * columns, inches[1] * rows)
        figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
        for axis in axes.flat:
            axis.axis("off")
        for index, (axis, picture) in enumerate(zip(axes.flat, shown, strict=False)):
            axis.imshow(picture)
            axis.set_title(self._described(index), fontsize=9)
        figure.suptitle(f"{self.method} at {self.layer}", fontsize=10)
        figure.tight_layout()
        return figure

    def _heat_pictures(self, sharpness: float = 1.0) -> list[Image]:
        from egcam.drawing.by_dimension import drawn

        return [drawn(None, heat, sharpness=sharpness, signed=self._is_drawn_signed) for heat in self._arrays()]

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

        Of volumes and video an animated GIF as well.
        Nothing is pickled. `load` gives the same explanation back, without its images. The batches of a stream go into
        one folder: the one that begins with image 64 is `explanation_64.npz`, `explanation_64.json`, `heatmap_64.png`
        and so on. An explanation that begins with image 0 replaces what was saved there before; no other file is
        deleted.

        Args:
            folder: created if it does not exist.
            pictures: whether to write the PNGs and GIFs.
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


def _box(box: Sequence[float], size: Size) -> Tensor:
    """(H, W), 1 inside the box and 0 outside; a pixel that is cut counts by the part inside."""
    if len(size) != 2:
        raise InputError(f"a box is a region of images: pass a mask of the size {size}, True inside the region")
    height, width = size
    values = tuple(float(value) for value in box)
    if len(values) != 4 or not (0 <= values[0] < values[2] <= width and 0 <= values[1] < values[3] <= height):
        raise InputError(
            f"a box is (left, top, right, bottom) in pixels within the explained image, {width} wide and {height} "
            f"high, not {tuple(box)}"
        )
    left, top, right, bottom = values
    columns, rows = (torch.arange(side, dtype=torch.float64, device="cpu") for side in (width, height))
    across = (torch.minimum(columns + 1, torch.tensor(right)) - columns.clamp(min=left)).clamp(0, 1)
    down = (torch.minimum(rows + 1, torch.tensor(bottom)) - rows.clamp(min=top)).clamp(0, 1)
    return down[:, None] * across
