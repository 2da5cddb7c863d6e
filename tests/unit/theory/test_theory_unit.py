"""The units of a score row: one formula each, safe at any size of logit."""

import numpy as np
import pytest

from maclaurin.errors import ConfigError
from maclaurin.theory import IDENTITY_LINEAR, SOFTMAX, power


@pytest.mark.parametrize(
    ("unit", "weight"), [(SOFTMAX, np.exp), (IDENTITY_LINEAR, lambda z: z), (power(3), lambda z: z**3)]
)
def test_shares_are_weights_over_their_sum(unit, weight):
    z_TS = np.random.default_rng(0).uniform(0.1, 3.0, (5, 7))
    expected = weight(z_TS) / weight(z_TS).sum(-1, keepdims=True)
    np.testing.assert_allclose(unit.shares(z_TS), expected, rtol=1e-14)


def test_counts_stand_for_repeated_keys():
    z_S = np.array([0.3, 2.0, 2.0, 2.0])
    few = power(2).shares(z_S[:2], counts=np.array([1.0, 3.0]))
    np.testing.assert_allclose(few, power(2).shares(z_S)[:2], rtol=1e-14)


@pytest.mark.parametrize("unit", [SOFTMAX, IDENTITY_LINEAR, power(200)])
def test_no_overflow(unit):
    shares = unit.shares(np.array([1e-300, 1.0, 1e5]))
    assert np.all(np.isfinite(shares))
    assert abs(shares.sum() - 1) < 1e-12


def test_power_refuses_signed_logits_and_nonpositive_degrees():
    with pytest.raises(ConfigError, match=r"needs positive logits, got a least logit of -1\.\n  50\.0%"):
        IDENTITY_LINEAR.shares(np.array([-1.0, 2.0]))
    with pytest.raises(ConfigError, match=r"power\(0\): a unit's degree must be > 0"):
        power(0)
