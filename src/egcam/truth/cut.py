"""A network in two halves, cut after one of its layers, whatever it is made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from egcam.errors import LayerError
from egcam.models.capture import Probe
from egcam.models.inputs import ExtraInputs, plain_model
from egcam.models.layer_output import Reshape, as_reshape, fits
from egcam.models.layers import resolve
from egcam.models.place_check import Axis
from egcam.models.restore import add_hook, untouched


class _Seen(BaseException):
    """Ends a pass at the layer; a BaseException so that no model catches it."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


class _Half(nn.Module):
    """A network and the name of the layer it is cut after, with where that has its channels."""

    def __init__(self, model: nn.Module, layer: str, axis: Axis | None) -> None:
        super().__init__()
        self.model = plain_model(model)
        self.layer = layer
        self.axis = axis


class Front(_Half):
    """What the layer outputs for images, of any size that the layers up to it take."""

    def forward(self, images: Tensor) -> Tensor:
        """(B, K, h, w), wherever the layer has its channels."""

        def see(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            raise _Seen(output)

        found: Any = None
        handle = add_hook(module_at(self.model, self.layer), see)
        try:
            self.model(images)
        except _Seen as seen:
            found = seen.output
        finally:
            handle.remove()
        if not isinstance(found, Tensor) or found.ndim != 4:
            raise LayerError(
                f"layer {self.layer!r} must run and output (N, channels, height, width), so that its map can be cut "
                "and stitched; choose such a layer"
            )
        if self.axis == "channels-last":
            return found.movedim(-1, 1)
        image = tuple(images.shape[2:])
        if self.axis is None and fits(tuple(found.shape[1:-1]), image) and not fits(tuple(found.shape[2:]), image):
            raise LayerError(
                f"layer {self.layer!r} outputs {tuple(found.shape)}, which looks like (N, height, width, channels): "
                "pass axis='channels-last'"
            )
        return found


class Tail(_Half):
    """The network's output for images, when the layer outputs other activations."""

    def forward(self, images: Tensor, activations: Tensor) -> Any:
        """The model's own output; gradients flow into the (B, K, h, w) activations alone."""
        activations = activations.movedim(1, -1) if self.axis == "channels-last" else activations
        with_gradient, calls = torch.is_grad_enabled(), 0

        def put(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            if calls > 1:
                raise LayerError(f"layer {self.layer!r} runs more than once in a pass; choose one that runs once")
            if output.shape != activations.shape:
                raise LayerError(
                    f"layer {self.layer!r} outputs {tuple(output.shape)} for these images, not "
                    f"{tuple(activations.shape)}: cells of the grid must be whole cells of the layer's map"
                )
            torch.set_grad_enabled(with_gradient)
            return activations.clone()

        handle = add_hook(module_at(self.model, self.layer), put)
        try:
            with torch.no_grad():
                return self.model(images)
        finally:
            handle.remove()


class CellsInFront(nn.AvgPool2d):
    """What a map is made at: it changes nothing, and as a pooling of single cells it says that channels come first."""

    def __init__(self) -> None:
        super().__init__(1)


def probe_at(model: nn.Module, layer: str, reshape: Reshape | None = None) -> Probe:
    """The network seen through one layer, whose output is read as any method reads it."""
    model = plain_model(model)
    return Probe(model, resolve(model, layer, str), ExtraInputs(1), as_reshape(reshape))


def axis_of_layer(model: nn.Module, layer: str, images: Tensor, reshape: Reshape | None = None) -> Axis:
    """Where a layer that outputs maps has its channels; one that outputs anything else is refused.

    Args:
        model: the classifier.
        layer: by name.
        images: (N, C, H, W) that it takes.
        reshape: "channels-first" or "channels-last", where it cannot be told.
    """
    if reshape not in (None, "channels-first", "channels-last"):
        raise LayerError(
            f"reshape is {reshape!r}; a map that is cut and stitched is (N, channels, height, width) or "
            "(N, height, width, channels): pass 'channels-first' or 'channels-last'"
        )
    probe = probe_at(model, layer, reshape)
    (point,) = probe.points
    with untouched(model, images.device):
        output = probe.forward(images[:1], torch.zeros(1, dtype=torch.long, device="cpu")).raw[0]
    if output.ndim != 4:
        raise LayerError(
            f"layer {layer!r} outputs {tuple(output.shape)}; choose one that outputs (N, channels, height, width) or "
            "(N, height, width, channels), so that its map can be cut and stitched"
        )
    return "channels-first" if probe.channel_axis(point) == 1 else "channels-last"


def module_at(model: nn.Module, layer: str) -> nn.Module:
    """The module of that name, or an error that says what a name is."""
    try:
        return model.get_submodule(layer)
    except AttributeError as error:
        raise LayerError(f"the network has no layer {layer!r}; pass the dotted name of one of its modules") from error
