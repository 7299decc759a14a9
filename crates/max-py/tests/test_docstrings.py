"""The examples in the docstrings of the package run and print what they show."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import max
import pytest

from helpers import pytorch

MODULES = ["max", *(m.name for m in pkgutil.walk_packages(max.__path__, "max.") if m.name != "max._core")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    if name.startswith("max.torch"):
        pytorch()
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    tests = [test for name in MODULES if name != "max.torch" for test in finder.find(importlib.import_module(name))]
    assert sum(len(test.examples) > 0 for test in tests) > 20
