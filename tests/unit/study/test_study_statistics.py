"""Intervals against scipy and against their promise; rows over seeds and trials; what is missing, and why.

Run: pytest tests/unit/study/test_study_statistics.py
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from maclaurin.study import student_interval, summarize, wilson_interval
from tiny.rows import NAN, result


@pytest.mark.parametrize("n", [2, 3, 10])
def test_student_is_mean_and_scaled_standard_error(n: int) -> None:
    values = np.random.default_rng(n).normal(3.0, 2.0, n)
    expected = stats.t.interval(0.95, n - 1, loc=values.mean(), scale=values.std(ddof=1) / math.sqrt(n))
    assert student_interval(values.tolist()) == pytest.approx(expected, rel=1e-12)


def test_student_needs_two_values_and_has_no_width_where_they_agree() -> None:
    assert student_interval([]) is None
    assert student_interval([0.5]) is None
    assert student_interval([0.25, 0.25, 0.25]) == (0.25, 0.25)


@pytest.mark.parametrize("size", [1e-200, 1e200, 1e308])
def test_student_survives_numbers_whose_squares_do_not(size: float) -> None:
    low, high = student_interval([0.1 * size, 0.2 * size, 0.3 * size])
    assert (low / size, high / size) == pytest.approx(student_interval([0.1, 0.2, 0.3]), rel=1e-9)


def test_student_covers_what_it_promises_at_three_seeds() -> None:
    """95 % of 4,000 intervals: the count's standard deviation is 0.0034, and 4 of them are allowed."""
    draws = np.random.default_rng(0).normal(size=(4000, 3))
    covered = 0
    for values in draws.tolist():
        low, high = student_interval(values)
        covered += low <= 0 <= high
    assert covered / 4000 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 4000))


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (0, 200), (7, 20), (200, 200)])
def test_wilson_written_out(successes: int, trials: int) -> None:
    """The rates p at which the observed rate lies z standard deviations of p away."""
    z = stats.norm.ppf(0.975)
    rate = successes / trials
    middle = (rate + z**2 / (2 * trials)) / (1 + z**2 / trials)
    half = z / (1 + z**2 / trials) * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    expected = max(0.0, middle - half), min(1.0, middle + half)
    assert wilson_interval(successes, trials) == pytest.approx(expected, abs=1e-12)
    assert wilson_interval(successes, trials)[1] - wilson_interval(successes, trials)[0] > 0.01  # never a point


def rows_of(*results, planned=None, failures=None):
    return summarize([each.arm for each in planned or results], results, failures)


def test_a_row_is_the_mean_over_seeds_with_its_points() -> None:
    (accuracy, loss), missing = rows_of(
        *(result(seed=seed, accuracy=value, loss_nats=2.0) for seed, value in enumerate([0.4, 0.5, 0.9]))
    )
    assert missing == []
    assert (accuracy.section, accuracy.mechanism, accuracy.task, accuracy.metric) == (
        *("recall", "softmax", "mqar", "accuracy"),
    )
    assert accuracy.value == pytest.approx(0.6, rel=1e-15)
    assert (accuracy.n, accuracy.seconds, accuracy.points, accuracy.seeds) == (3, 1.5, (0.4, 0.5, 0.9), (0, 1, 2))
    assert (loss.metric, loss.value, loss.interval) == ("loss_nats", 2.0, (2.0, 2.0))


def test_the_interval_of_a_share_stays_within_what_a_share_can_be() -> None:
    (accuracy, loss), _ = rows_of(
        result(seed=0, accuracy=1.0, loss_nats=0.1), result(seed=1, accuracy=0.9, loss_nats=5.0)
    )
    assert student_interval([1.0, 0.9])[1] > 1
    assert accuracy.interval == (pytest.approx(student_interval([1.0, 0.9])[0]), 1.0)
    assert loss.interval == (0.0, pytest.approx(student_interval([0.1, 5.0])[1]))  # no loss below zero, any above


def test_one_seed_has_no_interval() -> None:
    ((row,), missing) = rows_of(result(accuracy=0.5))
    assert (row.n, row.interval, missing) == (1, None, [])


def test_a_rate_over_trials_has_wilsons_interval_and_the_trials_as_n() -> None:
    ((row,), _) = rows_of(result(trials=40, detection_rate=0.25))
    assert (row.n, row.points, row.interval) == (40, (), wilson_interval(10, 40))


def test_a_measurement_keeps_an_interval_of_its_own() -> None:
    ((row,), _) = rows_of(result(trials=40, interval=(0.1, 0.7), auc=0.5))
    assert row.interval == (0.1, 0.7)


@pytest.mark.parametrize("interval", [None, (NAN, NAN), (-math.inf, 7.0)])
def test_a_statistic_that_is_no_rate_has_no_interval_rather_than_a_wrong_one(interval) -> None:
    ((row,), _) = rows_of(result(trials=40, interval=interval, d_prime=5.0))
    assert (row.value, row.interval) == (5.0, None)


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_a_seed_that_is_not_finite_takes_its_metric_with_it_and_no_other(bad: float) -> None:
    rows, (missing,) = rows_of(
        result(seed=0, accuracy=0.5, loss_nats=1.0),
        result(seed=1, accuracy=bad, loss_nats=1.0),
        result(seed=2, accuracy=0.5, loss_nats=1.0),
    )
    assert [(row.metric, row.n) for row in rows] == [("loss_nats", 3)]
    assert (missing.metric, missing.mechanism, missing.reason) == ("accuracy", "softmax", "not finite for 1 of 3 seeds")


def test_a_reason_that_an_arm_noted_is_said() -> None:
    rows, (missing,) = rows_of(result(certificate=math.inf, notes={"certificate": "no certificate here"}))
    assert rows == []
    assert missing.reason == "no certificate here"


def test_arms_that_have_not_run_are_missing_while_the_others_give_a_row() -> None:
    planned = [result(seed=seed, accuracy=0.5) for seed in range(3)] + [result("linear-elu", accuracy=0.5)]
    (row,), (partial, none) = rows_of(*planned[:2], planned=planned)
    assert (row.mechanism, row.n) == ("softmax", 2)
    assert (partial.mechanism, partial.metric, partial.reason) == ("softmax", "all", "1 of 3 arms have not finished")
    assert (none.mechanism, none.metric, none.reason) == ("linear-elu", "all", "1 of 1 arms have not finished")


def test_the_reasons_of_failed_arms_are_said_once_each() -> None:
    planned = [result(seed=seed, accuracy=0.5) for seed in range(4)]
    failures = {each.arm.key: "ValueError: no" for each in planned[:2]} | {planned[2].arm.key: "killed"}
    _, (missing,) = rows_of(planned[3], planned=planned, failures=failures)
    assert missing.reason == "3 of 4 arms have not finished; ValueError: no; killed"


def test_rows_come_in_the_order_of_the_plan_and_strangers_are_passed_over() -> None:
    planned = [result(name, accuracy=0.5) for name in ("softmax", "exp-l2", "taylor-2")]
    rows, missing = rows_of(*reversed(planned), result("older", accuracy=0.1), planned=planned)
    assert [row.mechanism for row in rows] == ["softmax", "exp-l2", "taylor-2"]
    assert missing == []


def test_a_mean_of_huge_numbers_is_finite() -> None:
    ((row,), _) = rows_of(result(seed=0, certificate=1.5e308), result(seed=1, certificate=1.7e308))
    assert row.value == pytest.approx(1.6e308)
    assert row.interval is None or all(map(math.isfinite, row.interval))
