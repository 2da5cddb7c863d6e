"""The canonical text of the parts: options in the order of the fields, defaults left out, numbers at their shortest.

Run: pytest tests/unit/algebra/test_text.py -q
"""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin.algebra import (
    L2,
    CallableMap,
    Decay,
    Elu1,
    Exp,
    Identity,
    Layer,
    Length,
    OutputGate,
    Polynomial,
    Power,
    Similarity,
    Sum,
    Taylor,
    ValueGate,
    Window,
)
from maclaurin.algebra.normalizer import Normalizer
from maclaurin.algebra.text import has_text, normalizer_text, part_text, similarity_text


@pytest.mark.parametrize(
    ("similarity", "expected"),
    [
        (Similarity(Exp()), "exp"),
        (Similarity(Power(1)), "power:1"),
        (Similarity(Power(1), Elu1()), "elu1"),
        (Similarity(Power(1), Elu1(), clamp=2), "elu1>power:1:clamp=2"),
        (Similarity(Exp(), Elu1()), "elu1>exp"),
        (Similarity(Taylor(4), Identity(), clamp=5, is_centered=True), "taylor:4:clamp=5@mean"),
        (Similarity(Polynomial((1, 0.25, 1e-7))), "poly:1,0.25,1e-7"),
    ],
    ids=str,
)
def test_similarities(similarity: Similarity, expected: str) -> None:
    assert similarity_text(similarity) == expected
    assert has_text(similarity)


@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (Sum(), "sum"),
        (Sum(detach=True, clamp=1, eps=1e-4, signed=True), "sum:signed:eps=1e-4:clamp=1:detach"),
        (Length(learned_exponent=True), "length:learned"),
        (Layer(weight=True, bias=True), "layer:weight:bias"),
        (L2(gain=1.0), "l2"),
    ],
    ids=str,
)
def test_normalizers(normalizer: Normalizer, expected: str) -> None:
    assert normalizer_text(normalizer) == expected


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (ValueGate(), "valuegate"),
        (Decay(), "decay"),
        (OutputGate(), "outgate"),
        (OutputGate(after=True), "outgate:after"),
        (Window(4), "window:4"),
        (Window(4, 2), "window:4:2"),
        (Window(1000, 10**6), "window:1000:1000000"),  # no exponent: the grammar reads whole numbers
    ],
    ids=repr,
)
def test_parts(part: object, expected: str) -> None:
    assert part_text(part) == expected


def test_a_callable_has_none() -> None:
    assert not has_text(Similarity(Exp(), CallableMap(math.sin)))


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1e-4, "1e-4"), (0.5, "0.5"), (5.0, "5"), (1e22, "1e22"), (123456.0, "123456"), (5e-324, "5e-324"), (100.0, "100"),
     (1000.0, "1e3"), (math.pi, repr(math.pi))],
)  # fmt: skip
def test_numbers(number: float, expected: str) -> None:
    assert normalizer_text(L2(gain=number)).removeprefix("l2:gain=") == expected


@given(st.floats(min_value=0.0, exclude_min=True, allow_infinity=False))
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
def test_numbers_read_back_and_are_no_longer_than_their_repr(number: float) -> None:
    written = normalizer_text(L2(gain=number)).removeprefix("l2:gain=") or "1"
    written = "1" if number == 1 else written
    assert float(written) == number
    assert len(written) <= len(repr(number))
    assert Decimal(written) == Decimal(repr(number))
