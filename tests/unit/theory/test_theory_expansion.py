"""The size of each order's term."""

from math import factorial

import numpy as np
import pytest

from maclaurin.errors import ConfigError
from maclaurin.theory import dominant_order, taylor_terms


def test_terms_follow_their_formula():
    x = np.random.default_rng(0).normal(size=(3, 4, 5)) * 2
    expected = [np.mean(np.abs(x) ** n) / factorial(n) for n in range(8)]
    np.testing.assert_allclose(np.exp(taylor_terms(x, 7)), expected, rtol=1e-12)


def test_terms_in_log_space_survive_any_size():
    terms = taylor_terms(np.array([-2000.0, 0.0, 2000.0]), 2500)
    assert np.all(np.isfinite(terms))
    assert np.argmax(terms) in (1999, 2000)  # the two tie
    assert terms.max() > 709  # beyond float64 as a plain number
    assert taylor_terms(np.zeros(3), 2).tolist() == [0.0, -np.inf, -np.inf]


@pytest.mark.parametrize(("x", "order"), [(0.5, 0), (1.5, 1), (7.5, 7), (-41.5, 41), (0.0, 0)])
def test_dominant_order_is_near_the_largest_logit(x, order):
    assert dominant_order(np.array([x])) == order


def test_refuses_illegal_logits():
    with pytest.raises(ConfigError, match="max_order >= 0 fails for -1"):
        taylor_terms(np.ones(2), -1)
    for bad in ([], [np.nan, 1.0], [np.inf]):
        with pytest.raises(ConfigError, match="not finite; mask them first"):
            dominant_order(np.array(bad))
