"""Slopes between two ends: by hand, against captum's DeepLift, and exact sums for every operation that has a rule."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from egcam.errors import LayerError
from egcam.models.slopes import Overwritten, Record, Recording, SlopeGraph
from support.steps_by_hand import slope

pytestmark = pytest.mark.usefixtures("one_thread")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def recorded(function: Callable[[Tensor], Tensor], upper: Tensor) -> Record:
    recording = Recording()
    with torch.no_grad(), recording:
        function(recording.mark(upper.clone()))
    return recording.record


def slopes(function: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, copies: bool = False) -> Tensor:
    """Of the sum of what the function returns for each row."""
    graph, leaf = SlopeGraph(copies), lower.clone().requires_grad_()
    with torch.enable_grad(), graph:
        value = function(graph.mark(leaf.clone()))
    (found,) = graph.pull([value], [torch.ones_like(value)], [leaf], recorded(function, upper))
    assert found is not None
    return found


def missed(function: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor) -> float:
    """How far slope times step is from the rise of the function, for the worst row."""
    total = (slopes(function, lower, upper) * (upper - lower)).flatten(1).sum(1)
    rise = (function(upper.clone()) - function(lower.clone())).flatten(1).sum(1)
    assert float(rise.abs().min()) > 1e-3, "a function that does not rise tests nothing"
    return float((total - rise).abs().max())


def test_by_hand() -> None:
    """relu from -1 to 3 rises by 3 on a way of 4; a product's factors share it as Shapley would."""
    assert slopes(torch.relu, torch.tensor([[-1.0]]), torch.tensor([[3.0]])).tolist() == [[0.75]]
    assert slopes(torch.square, torch.tensor([[1.0]]), torch.tensor([[4.0]])).tolist() == [[5.0]]
    found = slopes(lambda z: z[:, :1] * z[:, 1:], torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 8.0]]))
    assert found.tolist() == [[5.0, 2.0]]  # 2 * 5 + 6 * 2 = 22 = 24 - 2


def test_ends_that_meet_have_the_derivative() -> None:
    at = torch.tensor([[-1.0, 0.5, 7.0]], dtype=torch.float64)
    assert slopes(functional.relu6, at, at).tolist() == [[0.0, 1.0, 0.0]]
    torch.testing.assert_close(slopes(torch.tanh, at, at), 1 - at.tanh() ** 2)
    close = at + 1e-12
    torch.testing.assert_close(slopes(torch.tanh, at, close), 1 - at.tanh() ** 2)


def test_an_infinitely_small_step_has_the_gradient() -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 4), nn.Softmax(1)).double()
    lower = randn(3, 6)
    found = slopes(lambda z: net(z)[:, :1], lower, lower + 1e-7 * randn(3, 6, seed=1))
    leaf = lower.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(net(leaf)[:, 0].sum(), leaf)
    torch.testing.assert_close(found, gradient, rtol=1e-5, atol=1e-9)


class Attention(nn.Module):
    def __init__(self, **options: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(6, 2, batch_first=True, **options)

    def forward(self, tokens: Tensor) -> Tensor:
        found, weights = self.inner(tokens, tokens, tokens, need_weights=True)
        return found + weights.sum(-1, keepdim=True) * tokens


def _recurrent(kind: type[nn.RNNBase]) -> Callable[[Tensor], Tensor]:
    torch.manual_seed(0)
    layer = kind(6, 3, batch_first=True, bidirectional=True).double()
    return lambda z: layer(z)[0] * randn(6)


LSTM, GRU = _recurrent(nn.LSTM), _recurrent(nn.GRU)
torch.manual_seed(0)
ENCODER = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).double().eval()
MASKED = nn.MultiheadAttention(6, 2, batch_first=True).double().eval()

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(functional, name)
        for name in ("relu", "relu6", "hardtanh", "leaky_relu", "hardsigmoid", "softshrink", "gelu", "silu", "elu",
                     "selu", "celu", "mish", "softplus", "softsign", "logsigmoid", "hardswish", "tanhshrink")
    },
    **{
        name: getattr(torch, name)
        for name in ("sigmoid", "tanh", "exp", "expm1", "square", "erf", "sin", "cos", "abs")
    },
    "in place": lambda z: functional.relu(z * 1.0, inplace=True),
    "relu_": lambda z: (z * 1.0).relu_(),
    "clamp": lambda z: z.clamp(-0.3, 0.4),
    "sqrt": lambda z: (z.square() + 1).sqrt(),
    "rsqrt": lambda z: (z.square() + 1).rsqrt(),
    "log": lambda z: (z.square() + 1).log(),
    "pow": lambda z: (z.square() + 1).pow(1.7) + z**3,
    "reciprocal": lambda z: 1 / (z.square() + 1) + (z.square() + 2).reciprocal(),
    "mul": lambda z: z[:, 0] * z[:, 1],
    "mul in place": lambda z: (z[:, 0] * 1.0).mul_(z[:, 1].tanh()),
    "squeeze and excite": lambda z: z * z.mean((1, 2), keepdim=True).sigmoid(),
    "div": lambda z: z[:, 0] / (z[:, 1].square() + 1),
    "matmul": lambda z: z @ z.transpose(-1, -2),
    "bmm": lambda z: torch.bmm(z, z.transpose(-1, -2)),
    "maximum": lambda z: torch.maximum(z[:, 0], z[:, 1].tanh()),
    "minimum": lambda z: torch.minimum(z[:, 0], z[:, 1].tanh()),
    "softmax": lambda z: z.softmax(-1) * randn(6),
    "softmax of all": lambda z: functional.softmax(z, dim=1) * randn(4, 6),
    "layer_norm": lambda z: functional.layer_norm(z, (6,), randn(6), randn(6, seed=1)),
    "layer_norm of two": lambda z: functional.layer_norm(z, (4, 6)) * randn(4, 6),
    "group_norm": lambda z: functional.group_norm(z, 2, randn(4), randn(4, seed=1)) * randn(6),
    "normalize": lambda z: functional.normalize(z, dim=-1) * randn(6),
    "attention": lambda z: functional.scaled_dot_product_attention(z, z.tanh(), 2 * z),
    "masked attention": lambda z: functional.scaled_dot_product_attention(z, z, z, is_causal=True),
    "attention with a bias": lambda z: functional.scaled_dot_product_attention(z, z, z, attn_mask=randn(4, 4)),
    "multi-head attention": Attention().double().eval(),
    "max_pool2d": lambda z: functional.max_pool2d(z[:, None], 2),
    "max_pool2d with edges": lambda z: functional.max_pool2d(z[:, None] - 3, 3, 2, padding=1, ceil_mode=True),
    "rows elsewhere": lambda z: functional.layer_norm(z.transpose(0, 1), (6,), randn(6)).tanh().transpose(0, 1),
    "rows folded": lambda z: functional.gelu(z.reshape(-1, 6)).reshape(z.shape),
    "einsum": lambda z: torch.einsum("nij,njk,nkl->nil", z, z.transpose(1, 2), z),
    "bilinear": lambda z: torch.baddbmm(z, z @ randn(6, 4), z),
    "addcmul": lambda z: torch.addcmul(z, z, z.tanh()),
    "lerp": lambda z: torch.lerp(z, z.tanh(), z.sigmoid()),
    "glu": lambda z: functional.glu(z),
    "prelu": lambda z: functional.prelu(z, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)),
    "power of two": lambda z: 2**z,
    "log_softmax": lambda z: functional.log_softmax(z, -1) * randn(6),
    "logsumexp": lambda z: (3 * z).logsumexp(-1),
    "rms_norm": lambda z: functional.rms_norm(z, (6,)) * randn(6),
    "instance_norm": lambda z: functional.instance_norm(z) * randn(6),
    "local_response_norm": lambda z: functional.local_response_norm(z, 3),
    "norm": lambda z: z / z.norm(dim=-1, keepdim=True) * randn(6),
    "std": lambda z: z.std(-1) + z.var((1, 2))[:, None],
    "cosine similarity": lambda z: functional.cosine_similarity(z, randn(4, 6), dim=-1),
    "distance": lambda z: torch.cdist(z, randn(3, 6)),
    "cumprod": lambda z: z.cumprod(-1),
    "prod": lambda z: z.prod(-1),
    "amax": lambda z: z.amax((1, 2), keepdim=True) + z.amin(-1, keepdim=True),
    "max with indices": lambda z: z.max(-1).values + z.min(-1)[0],
    "max_pool1d": lambda z: functional.max_pool1d(z, 2),
    "adaptive_max_pool2d": lambda z: functional.adaptive_max_pool2d(z[:, None], (3, 4)),
    "steps": lambda z: (z.sign() * 2 + (3 * z).floor()) * randn(6),
    "clamp to tensors": lambda z: z.clamp(-torch.ones(6).double() / 3, torch.ones(6).double() / 2),
    "lstm": LSTM,
    "gru": GRU,
    "encoder layer": lambda z: ENCODER(z) * randn(6),
    "masked multi-head attention": lambda z: MASKED(z, z, z, attn_mask=torch.ones(4, 4).tril() == 0)[0],
    "parts": lambda z: torch.cat([part * (number + 1) for number, part in enumerate(z.tanh().split([1, 3], 1))], 1),
    "written into": lambda z: torch.zeros_like(z).index_copy_(1, torch.arange(4), z.tanh()),
}  # fmt: skip


@pytest.mark.parametrize("single", [False, True], ids=["an upper end for each row", "one for all"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_slope_times_step_is_the_rise(name: str, single: bool) -> None:
    lower, upper = randn(3, 4, 6), randn(1 if single else 3, 4, 6, seed=1)
    assert missed(FUNCTIONS[name], lower, upper) < 1e-9


@pytest.mark.parametrize("name", ["sqrt", "mul", "softmax", "layer_norm", "gelu"])
def test_derivatives_would_not_add_up(name: str) -> None:
    """So the test above says something."""
    lower, upper = randn(3, 4, 6), randn(3, 4, 6, seed=1)
    leaf = lower.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(FUNCTIONS[name](leaf).sum(), leaf)
    total = (gradient * (upper - lower)).flatten(1).sum(1)
    rise = (FUNCTIONS[name](upper) - FUNCTIONS[name](lower)).flatten(1).sum(1)
    assert float((total - rise).abs().min()) > 1e-2


def test_one_graph_serves_every_image() -> None:
    """The lower ends are run once; each record has the slopes up to its own ends, in whatever order."""
    net = nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 3), nn.Softmax(1)).double()
    lower, uppers = randn(4, 6), [randn(1, 6, seed=seed) for seed in (1, 2, 3)]
    graph, leaf = SlopeGraph(), lower.clone().requires_grad_()
    with graph:
        value = net(graph.mark(leaf.clone()))
    records = [recorded(net, upper) for upper in uppers]
    weights = torch.zeros_like(value)
    weights[:, 1] = 1
    for number in (0, 2, 1, 0):
        (found,) = graph.pull([value], [weights], [leaf], records[number], keep=True)
        wanted = slopes(lambda z: net(z)[:, 1:2], lower, uppers[number])
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-14)


def test_what_chooses_by_its_data_shows_in_the_sum() -> None:
    choose = lambda z: torch.where(z > 0.3, z * 2, z - 1)  # noqa: E731
    assert missed(choose, randn(3, 4, 6), randn(3, 4, 6, seed=1)) > 1e-2


def test_the_middle_of_three_factors_would_not_do() -> None:
    """A product of three is of third degree: two nodes are exact, and are what is taken."""
    found = slopes(lambda z: torch.einsum("ni,ni,ni->ni", z, z, z), torch.tensor([[1.0]]), torch.tensor([[3.0]]))
    torch.testing.assert_close(found, torch.tensor([[13.0]]))  # (27 - 1) / 2; by the middle it would be 12


def test_probabilities_that_vanish_at_one_end() -> None:
    lower, upper = torch.tensor([[0.0, 800.0, 3.0]]).double(), torch.tensor([[900.0, 0.0, 1.0]]).double()
    weights = torch.tensor([1.0, 2.0, 3.0]).double()
    assert missed(lambda z: z.softmax(1) * weights, lower, upper) < 1e-9


def test_chains_of_modules() -> None:
    torch.manual_seed(0)
    body = [nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.AvgPool2d(2), nn.Flatten()]
    head = nn.Sequential(*body, nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 3)).double()
    lower, upper = randn(2, 3, 6, 6), randn(2, 3, 6, 6, seed=1)
    found = slopes(lambda z: head(z)[:, 1:2], lower, upper)
    for row in range(2):
        torch.testing.assert_close(found[row], slope(head, lower[row], upper[row], 1), rtol=1e-9, atol=1e-12)


@pytest.mark.peers
def test_equal_to_deep_lift() -> None:
    from captum.attr import DeepLift

    torch.manual_seed(0)
    layers = [
        nn.Conv2d(2, 3, 3),
        nn.ReLU(),
        nn.Conv2d(3, 3, 3),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(12, 5),
        nn.Tanh(),
    ]
    net = nn.Sequential(*layers, nn.Linear(5, 3)).double()
    lower, upper = randn(4, 2, 6, 6), randn(4, 2, 6, 6, seed=1)
    truth = DeepLift(net).attribute(upper, lower, target=2)
    found = slopes(lambda z: net(z)[:, 2:], lower, upper) * (upper - lower)
    torch.testing.assert_close(found, truth, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_precision(dtype: torch.dtype) -> None:
    net = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 2)).to(dtype)
    lower, upper = randn(3, 6).to(dtype), randn(3, 6, seed=1).to(dtype)
    wide = net.double()
    truth = slopes(lambda z: wide(z)[:, :1], lower.double(), upper.double())
    found = slopes(lambda z: net.to(dtype)(z)[:, :1], lower, upper)
    assert found.dtype == dtype
    tolerance = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}[dtype]
    torch.testing.assert_close(found.double(), truth, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["sqrt", "rsqrt", "normalize", "softmax", "layer_norm", "gelu", "max_pool2d"])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_small_and_large_numbers_in_float32(name: str, size: float) -> None:
    """The rule must not depend on the scale of what goes in."""
    functions = {
        **FUNCTIONS,
        "sqrt": lambda z: (z.square().sum(-1)).sqrt(),
        "rsqrt": lambda z: z[..., :1] * z.square().mean(-1, keepdim=True).rsqrt(),
        "softmax": lambda z: (z / size).softmax(-1) * randn(6).float(),
        "layer_norm": lambda z: functional.layer_norm(z, (6,), randn(6).float(), eps=0.0),
        "normalize": lambda z: functional.normalize(z, dim=-1) * randn(6).float(),
    }
    lower, upper = size * randn(3, 4, 6).float(), size * randn(3, 4, 6, seed=1).float()
    found = (slopes(functions[name], lower, upper) * (upper - lower)).flatten(1).sum(1)
    rise = (functions[name](upper) - functions[name](lower)).flatten(1).sum(1)
    torch.testing.assert_close(found, rise, rtol=1e-3, atol=1e-4 * float(functions[name](upper).abs().max()))


def test_a_mask_is_no_factor() -> None:
    lower, upper = randn(3, 4, 6), randn(3, 4, 6, seed=1)
    found = slopes(lambda z: z * (z > 0), lower, upper)
    torch.testing.assert_close(found, (lower > 0).double())


def test_memory_that_is_written_into_is_noticed_and_can_be_copied() -> None:
    def written(z: Tensor) -> Tensor:
        z = z * 1.0
        hidden = z.tanh()
        z += hidden
        return z

    lower, upper = randn(1, 3), randn(1, 3, seed=1)
    with pytest.raises(Overwritten):
        slopes(written, lower, upper)
    found = slopes(written, lower, upper, copies=True)
    torch.testing.assert_close(found, slopes(lambda z: z + z.tanh(), lower, upper))


IN_PLACE: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "relu_": (torch.relu_, torch.relu),
    "relu6": (lambda z: functional.relu6(z, inplace=True), functional.relu6),
    "clamp_": (lambda z: z.clamp_(-0.3, 0.6), lambda z: z.clamp(-0.3, 0.6)),
    "silu": (lambda z: functional.silu(z, inplace=True), functional.silu),
    "leaky_relu": (lambda z: functional.leaky_relu(z, 0.1, True), lambda z: functional.leaky_relu(z, 0.1)),
}


@pytest.mark.parametrize("part", ["whole", "view"])
@pytest.mark.parametrize("name", IN_PLACE)
def test_in_place_is_as_out_of_place(name: str, part: str) -> None:
    """What was written over is seen under its other names, too."""
    in_place, out_of_place = IN_PLACE[name]

    def over(z: Tensor) -> Tensor:
        z = 2.0 * z
        same = z
        in_place(z[:, 1:] if part == "view" else z)
        return same.tanh() * z

    def beside(z: Tensor) -> Tensor:
        z = 2.0 * z
        z = torch.cat([z[:, :1], out_of_place(z[:, 1:])], 1) if part == "view" else out_of_place(z)
        return z.tanh() * z

    lower, upper = randn(3, 4, 5), randn(3, 4, 5, seed=1)
    lower[:, :, :2] = upper[:, :, :2]  # where the ends meet
    torch.testing.assert_close(slopes(over, lower, upper), slopes(beside, lower, upper), rtol=1e-12, atol=1e-12)


def test_weights_are_no_rows() -> None:
    """A scale with as many entries as there are rows is multiplied like any other constant."""
    scale = nn.Parameter(randn(3, 1, 1))
    lower, upper = randn(3, 4, 6), randn(3, 4, 6, seed=1)
    found = slopes(lambda z: z * scale, lower, upper)
    torch.testing.assert_close(found, scale.detach().expand_as(found))


def test_other_computations_at_the_other_end_are_an_error() -> None:
    def moody(z: Tensor) -> Tensor:
        return z.tanh() if float(z.detach().sum()) > 0 else z * 2.0

    with pytest.raises(LayerError, match="other things at one end"):
        slopes(moody, torch.ones(1, 3), -torch.ones(1, 3))


def test_nothing_is_left_behind() -> None:
    """Outside, operations have their derivatives; parameters get no gradient."""
    net = nn.Linear(6, 2).double()
    slopes(lambda z: net(z).tanh(), randn(3, 6), randn(3, 6, seed=1))
    assert net.weight.grad is None
    leaf = randn(1).requires_grad_()
    (gradient,) = torch.autograd.grad(leaf.tanh().sum(), leaf)
    torch.testing.assert_close(gradient, 1 - leaf.detach().tanh() ** 2)
