"""The certificate: never below the measured error, never NaN, and tight enough to mean something."""

from math import e, factorial, lgamma, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maclaurin.errors import ConfigError
from maclaurin.theory import certificate, log_remainder_bound, order_for, remainder_bound

ORDERS = range(13)


def taylor(x, order):
    """T_N(x) by the plain sum, in extended precision: the reference."""
    x = np.asarray(x, dtype=np.longdouble)
    return sum(x**n / np.longdouble(factorial(n)) for n in range(order + 1))


def attention(weights_TS, visible_TS, v_SV):
    w_TS = np.where(visible_TS, weights_TS, 0)
    return np.einsum("...ts,...sv->...tv", w_TS, v_SV.astype(np.longdouble)) / w_TS.sum(-1)[..., None]


def true_error(x_TS, visible_TS, v_SV, order, center=None):
    y_TS = x_TS.astype(np.longdouble) - (0 if center is None else center[..., None])
    difference = attention(taylor(y_TS, order), visible_TS, v_SV) - attention(np.exp(y_TS), visible_TS, v_SV)
    return np.sqrt((difference**2).sum(-1)).astype(float)


def draw(seed, scale, offset=0.0, num_rows=24, num_keys=24):
    rng = np.random.default_rng(seed)
    x_TS = rng.normal(size=(2, num_rows, num_keys)) * scale + offset
    return x_TS, np.tril(np.ones((num_rows, num_keys), bool)), rng.normal(size=(2, num_keys, 3))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("scale", "offset"), [(0.3, 0.0), (1.0, 0.0), (4.0, 0.0), (1.0, -6.0), (1.0, 6.0)])
@pytest.mark.parametrize("centered", [False, True])
def test_never_below_the_error(order, scale, offset, centered):
    x_TS, visible_TS, v_SV = draw(order, scale, offset)
    mean_T = np.where(visible_TS, x_TS, 0).sum(-1) / visible_TS.sum(-1)
    center = mean_T if centered else None
    bound_T = certificate(x_TS, visible_TS, v_SV, order, center=center)
    assert bound_T.shape == (2, 24)
    assert not np.any(np.isnan(bound_T))
    error_T = true_error(x_TS, visible_TS, v_SV, order, center)
    assert np.all(error_T <= bound_T * (1 + 1e-9) + 1e-13)  # float64 rounding of the bound, and of values near 1
    if order % 2 == 0:
        assert np.all(np.isfinite(bound_T))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    order=st.integers(0, 12),
    scale=st.floats(0.01, 8.0),
    center=st.floats(-5, 5),
    spread=st.sampled_from(["normal", "heavy", "one-sided", "two-valued"]),
)
def test_never_below_the_error_anywhere(seed, order, scale, center, spread):
    rng = np.random.default_rng(seed)
    shape = (6, 5)
    x_TS = {
        "normal": rng.normal(size=shape),
        "heavy": np.clip(rng.standard_t(2, size=shape), -4, 4),
        "one-sided": -rng.exponential(size=shape),
        "two-valued": rng.choice([-1.0, 1.0], shape),
    }[spread] * scale
    visible_TS = rng.random(shape) < 0.7
    visible_TS[:, 0] = True
    v_SV = rng.choice([-1.0, 1.0], (5, 2)) * rng.exponential(size=(5, 1))
    center_T = np.full(6, center)
    bound_T = certificate(x_TS, visible_TS, v_SV, order, center=center_T)
    certified = np.isfinite(bound_T)
    error_T = true_error(x_TS[certified], visible_TS[certified], v_SV, order, center_T[certified])
    assert np.all(error_T <= bound_T[certified] * (1 + 1e-9) + 1e-12)
    assert not np.any(np.isnan(bound_T))


def test_not_vacuous_at_small_logits():
    """Factor 12 of the error: up to 2 from the remainder, the rest from the triangle inequality over 16 keys."""
    rng = np.random.default_rng(0)
    x_TS, v_SV = rng.uniform(-1, 1, (200, 16)), rng.normal(size=(16, 4))
    visible_TS = np.ones((200, 16), bool)
    for order in range(7):
        ratio_T = certificate(x_TS, visible_TS, v_SV, order) / true_error(x_TS, visible_TS, v_SV, order)
        assert 1.0 <= ratio_T.min()
        assert np.median(ratio_T) < 6
        assert np.quantile(ratio_T, 0.9) < 12


def test_two_keys_are_tight():
    """Values at +-1, logits 0 and -x: one remainder, no triangle to lose in; even orders within 30 % at |x| = 1."""
    for order in (2, 4, 6):
        x_TS, v_SV = np.array([[0.0, -1.0]]), np.array([[1.0], [-1.0]])
        bound = certificate(x_TS, np.ones((1, 2), bool), v_SV, order)
        assert bound[0] < 1.3 * true_error(x_TS, np.ones((1, 2), bool), v_SV, order)[0]


def test_falls_with_the_order_and_with_centering():
    x_TS, visible_TS, v_SV = draw(3, 0.5, offset=3.0)
    bounds = [certificate(x_TS, visible_TS, v_SV, order).max() for order in (2, 4, 8, 16, 32)]
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 1e-12
    centered = certificate(x_TS, visible_TS, v_SV, 4, center=x_TS.mean(-1)).max()
    assert centered < 0.1 * certificate(x_TS, visible_TS, v_SV, 4).max()


def test_overweighted_keys_enlarge_the_divisor():
    """All logits at -4, order 4: weights near T_4(-4) = 5 for e^-4, so the remainders are divided by Z_N, not by Z."""
    rng = np.random.default_rng(0)
    x_TS, v_SV = -4 + 0.1 * rng.normal(size=(50, 32)), rng.normal(size=(32, 4))
    visible_TS = np.ones((50, 32), bool)
    ratio_T = certificate(x_TS, visible_TS, v_SV, 4) / true_error(x_TS, visible_TS, v_SV, 4)
    mean_distance = np.linalg.norm(v_SV - v_SV.mean(0), axis=1).mean()
    assert certificate(x_TS, visible_TS, v_SV, 4).max() < 1.5 * mean_distance  # without O: the farthest value, 1.9
    assert ratio_T.min() >= 1.0


def test_even_orders_never_exceed_the_hull():
    x_TS, visible_TS, v_SV = draw(4, 20.0)
    weights = np.exp(np.where(visible_TS, x_TS, -np.inf) - x_TS.max(-1, keepdims=True))
    out_TV = attention(weights, visible_TS, v_SV).astype(float)
    distances = np.linalg.norm(out_TV[:, :, None] - v_SV[:, None], axis=-1)
    radius_T = np.where(visible_TS, distances, 0).max(-1)
    assert np.all(certificate(x_TS, visible_TS, v_SV, 2) <= radius_T * (1 + 1e-12))


def test_odd_orders_are_certified_only_within_their_reach():
    ones, v_SV = np.ones((1, 2), bool), np.array([[1.0], [-1.0]])
    assert np.isfinite(certificate(np.array([[0.5, -0.5]]), ones, v_SV, 1)[0])
    assert certificate(np.array([[-3.0, -3.1]]), ones, v_SV, 1)[0] == np.inf  # weights -2 and -2.1: sum below zero
    assert certificate(np.array([[-1.0, -1.0]]), ones, v_SV, 1)[0] == np.inf  # both weights are exactly zero
    assert certificate(np.array([[30.0, 30.0]]), ones, v_SV, 3)[0] == 1.0  # no weight is negative: the hull holds


@pytest.mark.parametrize("order", [0, 1, 2, 3, 12, 41, 200])
@pytest.mark.parametrize("size", [1e-300, 30.0, 700.0])
def test_extreme_logits(order, size):
    x_TS = np.array([[size, -size, 0.0], [-size, -size, -size], [size, size, size], [size, size / 2, -size]])
    v_SV = np.array([[1.0], [-1.0], [2.0]])
    bound_T = certificate(x_TS, np.ones((4, 3), bool), v_SV, order)  # warnings are errors here
    assert not np.any(np.isnan(bound_T))
    assert np.all(bound_T >= 0)
    assert np.all(np.isfinite(log_remainder_bound(x_TS[:, :2], order)))
    if order % 2 == 0:
        assert np.all(bound_T <= 3.0)


def test_masked_content_is_not_read():
    x_TS, visible_TS, v_SV = draw(5, 1.0, num_rows=6, num_keys=6)
    visible_TS = visible_TS.copy()
    visible_TS[:, 4] = False
    visible_TS[2] = False
    expected = certificate(x_TS, visible_TS, v_SV, 3)
    x_TS[..., ~visible_TS] = np.nan
    v_SV[:, 4] = np.inf
    np.testing.assert_array_equal(certificate(x_TS, visible_TS, v_SV, 3), expected)
    assert np.all(expected[:, 2] == 0.0)  # no visible key: both outputs are zero
    assert certificate(x_TS[0, :1], visible_TS[:1], v_SV[0], 2).tolist() == [0.0]  # one visible key: no error


@pytest.mark.parametrize("order", [*ORDERS, 40])
def test_remainder_bound_holds_and_beats_lagrange(order):
    x = np.concatenate([np.linspace(-12, 12, 481), [-1e-3, 1e-3]])
    wide = x.astype(np.longdouble)
    sizes = np.abs(wide)
    # the remainder as its own series, summed without cancellation on the right, in extended precision on the left
    truth = np.abs(sum(wide**n / np.longdouble(factorial(n)) for n in range(order + 1, order + 90)))
    bound = remainder_bound(x, order)
    lagrange = sizes ** (order + 1) / np.longdouble(factorial(order + 1)) * np.maximum(1, np.exp(wide))
    assert np.all(truth <= bound * (1 + 1e-12) + 1e-15)
    assert np.all(bound <= lagrange * (1 + 1e-12))
    near = (sizes <= 1) & (x != 0)
    assert np.all(bound[near] <= (1.05 if order else 1.17) * truth[near])  # the geometric factor, worst at x = 1
    assert np.all(bound[x >= order + 2] == np.exp(x[x >= order + 2]))
    assert remainder_bound(np.zeros(1), order)[0] == 0.0


def test_order_for_reproduces_its_table():
    assert [order_for(b, 0.1) for b in (1, 2, 4, 8, 16, 41)] == [4, 7, 14, 28, 56, 146]


@pytest.mark.parametrize("bound", [0.1, 0.9, 1, 3.7, 41, 200, 1000])
@pytest.mark.parametrize("error", [1e-12, 0.1, 1.0, 50.0])
def test_order_for_is_the_least(bound, error):
    def met(order):
        return (order + 1) * log(bound) - lgamma(order + 2) <= log(error) - bound

    order = order_for(bound, error)
    assert met(order)
    assert not any(met(lower) for lower in range(order))
    assert order < e**2 * bound + abs(log(error)) + 3


def test_order_for_certifies_the_relative_error():
    x = np.linspace(-4, 4, 161)
    relative = np.abs(taylor(x, order_for(4, 0.01)) / np.exp(x.astype(np.longdouble)) - 1)
    assert relative.max() <= 0.01
    assert order_for(0, 0.1) == 0


ONES, VALUES = np.ones((2, 3), bool), np.ones((3, 1))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: certificate(np.zeros((2, 3)), ONES, VALUES, -1), r"integer >= 0, got -1"),
        (lambda: certificate(np.zeros((2, 3)), ONES, VALUES, 2.5), r"integer >= 0, got 2\.5"),
        (lambda: certificate(np.zeros((2, 3)), ONES.astype(float), VALUES, 2), r"visible must be bool, got float64"),
        (lambda: certificate(np.zeros((2, 4)), ONES, VALUES, 2), r"logits \(2, 4\) · visible \(2, 3\)"),
        (lambda: certificate(np.zeros(3), ONES[0], VALUES, 2), r"shapes do not fit"),
        (lambda: certificate(np.zeros((2, 3)), ONES, np.ones(3), 2), r"shapes do not fit"),
        (lambda: certificate(np.full((2, 3), np.nan), ONES, VALUES, 2), r"is not finite"),
        (lambda: order_for(-1.0, 0.1), r"0 <= B < inf"),
        (lambda: order_for(1.0, 0.0), r"error > 0"),
    ],
)
def test_refuses_illegal_input(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
