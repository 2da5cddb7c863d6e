"""Closed-form predictions: against their formulas, and against counted draws within binomial error."""

from itertools import product
from math import log, sqrt

import numpy as np
import pytest

from maclaurin.errors import ConfigError
from maclaurin.theory import (
    IDENTITY_LINEAR,
    SOFTMAX,
    SelfAttentionProblem,
    detection_counts,
    detection_spike,
    firing_pattern_rate,
    flat_silent_rate,
    least_features,
    least_width,
    network,
    power,
    predicted_rates,
    spike_share,
    spike_shares,
    threshold_degree,
    threshold_spike,
)

RATES = ("strong_silent_d0", "strong_fires_d1", "weak_silent_d0", "weak_fires_d1", "success")


@pytest.mark.parametrize("cases", [[(SOFTMAX, 0)], [(SOFTMAX, 1)], [(IDENTITY_LINEAR, 1), (SOFTMAX, 0), (power(9), 1)]])
@pytest.mark.parametrize(("n", "d", "b"), [(50, 12, 0.5), (50, 12, 0.3), (4, 3, 0.6), (60, 14, 0.9)])
def test_silent_probability_equals_enumeration(n, d, b, cases):
    """All 2^d sign vectors, one neuron each: the exact law has no error left but rounding."""
    problem = SelfAttentionProblem(n, d, b=b)
    signs_QMD = np.array(list(product((-1.0, 1.0), repeat=d)))[:, None]
    fires = [network(problem.features(unit, dataset), signs_QMD, problem.tau) > 0 for unit, dataset in cases]
    assert problem.silent_probability(cases) == pytest.approx(1 - np.mean(np.any(fires, axis=0)), abs=1e-12)


@pytest.mark.parametrize("weak", [IDENTITY_LINEAR, power(4)], ids=lambda unit: unit.name)
@pytest.mark.parametrize("b", [0.5, 0.3])
def test_every_rate_equals_enumeration(b, weak):
    """One neuron by all 2^d sign vectors; m of them are independent, and the conjunction allows no bad one."""
    problem = SelfAttentionProblem(50, 12, b=b, a1=0.8)
    signs_QMD = np.array(list(product((-1.0, 1.0), repeat=12)))[:, None]
    cases = [(SOFTMAX, 0), (SOFTMAX, 1), (weak, 0), (weak, 1)]
    strong_0, strong_1, weak_0, weak_1 = (
        network(problem.features(*case), signs_QMD, problem.tau) > 0 for case in cases
    )
    good = 1 - np.mean(strong_0 | weak_0 | weak_1)
    for width in (1, 2, 7):
        rates = predicted_rates(problem, width=width, weak=weak)
        assert rates.strong_silent_d0 == pytest.approx((1 - strong_0.mean()) ** width, abs=1e-12)
        assert rates.strong_fires_d1 == pytest.approx(1 - (1 - strong_1.mean()) ** width, abs=1e-12)
        assert rates.weak_silent_d0 == pytest.approx((1 - weak_0.mean()) ** width, abs=1e-12)
        assert rates.weak_fires_d1 == pytest.approx(1 - (1 - weak_1.mean()) ** width, abs=1e-12)
        none = 1 - np.mean(strong_0 | weak_0 | weak_1 | strong_1)
        assert rates.success == pytest.approx(good**width - none**width, abs=1e-12)


def test_a_tie_is_silent():
    """b S / (d - 2) = .1 is met exactly at d = 12, b = .5, S = 2; a spike below rounding leaves the tie a tie."""
    problem = SelfAttentionProblem(400, 12, b=0.5, a0=1e-13)
    assert predicted_rates(problem, width=30).strong_silent_d0 == pytest.approx(flat_silent_rate(12, 0.5, 30))


@pytest.mark.parametrize(
    ("n", "d", "width", "b", "a1"),
    [
        (1000, 12, 30, 0.5, 0.7),
        (1000, 102, 30, 0.5, 0.7),
        (4000, 402, 30, 0.5, 0.7),
        (1000, 12, 60, 0.1, 0.7),
        (4000, 402, 30, 0.3, 0.5),
    ],
)
def test_counts_within_binomial_error(n, d, width, b, a1):
    problem, num_draws = SelfAttentionProblem(n, d, b=b, a1=a1), 400
    counts = detection_counts(problem, width=width, num_draws=num_draws, seed=3)
    rates = predicted_rates(problem, width=width)
    for name in RATES:
        rate = getattr(rates, name)
        slack = 3.3 * sqrt(rate * (1 - rate) / num_draws) + 1.5 / num_draws  # 99.9 %, and one whole draw
        assert abs(getattr(counts, name) / num_draws - rate) < slack, name


def test_conjunction_succeeds_once_d_obeys_its_rule():
    assert predicted_rates(SelfAttentionProblem(4000, 402), width=30).success >= 0.98
    assert predicted_rates(SelfAttentionProblem(1000, 12), width=30).success <= 0.03
    counts = detection_counts(SelfAttentionProblem(4000, 402), width=30, num_draws=100, seed=0)
    assert counts.success >= 98
    assert least_features(0.5, 30, 0.01) == 368
    assert flat_silent_rate(368, 0.5, 30) > 0.99  # the rule is sufficient: false alarms stay below delta there


def test_flat_rate_is_the_exact_binomial():
    for (d, b), rate in {(102, 0.5): 0.767, (202, 0.5): 0.973, (102, 0.3): 0.9935, (42, 0.3): 0.748}.items():
        assert flat_silent_rate(d, b, 30) == pytest.approx(rate, abs=6e-4)
    # off the lattice's ties the spike's small terms change nothing, on them (d=12, b=.5) nearly everything
    untied = SelfAttentionProblem(4000, 102, b=0.3, a0=0.01)
    assert predicted_rates(untied, width=30).strong_silent_d0 == pytest.approx(flat_silent_rate(102, 0.3, 30))
    tied = SelfAttentionProblem(400, 12, b=0.5, a0=0.01)
    assert predicted_rates(tied, width=30).strong_silent_d0 < 0.2 * flat_silent_rate(12, 0.5, 30)


def test_width_law():
    assert firing_pattern_rate(spike_share(4000, 0.7), 0.7, 0.3) == 0.25
    assert firing_pattern_rate(spike_share(4000, 3.0), 3.0, 0.3) == 0.5
    assert firing_pattern_rate(spike_share(4000, 0.05), 0.05, 0.3) == 0.0
    problem = SelfAttentionProblem(4000, 402, b=0.3)
    for width in (1, 4, 8):
        rate = 1 - (1 - 0.25) ** width
        assert predicted_rates(problem, width=width).strong_fires_d1 == pytest.approx(rate, abs=1e-6)
        fires = detection_counts(problem, width=width, num_draws=500, seed=width).strong_fires_d1
        assert abs(fires / 500 - rate) < 3.3 * sqrt(rate * (1 - rate) / 500)
    assert least_width(0.125, 0.01) == 35
    assert (1 - 0.125) ** 35 <= 0.01 < (1 - 0.125) ** 34
    assert least_width(1.0, 0.01) == 1


@pytest.mark.parametrize("ground", [0.5, 1.0, 2.0])
def test_threshold_spike_halves_the_share_for_every_n(ground):
    spike = threshold_spike(ground)
    assert spike == pytest.approx({0.5: 0.781, 1.0: 0.618, 2.0: 0.414}[ground], abs=5e-4)
    for n in (100, 10**4, 10**9):
        assert spike_share(n, spike, ground=ground) == pytest.approx(0.5, abs=0.3 / n)  # n - 1 against n


def test_detection_spike():
    for n, spike in {100: 0.422, 1000: 0.486, 10**4: 0.518, 10**6: 0.551, 10**9: 0.573}.items():
        assert detection_spike(n, b=0.3) == pytest.approx(spike, abs=1e-3)
        a = detection_spike(n, b=0.3)
        assert (a + 0.3) / (1 + (n - 1) * n ** (-a * (a + 1))) == pytest.approx(0.1, rel=1e-9)
    for n in (100, 1000, 10**6, 10**9):
        root = (-0.9 + sqrt(0.81 + 0.4 * n)) / 2  # a (1 + a) / (n + a) = .1
        assert detection_spike(n, unit=IDENTITY_LINEAR) == pytest.approx(root, rel=1e-9)
    assert detection_spike(10**9, unit=IDENTITY_LINEAR) == pytest.approx(1e4, rel=1e-3)
    assert detection_spike(4, b=0.9) == 0.0


def test_linear_fires_at_its_threshold_in_n():
    """sqrt(n / 10) is where the linear network starts to see the spike, and softmax's threshold stays below .618."""
    for n in (400, 4000, 40_000):
        fires = [
            predicted_rates(SelfAttentionProblem(n, 402, b=0.3, a1=ratio * sqrt(n / 10)), width=30)
            for ratio in (0.5, 1.1)
        ]
        assert fires[0].weak_fires_d1 < 0.02
        assert fires[1].weak_fires_d1 > 0.98
        assert detection_spike(n, b=0.3) < threshold_spike()


def test_threshold_degree():
    degree = threshold_degree(4000, 0.7)
    assert degree == pytest.approx(15.6, abs=0.05)
    assert degree == pytest.approx(log(3999) / log(1.7), rel=1e-14)
    assert spike_share(4000, 0.7, unit=power(degree)) == pytest.approx(0.5, rel=1e-12)
    problem = SelfAttentionProblem(4000, 402, b=0.3)
    low, high = (predicted_rates(problem, width=30, weak=power(degree * part)).weak_fires_d1 for part in (0.5, 1.0))
    assert low < 1e-6
    assert high > 0.999


def test_shares_by_power():
    for degree, share in {1: 0.0017, 2: 0.003, 8: 0.065, 16: 0.83}.items():
        assert spike_share(1000, 0.7, unit=power(degree)) == pytest.approx(share, rel=0.05)


def test_far_spikes_do_not_overflow():
    shares = spike_shares(SOFTMAX, 10**5, 30.0)
    assert shares[0].tolist() == [1.0, 0.0]
    assert predicted_rates(SelfAttentionProblem(4000, 402, a1=50.0), width=5).strong_fires_d1 > 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: threshold_spike(0.0), r"g > 0 fails"),
        (lambda: detection_spike(1), r"n >= 2"),
        (lambda: threshold_degree(2, 0.7), r"n >= 3"),
        (lambda: flat_silent_rate(2, 0.5, 30), r"d >= 3"),
        (lambda: least_features(0.5, 30, 1.5), r"0 < delta < 1"),
        (lambda: least_width(0.0, 0.01), r"0 < rate <= 1"),
        (lambda: predicted_rates(SelfAttentionProblem(40, 12), width=0), r"width >= 1 fails for 0"),
    ],
)
def test_refuses_illegal_settings(call, message):
    with pytest.raises(ConfigError, match=message):
        call()
