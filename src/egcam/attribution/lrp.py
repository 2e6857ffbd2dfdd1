"""Layer-wise relevance propagation; zennit does the work."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import nn

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.errors import MethodError, near_misses, require
from egcam.imageops import wide_enough
from egcam.models.shadow import separate_copy


@register(
    "lrp",
    label="LRP",
    summary="the class score propagated back layer by layer to the pixels, by zennit's rules (extra: peers)",
    group="input",
    line=("blue", "-.", "H"),
    package="zennit",
)
class LRP(Explainer):
    """Layer-wise relevance propagation (Bach et al., 2015), by the rules of a composite of zennit's.

    Relevance starts as 1 at the explained class; the map is its sum over colours. Rules belong to modules: an
    activation or a sum that is not one passes relevance on as a gradient. Batch normalisation is merged into the layer
    before it, and torchvision's ResNets get zennit's treatment of their sums, on a copy of the model. Only logits are
    explained.

    Args:
        model: the classifier.
        composite: a name of zennit's, such as "epsilon_plus_flat" or "epsilon_alpha2_beta1_flat", or a composite.
        common: the options all explainers take.
    """

    at_input = True

    def __init__(self, model: nn.Module, *, composite: Any = "epsilon_plus_flat", **common: Unpack[Common]) -> None:
        require("zennit", "peers", "layer-wise relevance propagation")
        super().__init__(model, None, **common)
        if self.score != "logit":
            raise MethodError(f"lrp explains logits: its rules are not defined for a {self.score}; leave score out")
        self.composite = composite
        self._composite()

    def _composite(self) -> Any:
        """A fresh one for each use, for it keeps its hooks."""
        from zennit.canonizers import SequentialMergeBatchNorm
        from zennit.composites import COMPOSITES

        if not isinstance(self.composite, str):
            return self.composite
        if self.composite not in COMPOSITES:
            raise MethodError(f"zennit has no composite {self.composite!r}; {near_misses(self.composite, COMPOSITES)}")
        if type(self.model).__module__ == "torchvision.models.resnet":
            from zennit.torchvision import ResNetCanonizer

            return COMPOSITES[self.composite](canonizers=[ResNetCanonizer()])
        return COMPOSITES[self.composite](canonizers=[SequentialMergeBatchNorm()])

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        images = task.images.clone().requires_grad_()
        args, kwargs = task.probe.extra.rows(task.rows)
        everyone = torch.arange(len(images), device="cpu")
        model = separate_copy(self.model)
        with torch.enable_grad(), self._composite().context(model) as changed:
            # A copy, because the model may write into its input.
            scores = task.scores_of(changed(task.probe.extra.images(images.clone()), *args, **kwargs), everyone)
            (relevance,) = torch.autograd.grad(scores.sum(), images)
        task.meter.add(len(images))
        return Maps([wide_enough(relevance.detach()).sum(1)])

    def _options(self) -> dict[str, Any]:
        named = isinstance(self.composite, str)
        return {"composite": self.composite if named else type(self.composite).__name__}
