"""Whatever can be explained can be measured: models with further inputs, class names, tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam import metrics
from egcam.errors import InputError, TargetError
from egcam.metrics.sanity import top_overlap
from metrics.conftest import measured

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = ["cat", "dog", "bird"]


def seeded(build: object, seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


class Plain(nn.Module):
    """Three logits of a small network."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).mean((2, 3)))


class Scaled(Plain):
    """The same, multiplied by a further input, one for each image, and shifted by one that all have in common."""

    def forward(self, images: Tensor, scale: Tensor, *, shift: Tensor | None = None) -> Tensor:
        assert len(scale) == len(images)
        logits = super().forward(images) * scale[:, None]
        return logits if shift is None else logits + shift


SCALE = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)


def pictures(count: int = 3) -> Tensor:
    return torch.randn(count, 2, 8, 8, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def maps() -> Tensor:
    return torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


@pytest.mark.parametrize("name", ["deletion", "insertion", "pixel_flipping"])
@pytest.mark.parametrize("batch_size", [2, 8])
def test_scores_of_a_scaled_logit_are_scaled(name: str, batch_size: int) -> None:
    options = {"step": 8, "score": "logit", "batch_size": batch_size}
    plain = measured(name, seeded(Plain), pictures(), maps(), [0, 1, 2], **options)
    found = measured(name, seeded(Scaled), pictures(), maps(), [0, 1, 2], inputs=(SCALE,), **options)
    torch.testing.assert_close(found, plain * SCALE.to(plain))


def test_what_all_images_have_in_common_is_not_taken_row_by_row() -> None:
    """Three shifts for three images: each belongs to a class, not to an image."""
    shift = torch.tensor([10.0, 20.0, 30.0], dtype=torch.float64)
    deletion = metrics.Deletion(step=8, score="logit")
    plain = deletion(seeded(Plain), pictures(), maps(), [0, 1, 2])
    found = deletion(
        seeded(Scaled),
        pictures(),
        maps(),
        [0, 1, 2],
        inputs=(torch.ones(3, dtype=torch.float64),),
        keywords={"shift": egcam.shared(shift)},
    )
    # A curve that is raised by a number everywhere has an area that is larger by that number.
    torch.testing.assert_close(found, plain + shift.to(plain))


def test_the_map_of_a_perturbed_image_is_made_with_the_images_own_input() -> None:
    images, seen = pictures(), []

    def explain(some: Tensor, target: Tensor, inputs: tuple[Tensor, ...], keywords: dict[str, object]) -> Tensor:
        (scale,) = inputs
        assert not keywords
        seen.append(scale)
        return some.sum(1) * scale[:, None, None]

    common = {"target": [0, 1, 2], "batch_size": 2}
    cases = (
        metrics.Case(seeded(Scaled), images, explainer=explain, inputs=(SCALE,), **common),
        metrics.Case(seeded(Plain), images, explainer=lambda some, target: some.sum(1), **common),
    )
    copies = metrics.Copies(metrics.Noise("uniform", -0.2, 0.2), seed=0)
    found, plain = (case.run(lambda case=case: case.perturbed(copies, 4, 4)) for case in cases)
    torch.testing.assert_close(found.map_change, plain.map_change * SCALE.abs()[:, None])
    torch.testing.assert_close(found.output_change, plain.output_change * SCALE.abs()[:, None])
    assert all(len(scale) <= 2 for scale in seen)


@pytest.mark.parametrize(
    "name",
    [
        "adcc",
        "arcc",
        "class_sensitivity",
        "random_logit",
        "model_randomization",
        "smooth_model_randomization",
        "efficient_model_randomization",
        "running_time",
        "max_sensitivity",
    ],
)
def test_metrics_that_explain_again_give_each_image_its_input(name: str) -> None:
    """All images together give what each gives by itself."""
    model, images = seeded(Scaled), pictures()
    cam = egcam.HiResCAM(model, "features", signed=True)
    options = {"samples": 2} if name in ("max_sensitivity", "smooth_model_randomization") else {}
    together = measured(name, model, images, cam, [0, 1, 2], inputs=(SCALE,), **options)
    assert together.isfinite().all()
    if name == "running_time":
        return
    for row in range(3):
        alone = measured(name, model, images[row, None], cam, [row], inputs=(SCALE[row, None],), **options)
        torch.testing.assert_close(together[row], alone[0])


def test_an_explainer_that_cannot_be_told_of_the_inputs_is_refused() -> None:
    with pytest.raises(InputError, match=r"must be one of egcam's, or a callable \(images, target, inputs, keywords\)"):
        metrics.MaxSensitivity()(seeded(Scaled), pictures(), lambda some, target: some.sum(1), 0, inputs=(SCALE,))


def test_swapping_cells_for_those_of_other_images_is_refused() -> None:
    with pytest.raises(InputError, match="layer-insertion runs other images as well"):
        metrics.LayerInsertion(reference=pictures(1))(seeded(Scaled), pictures(), maps(), 0, inputs=(SCALE,))


class OneOutput(Plain):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images)[:, :1]


def test_the_other_class_of_a_single_output_with_two_names() -> None:
    model, images, names = seeded(OneOutput), pictures(), ["benign", "malignant"]
    cam = egcam.HiResCAM(model, "features", signed=True, classes=names)
    own, other = (cam(images, target).heatmaps for target in (1, 0))
    wanted = top_overlap(own, other, 0.1)
    torch.testing.assert_close(metrics.ClassSensitivity()(model, images, cam, "malignant", classes=names), wanted)
    swapped = {"reference": pictures(1), "layer": "features", "score": "logit"}
    up = metrics.LayerInsertion(**swapped)(model, images, maps(), "malignant", classes=names)
    down = metrics.LayerInsertion(**swapped)(model, images, maps(), "benign", classes=names)
    torch.testing.assert_close(up, -down)


class Prompts(Plain):
    """A column of the output for each prompt."""

    def forward(self, images: Tensor, prompts: Tensor) -> Tensor:
        return self.features(images).mean((2, 3)) @ prompts.T


def test_as_many_prompts_as_images_are_asked_about() -> None:
    prompts = torch.rand(3, 4, dtype=torch.float64)
    with pytest.raises(InputError, match=r"egcam\.shared"):
        metrics.Deletion()(seeded(Prompts), pictures(), maps(), 0, inputs=(prompts,))
    shared = metrics.Deletion(step=16)(seeded(Prompts), pictures(), maps(), 0, inputs=(egcam.shared(prompts),))
    for row in range(3):
        alone = metrics.Deletion(step=16)(
            seeded(Prompts), pictures()[row, None], maps()[row, None], 0, inputs=(egcam.shared(prompts),)
        )
        torch.testing.assert_close(shared[row], alone[0])


def test_class_names_are_targets() -> None:
    model, images = seeded(Plain), pictures()
    by_index = metrics.Deletion(step=16)(model, images, maps(), [2, 0, 1])
    assert torch.equal(
        metrics.Deletion(step=16)(model, images, maps(), ["Bird", "cat", "dog"], classes=NAMES), by_index
    )
    with pytest.raises(TargetError, match="class names are unknown"):
        metrics.Deletion()(model, images, maps(), "bird")


def test_evaluate_with_further_inputs_gives_what_the_parts_give() -> None:
    model, images = seeded(Scaled), pictures()
    options = {"inputs": (SCALE,), "target": ["bird", "cat", "dog"], "classes": NAMES}
    table = egcam.evaluate(
        model,
        images,
        ["hires-cam", "input-gradient"],
        ["deletion", "max-sensitivity"],
        metric_options={"deletion": {"step": 8}, "max-sensitivity": {"samples": 2}},
        layer="features",
        batch_size=2,
        **options,
    )
    for method, at in (("hires-cam", {"layer": "features"}), ("input-gradient", {})):
        explanation = egcam.explain(model, images, method, [2, 0, 1], inputs=(SCALE,), **at)
        torch.testing.assert_close(table.maps[method].double(), explanation.maps, rtol=1e-5, atol=1e-7)
        truth = metrics.Deletion(step=8)(model, images, explanation, inputs=(SCALE,))
        rows = [row.value for row in table.rows if (row.method, row.metric) == (method, "deletion")]
        torch.testing.assert_close(torch.tensor(rows, dtype=torch.float64), truth.double(), rtol=1e-5, atol=1e-7)
        assert all(row.cause is None for row in table.rows)


class Tokens(nn.Module):
    """Patches of 4 x 4 pixels as tokens, mixed, normalised and averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(2, 6, 4, stride=4)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(self.embed(images).flatten(2).transpose(1, 2))).mean(1))


def test_evaluate_a_network_of_tokens() -> None:
    model = seeded(Tokens)
    images = torch.rand(2, 2, 8, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    table = egcam.evaluate(
        model, images, ["hires-cam"], ["deletion"], target=1, layer="mix", reshape="tokens", batch_size=1
    )
    mixed = model.mix(model.embed(images).flatten(2).transpose(1, 2)).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model.head(torch.tanh(mixed).mean(1))[:, 1].sum(), mixed)
    truth = (mixed * gradient).sum(2).relu().reshape(2, 2, 4).detach()
    torch.testing.assert_close(table.maps["hires-cam"].double(), truth, rtol=1e-5, atol=1e-7)


def test_saturation_follows_each_image_with_its_own_input() -> None:
    model, images = seeded(Scaled), pictures().abs()
    found = egcam.saturation(model, images, "features", 5, [0, 0, 1], black=0.0, inputs=(SCALE,), batch_size=2)
    plain = egcam.saturation(seeded(Plain), images, "features", 5, [0, 0, 1], black=0.0)
    torch.testing.assert_close(found.logit, plain.logit * SCALE[:, None])
    torch.testing.assert_close(found.gradient, plain.gradient * SCALE.abs()[:, None])
    torch.testing.assert_close(found.agreement, plain.agreement)


def test_streams_pick_further_inputs_out_of_each_batch() -> None:
    model, images, labels = seeded(Scaled), pictures(), torch.tensor([2, 0, 1])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images, labels, SCALE), batch_size=2)
    cam = egcam.HiResCAM(model, "features", signed=True)
    found = list(cam.stream(loader, inputs=lambda batch: (batch[2],)))
    whole = cam(images, labels, inputs=(SCALE,))
    torch.testing.assert_close(torch.cat([one.maps for one in found]), whole.maps)
    fixed = {"shift": egcam.shared(torch.ones(3, dtype=torch.float64))}
    shifted = list(cam.stream(loader, inputs=lambda batch: (batch[2],), keywords=fixed))
    torch.testing.assert_close(torch.cat([one.scores for one in shifted]), whole.scores + 1)


def test_the_best_layer_of_a_network_with_further_inputs() -> None:
    model, images = seeded(Scaled), pictures()
    found = egcam.best_layer(model, images, "hires-cam", step=16, inputs=(SCALE,))
    for one in found:
        explanation = egcam.HiResCAM(model, one.layer.name)(images, inputs=(SCALE,))
        truth = metrics.InsertionDeletion(step=16)(model, images, explanation, inputs=(SCALE,))
        torch.testing.assert_close(one.scores, truth)
