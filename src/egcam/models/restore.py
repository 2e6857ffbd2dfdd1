"""Leave the user's model as it was found: mode, buffers and hooks, after errors and interrupts and in many threads."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import FrameType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn, overrides
from torch.utils import _python_dispatch

from egcam.errors import ModelError
from egcam.rng import OwnDraws, generator

_INSTEAD = "explain a copy of it, copy.deepcopy(model), or let a lock keep the two apart"
_TRAINED = (
    "the model's weights or mode changed while it was being explained, as they do when another thread trains it, so "
    f"the maps would belong to no single state of it: {_INSTEAD}"
)

# Held by `with`, which releases a lock written in C after any interrupt; a Condition's own exit is written in Python.
_lock = threading.RLock()
_changed = threading.Condition(_lock)
"""Tells of every visit that ends."""


@dataclass(eq=False)
class _State:
    """What one module looked like when the first of its current visitors came."""

    module: nn.Module
    training: bool
    buffers: dict[str, Tensor | None]
    values: dict[str, Tensor]
    visitors: set[_Visit] = field(default_factory=set)
    has_new_mode: bool = False
    has_new_weights: bool = False

    def put_back(self) -> None:
        """Restore mode and buffers, but not what another thread has written meanwhile."""
        if not (self.has_new_mode and self.module.training):
            self.module.training = self.training
        if self.has_new_weights:
            return  # whoever trains writes buffers, too
        current = self.module._buffers
        if list(current) != list(self.buffers) or any(current[name] is not self.buffers[name] for name in current):
            current.clear()
            current.update(self.buffers)
        for name, value in self.values.items():
            buffer = self.buffers[name]
            assert buffer is not None
            # Written only when it differs: a write would bump the tensor's version under a graph of the user's.
            if not buffer.is_meta and not torch.equal(buffer, value):
                buffer.copy_(value)


# By module, not by model: one thread may explain a model while another explains a part of it.
_states: dict[int, _State] = {}
_visits: set[_Visit] = set()
_hooks: dict[int, set[Hook]] = {}
_drawing_nothing: WeakSet[nn.Module] = WeakSet()


@dataclass(eq=False)
class Hook:
    """A forward hook of ours, or one before the forward, that is easily taken away again."""

    module: nn.Module
    function: Callable[..., Any]
    before: bool

    def remove(self) -> None:
        """Take the hook away, if it is there."""
        module = self.module
        hooks = module._forward_pre_hooks if self.before else module._forward_hooks
        named = module._forward_pre_hooks_with_kwargs if self.before else module._forward_hooks_with_kwargs
        for number in [number for number, function in list(hooks.items()) if function is self.function]:
            named.pop(number, None)
            hooks.pop(number, None)
        _hooks.get(threading.get_ident(), set()).discard(self)


def add_hook(module: nn.Module, hook: Callable[..., Any], before: bool = False, with_kwargs: bool = False) -> Hook:
    """Register a forward hook, or one before the forward; it gets what was passed by name only if asked for.

    It is called in this thread alone, for passes of other threads come by the module, too. The end of the visit removes
    it, if an interrupt has kept the caller from doing so.
    """
    thread = threading.get_ident()

    def in_this_thread(module: nn.Module, *given: Any) -> Any:
        return hook(module, *given) if threading.get_ident() == thread else None

    ours = Hook(module, in_this_thread, before)
    # torch numbers hooks with a counter that two threads can read at the same time; then one hook replaces the other.
    with _lock:
        _hooks.get(threading.get_ident(), set()).add(ours)
        add = module.register_forward_pre_hook if before else module.register_forward_hook
        add(in_this_thread, with_kwargs=with_kwargs)
    return ours


class _Visit:
    """The time between the moment in which one thread takes a model over and that in which it gives the model back.

    What is changed is noted before it is changed, and `leave` undoes what is noted, so that it can be repeated after an
    interrupt, wherever that came.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.modules = list(model.modules())
        self.thread = threading.get_ident()
        self.is_first = all(visit.thread != self.thread for visit in list(_visits))
        self.grad = torch.is_grad_enabled()
        self.modes = [len(current()) for current, _ in _MODES]
        self.parameters = list(model.parameters())
        self.versions = _versions(self.parameters)
        self.gate = Hook(model, lambda module, args: _wait_for_visitors(module), before=True)
        self.changes_mode = False
        self.has_arrived = False
        self.is_over = False
        self.draws = OwnDraws(generator(0, "network")) if self.is_first and model not in _drawing_nothing else None

    def arrive(self) -> None:
        """Put the model in eval mode; only the first of several simultaneous visitors records and changes anything."""
        with _lock:
            _visits.add(self)
            if self.is_first:
                _hooks[self.thread] = set()
            # First the door, then a look at who is inside, so that nobody slips in between.
            self.model.register_forward_pre_hook(self.gate.function, prepend=True)
            new = [module for module in self.modules if id(module) not in _states]
            training = {id(module) for module in new if module.training}
            if training:
                self._refuse_running(training)
            for module in new:
                values = {name: b.detach().clone() for name, b in module._buffers.items() if b is not None}
                _states[id(module)] = _State(module, module.training, dict(module._buffers), values, {self})
            for module in self.modules:
                _states[id(module)].visitors.add(self)
            self.changes_mode = any(_states[id(module)].training for module in self.modules)
            for module in new:
                module.training = False
            self.has_arrived = True

    def _refuse_running(self, training: set[int]) -> None:
        """Refuse modules that another thread runs in training mode at this moment: its pass would end in eval mode."""
        visitors = {visit.thread for visit in _visits}
        for thread, top in sys._current_frames().items():
            frame: FrameType | None = None if thread in visitors else top
            while frame is not None:
                if frame.f_code is _RUNS_MODULE and id(frame.f_locals.get("self")) in training:
                    raise ModelError(
                        f"another thread is running this model in training mode, and maps need eval mode: {_INSTEAD}"
                    )
                frame = frame.f_back

    def leave(self) -> None:
        """Give the model back; the last visitor out restores it. An error, if another thread has trained it."""
        if self.is_over:
            return
        for (current, pop), depth in zip(_MODES, self.modes, strict=True):
            while len(current()) > depth:
                pop()  # of a block within this one that an interrupt kept from ending
        # What changed may have been changed by another thread, rather than by the model's own forward.
        has_threads = threading.active_count() > 1
        new_mode = self.has_arrived and has_threads and self.model.training
        new_weights = has_threads and _versions(self.parameters) != self.versions
        with _lock, torch.inference_mode(False), torch.no_grad():
            # Itself, and visits within it that an interrupt cut short.
            ended = {visit for visit in _visits if visit is self or (self.is_first and visit.thread == self.thread)}
            for number, state in list(_states.items()):
                if self in state.visitors:
                    state.has_new_mode |= new_mode
                    state.has_new_weights |= new_weights
                state.visitors -= ended
                if not state.visitors:
                    state.put_back()
                    del _states[number]
            self.gate.remove()
            if self.is_first:
                for hook in list(_hooks.get(self.thread, ())):
                    hook.remove()
                _hooks.pop(self.thread, None)
            _visits.difference_update(ended)
            _changed.notify_all()
        torch.set_grad_enabled(self.grad)
        if self.draws is not None and self.draws.count == 0 and not _has_failed():
            _drawing_nothing.add(self.model)
        self.is_over = True
        if self.has_arrived and (new_mode or new_weights) and not _is_interrupted():
            raise ModelError(_TRAINED)


_MODES: tuple[tuple[Callable[[], list[Any]], Callable[[], Any]], ...] = (
    (_python_dispatch._get_current_dispatch_mode_stack, _python_dispatch._pop_mode),
    (overrides._get_current_function_mode_stack, overrides._pop_mode),
)
_RUNS_MODULE = nn.Module._call_impl.__code__


def _wait_for_visitors(module: nn.Module) -> None:
    """Before a model runs: a thread that does not visit it waits until it is back in the mode that thread wants.

    For one that does, what the network draws begins anew.
    """
    with _lock:
        visits = [visit for visit in _visits if visit.thread == threading.get_ident()]
        for visit in visits:
            if visit.draws is not None:
                visit.draws.begin_anew()
        if visits:
            # Another thread has called `train()` on a module that was put in eval mode.
            if id(module) in _states and module.training and threading.active_count() > 1:
                raise ModelError(_TRAINED)
            return
        while _is_taken(module):
            _changed.wait()


def _is_taken(module: nn.Module) -> bool:
    state = _states.get(id(module))
    return state is not None and (module.training or any(visit.changes_mode for visit in state.visitors))


def _versions(parameters: Sequence[Tensor]) -> list[int]:
    return [0 if parameter.is_inference() else parameter._version for parameter in parameters]


def _is_interrupted() -> bool:
    """Whether what ends the visit is no error but KeyboardInterrupt or the like, which must not be replaced."""
    error = sys.exception()
    while error is not None and isinstance(error, Exception | GeneratorExit):
        error = error.__context__
    return error is not None


def _has_failed() -> bool:
    """Whether anything but the normal end of the block ends the visit."""
    error = sys.exception()
    return not isinstance(error, GeneratorExit) or error.__context__ is not None


def _visiting(model: nn.Module, device: torch.device) -> Iterator[None]:
    visit = _Visit(model)
    autocast: AbstractContextManager[Any] = nullcontext()
    if torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type):
        # The user's, but it caches no weights: copies made under `no_grad` would lack their history.
        dtype = torch.get_autocast_dtype(device.type)
        autocast = torch.autocast(device.type, dtype=dtype, cache_enabled=False)
    # More than one `finally`: what an interrupt keeps the first from doing, the next does.
    try:
        try:
            try:
                with torch.inference_mode(False), autocast:
                    visit.arrive()
                    with visit.draws or nullcontext():
                        yield
            finally:
                visit.leave()
        finally:
            visit.leave()
    finally:
        visit.leave()


class _Closing(io.IOBase):
    """A `with` block that runs inside a generator and closes that when it ends.

    A base class written in C, because an interrupt can come before the first line of an `__exit__` written in Python.
    Closing a generator is written in C as well, and so the next line of Python is one of its `finally`.
    """

    def __init__(self, steps: Any) -> None:
        self._steps = steps
        self.close = steps.close  # type: ignore[method-assign]

    def __enter__(self) -> Any:
        try:
            return next(self._steps)
        except BaseException:
            self.close()
            raise


def untouched(model: nn.Module, device: torch.device) -> AbstractContextManager[None]:
    """Run a model in eval mode, out of inference mode, and give it back exactly as it was.

    Mode, buffers and hooks are restored when the block ends, whatever ends it, an interrupt at any instant included.
    Several threads may be inside for the same model: the first one in records, the last one out restores. Torch's
    global random state is neither read nor written: what a network draws comes from a generator of its own, the same
    in every pass, so that no map depends on what was run before it. (A network that has drawn nothing in one whole
    block is believed to draw nothing.)

    A thread that runs a model in training mode and one that explains it do not go together: a training pass waits at
    the model's door until the block ends, a block that would begin in the middle of a training pass is refused, and one
    in which the weights have changed ends in an error. What was trained is never undone.

    Raises:
        ModelError: another thread runs the model in training mode, or has changed its weights meanwhile.
    """
    return _Closing(_visiting(model, device))
