"""The noisy statistic: against a simulation of every key, against its predicted law, and its intervals."""

from math import log, sqrt

import numpy as np
import pytest
from scipy.special import ndtr

from maclaurin.errors import ConfigError
from maclaurin.theory import (
    IDENTITY_LINEAR,
    SOFTMAX,
    NoiseModel,
    auc_interval,
    noisy_statistic,
    power,
    predicted_dprime,
)


def simulate(unit, n, spike, noise, num_draws, rng):
    """The model written out: noisy row sums, the spike's row of logits, noisy values, the first output coordinate."""
    length = sqrt(log(n))
    sums_QN = length * np.ones((num_draws, n))
    sums_QN[:, 0] += spike * length
    sums_QN += noise.row_noise * rng.standard_normal((num_draws, n))
    values_QN = noise.sigma * rng.standard_normal((num_draws, n))
    values_QN[:, 0] += spike * length
    return (unit.shares(sums_QN[:, :1] * sums_QN) * values_QN).sum(axis=1)


@pytest.mark.parametrize("unit", [SOFTMAX, IDENTITY_LINEAR, power(6)], ids=lambda unit: unit.name)
@pytest.mark.parametrize("row_noise", [0.05, 0.2])
def test_agrees_with_simulating_every_key(unit, row_noise):
    noise, n, num_draws = NoiseModel(row_noise=row_noise), 100, 4000
    rng = np.random.default_rng(0)
    flat, spiked = (simulate(unit, n, spike, noise, num_draws, rng) for spike in (noise.a0, noise.a1))
    dprime = (spiked.mean() - flat.mean()) / sqrt((spiked.var() + flat.var()) / 2)
    fast = noisy_statistic(unit, n, num_draws=40_000, seed=1, noise=noise)
    low, high = fast.dprime_interval
    spread = (high - low) / (2 * 1.96)  # of 40,000 draws; the simulation's is sqrt(10) times that
    assert abs(fast.dprime - dprime) < 3.3 * spread * sqrt(11)


def test_linear_follows_the_predicted_law():
    for n in (100, 400, 1600, 6400, 25_600):
        result = noisy_statistic(IDENTITY_LINEAR, n, num_draws=100_000, seed=4)
        law = (0.7 * 1.7 - 0.05 * 1.05) * sqrt(log(n)) / (0.3 * sqrt(n))
        assert predicted_dprime(IDENTITY_LINEAR, n) == pytest.approx(law, rel=1.5 / n)  # exact shares against 1/n
        half = (result.dprime_interval[1] - result.dprime) * 2.576 / 1.96
        assert abs(result.dprime - law) < half + 0.05 * law
        assert result.predicted_dprime == predicted_dprime(IDENTITY_LINEAR, n)
        # equal variances: AUC = Phi(d' / sqrt 2)
        assert result.auc == pytest.approx(ndtr(law / sqrt(2)), abs=0.006)
    assert [round(predicted_dprime(IDENTITY_LINEAR, n), 2) for n in (400, 1600, 6400)] == [0.46, 0.26, 0.14]


def test_softmax_grows_where_linear_dies_out():
    softmax = [noisy_statistic(SOFTMAX, n, num_draws=4000) for n in (100, 25_600)]
    linear = [noisy_statistic(IDENTITY_LINEAR, n, num_draws=4000) for n in (100, 25_600)]
    assert min(result.auc for result in softmax) >= 0.999
    assert 6.2 < softmax[0].dprime < 7.0 < 9.4 < softmax[1].dprime < 10.4
    assert linear[0].auc == pytest.approx(0.716, abs=0.025)
    assert linear[1].auc == pytest.approx(0.52, abs=0.025)
    assert noisy_statistic(IDENTITY_LINEAR, 10**7, num_draws=1000).dprime < 0.2


def test_no_row_noise_is_the_closed_form():
    noise = NoiseModel(row_noise=0.0)
    for unit in (SOFTMAX, IDENTITY_LINEAR):
        result = noisy_statistic(unit, 400, num_draws=100_000, seed=2, noise=noise)
        assert result.dprime == pytest.approx(predicted_dprime(unit, 400, noise=noise), rel=0.03)


def test_first_coordinate_is_fishers_direction():
    """Averaged over the spike's place, class means differ in coordinate 1 alone, uncorrelated with the rest."""
    rng = np.random.default_rng(0)
    n, d, num_draws, length = 30, 5, 40_000, sqrt(log(30))
    means = []
    for spike in (0.05, 0.7):
        place_Q = np.arange(num_draws) % n
        at_spike_QN = np.arange(n) == place_Q[:, None]
        sums_QN = length * (1 + spike * at_spike_QN) + 0.05 * rng.standard_normal((num_draws, n))
        f_QN = SOFTMAX.shares(np.take_along_axis(sums_QN, place_Q[:, None], 1) * sums_QN)
        block_ND = np.tile(np.eye(d - 2), (n // (d - 2), 1)) * 0.5 * length
        values_QD = np.concatenate([(f_QN * at_spike_QN).sum(1)[:, None] * spike * length, f_QN @ block_ND], axis=1)
        outputs_QD = values_QD + 0.3 * np.linalg.norm(f_QN, axis=1)[:, None] * rng.standard_normal((num_draws, d - 1))
        means.append(outputs_QD.mean(axis=0))
        correlation = np.corrcoef(outputs_QD.T)[0, 1:]
        assert np.all(np.abs(correlation) < 0.02)  # 4 standard errors
    assert np.all(np.abs((means[1] - means[0])[1:]) < 0.02)
    assert means[1][0] - means[0][0] > 0.5


def test_dprime_interval_has_the_width_of_the_scatter():
    """At a d' of 6.5 most of the uncertainty is that of the pooled variance; 150 seeds know the scatter to 6 %."""
    results = [noisy_statistic(SOFTMAX, 100, num_draws=300, seed=seed) for seed in range(150)]
    half = np.mean([(result.dprime_interval[1] - result.dprime_interval[0]) / 2 for result in results])
    assert half / 1.96 == pytest.approx(np.std([result.dprime for result in results]), rel=0.2)


def test_seed_and_common_noise():
    results = [noisy_statistic(SOFTMAX, 100, num_draws=500, seed=seed) for seed in (0, 0, 1)]
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_auc_interval_covers_and_stays_open_at_the_ends():
    assert auc_interval(1.0, 50, 50)[1] == 1.0
    assert auc_interval(0.0, 50, 50)[0] == 0.0
    assert 0.9 < auc_interval(1.0, 50, 50)[0] < 1.0
    low, high = auc_interval(0.5, 10_000, 10_000)
    assert high - low == pytest.approx(2 * 1.96 * sqrt(1 / 6 / 10_000), rel=0.01)  # the rank statistic's variance
    rng = np.random.default_rng(0)
    truth, covered = ndtr(0.8 / sqrt(2)), 0
    for _ in range(200):
        flat, spiked = rng.standard_normal(100), rng.standard_normal(100) + 0.8
        auc = float((spiked[:, None] > flat).mean())
        low, high = auc_interval(auc, 100, 100)
        covered += low <= truth <= high
    assert covered >= 180  # 95 % of 200, less 3.3 standard errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: noisy_statistic(SOFTMAX, 10), r"n >= 30"),
        (lambda: noisy_statistic(SOFTMAX, 100, num_draws=1), r"num_draws >= 2"),
        (lambda: NoiseModel(sigma=0.0), r"sigma > 0"),
        (lambda: NoiseModel(a0=1.0), r"0 < a0 < a1"),
        (lambda: noisy_statistic(IDENTITY_LINEAR, 100, noise=NoiseModel(row_noise=1.0)), r"needs positive logits"),
    ],
)
def test_refuses_illegal_settings(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
