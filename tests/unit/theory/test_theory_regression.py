"""The vector level: the attention row itself as feature."""

from math import log

import numpy as np
import pytest

from maclaurin.errors import ConfigError
from maclaurin.theory import IDENTITY_LINEAR, SOFTMAX, RegressionProblem, detection_counts, predicted_rates


def test_logits_and_shares():
    problem = RegressionProblem(1000)
    flat, spiked = problem.logits(0), problem.logits(1)
    assert flat.min() >= log(1.4)
    assert flat.max() <= log(1.5)
    assert spiked[0] == 4 * log(1000)
    np.testing.assert_array_equal(flat[1:], spiked[1:])
    np.testing.assert_allclose(problem.features(SOFTMAX, 0)[0], np.exp(flat) / np.exp(flat).sum(), rtol=1e-13)
    np.testing.assert_allclose(problem.features(IDENTITY_LINEAR, 1)[0], spiked / spiked.sum(), rtol=1e-13)
    assert problem.features(SOFTMAX, 1)[0, 0] > 1 - 2 / 1000**3  # n^4 against less than 1.5 n


def test_softmax_detects_and_linear_does_not():
    counts = detection_counts(RegressionProblem(1000), width=30, num_draws=100, seed=0)
    assert (counts.strong_silent_d0, counts.strong_fires_d1, counts.weak_silent_d0, counts.weak_fires_d1) == (
        100,
        100,
        100,
        0,
    )
    assert counts.success == 100


def test_small_n_fails_because_linear_fires_too():
    assert detection_counts(RegressionProblem(300), width=30, num_draws=100, seed=0).weak_fires_d1 > 30


def test_detection_follows_the_width_law():
    """One neuron sees the large share with probability 1/2, so width m detects with 1 - 2^-m, exactly."""
    for width in (1, 3):
        rate = predicted_rates(RegressionProblem(1000), width=width).strong_fires_d1
        assert rate == pytest.approx(1 - 0.5**width, abs=1e-9)
        counts = detection_counts(RegressionProblem(1000), width=width, num_draws=1000, seed=1)
        assert abs(counts.strong_fires_d1 / 1000 - rate) < 3.3 * np.sqrt(rate * (1 - rate) / 1000)


@pytest.mark.parametrize(("n", "tau"), [(100, 0.25), (1000, 0.12), (1000, 0.06)])
def test_normal_prediction_within_binomial_error(n, tau):
    counts = detection_counts(RegressionProblem(n, tau), width=10, num_draws=400, seed=2)
    rates = predicted_rates(RegressionProblem(n, tau), width=10)
    for name in ("strong_silent_d0", "weak_silent_d0", "weak_fires_d1"):
        rate = getattr(rates, name)
        slack = 3.3 * np.sqrt(rate * (1 - rate) / 400) + 0.015  # 99.9 % of draws, and the normal tail's own error
        assert abs(getattr(counts, name) / 400 - rate) < slack, name


@pytest.mark.parametrize(("settings", "message"), [((1, 0.25), "n >= 2 fails"), ((100, 1.0), "0 < tau < 1 fails")])
def test_refuses_illegal_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        RegressionProblem(*settings)
