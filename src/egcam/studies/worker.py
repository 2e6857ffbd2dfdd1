"""What a worker does with a unit: load the model, read the image, explain it and score the map."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from egcam.attribution import registry
from egcam.errors import TargetError
from egcam.evaluation.evaluate import measure
from egcam.evaluation.failures import Failure, fault_of
from egcam.metrics.case import Case
from egcam.metrics.perturb import Curve
from egcam.metrics.registry import make, metric
from egcam.metrics.scoring import fitting_batch
from egcam.models.class_scores import by_class, class_scores
from egcam.studies.datasets import open_dataset
from egcam.studies.datasets.dataset import Dataset, Picture
from egcam.studies.geometry import encoded, prepared
from egcam.studies.keys import content_of
from egcam.studies.networks import Network, load_network
from egcam.studies.plugins import import_plugins
from egcam.studies.records import Floats, Outcome, Unit, failed
from egcam.studies.specs import MethodSpec, Study

CURVE_POINTS = 51


def open_worker(config: Mapping[str, Any]) -> UnitWorker:
    """What does the units of a study given as plain data: engines call it in a worker.

    Args:
        config: the study, as `Study.model_dump` writes it.
    """
    study = Study.model_validate(config)
    import_plugins(study.plugins)
    return UnitWorker(study)


@dataclass(frozen=True)
class Prepared:
    """An image as the network gets it."""

    picture: Picture  # as stored in the data
    case: Case  # the image, its class and mask; it keeps what is found out about the network for the methods to come
    target: int  # the class to explain
    prediction: int  # the class predicted
    content: str  # `egcam.studies.keys.content_of` the picture


@dataclass(frozen=True)
class Attempt:
    """The outcome of a unit, and whether it failed for lack of memory."""

    outcome: Outcome
    out_of_memory: bool


class UnitWorker:
    """Does units one after the other and keeps what the next one may need: one model, one picture."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.data: Dataset = open_dataset(study.data)
        check_data(study, self.data)
        # Those that compare images come at the end.
        each = [one for one in study.metrics if not metric(one.name).whole_set]
        self._metrics = [make(one.name, study.protocol, study.seed, **one.options) for one in each]
        self._whole = len(self._metrics) < len(study.metrics)
        self._network: Network | None = None
        self._prepared: tuple[tuple[str, int], Prepared] | None = None

    def __call__(self, unit: Unit) -> Outcome:
        """The outcome of a unit; whatever fails is in it.

        Where memory runs out the unit is repeated with half the batch, down to one image at a time.
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
        """Half the batch, None if it cannot be halved; what the last attempt held is let go."""
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
        names = tuple(one.name for one in self._metrics)
        return Attempt(failed(unit, names, fault.cause, self.data.names[unit.image]), fault.out_of_memory)

    def _outcome(self, unit: Unit, batch: int | None) -> Attempt:
        network = self.network(unit.model)
        image = self._image(network, unit)
        spec = next(one for one in self.study.methods if one.name == unit.method)
        example = unit.image < self.study.examples and self.study.maps != "none"
        keep = self._whole or self.study.maps == "all" or example
        case = image.case if batch is None else image.case.in_batches_of(batch)
        maker = self._maker(network, spec, batch)
        measured = measure(case, spec.name, maker, self._metrics, [unit.image], by_name=True)
        first = unit.method == self.study.methods[0].name
        outcome = Outcome(
            unit=unit,
            name=image.picture.name,
            target=image.target,
            prediction=image.prediction,
            seconds=0.0,
            scores=tuple(measured.rows),
            error=_error(measured.failures),
            curves={name: _even(curve) for name, kept in measured.curves.items() for curve in kept.values()},
            coarse=measured.maps[0].numpy() if keep and measured.maps is not None else None,
            picture=encoded(network.preprocessing, image.picture.image) if example and first else None,
            recipe=network.recipe(spec),
            content=image.content,
        )
        return Attempt(outcome, any(one.fault.out_of_memory for one in measured.failures))

    def network(self, label: str) -> Network:
        """The model called `label`; the one before it is let go."""
        if self._network is None or self._network.spec.label != label:
            self._network = self._prepared = None
            spec = next(one for one in self.study.models if one.label == label)
            self._network = load_network(self.study, spec, self.data)
        return self._network

    def _maker(self, network: Network, spec: MethodSpec, batch: int | None) -> Callable[[nn.Module], Any]:
        """Makes the method's explainer; that of the network itself is made once, but for smaller batches."""
        options = network.options(spec, batch)

        def make(model: nn.Module) -> Any:
            if batch is not None or model is not network.classifier.model:
                return registry.create(spec.method, model, **options)
            if spec.name not in network.explainers:
                network.explainers[spec.name] = registry.create(spec.method, model, **options)
            return network.explainers[spec.name]

        return make

    def _image(self, network: Network, unit: Unit) -> Prepared:
        key = (unit.model, unit.image)
        if self._prepared is None or self._prepared[0] != key:
            self._prepared = key, self._prepare(network, unit.image)
        return self._prepared[1]

    def _prepare(self, network: Network, number: int) -> Prepared:
        picture = self.data[number]
        image, mask = prepared(picture, network.classifier.preprocessing, self.study.data.size)
        images = image[None].to(network.classifier.device)
        with torch.no_grad():
            outputs = class_scores(network.classifier.model(images.clone()), 1)
        first, *others = by_class(outputs, network.classifier.classes)[0].argsort(descending=True, stable=True).tolist()
        target = prediction = first
        if self.study.target == "second":
            if not others:
                raise TargetError("the network has one class, so there is no second one; use target = 'prediction'")
            target = others[0]
        elif self.study.target == "label":
            assert picture.label is not None
            target = picture.label
        masks = None if mask is None else mask[None].to(images.device)
        asked = torch.tensor([target], device=images.device)
        model, most = network.classifier.model, self.study.batch_size
        seen = network.classifier.preprocessing.normalisation
        case = Case(model, images, None, asked, masks, batch_size=most, logits=outputs, normalisation=seen)
        # A class the model does not have is refused here.
        case.run(lambda: case.classes)
        return Prepared(picture, case, target, prediction, content_of(picture))


def check_data(study: Study, data: Dataset) -> None:
    """Refuse data without what the study needs of them, before any work."""
    if study.target == "label":
        data.require_labels()
    if any("masks" in metric(one.name).needs for one in study.metrics):
        data.require_masks()


def _error(failures: Sequence[Failure]) -> str | None:
    """Why a unit counts as failed: the method's error, or each metric's by name; None if nothing failed."""
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
