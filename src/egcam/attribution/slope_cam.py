"""SlopeCAM: what each place of a layer adds to the score, in comparison with references, exactly."""

from __future__ import annotations

from typing import Any, Unpack

from torch import nn

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.references import ReferenceLike, as_reference
from egcam.attribution.registry import register
from egcam.attribution.steps import drawn_for, steps_at
from egcam.attribution.task import Maps, Task
from egcam.errors import SamplingError, check_count
from egcam.models.layers import Layer, inner_layer
from egcam.models.trace import Trace


@register(
    "slope-cam",
    label="SlopeCAM (egcam)",
    summary="what each place adds to the score in comparison with references, by exact slopes from a layer on",
    group="gradient",
    line=("vermillion", "-", "o"),
    usual=True,
    highlight=True,
)
class SlopeCAM(Explainer):
    """SlopeCAM: the slope of what follows a layer, from references to the image, times the step.

        W_s = slope(A'_s, A) * (A - A'_s),     A'_s = f(x'_s)
        map = relu( mean_s sum_k W_s,k )

    A and A' are what the layer returns for the image and for a reference. The slope of an operation is its mean
    derivative between what it got at the two ends, so slope times step is y(x) - y(x'_s) exactly for any differentiable
    network (`egcam.models.slope_rules`). Before the ReLU the map adds up to y(x) - E[y(x')], less what goes around the
    layer (`explanation.completeness`).

    It is to Expected Grad-CAM what DeepLIFT (Shrikumar et al., 2017) is to Integrated Gradients; before a dense head it
    is DeepLIFT averaged over references (DeepSHAP, Lundberg and Lee, 2017) from the layer on.

    The references pass through the network once, and the graph of what follows the layer is kept: a map costs one pass
    and one backward pass over n rows from the layer on.

    Args:
        model: the classifier.
        layer: where; see `Explainer`. By default the last spatial layer where several layers with weights follow it
            (VGG-16); else one further in: of ResNets the last layer of the next finer resolution, 14 x 14 at 224
            pixels; of plain vision transformers the first block.
        reference: what x' is drawn from: images of the data set, a name, …; see `egcam.references`. Images of your own
            data are best. By default photographs that come with the package; for images that have neither 1 nor 3
            channels, and for signals, volumes and video, blurred copies and plain colours.
        samples: n, how many references.
        seed: which ones.
        common: the options all explainers take.

    Example:
        >>> import torch
        >>> head = [nn.Flatten(), nn.Linear(72, 4), nn.Tanh(), nn.Linear(4, 3)]
        >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Sigmoid(), *head)
        >>> explanation = SlopeCAM(net, reference="black", signed=True)(torch.rand(2, 1, 8, 8), target=0)
        >>> explanation.maps.shape, bool((explanation.completeness.gap.abs() < 1e-5).all())
        (torch.Size([2, 6, 6]), True)
    """

    image_by_image = True
    cause_of_zero = (
        "the layer returns the same for it as for its references, or does not reach the target; choose other "
        "references or another layer"
    )

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        reference: ReferenceLike = None,
        samples: int = 16,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, layer, **common)
        check_count(samples, "samples", SamplingError)
        self.samples, self.seed = samples, seed
        # Read once, not at every call: the reference may be a loader.
        self.reference = as_reference(reference, samples=samples, seed=seed)

    def usual_layer(self, trace: Trace) -> str:
        """See `egcam.models.layers.inner_layer`."""
        return inner_layer(self.model, trace)

    def _options(self) -> dict[str, Any]:
        return {"samples": self.samples, "seed": self.seed}

    def _explain(self, task: Task) -> Maps:
        source = self.reference.for_images(task.images)
        drawn = drawn_for(task, source, self.samples, self.seed)
        layers = [steps_at(task, point, drawn) for point in task.meter.each(task.probe.points)]
        return Maps(
            [steps.maps.mean(0, keepdim=True) for steps in layers],
            [steps.maps.std(0, keepdim=True) / len(drawn) ** 0.5 for steps in layers] if len(drawn) > 1 else None,
            source.described(len(drawn)),
            layers[0].completeness if len(layers) == 1 else None,
            next((steps.inexact for steps in layers if steps.inexact is not None), None),
        )
