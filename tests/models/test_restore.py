"""What a visit leaves behind: nothing, whatever ends it and whoever else uses the model meanwhile."""

from __future__ import annotations

import copy
import dis
import gc
import linecache
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import egcam
from egcam.errors import ModelError
from egcam.models import restore
from egcam.models.restore import untouched
from egcam.models.shadow import shallow
from egcam.rng import OwnDraws, generator
from support.small_models import Kept, pictures, seeded, small_net
from support.small_models import explainer as explainer_of

pytestmark = pytest.mark.usefixtures("one_thread")
CPU = torch.device("cpu")


def _started(call: Callable[[], Any]) -> threading.Thread:
    """A thread that makes the call, on one core like its test."""

    def work() -> None:
        torch.set_num_threads(1)
        call()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


# -- copies of modules that clean up after themselves ----------------------------------------------


class _LetsGo(nn.Sequential):
    """Removes its hooks when it is deleted, as U-Nets do that keep what their encoder put out."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__(*parts)
        self.kept: list[Tensor] = []
        self.handle = parts[0].register_forward_hook(lambda module, args, output: self.kept.append(output))

    def __del__(self) -> None:
        self.handle.remove()

    def forward(self, images: Tensor) -> Tensor:
        self.kept.clear()
        found: Tensor = super().forward(images)
        return found + self.kept[0].mean((2, 3))[:, :1]


def _net_that_lets_go() -> nn.Module:
    head = (nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    return seeded(lambda: _LetsGo(nn.Conv2d(3, 4, 3), *head)).eval()


@pytest.mark.parametrize("method", ["grad-cam", "slope-cam"])
def test_copies_never_run_the_users_finaliser(method):
    model, images = _net_that_lets_go(), pictures()
    expected = model(images).detach()
    egcam.explain(model, images, method, target=1)
    gc.collect()
    assert len(model[0]._forward_hooks) == 1
    assert torch.equal(model(images), expected)


def test_a_copy_passes_for_the_users_class():
    model = _net_that_lets_go()
    shadow = shallow(model)
    assert isinstance(shadow, _LetsGo)
    assert shadow.__class__ is _LetsGo
    assert (type(shadow).__name__, type(shadow).__module__) == ("_LetsGo", __name__)
    assert repr(shadow) == repr(model)
    assert type(shallow(nn.Linear(2, 2))) is nn.Linear, "a class without a finaliser is used as it is"


class _Closes(nn.Linear):
    closed = 0

    def __del__(self) -> None:
        _Closes.closed += 1


def test_what_is_made_of_a_copy_is_of_the_users_class():
    shadow = shallow(_Closes(2, 2))
    for made in (copy.deepcopy(shadow), pickle.loads(pickle.dumps(shadow))):
        assert type(made) is _Closes
        assert torch.equal(made.weight, shadow.weight)
    del made
    gc.collect()
    before = _Closes.closed
    del shadow
    gc.collect()
    assert _Closes.closed == before


# -- random numbers --------------------------------------------------------------------------------


class _Chancy(nn.Module):
    """Draws in every way a forward does, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.net = small_net()

    def forward(self, images: Tensor) -> Tensor:
        noise = torch.rand_like(images) + torch.randn(images.shape) + torch.randn_like(images)
        noise = noise + torch.empty_like(images).uniform_() + torch.randint_like(images, 2) + torch.rand(12)
        chosen = torch.multinomial(torch.ones(12), 12) + torch.randperm(12) + torch.randint(3, (12,))
        kept = nn.functional.dropout(images + 0.01 * noise + 0.01 * chosen, 0.1, training=True)
        found: Tensor = self.net(torch.bernoulli(torch.full_like(images, 0.9)) * kept)
        return found


def test_a_network_that_draws_gives_the_same_map_again_and_leaves_the_global_generator():
    model, images = _Chancy().eval(), pictures()
    for method in ("grad-cam", "expected-gradients"):
        first = egcam.explain(model, images, method, target=1, signed=True).maps
        torch.rand(7)
        state = torch.get_rng_state()
        again = egcam.explain(model, images, method, target=1, signed=True).maps
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(again, first)
        assert float(first.abs().max()) > 0


@pytest.mark.parametrize("draws", [True, False])
def test_other_threads_never_get_a_number_twice(draws):
    model, images, stop = (_Chancy() if draws else small_net()).eval(), pictures(), threading.Event()
    made = []

    def explain() -> None:
        reference = lambda image: torch.rand_like(image)  # noqa: E731 (a function that draws from torch's generator)
        while not stop.is_set():
            made.append(egcam.explain(model, images, "expected-gradients", 1, reference=reference, samples=2))

    thread = _started(explain)
    try:
        drawn = []
        while len(drawn) < 3000 or len(made) < 5:
            drawn.append(torch.rand((), dtype=torch.float64).item())
            time.sleep(0.0002)
    finally:
        stop.set()
        thread.join()
    assert len(set(drawn)) == len(drawn)


def test_functions_of_the_users_that_draw_leave_the_global_generator():
    model, images = small_net(), pictures()
    egcam.explain(model, images, "grad-cam", target=1)  # from now on the network is known to draw nothing itself
    random = egcam.foreign(lambda images, target: torch.rand_like(images).mean(1), model)
    calls = (
        lambda: random(images, 1).maps,
        lambda: egcam.metrics.Deletion(baseline=torch.rand_like)(model, images, images.mean(1), 1),
    )
    for call in calls:
        first, state = call(), torch.get_rng_state()
        again = call()
        assert torch.equal(torch.get_rng_state(), state)
        assert torch.equal(first, again)
        assert float(first.abs().max()) > 0


def test_own_draws_are_those_of_the_given_generator():
    like = torch.zeros(50)
    with OwnDraws(generator(0, "test")) as draws:
        made = [torch.rand(3), torch.randn_like(like), torch.randint(5, 9, (4,)), like.bernoulli(0.5)]
        given = torch.rand(3, generator=generator(0, "other"))
    source = generator(0, "test")
    assert torch.equal(made[0], torch.rand(3, generator=source))
    assert torch.equal(made[1], torch.empty(50).normal_(generator=source))
    assert torch.equal(made[2], torch.randint(5, 9, (4,), generator=source))
    assert torch.equal(made[3], like.bernoulli(0.5, generator=source))
    assert torch.equal(given, torch.rand(3, generator=generator(0, "other")))
    assert draws.count == 4


# -- interrupts ------------------------------------------------------------------------------------

_TRACED = (str(Path(egcam.__file__).parent), "contextlib.py", "_contextlib.py", "grad_mode.py", "_python_dispatch.py")


def _is_end_of_with(frame: FrameType) -> bool:
    """Whether a `with` is about to call its `__exit__`: Python traces the line again, but serves no signal there."""
    operation = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return operation in ("LOAD_CONST", "PUSH_EXC_INFO") and line.startswith("with ")


class _Interrupt:
    """Raises KeyboardInterrupt before the line of that number, of all lines traced."""

    def __init__(self, at: int) -> None:
        self.at, self.lines = at, 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not any(part in frame.f_code.co_filename for part in _TRACED):
            return None
        if event == "line" and not _is_end_of_with(frame):
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self


@contextmanager
def _traced(trace: Any) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def _lines_of(call: Callable[[], Any]) -> int:
    call()
    counter = _Interrupt(0)
    with _traced(counter):
        call()
    return counter.lines


def _interrupted_at(call: Callable[[], Any], line: int) -> bool:
    try:
        with _traced(_Interrupt(line)):
            call()
    except KeyboardInterrupt:
        return True
    return False


def _check_nothing_is_left(kept: Kept, where: str) -> None:
    assert not restore._visits, where
    assert not restore._states, where
    assert not restore._hooks, where
    free = []
    _started(lambda: free.append(restore._lock.acquire(timeout=5) and not restore._lock.release())).join()
    assert free == [True], where
    assert not any(current() for current, _ in restore._MODES), where
    kept.check()


def _net_with_buffers() -> nn.Module:
    model = small_net(train=True)
    model.bn1.eval()
    model.register_buffer("passes", torch.zeros(1))
    model.register_forward_pre_hook(lambda module, args: module.passes.add_(1) and None)
    return model


def test_an_interrupt_before_any_line_of_a_visit_leaves_nothing():
    """Of every line, of the block's own and of those that enter and leave it, each in turn."""
    model, images = _net_with_buffers(), pictures(1)

    def call() -> None:
        with untouched(model, CPU):
            handle = restore.add_hook(model.conv1, lambda module, args, output: None)
            model(images)
            handle.remove()

    kept, lines = Kept(model, images), _lines_of(call)
    restore._drawing_nothing.clear()
    assert lines > 60
    for line in range(1, lines + 1):
        assert _interrupted_at(call, line)
        _check_nothing_is_left(kept, f"line {line}")


@pytest.mark.parametrize("method", ["grad-cam", "slope-cam"])
def test_an_interrupt_within_an_explanation_leaves_nothing(method):
    model, images = _net_with_buffers(), pictures(1)
    cam = explainer_of(method, model)

    def call() -> None:
        cam(images, 1)

    kept, lines = Kept(model, images), _lines_of(call)
    expected = cam(images, 1).maps
    # A prime step: in two rounds of the trace, other lines of the same loops.
    for line in range(1, lines + 1, max(1, lines // 131)):
        assert _interrupted_at(call, line)
        _check_nothing_is_left(kept, f"line {line}")
    assert torch.equal(cam(images, 1).maps, expected)


def test_a_second_interrupt_while_the_first_is_served_leaves_nothing(monkeypatch):
    model = _net_with_buffers()
    kept, times = Kept(model), []
    put_back = restore._State.put_back

    def interrupted(state: Any) -> None:
        times.append(state)
        if len(times) in (2, 5):
            raise KeyboardInterrupt
        put_back(state)

    monkeypatch.setattr(restore._State, "put_back", interrupted)
    with pytest.raises(KeyboardInterrupt), untouched(model, CPU):
        raise KeyboardInterrupt
    assert len(times) > 5
    _check_nothing_is_left(kept, "two interrupts")


# -- training and explaining at once ---------------------------------------------------------------


def _trained(batches: int, meanwhile: Callable[[nn.Module], None] | None = None) -> nn.Module:
    """A network after some steps of training, while another thread does something with it all the time."""
    model, stop = small_net(train=True), threading.Event()

    def work() -> None:
        while meanwhile is not None and not stop.is_set():
            meanwhile(model)

    thread = _started(work)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
            for batch in range(batches):
                optimiser.zero_grad()
                labels = torch.arange(8) % 5
                nn.functional.cross_entropy(model(pictures(8, seed=batch)), labels).backward()
                optimiser.step()
    finally:
        stop.set()
        thread.join()
    return model


@pytest.mark.parametrize("method", ["grad-cam", "slope-cam"])
def test_training_is_the_same_bit_for_bit_while_another_thread_explains(method):
    refused, made = [], []

    def explain(model: nn.Module) -> None:
        try:
            made.append(egcam.explain(model, pictures(), method, target=1, **options))
        except egcam.EgcamError as error:
            refused.append(str(error))
        time.sleep(0.003)  # a loop that never sleeps keeps the interpreter's lock from the training

    options = {"samples": 2} if method == "slope-cam" else {}
    model, alone = _trained(50, explain), _trained(50)
    assert model.bn1.num_batches_tracked == 50
    for name, value in alone.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert all(module.training for module in model.modules())
    assert refused or made
    assert all("another thread" in reason and "deepcopy" in reason for reason in refused), set(refused)


def test_weights_that_change_meanwhile_are_said_and_buffers_left_alone():
    model = small_net(train=True)

    def change() -> None:
        with torch.no_grad():
            model.conv1.weight.mul_(2)
            model.bn1.running_mean.add_(1)

    before, mean = model.conv1.weight.detach().clone(), model.bn1.running_mean.clone()
    stay = threading.Event()
    other = _started(stay.wait)
    try:
        with pytest.raises(ModelError, match="another thread trains it"), untouched(model, CPU):
            change()
    finally:
        stay.set()
        other.join()
    assert torch.equal(model.conv1.weight, 2 * before)
    assert torch.equal(model.bn1.running_mean, mean + 1)
    assert all(module.training for module in model.modules())


def test_a_model_put_in_training_meanwhile_stays_so_and_is_not_explained():
    model, images = small_net(), pictures()
    mean = model.bn1.running_mean.clone()

    def train(done: int, expected: int) -> None:
        _started(model.train).join()

    stay = threading.Event()
    other = _started(stay.wait)
    try:
        with pytest.raises(ModelError, match="another thread trains it"):
            egcam.explain(model, images, "expected-gradients", target=1, samples=4, batch_size=1, progress=train)
    finally:
        stay.set()
        other.join()
    assert all(module.training for module in model.modules())
    assert torch.equal(model.bn1.running_mean, mean)


class _Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = small_net(train=True)
        self.inside, self.go_on = threading.Event(), threading.Event()

    def forward(self, images: Tensor) -> Any:
        found = self.net(images)
        self.inside.set()
        assert self.go_on.wait(30)
        return found


def test_a_model_in_the_middle_of_a_training_pass_is_refused():
    model = _Slow()
    thread = _started(lambda: model(pictures(8)))
    try:
        assert model.inside.wait(30)
        kept = Kept(model)
        with pytest.raises(ModelError, match="another thread is running this model in training mode"):
            egcam.explain(model, pictures(), "grad-cam", target=1)
        kept.check()
    finally:
        model.go_on.set()
        thread.join()


def test_eval_passes_of_other_threads_do_not_wait():
    model, images = small_net(), pictures()
    found: list[Tensor] = []
    with untouched(model, CPU):
        _started(lambda: found.append(model(images))).join(30)
        assert torch.equal(found[0], model(images))
