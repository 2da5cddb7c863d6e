"""The answer of a study: what it says where there is a gap, none, or nothing to compare.

Run: pytest tests/unit/study/test_study_verdicts.py
"""

from __future__ import annotations

import pytest

from maclaurin.store import ResultRow, Verdict
from maclaurin.study import load, verdicts
from maclaurin.study.verdicts import ANSWER
from tiny.launch import TINY
from tiny.rows import row

STUDY = load(str(TINY))
CLEAR = {"softmax": [1.0, 0.99, 1.0], "linear-elu": [0.5, 0.6, 0.55]}


def recall(accuracies: dict[str, list[float]]) -> list[ResultRow]:
    return [row("recall", name, "mqar", "accuracy", points) for name, points in accuracies.items()]


def answer(rows: list[ResultRow]) -> Verdict:
    first, *_ = verdicts(STUDY, rows)
    assert first.section == ANSWER
    return first


def test_the_answer_comes_first_then_each_section_that_has_rows() -> None:
    rows = [row("language", "softmax", "bytes", "bits_per_byte", [3.0]), *recall(CLEAR)]
    assert [each.section for each in verdicts(STUDY, rows)] == ["answer", "recall", "language"]
    assert [each.section for each in verdicts(STUDY, [])] == ["answer"]


@pytest.mark.parametrize("accuracies", [{}, {"softmax": [1.0]}, {"linear-elu": [1.0]}, {"taylor-2": [1.0, 1.0]}])
def test_without_the_two_to_compare_nothing_is_answered(accuracies: dict[str, list[float]]) -> None:
    assert answer(recall(accuracies)).sentence == ("Not answered: softmax and linear-elu have no recall accuracy here.")


def test_one_seed_settles_nothing_however_wide_the_gap() -> None:
    found = answer(recall({"softmax": [1.0], "linear-elu": [0.0]}))
    assert found.sentence == "Not settled: the difference in recall between softmax and linear attention is +1.00."
    assert found.sureness == "1 seed cannot tell it from chance."


@pytest.mark.parametrize("linear", [[0.9, 1.0, 0.4], [1.0, 0.99, 1.0]])
def test_a_gap_within_its_interval_is_not_settled(linear: list[float]) -> None:
    found = answer(recall({"softmax": [1.0, 0.99, 1.0], "linear-elu": linear}))
    assert found.sentence.startswith("Not settled: the difference in recall")
    assert "paired 95 % interval [" in found.sentence
    assert found.sureness == "3 seeds cannot tell it from chance."


def test_a_gap_outside_its_interval_is_answered_with_what_it_rests_on() -> None:
    found = answer(recall(CLEAR))
    assert found.sentence == (
        "Recall: softmax attention answers 100% of the queries for a value seen before, linear attention 55%."
    )
    assert found.sureness.startswith(
        "The gap is 0.45, paired 95 % interval [0.31, 0.58] over 3 seeds of one small task"
    )
    assert "The text models are too short-trained to rank." in found.sureness


def test_only_seeds_that_both_have_are_counted() -> None:
    rows = recall(CLEAR)
    rows[1] = row("recall", "linear-elu", "mqar", "accuracy", [0.5, 0.6], seeds=(0, 1))
    assert "3 seeds" not in answer(rows).sureness
    assert "2 seeds" in answer(rows).sureness


def test_a_linear_attention_that_recalls_more_is_said_to() -> None:
    found = answer(recall({"softmax": CLEAR["linear-elu"], "linear-elu": CLEAR["softmax"]}))
    assert "softmax attention answers 55%" in found.sentence
    assert found.sureness.startswith("The gap is -0.45, paired 95 % interval [-0.58, -0.31]")


def test_what_comes_close_is_named_with_its_cost_and_nothing_else_is() -> None:
    rows = recall(CLEAR | {"exp-l2": [1.0, 1.0, 0.98], "taylor-4": [0.99, 0.97, 0.98], "taylor-2": [0.95, 0.97, 0.98]})
    rows += [row("recall", "taylor-4", "mqar", name, [value]) for name, value in
             (("state_bytes", 12345.0), ("break_even_tokens", 321.0))]  # fmt: skip
    rows += [row("recall", "exp-l2", "mqar", "state_bytes", [99.0])]  # grows: no break-even length
    others = [row("orders", "taylor-4", "t", name, [7.0]) for name in ("state_bytes", "break_even_tokens")]
    rows = others + rows  # those of another section, first
    assert answer(rows).sentence.endswith(
        " Within 0.02 of softmax on this task: exp-l2, taylor-4 (taylor-4 in 12,345 bytes per head, as much as 321 "
        "cached tokens)."
    )
