"""The exception tree, and the hint that ends a message.

Run: pytest tests/unit/test_errors.py -q
"""

from __future__ import annotations

import pytest

from maclaurin import errors
from maclaurin.errors import MaclaurinError, nearest

KINDS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, MaclaurinError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_a_maclaurin_error_and_a_value_error(kind: type[MaclaurinError]) -> None:
    assert issubclass(kind, ValueError)
    assert kind is MaclaurinError or kind.__bases__ == (MaclaurinError,)
    assert kind.__doc__
    with pytest.raises(MaclaurinError, match="what, why, what to do"):
        raise kind("what, why, what to do")


def test_the_tree_is_drawn_in_the_docstring() -> None:
    for kind in KINDS:
        assert f" {kind.__name__} " in errors.__doc__


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("taylr", "did you mean 'taylor'?"),
        ("powr", "did you mean 'power' or 'expo'?"),
        ("taylo", "did you mean 'taylor'?"),
        ("zzz", "legal: taylor, power, exp, expo"),
        ("", "legal: taylor, power, exp, expo"),
        ("expp", "did you mean 'exp' or 'expo'?"),
    ],
)
def test_nearest(word: str, expected: str) -> None:
    assert nearest(word, iter(["taylor", "power", "exp", "expo"])) == expected


def test_nearest_gives_at_most_the_limit() -> None:
    words = [f"word{i}" for i in range(9)]
    assert nearest("word", words).count(" or ") == 2
    assert nearest("word", words, limit=1).count(" or ") == 0
