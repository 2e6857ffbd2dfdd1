"""What metrics are computed of: a model, images, maps and classes; what metrics share is computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from egcam.attribution.explanation import Explanation
from egcam.attribution.references import Normalisation, assumption
from egcam.errors import InputError
from egcam.metrics.baselines import SHADES, Baseline, replacement
from egcam.metrics.explaining import Explainer, maps_in_batches
from egcam.metrics.inputs import Maps, as_images, as_maps, as_masks, as_tensor, explained_target, scaled_by_peak
from egcam.metrics.perturb import Curve, ordered_curve, replaced_scores
from egcam.metrics.perturbed import Copies, Perturbed, measure_perturbed
from egcam.metrics.scoring import CurveScore, Scorer, fitting_batch, forward_only
from egcam.metrics.undefined import Causes
from egcam.models.class_names import Classes, as_class_names
from egcam.models.class_scores import Score, known_classes
from egcam.models.dimensions import dimensions_of
from egcam.models.inputs import ExtraInputs, FromList, is_listed
from egcam.models.layer_output import Reshape
from egcam.models.model_errors import check_rows
from egcam.models.targets import Target, of_images

T = TypeVar("T")
Owner = TypeVar("Owner")


@dataclass
class _Network:
    """What was found out about the network and all images, whatever the maps; by image number."""

    images: int
    logits: Tensor | None = None
    found: dict[Hashable, dict[int, Tensor]] = field(default_factory=dict)
    assumed: dict[str, None] = field(default_factory=dict)


@dataclass(frozen=True)
class AtLayer:
    """(N, h, w) maps before they were enlarged, and where they were made, as far as that is known."""

    maps: Tensor  # (N, h, w)
    layer: str | None = None  # the layer's name
    reshape: Reshape | None = None  # how its output was made a map, if that was said


class Case:
    """A model, images, their maps and the explained classes; what several metrics need of them is computed once.

    Everything is optional: a metric refuses a case without what it needs. `undefined` notes why images have no score;
    `unusable` are those whose map is not finite, and `curves` the insertion and deletion curves.

    Args:
        model: the classifier.
        images: (N, C, H, W); (C, H, W) is one; a list of images for a model that takes lists. Signals, volumes and
            video as everywhere in egcam.
        heatmaps: (N, H, W) maps, of any size, or an explanation.
        target: the explained classes; None is the explanation's own, and the prediction for maps alone.
        masks: (N, H, W) masks of the objects.
        explainer: a callable (images, target) -> (N, h, w) maps, or one of egcam's explainers.
        maker: makes that explainer for another model, if known.
        batch_size: the most images in one pass or explained at once; None is 8 on a CPU and 32 elsewhere.
        logits: (N, classes) the model's output for the images, if known: then they are not passed again.
        inputs: additional positional inputs of the model: tensors with N rows go with the images row by row; pass what
            all images share as `egcam.shared(…)`.
        keywords: additional keyword inputs of the model, treated alike.
        classes: the class names, for targets by name; None are those of the model, or of the explanation.
        dimensions: 1 for signals, 2 for images, 3 for volumes and video; None is inferred from the explanation,
            explainer or model.
        normalisation: the mean and the standard deviation the images were normalised with, for black and white as
            baseline; None lets each image's values decide, and `assumed` says how.

    Example:
        >>> from egcam.metrics import Deletion, Insertion, InsertionDeletion
        >>> model = nn.Sequential(nn.Flatten(), nn.Linear(48, 3))
        >>> case = Case(model, torch.rand(2, 3, 4, 4), torch.rand(2, 4, 4))
        >>> both = InsertionDeletion().of(case)
        >>> torch.equal(both, Insertion().of(case) - Deletion().of(case))  # no further pass
        True
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        images: Any = None,
        heatmaps: Maps | None = None,
        target: Target = None,
        masks: Any = None,
        explainer: Explainer | None = None,
        *,
        maker: Callable[[nn.Module], Explainer] | None = None,
        batch_size: int | None = None,
        logits: Tensor | None = None,
        inputs: Sequence[Any] = (),
        keywords: Mapping[str, Any] | None = None,
        classes: Classes | None = None,
        dimensions: int | None = None,
        normalisation: Normalisation | None = None,
    ) -> None:
        self.normalisation = normalisation
        said = _said(dimensions, heatmaps, explainer)
        # A model that was given a list of images takes lists.
        self._model = FromList(model) if model is not None and is_listed(images) else model
        self._images = None if images is None else _checked_images(images, model, said, inputs, keywords or {})
        self._heatmaps, self._target, self._masks = heatmaps, target, masks
        self._explainer, self.maker, self._batch_size = explainer, maker, batch_size
        count = 0 if self._images is None else len(self._images)
        self.extra = ExtraInputs(count, tuple(inputs), dict(keywords or {}))
        self._classes = None if classes is None else as_class_names(classes)
        self._network, self._rows = _Network(count, logits), list(range(count))
        self._at_layer: AtLayer | None = None
        self._shared: dict[Hashable, Any] = {}
        self._foreseen: dict[Copies, tuple[int, int]] = {}
        self.causes, self.unusable = Causes(), Causes()
        self.curves: dict[str, Curve] = {}
        self._is_running = False

    def explained(
        self,
        heatmaps: Maps,
        explainer: Explainer | None = None,
        maker: Callable[[nn.Module], Explainer] | None = None,
        rows: Sequence[int] | None = None,
        at_layer: AtLayer | None = None,
    ) -> Case:
        """The same images, or those at `rows`, with other maps; what is known of the network is known of them too."""
        chosen = list(range(len(self.images))) if rows is None else list(rows)
        case = self._like(
            images=self.images[chosen],
            heatmaps=heatmaps,
            target=of_images(self.asked, chosen),
            masks=None if self._masks is None else as_masks(self._masks, self.images[:, 0])[chosen],
            explainer=explainer,
            maker=maker,
        )
        case.extra = self.extra.part(torch.tensor(chosen, device="cpu"))
        case._network, case._rows = self._network, [self._rows[place] for place in chosen]
        case._at_layer = at_layer
        return case

    def in_batches_of(self, batch_size: int) -> Case:
        """The same in other batches, which may change last digits: of the network only its output is known."""
        case = self._like(batch_size=batch_size, logits=self._network.logits)
        case.extra = self.extra
        return case

    def _like(self, **changes: Any) -> Case:
        """A case of the same model, but for these arguments and further inputs of the model."""
        given = {
            "images": self._images,
            "heatmaps": self._heatmaps,
            "target": self._target,
            "masks": self._masks,
            "explainer": self._explainer,
            "maker": self.maker,
            "batch_size": self._batch_size,
            "classes": self._classes,
            "dimensions": self._dimensions,
            "normalisation": self.normalisation,
        }
        return Case(self._model, **given | changes)

    @property
    def _dimensions(self) -> int | None:
        return None if self._images is None else self._images.ndim - 2

    def undefined(self, images: Tensor, cause: str) -> None:
        """Note why the images at which the (N,) boolean `images` is true have no score; the first cause counts."""
        self.causes.mark(images, cause)

    # -- what it was given

    @property
    def model(self) -> nn.Module:
        """The classifier."""
        return _there(self._model, "a model")

    @property
    def images(self) -> Tensor:
        """(N, C, H, W)."""
        return _there(self._images, "images")

    @property
    def explainer(self) -> Explainer:
        """What explains again."""
        return _there(self._explainer, "an explainer")

    @cached_property
    def maps(self) -> Tensor:
        """(N, H, W) at the size of the images, where there are images; those that are not finite are 0."""
        maps, self.unusable = as_maps(self._made, self._images)
        return maps

    @cached_property
    def own_maps(self) -> Tensor:
        """(N, h, w) at the explainer's own size; those that are not finite are 0."""
        maps, self.unusable = as_maps(self._made, dimensions=self._dimensions)
        return maps

    @property
    def at_layer(self) -> AtLayer:
        """The maps as they were made, at the layer's own size, if that is known; else as they were given."""
        if self._at_layer is not None:
            return self._at_layer
        made = self._made
        maps, layer = getattr(made, "maps", None), getattr(made, "layer", None)
        if isinstance(maps, Tensor) and getattr(made, "is_single", False):
            maps = maps[None]
        if isinstance(maps, Tensor) and maps.ndim == self.maps.ndim:
            return AtLayer(maps.detach().to(self.maps), layer, made.reshape if isinstance(made, Explanation) else None)
        return AtLayer(self.own_maps)

    @cached_property
    def _made(self) -> Maps:
        """The maps given, else the explainer's."""
        if self._heatmaps is not None:
            return self._heatmaps
        return self.maps_by(_there(self._explainer, "maps"))

    def maps_by(self, explainer: Explainer, images: Tensor | None = None, target: Target = None) -> Tensor:
        """(N, h, w) what an explainer makes of the images, or of altered copies, for the classes asked for, or others.

        In batches, at the explainer's own size.
        """
        images, target = self.images if images is None else images, self.asked if target is None else target
        return maps_in_batches(explainer, images, target, self.batch_size, self.extra)

    @cached_property
    def masks(self) -> Tensor:
        """(N, H, W) booleans, at the size of the maps."""
        return as_masks(_there(self._masks, "masks"), self.maps)

    @property
    def batch_size(self) -> int:
        """The most images in one pass."""
        return fitting_batch(self._batch_size, self.images.device)

    @property
    def target(self) -> Target:
        """What is explained: as given, else what the explanation explained; None is the prediction."""
        return explained_target(self._target, self._heatmaps)

    # -- the pass of the unaltered images

    @property
    def names(self) -> Sequence[str] | None:
        """The class names: as given, else the model's, else the explanation's."""
        known = known_classes(self.model, self._classes)
        found: Sequence[str] | None = getattr(self._heatmaps, "classes", None) if known is None else known
        return found

    @property
    def _model_and_place(self) -> tuple[nn.Module, torch.device]:
        """The model that may be run, and the device."""
        if self._model is None or self._images is None:
            return nn.Identity(), torch.device("cpu")
        return self._model, self._images.device

    def run(self, call: Callable[[], T]) -> T:
        """Call with the model in eval mode and without gradients; it comes back as it was."""
        if self._is_running:
            return call()
        self._is_running = True
        try:
            with forward_only(*self._model_and_place):
                return call()
        finally:
            self._is_running = False

    def scorer(self, score: CurveScore = "probability") -> Scorer:
        """Scores the images' classes, of the images and of altered copies; they themselves are passed once in all."""
        return self.once(("scorer", score), lambda: self._scorer(self.target, score))

    def _scorer(self, target: Target, score: CurveScore) -> Scorer:
        known = self._network.logits
        rows = None if known is None else known[self._rows]
        self.once("rows", lambda: check_rows(self.model, self.images, self.extra))
        made = Scorer(self.model, self.images, target, score, self._batch_size, rows, self.names, self.extra)
        if known is None and made.outputs is not None and len(self._rows) == self._network.images:
            self._network.logits = made.outputs
        return made

    @property
    def logits(self) -> Tensor:
        """(N, classes) the outputs for the unaltered images."""
        made = self.once("logits", lambda: self._scorer(None, "logit")).logits
        assert made is not None
        return made

    @property
    def classes(self) -> Tensor | None:
        """(N,) the explained classes; None with a callable target."""
        return self.scorer("logit").classes

    @property
    def asked(self) -> Target:
        """What an explainer is asked for: the classes, without a pass if they are known, or the callable."""
        target = self.target
        if isinstance(target, Tensor) and target.shape == (len(self.images),) and _whole_numbers(target):
            # A copy: one that was made inside inference mode could not take part in gradients.
            return target.to(self.images.device, copy=True)
        classes = self.classes
        return classes if classes is not None else target

    # -- what metrics share

    @property
    def assumed(self) -> str | None:
        """How the images were assumed to be normalised, where black or white was asked for and nobody had said it."""
        return " or ".join(self._network.assumed) or None

    def replacement(self, baseline: Baseline, images: Tensor | None = None) -> Tensor:
        """What replaces removed pixels of the images, or of some; see `egcam.metrics.replacement`."""
        images = self.images if images is None else images
        if self.normalisation is None and isinstance(baseline, str) and baseline in SHADES:
            self._network.assumed[assumption(images)] = None
        return replacement(baseline, images, self.normalisation)

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returns, computed at the first call with this key; see `_shareable`."""
        key = _shareable(key)
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found

    def curve(
        self, baseline: Baseline, step: int, score: CurveScore, inserting: bool = False, descending: bool = True
    ) -> Curve:
        """The score while pixels are replaced, `step` at a time in the maps' order; see `ordered_curve`."""

        def make() -> Curve:
            end = self.replacement(baseline)
            return ordered_curve(self.scorer(score), self.maps, end, step, inserting, descending)

        return self.once(("curve", baseline, step, score, inserting, descending), make)

    def patch_drops(
        self, key: Hashable, end: Tensor, groups: Tensor, count: int, cumulative: bool, score: Score
    ) -> Tensor:
        """(N, count) how much the score falls when each group of pixels becomes `end`: the same for any map."""

        def make() -> Tensor:
            scorer, counts = self.scorer(score), torch.full((len(self.images),), count, device=self.images.device)
            return scorer.clean[:, None] - replaced_scores(scorer, self.images, end, groups, counts, cumulative)

        return self.once_for_any_map(key, make)

    def once_for_any_map(self, key: Hashable, make: Callable[[], Tensor]) -> Tensor:
        """(N, …) what `make` returns for the images: kept for all maps of the same images, those of other methods."""
        known = self._network.found.setdefault(_shareable(key), {})
        if not all(row in known for row in self._rows):
            known.update(zip(self._rows, make(), strict=True))
        return torch.stack([known[row] for row in self._rows])

    def shown_through_maps(self, baseline: Baseline, score: Score) -> tuple[Tensor, Tensor]:
        """(N,) scores of the images and (N,) of the images seen through their maps."""
        rows = torch.arange(len(self.images), device=self.images.device)

        def make() -> tuple[Tensor, Tensor]:
            scorer, maps = self.scorer(score), self.maps

            def seen(part: slice) -> Tensor:
                images = self.images[part]
                return shown(images, maps[part], self.replacement(baseline, images))

            return scorer.clean, scorer.altered(rows, seen)

        return self.once(("shown", baseline, score), make)

    def foresee_perturbed(self, copies: Copies, samples: int, outputs: int) -> None:
        """How many perturbations will be asked for, and how many of them with outputs, so that all are made at once."""
        before = self._foreseen.get(copies, (0, 0))
        self._foreseen[copies] = max(before[0], samples), max(before[1], outputs)

    def perturbed(self, copies: Copies, samples: int, outputs: int) -> Perturbed:
        """Distances between the images and perturbed copies of them; a smaller number is the first of a larger one."""
        self.foresee_perturbed(copies, samples, outputs)
        most = self._foreseen[copies]
        return self.once((copies, *most), lambda: measure_perturbed(self, copies, *most)).first(samples)


def within_run(method: Callable[[Owner, Case], T]) -> Callable[[Owner, Case], T]:
    """A metric's method whose passes are made as `Case.run` makes them, wherever it is called."""

    @wraps(method)
    def run(metric: Owner, case: Case) -> T:
        return case.run(lambda: method(metric, case))

    return run


def shown(images: Tensor, maps: Tensor, empty: Tensor) -> Tensor:
    """The images seen through their maps: b + h·(x - b), h the map cut at 0 and divided by its maximum."""
    window = scaled_by_peak(maps.clamp(min=0))[:, None].to(images)
    return empty + window * (images - empty)


def _said(dimensions: int | None, heatmaps: Maps | None, explainer: Explainer | None) -> int | None:
    """How many dimensions of places images have, as far as that was said: here, by an explanation or an explainer."""
    size = getattr(heatmaps, "size", None)
    if dimensions is None and hasattr(heatmaps, "heatmaps") and isinstance(size, tuple):
        return len(size)
    return getattr(explainer, "dimensions", None) if dimensions is None else dimensions


def _checked_images(
    images: Any, model: nn.Module | None, said: int | None, inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> Tensor:
    if is_listed(images) or (model is None and said is None):
        return as_images(images)
    tensor = as_tensor(images, "images")
    network = nn.Identity() if model is None else model
    return as_images(tensor, dimensions_of(network, tensor, said, inputs, keywords))


def _there(value: T | None, what: str) -> T:
    if value is None:
        raise InputError(f"this metric needs {what}, and the case has none")
    return value


def _shareable(key: Hashable) -> Hashable:
    """A key of numbers, texts and the like; for anything else, a tensor or a function, one that equals no other."""
    return key if _is_plain(key) else object()


def _is_plain(key: Hashable) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_plain, key))
    return isinstance(key, str | int | float | None | Copies)


def _whole_numbers(target: Tensor) -> bool:
    return not (target.dtype == torch.bool or target.is_floating_point() or target.is_complex())
