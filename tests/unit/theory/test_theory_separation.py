"""The constructed data sets: the O(d) closed form against the whole attention matrix, and the sign network."""

import dataclasses
from math import log, sqrt

import numpy as np
import pytest

from maclaurin.errors import ConfigError
from maclaurin.theory import (
    IDENTITY_LINEAR,
    SOFTMAX,
    SelfAttentionProblem,
    attention_full,
    build,
    detection_counts,
    features_full,
    network,
    power,
    spike_shares,
)

UNITS = [pytest.param(unit, id=unit.name) for unit in (SOFTMAX, IDENTITY_LINEAR, power(8))]
SHAPES = [(40, 12, 0.5, 0), (120, 12, 0.3, 37), (200, 102, 0.9, 199), (7, 3, 0.5, 5), (60, 32, 0.1, 30)]


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("n", "d", "b", "position"), SHAPES)
@pytest.mark.parametrize("dataset", [0, 1])
def test_two_rows_equal_the_whole_matrix(unit, n, d, b, position, dataset):
    problem = SelfAttentionProblem(n, d, b=b, a1=0.8)
    data_ND = build(problem, dataset, position=position)
    whole_ND = features_full(data_ND, data_ND, unit)
    spike_row, ordinary_row = problem.features(unit, dataset, position=position)
    expected_ND = np.tile(ordinary_row, (n, 1))
    expected_ND[position] = spike_row
    np.testing.assert_allclose(whole_ND, expected_ND, rtol=1e-12, atol=1e-15)


def test_build_follows_its_definition():
    problem = SelfAttentionProblem(12, 5, b=0.3, a1=0.7)
    data_ND = build(problem, 1, position=4) / sqrt(log(12))
    assert data_ND.shape == (12, 5)
    np.testing.assert_allclose(data_ND[4], [0.7, 0, 0.3, 0, 0.7], atol=1e-15)  # 4 mod 3 = 1
    np.testing.assert_allclose(data_ND[:3, 1:4], 0.3 * np.eye(3), atol=1e-15)
    np.testing.assert_allclose(data_ND.sum(axis=1), np.where(np.arange(12) == 4, 1.7, 1.0))
    difference = data_ND - build(problem, 0, position=4) / sqrt(log(12))
    assert np.argwhere(difference).tolist() == [[4, 0]]  # the classes differ in one entry


def test_softmax_shares_have_their_closed_form():
    for n, a, g in [(100, 0.7, 1.0), (1000, 0.05, 1.0), (10**7, 0.6, 0.5), (50, 3.0, 2.0)]:
        shares = spike_shares(SOFTMAX, n, a, ground=g)
        np.testing.assert_allclose(shares[0, 0], 1 / (1 + (n - 1) * n ** (-a * (a + g))), rtol=1e-12)
        np.testing.assert_allclose(shares[1, 0], 1 / (1 + (n - 1) * n ** (-a * g)), rtol=1e-12)


def test_linear_shares_have_their_closed_form_and_one_row():
    shares = spike_shares(IDENTITY_LINEAR, 1000, 0.7)
    np.testing.assert_allclose(shares, [[1.7 / 1000.7, 1 / 1000.7]] * 2, rtol=1e-12)


@pytest.mark.parametrize(("unit", "rank"), [(SOFTMAX, 2), (IDENTITY_LINEAR, 1), (power(8), 1)])
def test_rank_of_the_attention_matrix(unit, rank):
    data_ND = build(SelfAttentionProblem(100, 12), 1)
    singular = np.linalg.svd(attention_full(data_ND, data_ND, unit), compute_uv=False)
    assert np.sum(singular > 1e-12 * singular[0]) == rank


def test_tensor_trick():
    """Block j of (A1 kron A2) vec(X) is row j of A1 X A2^T: with X all ones, the outer product of the row sums."""
    rng = np.random.default_rng(0)
    query_ND, key_ND, x_DD = rng.normal(size=(6, 4)), rng.normal(size=(5, 4)), rng.normal(size=(4, 4))
    blocks = (np.kron(query_ND, key_ND) @ x_DD.ravel()).reshape(6, 5)
    np.testing.assert_allclose(blocks, query_ND @ x_DD @ key_ND.T, rtol=1e-12, atol=1e-13)
    ones = (np.kron(query_ND, key_ND) @ np.ones(16)).reshape(6, 5)
    np.testing.assert_allclose(ones, np.outer(query_ND.sum(1), key_ND.sum(1)), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(attention_full(query_ND, key_ND, SOFTMAX), SOFTMAX.shares(ones), rtol=1e-12)


def test_network_threshold_is_strict_and_batches():
    features_RD = np.array([[1.0, 0.5], [0.25, 0.25]])
    signs_MD = np.array([[1.0, 1.0], [1.0, -1.0]])
    assert network(features_RD, signs_MD, 1.5) == 0.0  # a score equal to tau is silent
    assert network(features_RD, signs_MD, 0.4) == pytest.approx((1.5 - 0.4) + (0.5 - 0.4) + (0.5 - 0.4))
    batch = network(features_RD, np.stack([signs_MD, -signs_MD]), 0.4)
    assert batch.shape == (2,)
    assert batch[1] == 0.0


def test_counts_agree_with_the_whole_network_draw_by_draw():
    """The reference path: full data, full attention, every row read by the network, one draw after the other."""
    problem = SelfAttentionProblem(60, 12, b=0.4)
    counts = detection_counts(problem, width=3, num_draws=40, seed=5)
    signs_QMD = 2.0 * np.random.default_rng(5).integers(0, 2, (40, 3, 12), dtype=np.int8) - 1.0
    fires = {}
    for unit in (SOFTMAX, IDENTITY_LINEAR):
        for dataset in (0, 1):
            data_ND = build(problem, dataset)
            rows_ND = features_full(data_ND, data_ND, unit)
            fires[unit, dataset] = np.array([network(rows_ND, signs, problem.tau) > 0 for signs in signs_QMD])
    success = fires[SOFTMAX, 1] & ~fires[SOFTMAX, 0] & ~fires[IDENTITY_LINEAR, 0] & ~fires[IDENTITY_LINEAR, 1]
    assert dataclasses.astuple(counts) == (
        40,
        np.sum(~fires[SOFTMAX, 0]),
        np.sum(fires[SOFTMAX, 1]),
        np.sum(~fires[IDENTITY_LINEAR, 0]),
        np.sum(fires[IDENTITY_LINEAR, 1]),
        np.sum(success),
    )
    assert 0 < counts.strong_silent_d0 < 40  # the comparison has something to compare


def test_counts_depend_on_the_seed_alone():
    problem = SelfAttentionProblem(1000, 102)
    first, again, other = (detection_counts(problem, width=30, num_draws=60, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_large_n_costs_nothing():
    counts = detection_counts(SelfAttentionProblem(10**7, 402, b=0.3), width=30, num_draws=20, seed=0)
    assert counts.success == 20


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n": 40, "d": 2}, r"d >= 3 fails"),
        ({"n": 41, "d": 12}, r"multiple of d - 2 = 10; the nearest legal n is 40"),
        ({"n": 46, "d": 12}, r"the nearest legal n is 50"),
        ({"n": 1, "d": 3}, r"must be >= 2 .* the nearest legal n is 2"),
        ({"n": 40, "d": 12, "b": 1.0}, r"0 < b < 1 fails; b \+ c = 1"),
        ({"n": 40, "d": 12, "a0": 0.8}, r"0 < a0 < a1 fails"),
        ({"n": 40, "d": 12, "a0": 0.0}, r"0 < a0 < a1 fails"),
        ({"n": 40, "d": 12, "margin": 0.0}, r"margin > 0 fails for 0\.0"),
    ],
)
def test_refuses_what_lies_outside_the_construction(settings, message):
    with pytest.raises(ConfigError, match=message):
        SelfAttentionProblem(**settings)


def test_refuses_empty_experiments():
    with pytest.raises(ConfigError, match=r"width >= 1 and num_draws >= 1 fail for 0 and 5"):
        detection_counts(SelfAttentionProblem(40, 12), width=0, num_draws=5, seed=0)
