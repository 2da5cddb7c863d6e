"""Functions of the logit: values relative to a log scale, coefficients, signs, and what they refuse.

Run: pytest tests/unit/algebra/test_function.py -q
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from laws.compare import assert_close, error_ratio
from maclaurin.algebra import Exp, Polynomial, Positivity, Power, Series, Taylor
from maclaurin.algebra.function import FUNCTIONS, Function
from maclaurin.errors import MechanismError

ALL = torch.ones(1, 1, dtype=torch.bool)


def value(function: Function, x: torch.Tensor) -> torch.Tensor:
    """kappa(x) in true scale, every number a row of its own with one key."""
    weights, log_scale = function.weigh(x[:, None], ALL)
    return weights[:, 0] * log_scale.exp()


# ------------------------------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("function", "formula"),
    [
        (Exp(), torch.exp),
        (Taylor(0), torch.ones_like),
        (Taylor(3), lambda x: 1 + x + x**2 / 2 + x**3 / 6),
        (Power(1), lambda x: x),
        (Power(5), lambda x: x**5),
        (Polynomial((1.0, 0.0, -2.0)), lambda x: 1 - 2 * x**2),
        (Polynomial((0.0, 0.5)), lambda x: 0.5 * x),
        (Polynomial((3.0,)), lambda x: 3 * torch.ones_like(x)),
    ],
    ids=lambda each: repr(each) if isinstance(each, Function) else "",
)
def test_values(function: Function, formula: object) -> None:
    x = torch.tensor([-3.0, -1.0, -1e-8, 0.0, 0.3, 1.0, 2.5], dtype=torch.float64)
    assert_close(value(function, x), formula(x), rtol=1e-14)


def test_order_40_equals_exp_at_logits_up_to_4() -> None:
    """1e-12: the remainder is 4^41 / 41! = 1.4e-25; the alternating sum at -4 costs exp(8) roundings."""
    x = torch.linspace(-4.0, 4.0, 401, dtype=torch.float64)
    assert_close(value(Taylor(40), x) / x.exp(), torch.ones_like(x), rtol=1e-12)


@pytest.mark.parametrize("order", [0, 1, 2, 5, 10, 20, 40])
def test_the_remainder_bound_of_the_docstring(order: int) -> None:
    x = torch.linspace(-6.0, 6.0, 241, dtype=torch.float64)
    bound = x.exp().clamp(min=1.0) * x.abs() ** (order + 1) / float(math.factorial(order + 1))
    assert bool(((value(Taylor(order), x) - x.exp()).abs() <= bound + 1e-12 * 6.0**order).all())


@pytest.mark.parametrize("order", [1, 2, 10, 39, 40, 170])
@pytest.mark.parametrize("kind", [Taylor, Power])
def test_any_order_is_finite_in_float32_at_logits_of_200(kind: type[Series], order: int) -> None:
    x = torch.tensor([[200.0, -200.0, 1.0, 0.0], [1e-3, 0.0, 0.0, -1e-3], [1e4, 1.0, 0.0, -1.0]])
    weights, log_scale = kind(order).weigh(x, ALL)
    exact, exact_scale = kind(order).weigh(x.double(), ALL)
    assert bool(weights.isfinite().all() and log_scale.isfinite().all())
    assert float(weights.abs().amax(-1).min()) > 0.0
    assert_close(log_scale, exact_scale, rtol=1e-6)
    # 1e-4: 170 * log(200) = 900 is known in float32 to 6e-5, which is relative in the weight
    assert error_ratio(weights, exact * torch.exp(exact_scale - log_scale.double())[..., None]) <= 2e-4


def test_weights_are_relative_to_the_largest() -> None:
    weights, log_scale = Exp().weigh(torch.tensor([[1.0, 3.0, 2.0]]), ALL)
    assert torch.equal(log_scale, torch.tensor([3.0]))
    assert torch.equal(weights.amax(-1), torch.tensor([1.0]))


@pytest.mark.parametrize("function", [Exp(), Taylor(0), Taylor(4), Power(2), Polynomial((1.0, -1.0))], ids=repr)
def test_what_is_not_visible_has_no_weight_and_no_say(function: Function) -> None:
    x = torch.tensor([[1.0, 500.0, -2.0], [3.0, 1.0, 2.0]])
    visible = torch.tensor([[True, False, True], [False, False, False]])
    weights, log_scale = function.weigh(x, visible)
    alone, alone_scale = function.weigh(x[:1, ::2], ALL)
    assert torch.equal(weights[0, ::2], alone[0])
    assert torch.equal(log_scale[:1], alone_scale)
    assert not weights[1].any()
    assert not weights[0, 1]
    assert bool(log_scale.isfinite().all())


@pytest.mark.parametrize("function", [Exp(), Taylor(4), Power(2)], ids=repr)
def test_no_key_at_all(function: Function) -> None:
    weights, log_scale = function.weigh(torch.ones(2, 3, 0), torch.ones(3, 0, dtype=torch.bool))
    assert weights.shape == (2, 3, 0)
    assert torch.equal(log_scale, torch.zeros(2, 3))


@pytest.mark.parametrize("function", [Taylor(5), Power(3), Polynomial((1.0, 0.0, -2.0, 0.5))], ids=repr)
def test_shifted_coefficients_are_those_of_the_shifted_polynomial(function: Series) -> None:
    center = torch.tensor([-2.0, 0.0, 0.7], dtype=torch.float64)
    for c in center:
        poly = np.polynomial.Polynomial(function.series)(np.polynomial.Polynomial([-float(c), 1.0]))
        found = [float(function.shifted(c[None], n)[0]) for n in range(function.degree + 1)]
        np.testing.assert_allclose(found, poly.coef, rtol=1e-12, atol=1e-12)


def test_shifted_taylor_is_a_shorter_taylor() -> None:
    center = torch.tensor([1.3], dtype=torch.float64)
    for n in range(5):
        expected = value(Taylor(4 - n), -center) / math.factorial(n)
        assert_close(Taylor(4).shifted(center, n), expected, rtol=1e-14)


# ------------------------------------------------------------------------------------------------- structure


def test_orders_and_degree() -> None:
    assert (Taylor(3).orders, Taylor(3).degree) == ((0, 1, 2, 3), 3)
    assert (Power(4).orders, Power(4).degree) == ((4,), 4)
    assert (Polynomial((0.0, 1.0, 0.0, 2.0)).orders, Polynomial((0.0, 1.0, 0.0, 2.0)).degree) == ((1, 3), 3)
    assert Taylor(4).series == (1.0, 1.0, 0.5, 1 / 6, 1 / 24)


def test_trailing_zeros_are_dropped() -> None:
    assert Polynomial((1.0, 2.0, 0.0, 0.0)) == Polynomial((1, 2)) == Polynomial([1.0, 2.0])
    assert hash(Polynomial([1.0, 2.0])) == hash(Polynomial((1, 2)))


@pytest.mark.parametrize("function", [Exp(), Taylor(3), Power(1), Power(2), Polynomial((1.0, 0.0, -2.0))], ids=repr)
def test_formulas(function: Function) -> None:
    assert function.formula in (
        "exp(x)",
        "sum over n = 0..3 of x^n / n!",
        "x",
        "x^2",
        "1 + -2 x^2",
    )
    assert function.name in FUNCTIONS


# ------------------------------------------------------------------------------------------------- signs


@pytest.mark.parametrize(("order", "least"), [(2, 0.5), (4, 0.2704), (6, 0.1493), (8, 0.0833), (10, 0.0467)])
def test_even_partial_sums_are_positive_on_the_reals(order: int, least: float) -> None:
    """Their minima are known to four digits."""
    x = torch.linspace(-10.0, 10.0, 200_001, dtype=torch.float64)
    values = sum(a * x**n for n, a in enumerate(Taylor(order).series))
    assert float(values.min()) == pytest.approx(least, abs=5e-5)
    assert Taylor(order).positivity(nonnegative_logits=False) is Positivity.POSITIVE


def test_even_partial_sums_are_not_monotone() -> None:
    x = torch.tensor([-2.0, 0.0], dtype=torch.float64)
    assert_close(value(Taylor(2), x)[:1], value(Taylor(2), x)[1:], rtol=1e-15)


@pytest.mark.parametrize("order", [1, 3, 5, 7, 9, 169])
def test_odd_partial_sums_are_signed_except_on_non_negative_logits(order: int) -> None:
    assert Taylor(order).positivity(nonnegative_logits=False) is Positivity.SIGNED
    assert Taylor(order).positivity(nonnegative_logits=True) is Positivity.POSITIVE
    x = torch.tensor([-2.0 * order - 2.0], dtype=torch.float64)
    weights, _ = Taylor(order).weigh(x[:, None], ALL)
    assert float(weights) < 0


@pytest.mark.parametrize(
    ("coefficients", "on_reals", "on_half_line"),
    [
        ((1, 2, 1), "nonnegative", "positive"),  # (1 + x)^2
        ((1, -2, 1), "nonnegative", "nonnegative"),  # (1 - x)^2
        ((1, 4, 6, 4, 1), "nonnegative", "positive"),  # (1 + x)^4
        ((0.49, -1.4, 1), "nonnegative", "nonnegative"),  # (0.7 - x)^2, whose computed minimum is 5.6e-17
        ((0.01, -0.2, 1), "nonnegative", "nonnegative"),  # (0.1 - x)^2, whose computed minimum is -1.7e-18
        ((1, 2, 1.0000001), "positive", "positive"),
        ((1, 2, 0.9999999), "signed", "positive"),
        ((0, 0, 1), "nonnegative", "nonnegative"),
        ((0, 1), "signed", "nonnegative"),
        ((1, 1), "signed", "positive"),
        ((2,), "positive", "positive"),
        ((-2,), "signed", "signed"),
        ((1, 0, -1), "signed", "signed"),
        ((1, -3, 1), "signed", "signed"),
        ((1, 1, 0.5), "positive", "positive"),
        ((0, -1, 1), "signed", "signed"),
        ((0, 1, 1), "signed", "nonnegative"),
        ((1, 0, 0, 1), "signed", "positive"),
        ((0.0009, -0.0618, 1.0609, -0.0618, 0.0009), "signed", "signed"),
        ((1e-300, 0, 1e-300), "positive", "positive"),
        ((1e300, 0, 1e300), "positive", "positive"),
        ((1, 1, 5e-324), "signed", "signed"),  # negative near -1e323; too far apart for float64 to be sure
    ],
)
def test_signs_of_polynomials(coefficients: tuple[float, ...], on_reals: str, on_half_line: str) -> None:
    polynomial = Polynomial(coefficients)
    assert polynomial.positivity(nonnegative_logits=False) == on_reals
    assert polynomial.positivity(nonnegative_logits=True) == on_half_line


def test_signs_of_random_polynomials_hold_on_a_grid() -> None:
    """A square is never signed; what is called positive has no negative value; what is signed has one."""
    draw = random.Random(0)
    x = np.concatenate([np.linspace(-30.0, 30.0, 6001), np.linspace(-1000.0, 1000.0, 201)])
    for _ in range(300):
        root = np.polynomial.Polynomial([draw.randint(-4, 4) for _ in range(draw.randint(1, 4))])
        poly = root**2 if draw.random() < 0.5 else root * np.polynomial.Polynomial([draw.randint(-3, 3), 1.0])
        if not poly.coef.any():
            continue
        for half_line in (False, True):
            sign = Polynomial(tuple(poly.coef)).positivity(nonnegative_logits=half_line)
            values = poly(x[x >= 0] if half_line else x)
            assert (float(values.min()) < -1e-9) == (sign is Positivity.SIGNED), poly
    assert (
        Polynomial(tuple((np.polynomial.Polynomial([1.0, -0.3]) ** 6).coef)).positivity(nonnegative_logits=False)
        != "signed"
    )


def test_powers() -> None:
    assert Power(2).positivity(nonnegative_logits=False) is Positivity.NONNEGATIVE
    assert Power(3).positivity(nonnegative_logits=False) is Positivity.SIGNED
    assert Power(3).positivity(nonnegative_logits=True) is Positivity.NONNEGATIVE
    assert Exp().positivity(nonnegative_logits=False) is Positivity.POSITIVE


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("order", [-1, 171, 2.0, "2", True, None])
def test_an_order_is_a_whole_number_in_range(order: object) -> None:
    with pytest.raises(MechanismError, match=r"taylor:.* asks for the order .*\n  The order must be an integer from 0"):
        Taylor(order)


@pytest.mark.parametrize("exponent", [0, -2, 171, 1.5, False])
def test_an_exponent_is_a_whole_number_in_range(exponent: object) -> None:
    with pytest.raises(
        MechanismError, match=r"asks for the exponent .*\n  The exponent must be an integer from 1 to 170"
    ):
        Power(exponent)


@pytest.mark.parametrize("coefficients", [(), (0.0,), (0.0, 0.0), (1.0, math.nan), (math.inf, 1.0)])
def test_a_polynomial_has_a_finite_coefficient(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(MechanismError, match=r"asks for a polynomial without a finite coefficient(.|\n)*poly:1,1,0\.5"):
        Polynomial(coefficients)
