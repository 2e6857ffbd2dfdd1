"""A network that explains photographs: with its preprocessing, its class names and its layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor, nn

from egcam.errors import InputError, TargetError
from egcam.models.class_scores import by_class, class_scores, label_index, probabilities
from egcam.models.preprocessing import Preprocessing
from egcam.models.targets import Target
from egcam.progress import Progress

if TYPE_CHECKING:
    from egcam.attribution.explanation import Explanation

Photo: TypeAlias = "str | Path | Image.Image | npt.NDArray[np.uint8] | Tensor"


def picture_or_input(photo: Photo) -> Image.Image | Tensor:
    """A photograph as a picture, from a file or from bytes of colours; a network's input as it is."""
    from egcam.photos.files import read_image

    if isinstance(photo, str | Path):
        return read_image(photo)
    if isinstance(photo, Tensor) and photo.dtype == torch.uint8 and photo.ndim == 3:
        photo = photo.permute(1, 2, 0).cpu().numpy()
    if isinstance(photo, np.ndarray):
        if photo.dtype != np.uint8 or photo.ndim != 3 or photo.shape[2] != 3:
            raise InputError(
                f"an array of {photo.dtype} with shape {photo.shape} is no photograph: pass bytes of colours "
                "(H, W, 3) from 0 to 255, or the network's own input as a tensor"
            )
        return Image.fromarray(photo)
    return photo


@dataclass(frozen=True)
class Prediction:
    """One class a network may see in an image, and how sure it is."""

    index: int
    name: str
    probability: float


@dataclass(frozen=True)
class Classifier:
    """A network ready to explain photographs with.

    Args:
        model: the network, in eval mode.
        name: the name it was loaded by.
        classes: the class names in the order of the outputs; None when unknown.
        preprocessing: how images are prepared for the network.
        layer: the layer to explain; None lets egcam find it.
    """

    model: nn.Module
    name: str = "model"
    classes: Sequence[str] | None = None
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    layer: str | None = None

    def preprocess(self, image: Image.Image) -> Tensor:
        """(C, H, W) the network's input for a photograph."""
        return self.preprocessing(image)

    def crop(self, image: Image.Image) -> Image.Image:
        """The part of a photograph that the network sees, as a picture."""
        return self.preprocessing.view(image)

    @property
    def size(self) -> tuple[int, int]:
        """(height, width) of the network's input."""
        return self.preprocessing.size

    @property
    def device(self) -> torch.device:
        """Where the network's parameters live."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def class_name(self, index: int) -> str:
        """The first of the class's names, or "class 7" if names are unknown."""
        if self.classes is None or not 0 <= index < len(self.classes):
            return f"class {index}"
        return self.classes[index].split(",")[0]

    def explain(
        self,
        photo: Photo,
        method: str = "slope-cam",
        target: Target = None,
        *,
        progress: Progress | None = None,
        **options: Any,
    ) -> Explanation:
        """Explain a photograph, with the network's own preprocessing, class names and layer.

        Black, white and photographs as `reference` are normalised like this network's images.

        Args:
            photo: a photograph: its file, a PIL image, or bytes of colours, an array (H, W, 3) or a tensor (3, H, W).
                Or what the network takes: (C, H, W), or (N, C, H, W) for several. The result for one has no batch
                dimension.
            method: one of `egcam.methods()`.
            target: the class, by index or name, or one of `egcam.targets`, or one for each image; None explains the
                prediction.
            progress: called with the share of the work done, from 0 to 1.
            options: what the method takes: layer, reference, samples, seed, batch_size, …; None is its default.

        Example:
            >>> net = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Sigmoid(), nn.Flatten(), nn.Linear(72, 2))
            >>> pets = Classifier(net, "pets", ["cat", "dog"], Preprocessing((8, 8), 8))
            >>> explanation = pets.explain(Image.new("RGB", (9, 9), "red"), "grad-cam", "dog", signed=True)
            >>> explanation.targets.tolist(), explanation.heatmaps.shape
            (1, torch.Size([8, 8]))
        """
        # Models import methods nowhere else: explaining photographs needs both.
        from egcam.attribution.registry import create, options_for

        chosen = {name: value for name, value in options.items() if value is not None}
        settled = options_for(method, self._known, chosen, self.preprocessing.normalisation)

        def passes(done: int, total: int) -> None:
            if progress is not None and total > 0:
                progress(done / total)

        explainer = create(method, self.model, **settled)
        photo = picture_or_input(photo)
        images = photo if isinstance(photo, Tensor) else self.preprocess(photo)
        explanation = explainer(images.to(self.device), target, progress=passes)
        crop = None if isinstance(photo, Tensor) else self.preprocessing.crop(photo)
        return replace(explanation, preprocessing=self.preprocessing, crop=crop)

    def options_for(self, method: str, shared: Mapping[str, Any]) -> dict[str, Any]:
        """Of options meant for several methods those this one takes; see `egcam.attribution.registry`."""
        from egcam.attribution.registry import options_for

        chosen = {name: value for name, value in shared.items() if value is not None}
        return options_for(method, {**self._known, **chosen}, None, self.preprocessing.normalisation)

    @property
    def _known(self) -> dict[str, Any]:
        return {"classes": self.classes, "layer": self.layer}

    def images(self, photo: Photo) -> Tensor:
        """(N, C, H, W) on the network's device: a photograph prepared, or a tensor as it is."""
        photo = picture_or_input(photo)
        images = photo if isinstance(photo, Tensor) else self.preprocess(photo)
        return (images[None] if images.ndim == 3 else images).to(self.device)

    def predict(self, photo: Photo, multilabel: bool = False) -> list[Prediction]:
        """All classes of one photograph, the most probable first; sigmoids for a multi-label network."""
        with torch.inference_mode():
            return self.predictions(class_scores(self.model(self.images(photo).clone()), 1), multilabel)

    def predictions(self, outputs: Tensor, multilabel: bool = False) -> list[Prediction]:
        """The classes of one image, the most probable first, from the network's (1, outputs) before any softmax."""
        outputs, names = outputs.float().reshape(1, -1), self.classes
        chances = (by_class(outputs, names).sigmoid() if multilabel else probabilities(outputs, names))[0]
        order = chances.argsort(descending=True, stable=True)
        return [
            Prediction(index, self.class_name(index), chance)
            for index, chance in zip(order.tolist(), chances[order].tolist(), strict=True)
        ]

    def explained_class(self, explanation: Explanation, predictions: Sequence[Prediction]) -> Prediction:
        """Of the predictions, the one that was explained."""
        if explanation.targets is None:
            raise TargetError("a callable target explains no class")
        index = int(explanation.targets.reshape(-1)[0])
        return next(prediction for prediction in predictions if prediction.index == index)

    def chosen(self, predictions: Sequence[Prediction], target: int | str | None) -> Prediction:
        """The class asked for by index or name, else the most probable one."""
        if target is None:
            return predictions[0]
        index = label_index(target, self.classes, len(predictions))
        return next(prediction for prediction in predictions if prediction.index == index)
