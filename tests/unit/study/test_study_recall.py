"""Recall: arms that differ in nothing but what their labels say, and a verdict no surer than its seeds.

Run: pytest tests/unit/study/test_study_recall.py
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from maclaurin.nn import DecoderConfig, DecoderLM
from maclaurin.store import ArmResult, Verdict
from maclaurin.study import summarize
from maclaurin.study.recall import RecallSection, paired_difference
from maclaurin.tasks import MQAR
from maclaurin.train import TrainConfig
from tiny.rows import row


def section(**changes: Any) -> RecallSection:
    training = {"steps": 4, "batch_size": 4, "learning_rate": 0.01, "log_every": 2} | changes.pop("training", {})
    return RecallSection(
        **{
            "mechanisms": ("softmax", "taylor-2"),
            "task": MQAR(vocab_size=16, length=12, num_pairs=2),
            "model_dim": 8,
            "num_layers": 1,
            "num_seeds": 2,
            "num_test": 16,
            "training": TrainConfig(**training),
            **changes,
        }
    )


def run_all(chosen: RecallSection, seed: int = 0) -> list[ArmResult]:
    return [
        chosen.run(arm, folder=Path("unused"), on_step=lambda step: None)
        for arm in chosen.arms(seed=seed, folder=Path("unused"))
    ]


def value(result: ArmResult, metric: str) -> float:
    return next(each.value for each in result.measurements if each.metric == metric)


@pytest.fixture(scope="module")
def results() -> list[ArmResult]:
    return run_all(section())


def test_what_an_arm_gives(results: list[ArmResult]) -> None:
    assert [(each.arm.mechanism, each.arm.seed) for each in results] == [
        ("softmax", 0),
        ("softmax", 1),
        ("taylor-2", 0),
        ("taylor-2", 1),
    ]
    for each in results:
        assert 0 <= value(each, "accuracy") <= 1
        assert [curve.steps for curve in each.curves] == [(2, 4)]
    parameters = {value(each, "parameters") for each in results}
    assert len(parameters) == 1  # the mechanism is all they differ in
    assert value(results[0], "state_bytes") == 4 * 12 * (8 + 8)  # float32 keys and values after 12 tokens
    assert [each.metric for each in results[2].measurements][-1] == "break_even_tokens"


def test_every_mechanism_sees_the_sequences_of_its_seed_and_the_test_is_shared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: dict[tuple[str, int], list[bytes]] = {}
    current: list[tuple[str, int]] = []
    real_sample = MQAR.sample

    def sample(self, rng, num_sequences):
        batch = real_sample(self, rng, num_sequences)
        seen.setdefault(current[-1], []).append(batch.tokens.tobytes())
        return batch

    monkeypatch.setattr(MQAR, "sample", sample)
    chosen = section()
    for arm in chosen.arms(seed=0, folder=Path("unused")):
        current.append((arm.mechanism, arm.seed))
        chosen.run(arm, folder=Path("unused"), on_step=lambda step: None)
    assert all(len(each) == 4 + 1 for each in seen.values())  # four training batches, then the test
    for seed in (0, 1):
        assert seen["softmax", seed] == seen["taylor-2", seed]
    assert not set(seen["softmax", 0][:4]) & set(seen["softmax", 1][:4])
    assert seen["softmax", 0][4] == seen["softmax", 1][4]


def test_a_run_depends_on_its_seed_alone(results: list[ArmResult]) -> None:
    again = run_all(section())
    assert [(each.measurements, each.curves) for each in again] == [
        (each.measurements, each.curves) for each in results
    ]
    assert results[0].curves != results[1].curves


def test_a_seed_is_that_of_the_weights_too(monkeypatch: pytest.MonkeyPatch) -> None:
    real_batches = MQAR.batches
    monkeypatch.setattr(MQAR, "batches", lambda self, seed, batch_size: real_batches(self, 0, batch_size))
    first, second = run_all(section(mechanisms=("softmax",)))
    assert first.curves != second.curves


def test_the_convolution_stands_where_positions_would() -> None:
    chosen = section(num_seeds=1, mechanisms=("softmax",), convolution=2)
    (result,) = run_all(chosen)
    plain = DecoderLM(DecoderConfig("softmax", vocab_size=16, model_dim=8, num_layers=1, num_heads=1)).num_parameters
    channels = 3 * 8  # query, key and value
    assert value(result, "parameters") == plain + channels * (2 + 1)


def test_a_training_that_diverges_is_missing_and_takes_no_other_with_it() -> None:
    wild = section(mechanisms=("softmax",), training={"learning_rate": 1e30, "steps": 20})
    results = run_all(wild)
    rows, missing = summarize([each.arm for each in results], results)
    assert [(each.metric, each.reason) for each in missing] == [("accuracy", "not finite for 2 of 2 seeds")]
    assert [each.metric for each in rows] == ["parameters", "state_bytes"]
    assert not math.isfinite(results[0].curves[0].values[-1])


# -- verdict -----------------------------------------------------------------------------------------------------------


def rows_of(accuracies: dict[str, list[float]]) -> list:
    return [row("recall", name, "mqar", "accuracy", points) for name, points in accuracies.items()]


def verdict(accuracies: dict[str, list[float]]) -> Verdict:
    return section().verdict(rows_of(accuracies))


def test_nothing_is_compared_with_nothing() -> None:
    for accuracies in ({}, {"softmax": [1.0, 1.0]}):
        assert verdict(accuracies).sentence == "Fewer than two mechanisms have been measured."


def test_a_gap_that_is_shown() -> None:
    found = verdict({"linear-elu": [0.5, 0.6, 0.55], "softmax": [1.0, 0.99, 1.0], "taylor-2": [0.9, 0.8, 0.9]})
    assert found.sentence.startswith("Mean recall accuracy: softmax 1.00, taylor-2 0.87, linear-elu 0.55. ")
    assert "The gap between softmax and linear-elu is 0.45, paired 95 % interval [0.31, 0.58]: above zero." in (
        found.sentence
    )
    assert found.sureness.startswith("3 seeds at one learning rate")
    assert "picked after the fact" in found.sureness


def test_a_gap_that_is_not_shown() -> None:
    found = verdict({"softmax": [1.0, 0.5], "linear-elu": [0.5, 0.6]})
    assert found.sentence.endswith(": not told from zero.")


def test_an_interval_without_width_is_not_sold_as_certainty() -> None:
    agreeing = verdict({"softmax": [1.0, 1.0, 1.0], "linear-elu": [0.5, 0.6, 0.7]})
    assert "that is no proof that others would" in agreeing.sureness
    differing = verdict({"softmax": [1.0, 0.9, 1.0], "linear-elu": [0.5, 0.6, 0.7]})
    assert "no proof" not in differing.sureness


def test_one_seed_shows_nothing() -> None:
    found = verdict({"softmax": [1.0], "linear-elu": [0.5]})
    assert found.sentence.endswith("is 0.50; 1 seed cannot tell it from zero.")
    assert found.sureness.startswith("1 seed at one")


def test_seeds_are_paired_and_those_of_one_side_only_are_left_out() -> None:
    first = row("recall", "a", "mqar", "accuracy", [0.9, 0.8, 0.1], seeds=(0, 1, 2))
    second = row("recall", "b", "mqar", "accuracy", [0.7, 0.5, 0.9], seeds=(1, 0, 7))
    mean, interval, n = paired_difference(first, second)
    assert (mean, n) == (pytest.approx(0.25), 2)
    assert interval == pytest.approx((0.25 - 12.706 * 0.15, 0.25 + 12.706 * 0.15), rel=1e-3)


def test_without_a_shared_seed_there_is_no_pair() -> None:
    first = row("recall", "a", "mqar", "accuracy", [0.9], seeds=(0,))
    second = row("recall", "b", "mqar", "accuracy", [0.5], seeds=(1,))
    assert paired_difference(first, second) == (pytest.approx(0.4), None, 0)
    assert "0 seeds cannot tell" in section().verdict([first, second]).sentence
