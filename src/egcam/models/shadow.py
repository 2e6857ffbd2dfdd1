"""Shallow copies of a module tree, so that a trial run can change structure without touching the user's model."""

from __future__ import annotations

from functools import cache
from typing import Any

from torch import nn


def shallow(module: nn.Module, kind: type[nn.Module] | None = None) -> nn.Module:
    """A new module that shares every tensor and child, but owns the dictionaries that hold them.

    Args:
        module: the module.
        kind: the copy's class; None is the module's.
    """
    target: Any = kind or type(module)
    silent = _without_finaliser(target)
    copy: nn.Module = silent.__new__(silent)
    copy.__dict__ = dict(module.__dict__)
    for attribute in ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks"):
        copy.__dict__[attribute] = type(module.__dict__[attribute])(module.__dict__[attribute])
    return copy


@cache
def _without_finaliser(kind: Any) -> Any:
    """The class, or one that passes for it and differs in this only: its `__del__` does nothing.

    What a class lets go of in `__del__`, its hooks or files, the copy shares with the user's module. A pickle or a deep
    copy of the copy shares nothing, and is of the user's class again.
    """
    if not hasattr(kind, "__del__"):
        return kind

    def reduce(module: Any, protocol: Any) -> Any:
        make, args, *rest = kind.__reduce_ex__(module, protocol)
        return make, tuple(kind if value is silent else value for value in args), *rest

    body = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    body |= {"__class__": property(lambda module: kind), "__del__": lambda module: None, "__reduce_ex__": reduce}
    silent = type(kind)(kind.__name__, (kind,), body)
    return silent


def separate_copy(model: nn.Module) -> nn.Module:
    """A copy with its own weights, buffers and hooks, to be changed without affecting the model.

    Modules that are shared in the model are shared in the copy.
    """
    copies = {id(module): shallow(module) for module in model.modules()}
    for copy in copies.values():
        for name, parameter in copy._parameters.items():
            if parameter is not None:
                copy._parameters[name] = nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
        for name, buffer in copy._buffers.items():
            copy._buffers[name] = None if buffer is None else buffer.detach().clone()
        for name, child in copy._modules.items():
            copy._modules[name] = None if child is None else copies[id(child)]
    return copies[id(model)]


def replace_modules(model: nn.Module, replacements: dict[int, nn.Module]) -> nn.Module:
    """A copy of the tree in which modules, looked up by `id`, are replaced; other branches are shared as they are."""
    copies = dict(replacements)
    holds = dict.fromkeys(replacements, True)
    _holds_any(model, holds)
    changed = [module for module in model.modules() if holds.get(id(module)) and id(module) not in replacements]
    for module in changed:
        copies[id(module)] = shallow(module)
    for module in changed:
        for name, child in module._modules.items():
            if child is not None:
                copies[id(module)]._modules[name] = copies.get(id(child), child)
    return copies.get(id(model), model)


def _holds_any(module: nn.Module, answers: dict[int, bool]) -> bool:
    """Whether a module is, or contains, one marked True in `known`; records the answer for every module it visits."""
    if id(module) not in answers:
        answers[id(module)] = False  # stops at cycles
        within = [_holds_any(child, answers) for child in module._modules.values() if child is not None]
        answers[id(module)] = any(within)
    return answers[id(module)]
