"""Any function of images as a model: what runs in another runtime, on another machine, or was never a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from egcam.errors import InputWarning, ModelError, check_known, warn_user
from egcam.models.class_names import Classes, as_class_names
from egcam.models.nested import mapped, tensors_in

_RETURNS = ("scores", "probabilities")
_ALMOST = 1e-3  # by how much probabilities may miss 1, as those of half precision do


class BlackBox(nn.Module):
    """A module around a function; see `black_box`. It has no weights, no layers and no gradients."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        classes: Classes | None,
        returns: str,
        channels_last: bool,
        batch: int | None,
    ) -> None:
        super().__init__()
        if isinstance(function, nn.Module) or not callable(function):
            raise ModelError(
                f"black_box takes a function of images, not {type(function).__name__}"
                + ("; a module is explained as it is, by its layers too" if isinstance(function, nn.Module) else "")
            )
        check_known(returns, _RETURNS, "value of returns", ModelError)
        if batch is not None and (isinstance(batch, bool) or not isinstance(batch, int) or batch < 1):
            raise ModelError(f"batch is how many images the function always takes, at least 1, not {batch!r}")
        self.function, self.returns, self.channels_last, self.batch = function, returns, channels_last, batch
        self.classes = None if classes is None else as_class_names(classes)

    @property
    def gives_probabilities(self) -> bool:
        """Whether the function returns probabilities, whose logarithms then stand for logits."""
        return self.returns == "probabilities"

    def forward(self, images: Tensor) -> Any:
        """What the function returns, as tensors: (N, classes), or whatever a target can read."""
        pixels = images.detach().cpu().float().numpy()
        if self.channels_last:
            pixels = np.ascontiguousarray(np.moveaxis(pixels, 1, -1))
        size = self.batch or len(pixels)
        parts = [self._run(pixels[start : start + size]) for start in range(0, len(pixels), size)]
        columns = [tensors_in(part) for part in parts]
        output = mapped(parts[0], lambda _: torch.cat([next(column) for column in columns]).to(images.device))
        if not isinstance(output, Tensor):
            return output
        return output[:, None] if output.ndim == 1 else self._checked(output)

    def _run(self, pixels: npt.NDArray[Any]) -> Any:
        count = len(pixels)
        missing = (self.batch or count) - count
        # A fixed batch is filled up with the last image, whose further scores are dropped.
        output = self.function(np.concatenate([pixels, np.repeat(pixels[-1:], missing, 0)]) if missing else pixels)
        scores = _as_tensors(output)
        rows = {len(part) if part.ndim else 0 for part in tensors_in(scores)}
        if rows != {count + missing}:
            shapes = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"arrays of {sorted(rows)} rows"
            remedy = (
                ", which a function that takes one image at a time does with batch=1" if count + missing > 1 else ""
            )
            raise ModelError(
                f"the function returned {shapes} for {count + missing} image(s); it must return one row for each, "
                f"(N, classes){remedy}"
            )
        return mapped(scores, lambda part: part[:count])

    def _checked(self, output: Tensor) -> Tensor:
        """(N, classes) logits."""
        sums = output.double().flatten(1).sum(1)
        are = bool((output >= 0).all()) and bool(((sums - 1).abs() < _ALMOST).all()) and output.shape[1] > 1
        if self.gives_probabilities:
            if not are:
                raise ModelError(
                    "the function's rows are no probabilities, which are at least 0 and add up to 1: leave "
                    "returns='probabilities' out, and its numbers are explained as they are"
                )
            return output.clamp_min(torch.finfo(output.dtype).tiny).log()
        if are:
            warn_user(
                "the function's rows add up to 1, as probabilities do: say returns='probabilities', so that no softmax "
                "is taken of them where probabilities are asked for",
                InputWarning,
            )
        return output


def black_box(
    function: Callable[[Any], Any],
    classes: Classes | None = None,
    *,
    returns: str = "scores",
    channels_last: bool = False,
    batch: int | None = None,
) -> BlackBox:
    """A model made of any function of images: ONNX Runtime, OpenVINO, TensorRT, a web service, scikit-learn.

    Methods that only ask for scores explain it (occlusion, RISE, LIME, KernelSHAP, superpixel-shapley), and so do the
    controls, the metrics that need no layer, `egcam.evaluate` and studies. Methods that need layers or gradients
    refuse it.

    Args:
        function: takes a float32 NumPy array (N, C, H, W), preprocessed as images are passed, and returns scores
            (N, classes), or (N,) for a single one: arrays, tensors or lists. A list of one array, as ONNX Runtime
            returns it, is that array; several are a tuple for a target that reads them.
        classes: the class names, for targets by name.
        returns: "scores", which are explained as they are; or "probabilities" that add up to 1: then probabilities are
            explained.
        channels_last: whether the function takes (N, H, W, C).
        batch: how many images the function takes, if it always takes as many, as exported networks do; the last batch
            is filled up.

    Example:
        >>> import egcam
        >>> def brightness(images):
        ...     return images.mean((1, 2, 3))
        >>> explanation = egcam.explain(egcam.black_box(brightness), torch.ones(1, 3, 8, 8), "occlusion", window=4)
        >>> round(float(explanation.maps.max()), 3)  # a quarter of the image is a quarter of its brightness
        0.25
    """
    return BlackBox(function, classes, returns, channels_last, batch)


def _as_tensors(output: Any) -> Any:
    """A tensor, or a dictionary or tuple of tensors; the only array in a list is that array."""
    if isinstance(output, dict):
        return {key: _as_tensors(value) for key, value in output.items()}
    if isinstance(output, list | tuple) and output and all(isinstance(item, np.ndarray | Tensor) for item in output):
        return _as_tensors(output[0]) if len(output) == 1 else tuple(map(_as_tensors, output))
    try:
        return torch.as_tensor(output, device="cpu").detach().cpu().float()
    except (TypeError, ValueError, RuntimeError) as error:
        raise ModelError(f"the function returned a {type(output).__name__}, which is no array of numbers") from error
