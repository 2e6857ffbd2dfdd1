"""Methods that try things out instead of taking gradients: Score-CAM and Ablation-CAM."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor, nn

from egcam.attribution.explainer import Common, Explainer
from egcam.attribution.registry import register
from egcam.attribution.task import Maps, Task
from egcam.errors import LayerError, check_count
from egcam.imageops import by_row, interpolated, places, size_of, wide_enough
from egcam.models.layers import Layer, LayerPoint
from egcam.models.replay import Replay
from egcam.rng import generator


@register(
    "score-cam",
    label="Score-CAM",
    summary="channels weighted by the class score of the image masked with them; slow",
    group="gradient-free",
    slow=True,
    line=("green", "--", ">"),
)
class ScoreCAM(Explainer):
    """Score-CAM (Wang et al., 2020): w = softmax over channels of the score of x masked by each channel's map.

        M_k = scaled(upsampled(A^k)) in [0, 1],   w_k = softmax_k( y(x * M_k) ),   map = relu( sum_k w_k A^k )

    One pass for each channel that is not constant; all constant channels have the mask 0 and share one pass.

    Args:
        model: the classifier.
        layer: where; see `Explainer`.
        align_corners: how masks are upsampled. False follows the paper's code; pytorch-grad-cam has True.
        common: the options all explainers take.
    """

    cpu_memory = 256 * 2**20  # without a backward pass, larger batches gain nothing
    samples = 1  # masks of each channel
    blanks_constants = True  # a channel that is constant has the mask 0

    def __init__(
        self, model: nn.Module, layer: Layer = None, *, align_corners: bool = False, **common: Unpack[Common]
    ) -> None:
        super().__init__(model, layer, **common)
        self.align_corners = align_corners

    def _explain(self, task: Task) -> Maps:
        task.first_pass()
        return Maps([self._layer_maps(task, layer) for layer in task.meter.each(task.activations)])

    def _layer_maps(self, task: Task, activations: Tensor) -> Tensor:
        found = []
        for image in task.meter.each(range(len(task.images))):
            channels = wide_enough(activations[image])
            scores = self._scores(task, image, channels)
            weights = scores.softmax(0)
            found.append((by_row(weights, channels) * channels).sum(0))
        return torch.stack(found)

    def _scores(self, task: Task, image: int, channels: Tensor) -> Tensor:
        """(K,) the target's score for the image under each channel's mask, or its mean over several masks."""
        flat = channels.flatten(1)
        is_varied = (
            flat.amax(1) > flat.amin(1) if self.blanks_constants else torch.ones_like(flat[:, 0], dtype=torch.bool)
        )
        varied = is_varied.nonzero()[:, 0]
        scores = channels.new_zeros(len(channels))
        own = torch.tensor([image], device="cpu")
        if len(varied) < len(channels):
            blank = task.scores_at(torch.zeros_like(task.images[own]), own)
            scores[~is_varied] = wide_enough(blank)[0].to(scores)
        for some in task.meter.each(torch.split(varied, task.batch_size)):
            for sample in range(self.samples):
                points = task.images[image] * self._masks(channels[some], task.images, some, sample)
                scores[some] += wide_enough(task.scores_at(points, own.expand(len(some)))).to(scores) / self.samples
        return scores

    def _masks(self, channels: Tensor, images: Tensor, numbers: Tensor, sample: int) -> Tensor:
        """(B, 1, H, W) of the images' dtype: the masks of channels with these numbers."""
        return self._scaled(self._enlarged(channels, images), images)

    def _enlarged(self, channels: Tensor, images: Tensor) -> Tensor:
        return interpolated(channels[:, None], size_of(images), self.align_corners)

    @staticmethod
    def _scaled(large: Tensor, images: Tensor) -> Tensor:
        """In [0, 1]."""
        low, high = large.amin(places(large), keepdim=True), large.amax(places(large), keepdim=True)
        extent = high - low
        return ((large - low) / extent.masked_fill(extent == 0, 1)).to(images.dtype)

    def _options(self) -> dict[str, Any]:
        return {"align_corners": self.align_corners}


@register(
    "ss-cam",
    label="SS-CAM",
    summary="Score-CAM over masks of noisy activations; very slow",
    group="gradient-free",
    slow=True,
    line=("green", "--", "P"),
)
class SSCAM(ScoreCAM):
    """SS-CAM (Wang et al., 2020): Score-CAM with the mean score over masks of noisy activations.

        M_k,s = scaled(upsampled(A^k) + eta_s),  eta_s ~ N(0, scale^2),    w = softmax_k( mean_s y(x * M_k,s) )

    Args:
        model: the classifier.
        layer: where; see `Explainer`.
        samples: masks of each channel.
        scale: the noise's standard deviation, in units of the activations.
        align_corners: as for `ScoreCAM`.
        seed: of the noise.
        common: the options all explainers take.
    """

    blanks_constants = False

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        samples: int = 35,
        scale: float = 2.0,
        align_corners: bool = False,
        seed: int = 0,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, layer, align_corners=align_corners, **common)
        check_count(samples, "samples")
        self.samples, self.scale, self.seed = samples, scale, seed

    def _masks(self, channels: Tensor, images: Tensor, numbers: Tensor, sample: int) -> Tensor:
        large = self._enlarged(channels, images)
        sources = (generator(self.seed, "ss-cam", sample, number) for number in numbers.tolist())
        noise = torch.stack(
            [torch.randn(large.shape[1:], generator=source, dtype=torch.float32, device="cpu") for source in sources]
        )
        return self._scaled(large + self.scale * noise.to(large), images)

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "samples": self.samples, "scale": self.scale, "seed": self.seed}


@register(
    "is-cam",
    label="IS-CAM",
    summary="Score-CAM over masks that grow in steps; very slow",
    group="gradient-free",
    slow=True,
    line=("green", "--", "*"),
)
class ISCAM(ScoreCAM):
    """IS-CAM (Naidu et al., 2020): Score-CAM with the mean score over n masks that grow in steps.

        M_k,i = (1 + ... + i) / n * scaled(upsampled(A^k)),    w = softmax_k( 1/n sum_i y(x * M_k,i) )

    Args:
        model: the classifier.
        layer: where; see `Explainer`.
        samples: n, the steps.
        align_corners: as for `ScoreCAM`.
        common: the options all explainers take.
    """

    def __init__(
        self,
        model: nn.Module,
        layer: Layer = None,
        *,
        samples: int = 10,
        align_corners: bool = False,
        **common: Unpack[Common],
    ) -> None:
        super().__init__(model, layer, align_corners=align_corners, **common)
        check_count(samples, "samples")
        self.samples = samples

    def _masks(self, channels: Tensor, images: Tensor, numbers: Tensor, sample: int) -> Tensor:
        share = (sample + 1) * (sample + 2) / 2 / self.samples
        return super()._masks(channels, images, numbers, sample) * share

    def _options(self) -> dict[str, Any]:
        return {**super()._options(), "samples": self.samples}


@register(
    "ablation-cam",
    label="Ablation-CAM",
    summary="channels weighted by how much the class score drops without them",
    group="gradient-free",
    line=("purple", "--", "h"),
    usual=True,
)
class AblationCAM(Explainer):
    """Ablation-CAM (Desai and Ramaswamy, 2020): w_k = (y - y_k) / |y|, y_k the score with channel k set to zero.

    For y > 0 that is the paper's formula, which divides by y. Divided by a negative score, a channel that raises it
    would get a negative weight; a constant added to all logits would turn the map around.
    Only what follows the layer is run for each channel (see `egcam.models.replay`), and not at all for channels that
    are zero anyway. If it cannot be run alone, the whole network is run, and these passes are counted. A score of
    exactly 0 has no relative drop: then w_k = y - y_k. In half precision the drop of one channel may be lost in
    rounding: use float32 for measurements.
    """

    def _explain(self, task: Task) -> Maps:
        task.first_pass_with_tails()
        layers = task.meter.each(list(zip(task.probe.points, task.tails, strict=True)))
        return Maps([self._layer_maps(task, *pair) for pair in layers])

    def _layer_maps(self, task: Task, point: LayerPoint, tail: Replay) -> Tensor:
        axis = task.probe.channel_axis(point)
        if axis is None:
            raise LayerError(
                "Ablation-CAM zeroes channels in the layer's own output, and where a callable reshape reads it, it is "
                "not known which axis they are: say reshape='tokens', 'channels-first' or 'channels-last' instead"
            )
        activations = wide_enough(tail.as_maps(tail.activations))
        images = task.meter.each(range(len(task.images)))
        weights = torch.stack([self._weights(task, tail, axis, image) for image in images])
        return (by_row(weights, activations) * activations).sum(1)

    def _weights(self, task: Task, tail: Replay, axis: int, image: int) -> Tensor:
        """(K,) of one image."""
        activations = tail.activations[image, None].movedim(axis, 1)[0]
        own = torch.tensor([image], device="cpu")
        score = wide_enough(task.scores[image])
        drops = wide_enough(activations).new_zeros(len(activations))
        acting = activations.flatten(1).any(1).nonzero()[:, 0]
        for some in task.meter.each(torch.split(acting, self._channels_at_once(activations))):
            tried = activations.expand(len(some), *activations.shape).clone()
            tried[torch.arange(len(some), device=some.device), some] = 0
            output = tail.run(tried.movedim(1, axis), own.expand(len(some)))
            task.meter.tails += len(some)
            ablated = wide_enough(task.scores_of(output, own.expand(len(some))))
            drops[some] = (score - ablated).to(drops)
        return drops if score == 0 else drops / score.abs().to(drops)

    def _channels_at_once(self, activations: Tensor) -> int:
        """Tails are small: fill the memory budget with copies of the activations, unless a batch size was given."""
        if self.batch_size is not None:
            return self.batch_size
        return max(1, self._budget(activations.device) // (4 * activations.numel() * activations.element_size()))
