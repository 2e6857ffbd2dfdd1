"""The examples in docstrings are run, so they stay true, and nothing is said twice."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest
import torch

import egcam

MODULES = sorted(module.name for module in pkgutil.walk_packages(egcam.__path__, "egcam."))


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = importlib.import_module(name)
    torch.manual_seed(0)
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert found.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [test for name in MODULES for test in finder.find(importlib.import_module(name)) if test.examples]
    assert len(examples) > 30


def documented(text):
    """The names a docstring explains, by section."""
    section, found = "", {}
    for line in inspect.cleandoc(text).splitlines():
        if heading := re.fullmatch(r"(Args|Attributes|Returns|Example):", line):
            section = heading[1]
        elif section in ("Args", "Attributes") and (name := re.match(r"    (\w+): ", line)):
            found.setdefault(section, []).append(name[1])
    return found


def test_nothing_is_documented_twice():
    for name in MODULES:
        module = importlib.import_module(name)
        things = [thing for thing in vars(module).values() if getattr(thing, "__module__", "") == name]
        methods = [method for thing in things if inspect.isclass(thing) for method in vars(thing).values()]
        for thing in (*things, *methods):
            text = getattr(thing, "__doc__", None)
            if not isinstance(text, str):
                continue
            for section, names in documented(text).items():
                assert len(names) == len(set(names)), f"{name}: {thing!r}, {section} {names}"
