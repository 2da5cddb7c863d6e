"""Every example in the room's docstrings runs."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name", ["certificate", "expansion", "noise", "prediction", "regression", "separation", "unit"]
)
def test_docstring_examples(name):
    result = doctest.testmod(importlib.import_module(f"maclaurin.theory.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
