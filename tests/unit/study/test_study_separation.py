"""Rates of the constructed data, and a verdict that claims no more than they show.

Run: pytest tests/unit/study/test_study_separation.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from maclaurin.store import ArmResult
from maclaurin.study import summarize, wilson_interval
from maclaurin.study.separation import SeparationSection
from maclaurin.theory.noise import auc_interval
from tiny.rows import row

SECTION = SeparationSection(spikes=(0.3, 3.0), num_draws=50, noisy_lengths=(100, 6400), noisy_draws=400)


def run_all(section: SeparationSection, seed: int = 0) -> list[ArmResult]:
    steps: list[int] = []
    arms = section.arms(seed=seed, folder=Path("unused"))
    found = [section.run(arm, folder=Path("unused"), on_step=steps.append) for arm in arms]
    assert steps == [section.num_steps(arm) for arm in arms] == [1] * len(arms)
    return found


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str, str], object]:
    results = run_all(SECTION)
    found, missing = summarize([each.arm for each in results], results)
    assert missing == []
    return {(each.mechanism, each.task, each.metric): each for each in found}


def test_rates_are_over_trials_with_wilsons_interval(rows) -> None:
    for (_, _, metric), each in rows.items():
        if metric in ("detection_rate", "false_alarm_rate"):
            assert each.n == 50
            assert each.interval == wilson_interval(round(each.value * 50), 50)


def test_softmax_finds_a_large_spike_and_the_linear_unit_does_not(rows) -> None:
    def rate(unit: str, size: str) -> float:
        return rows[unit, f"self-attention a={size}", "detection_rate"].value

    assert rate("softmax", "3.00") >= 0.95
    assert max(rate("softmax", "0.30"), rate("linear", "0.30"), rate("linear", "3.00")) <= 0.1


def test_a_rate_lies_where_theory_says(rows) -> None:
    """50 draws: four standard deviations of a rate are at most 0.28."""
    for (mechanism, task, metric), each in rows.items():
        if metric == "detection_rate":
            predicted = rows[mechanism, task, "detection_rate_predicted"].value
            assert each.value == pytest.approx(predicted, abs=4 * (max(predicted * (1 - predicted), 0.002) / 50) ** 0.5)


def test_a_network_that_fires_without_a_spike_is_a_false_alarm(rows) -> None:
    for unit in ("softmax", "linear"):
        for size in ("0.30", "3.00"):
            assert rows[unit, f"self-attention a={size}", "false_alarm_rate"].value <= 0.1


def test_noise_leaves_softmax_and_takes_the_linear_unit(rows) -> None:
    assert rows["softmax", "noisy n=6400", "auc"].interval[0] > 0.95
    assert rows["linear", "noisy n=6400", "auc"].interval[1] < rows["linear", "noisy n=100", "auc"].value
    linear = rows["linear", "noisy n=100", "auc"]
    assert linear.interval == auc_interval(linear.value, 400, 400)
    for key in (("softmax", "noisy n=100", "d_prime"), ("linear", "noisy n=100", "d_prime")):
        assert rows[key].interval[0] < rows[key].value < rows[key].interval[1]
        assert rows[key].n == 400


def test_a_run_depends_on_its_seed_alone() -> None:
    section = SECTION.model_copy(update={"spikes": (0.5,)})  # where the rate is neither 0 nor 1
    first, second, other = ([each.measurements for each in run_all(section, seed)] for seed in (0, 0, 1))
    assert first == second
    assert first[0] != other[0]
    assert first[2:] != other[2:]


def test_a_label_says_the_whole_size() -> None:
    arms = SeparationSection(spikes=(0.3, 0.304, 1.0)).arms(seed=0, folder=Path("unused"))
    tasks = list(dict.fromkeys(arm.task for arm in arms))[:3]
    assert tasks == ["self-attention a=0.30", "self-attention a=0.304", "self-attention a=1.00"]


# -- verdict -----------------------------------------------------------------------------------------------------------


def rates(mechanism: str, by_size: dict[str, float], *, is_noisy: bool = False) -> list:
    metric, task = ("auc", "noisy n=") if is_noisy else ("detection_rate", "self-attention a=")
    found = []
    for size, rate in by_size.items():
        interval = max(0.0, rate - 0.1), min(1.0, rate + 0.1)
        found.append(row("separation", mechanism, task + size, metric, [rate], n=50, interval=interval))
    return found


def verdict(rows: list):
    return SECTION.verdict(rows)


LINEAR = rates("linear", {"0.30": 0.0, "0.50": 0.02, "3.00": 0.01})


def test_no_rows_no_claim() -> None:
    assert verdict([]).sentence == "No rate has been measured yet."
    assert verdict(LINEAR).sentence == "No rate has been measured yet."


def test_found_from_a_size_on() -> None:
    found = verdict(rates("softmax", {"0.30": 0.2, "0.50": 0.95, "3.00": 1.0}) + LINEAR)
    assert found.sentence == (
        "The softmax network finds the spike from size 0.50 on; the linear one finds at most 0.020 of them up to size "
        "3.00 (95 % interval [0.000, 0.120])."
    )
    assert found.sureness.startswith("50 networks per rate")
    assert "not what training finds" in found.sureness


def test_sizes_are_put_in_order_before_anything_is_said_of_them() -> None:
    found = verdict(rates("softmax", {"3.00": 1.0, "0.30": 0.2, "0.50": 0.95}) + LINEAR[::-1])
    assert "from size 0.50 on" in found.sentence
    assert "up to size 3.00" in found.sentence


def test_a_size_that_is_followed_by_a_miss_is_no_from_there_on() -> None:
    found = verdict(rates("softmax", {"0.30": 0.96, "0.50": 0.5, "3.00": 1.0}) + LINEAR)
    assert "from size 3.00 on" in found.sentence


def test_never_found() -> None:
    found = verdict(rates("softmax", {"0.30": 0.99, "3.00": 0.94}) + LINEAR)
    assert found.sentence.startswith("The softmax network does not find 95 % of the spikes of size 3.00; the linear")


@pytest.mark.parametrize(
    ("auc", "words"),
    [
        ({"100": 0.8, "6400": 0.55}, "falls from AUC 0.80 at n=100 to 0.55 at n=6400."),
        ({"6400": 0.55, "100": 0.8}, "falls from AUC 0.80 at n=100 to 0.55 at n=6400."),
        ({"100": 0.6, "6400": 0.55}, "goes from AUC 0.60 at n=100 to 0.55 at n=6400."),
        ({"100": 0.5, "6400": 0.9}, "goes from AUC 0.50 at n=100 to 0.90 at n=6400."),
        ({"100": 0.8}, "is AUC 0.80 at n=100."),
    ],
)
def test_under_noise_a_fall_is_claimed_only_where_the_intervals_part(auc: dict[str, float], words: str) -> None:
    found = verdict(rates("softmax", {"3.00": 1.0}) + LINEAR + rates("linear", auc, is_noisy=True))
    assert found.sentence.endswith(f"what any readout of the linear unit can use {words}")
