"""Similarity: map, function, clamp and center together.

Run: pytest tests/unit/algebra/test_similarity.py -q
"""

from __future__ import annotations

import math

import pytest
import torch

from laws.compare import assert_close
from maclaurin.algebra import Elu1, Exp, Identity, Polynomial, Power, Relu, Similarity, Taylor
from maclaurin.errors import MechanismError

ALL = torch.ones(1, 1, dtype=torch.bool)


def true(weights: torch.Tensor, log_scale: torch.Tensor) -> torch.Tensor:
    return weights * log_scale.exp()[..., None]


def test_a_clamp_is_a_minimum() -> None:
    x = torch.tensor([[-3.0, 0.4, 2.0]], dtype=torch.float64)
    for function in (Exp(), Taylor(3), Power(2)):
        clamped = Similarity(function, clamp=0.5).weigh(x, ALL)
        assert_close(true(*clamped), true(*Similarity(function).weigh(x.clamp(max=0.5), ALL)), rtol=1e-15)


def test_a_center_is_a_shift_inside_and_a_factor_outside() -> None:
    x = torch.tensor([[-3.0, 0.4, 2.0]], dtype=torch.float64)
    c = torch.tensor([0.7], dtype=torch.float64)
    y = x - 0.7
    found = true(*Similarity(Taylor(2), is_centered=True).weigh(x, ALL, c))
    assert_close(found, math.exp(0.7) * (1 + y + y**2 / 2), rtol=1e-14)


def test_the_log_scale_carries_no_gradient_and_the_weights_all_of_it() -> None:
    x = torch.tensor([[1.0, 2.0]], dtype=torch.float64, requires_grad=True)
    c = torch.tensor([1.5], dtype=torch.float64, requires_grad=True)
    weights, log_scale = Similarity(Taylor(2), is_centered=True).weigh(x, ALL, c)
    assert not log_scale.requires_grad
    factor = log_scale.exp()[..., None]
    found = torch.autograd.grad((weights * factor).sum(), (x, c))
    y = x - c
    expected = torch.autograd.grad((torch.exp(c) * (1 + y + y**2 / 2)).sum(), (x, c))
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, rtol=1e-14)


@pytest.mark.parametrize("scale", [1.0, 0.3, -2.0])
def test_readout_factors_rebuild_the_function(scale: float) -> None:
    s = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64)
    for function in (Taylor(4), Power(3), Polynomial((1.0, 0.0, 2.0))):
        similarity = Similarity(function)
        total = sum(similarity.readout(n, scale) * s**n for n in similarity.moment_orders)
        expected = sum(a * (scale * s) ** n for n, a in enumerate(function.series))
        assert_close(total, expected, rtol=1e-13)
    center = torch.tensor(0.9, dtype=torch.float64)
    similarity = Similarity(Taylor(4), is_centered=True)
    total = sum(similarity.readout(n, scale, center) * s**n for n in similarity.moment_orders)
    assert_close(total, sum((scale * s - 0.9) ** n / math.factorial(n) for n in range(5)), rtol=1e-12)


def test_moment_orders() -> None:
    assert Similarity(Power(3)).moment_orders == (3,)
    assert Similarity(Polynomial((0.0, 1.0, 0.0, 2.0))).moment_orders == (1, 3)
    assert Similarity(Taylor(2), is_centered=True).moment_orders == (0, 1, 2)


def test_which_have_a_finite_state() -> None:
    assert Similarity(Taylor(2)).is_finite_state
    assert not Similarity(Exp()).is_finite_state
    assert not Similarity(Taylor(2), clamp=5.0).is_finite_state


@pytest.mark.parametrize(
    ("similarity", "sign"),
    [
        (Similarity(Taylor(3)), "signed"),
        (Similarity(Taylor(3), Relu()), "positive"),
        (Similarity(Taylor(3), Elu1(), clamp=1.0), "positive"),
        (Similarity(Taylor(3), Elu1(), clamp=0.0), "positive"),
        (Similarity(Taylor(3), Elu1(), clamp=-1.0), "signed"),  # min(x, -1) is negative whatever the map
        (Similarity(Taylor(3), Relu(), is_centered=True), "signed"),  # x - c is negative for some keys
        (Similarity(Taylor(2), Relu(), is_centered=True), "positive"),
        (Similarity(Power(1), Relu()), "nonnegative"),
        (Similarity(Power(1)), "signed"),
        (Similarity(Exp()), "positive"),
    ],
    ids=repr,
)
def test_signs(similarity: Similarity, sign: str) -> None:
    assert similarity.positivity == sign


def test_a_centered_odd_order_on_a_non_negative_map_does_turn_negative() -> None:
    """The reason for the sign above."""
    x = torch.tensor([[0.0, 0.0, 12.0]], dtype=torch.float64)
    weights, _ = Similarity(Taylor(3), Relu(), is_centered=True).weigh(x, ALL, x.mean(-1))
    assert bool((weights < 0).any())


def test_formulas() -> None:
    assert Similarity(Exp()).formula == "w = exp(x); x = scale <q, k>"
    assert Similarity(Power(2), Elu1(), clamp=5).formula == (
        "w = x^2; x = min(scale <phi(q), phi(k)>, phi(x) = elu(x) + 1, 5)"
    )
    assert "exp(c)" in Similarity(Taylor(2), is_centered=True).formula
    assert Similarity(Exp(), Identity()) == Similarity(Exp())


@pytest.mark.parametrize("function", [Exp(), Power(2), Polynomial((1.0, 1.0))], ids=repr)
def test_only_taylor_has_a_center(function: object) -> None:
    with pytest.raises(MechanismError, match=r"@mean asks to center (.|\n)*write taylor:N@mean"):
        Similarity(function, is_centered=True)


@pytest.mark.parametrize("clamp", [math.inf, -math.inf, math.nan])
def test_a_clamp_is_finite(clamp: float) -> None:
    with pytest.raises(MechanismError, match=r"asks for a clamp that is not a finite number\.\n.*clamp=5"):
        Similarity(Exp(), clamp=clamp)
