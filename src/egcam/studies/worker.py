"""A worker's bench: the model, the picture and the method at hand, and the work on a unit."""

from __future__ import annotations

import gc
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from egcam.attribution import registry
from egcam.evaluation.evaluate import Drops, evaluate
from egcam.evaluation.failures import Failure, failures_collected, fault_of
from egcam.metrics.perturb import Curve
from egcam.metrics.registry import metric
from egcam.metrics.scoring import fitting_batch
from egcam.models.preprocessing import Preprocessing
from egcam.models.targets import by_class, class_scores
from egcam.studies.datasets import open_dataset
from egcam.studies.datasets.dataset import Dataset, Picture
from egcam.studies.geometry import prepared
from egcam.studies.inputs import content_of
from egcam.studies.networks import Network, load_network
from egcam.studies.plugins import import_plugins
from egcam.studies.records import Floats, Outcome, Score, Unit, failed
from egcam.studies.specs import MethodSpec, Study

CURVE_POINTS = 51
BEGAN_WITH = "began with"
_PICTURE_QUALITY = 90


def open_bench(config: Mapping[str, Any]) -> Bench:
    """The bench for a study given as plain data: what engines call in a worker.

    Args:
        config: the study, as `Study.model_dump` writes it; with `BEGAN_WITH`, what models and references
            were when the study began.
    """
    values = dict(config)
    began_with = values.pop(BEGAN_WITH, None)
    study = Study.model_validate(values)
    import_plugins(study.plugins)
    return Bench(study, began_with)


@dataclass(frozen=True)
class Prepared:
    """An image as the network gets it.

    Attributes:
        picture: as it lies in the data.
        images: (1, C, H, W).
        masks: (1, H, W) or None.
        target: the class to explain.
        prediction: the class predicted.
        content: `egcam.studies.inputs.content_of` the picture.
        stamp: of its files, from before they were read.
        drops: what infidelity found out about the network with this image, for the methods to come.
    """

    picture: Picture
    images: Tensor
    masks: Tensor | None
    target: int
    prediction: int
    content: str
    stamp: str
    drops: Drops = field(default_factory=dict)


@dataclass(frozen=True)
class Attempt:
    """What came of a unit, and whether it failed for lack of memory."""

    outcome: Outcome
    out_of_memory: bool


class Recording:
    """An explainer that remembers the first map it made: that of the image itself, not of a perturbed one."""

    def __init__(self, explainer: Any) -> None:
        self.explainer = explainer
        self.coarse: Floats | None = None

    def __call__(self, images: Tensor, target: Any = None) -> Any:
        """Explain."""
        explanation = self.explainer(images, target)
        if self.coarse is None:
            self.coarse = explanation.maps[0].detach().float().cpu().numpy()
        return explanation


class Bench:
    """Does units one after the other and keeps what the next one may need: one model, one picture.

    Args:
        study: what is to be done.
        began_with: see `egcam.studies.networks.load_network`.
    """

    def __init__(self, study: Study, began_with: Mapping[str, Any] | None = None) -> None:
        self.study = study
        self._began_with = began_with
        self.data: Dataset = open_dataset(study.data)
        check_data(study, self.data)
        self._each = tuple(one for one in study.metrics if not metric(one.name).whole_set)
        self._whole = len(self._each) < len(study.metrics)
        self._network: Network | None = None
        self._prepared: tuple[tuple[str, int], Prepared] | None = None

    def __call__(self, unit: Unit) -> Outcome:
        """The outcome of a unit; whatever fails is in it.

        Where memory runs out the unit is done again with half the batch, down to one image at a time.
        """
        start = perf_counter()
        with warnings.catch_warnings():
            # Zero and non-finite maps are causes in the scores.
            warnings.simplefilter("ignore")
            attempt, batch = self._attempt(unit, None), None
            while attempt.out_of_memory and (smaller := self._smaller(unit, batch)):
                attempt, batch = self._attempt(unit, smaller), smaller
        return replace(attempt.outcome, seconds=perf_counter() - start, batch_size=batch)

    def _smaller(self, unit: Unit, batch: int | None) -> int | None:
        """Half the batch, None where it cannot be halved; what the last attempt held is let go."""
        if self._network is None or self._network.spec.label != unit.model:
            return None
        device = self._network.classifier.device
        batch = batch or fitting_batch(self.study.batch_size, device)
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        return batch // 2 or None

    def _attempt(self, unit: Unit, batch: int | None) -> Attempt:
        try:
            return self._outcome(unit, batch)
        except Exception as error:
            fault = fault_of(error)
        names = tuple(one.name for one in self._each)
        return Attempt(failed(unit, names, fault.cause, self.data.names[unit.image]), fault.out_of_memory)

    def _outcome(self, unit: Unit, batch: int | None) -> Attempt:
        network = self.network(unit.model)
        image = self._image(network, unit)
        spec = next(one for one in self.study.methods if one.name == unit.method)
        options = network.options(spec, batch)
        explainer = Recording(self._explainer(network, spec, options, batch))
        scores, curves, failures = self._scores(network, image, spec, explainer, options, batch)
        example = unit.image < self.study.examples and self.study.maps != "none"
        keep = self._whole or self.study.maps == "all" or example
        if keep and explainer.coarse is None and not failures:
            # No metric asked this explainer: there is none by the image, or the method was made by name.
            explainer(image.images, torch.tensor([image.target], device=image.images.device))
        first = unit.method == self.study.methods[0].name
        outcome = Outcome(
            unit=unit,
            name=image.picture.name,
            target=image.target,
            prediction=image.prediction,
            seconds=0.0,
            scores=scores,
            error=_error(failures),
            curves=curves,
            coarse=explainer.coarse if keep else None,
            picture=_encoded(network.preprocessing, image.picture) if example and first else None,
            content=image.content,
            stamp=image.stamp,
        )
        return Attempt(outcome, any(one.fault.out_of_memory for one in failures))

    def _scores(
        self,
        network: Network,
        image: Prepared,
        spec: MethodSpec,
        explainer: Recording,
        options: Mapping[str, Any],
        batch: int | None,
    ) -> tuple[tuple[Score, ...], dict[str, Floats], list[Failure]]:
        if not self._each:
            return (), {}, []
        names = [one.name for one in self._each]
        # Randomising a model needs the method made anew for it, hence by name.
        by_name = "model-randomization" in names
        with failures_collected() as failures:
            table = evaluate(
                network.classifier.model,
                image.images,
                {spec.name: spec.method if by_name else explainer},
                names,
                target=torch.tensor([image.target], device=image.images.device),
                masks=image.masks,
                seed=self.study.seed,
                protocol=self.study.protocol,
                method_options={spec.name: options} if by_name else None,
                metric_options={one.name: one.options for one in self._each if one.options},
                batch_size=batch or self.study.batch_size,
                curves=True,
                # What a smaller batch finds out may differ in the last digits: not for methods that need none.
                drops=image.drops if batch is None else {},
            )
        scores = tuple(Score(row.metric, row.value, row.seconds, row.cause) for row in table.rows)
        curves = {name: _even(curve) for (_, name), kept in table.curves.items() for curve in kept.values()}
        return scores, curves, failures

    def network(self, label: str) -> Network:
        """The model called `label`; the one before it is let go."""
        if self._network is None or self._network.spec.label != label:
            self._network = self._prepared = None
            spec = next(one for one in self.study.models if one.label == label)
            self._network = load_network(self.study, spec, self.data, self._began_with)
        return self._network

    def _explainer(self, network: Network, spec: MethodSpec, options: Mapping[str, Any], batch: int | None) -> Any:
        if batch is not None:
            return registry.create(spec.method, network.classifier.model, **options)
        if spec.name not in network.explainers:
            network.explainers[spec.name] = registry.create(spec.method, network.classifier.model, **options)
        return network.explainers[spec.name]

    def _image(self, network: Network, unit: Unit) -> Prepared:
        key = (unit.model, unit.image)
        if self._prepared is None or self._prepared[0] != key:
            self._prepared = key, self._prepare(network, unit.image)
        return self._prepared[1]

    def _prepare(self, network: Network, number: int) -> Prepared:
        # Before it is read: a file that changes in between then has an old stamp, and is looked at again.
        stamp = self.data.stamp(number)
        picture = self.data[number]
        image, mask = prepared(picture, network.classifier.preprocessing, self.study.data.size)
        images = image[None].to(network.classifier.device)
        with torch.inference_mode():
            outputs = class_scores(network.classifier.model(images.clone()), 1)
        prediction = int(by_class(outputs, network.classifier.classes).argmax(1))
        target = prediction
        if self.study.target == "label":
            assert picture.label is not None
            target = picture.label
        masks = None if mask is None else mask[None].to(images.device)
        return Prepared(picture, images, masks, target, prediction, content_of(picture), stamp)


def check_data(study: Study, data: Dataset) -> None:
    """Refuse data without what the study needs of them, before any work."""
    if study.target == "label":
        data.require_labels()
    if any("masks" in metric(one.name).needs for one in study.metrics):
        data.require_masks()


def _error(failures: Sequence[Failure]) -> str | None:
    """Why a unit counts as failed: the method's error, or each metric's by name; None where nothing failed."""
    metrics: dict[str, list[str]] = {}
    for one in failures:
        metrics.setdefault(one.fault.cause, []).extend([one.metric] if one.metric is not None else [])
    said = [f"{', '.join(names)}: {cause}" if names else cause for cause, names in metrics.items()]
    return "; ".join(said) or None


def _even(curve: Curve) -> Floats:
    """The curve at evenly spaced shares of the pixels."""
    shares = np.linspace(0.0, 1.0, CURVE_POINTS)
    even = np.interp(shares, curve.fractions.double().numpy(), curve.scores.double().numpy())
    return np.asarray(even, np.float32)


def _encoded(preprocessing: Preprocessing, picture: Picture) -> bytes:
    """What the network sees, as a JPEG."""
    view = preprocessing.view(picture.image)
    view.thumbnail((max(preprocessing.size), max(preprocessing.size)))
    file = io.BytesIO()
    view.save(file, "JPEG", quality=_PICTURE_QUALITY)
    return file.getvalue()
