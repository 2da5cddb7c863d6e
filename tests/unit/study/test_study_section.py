"""Digests and look-ups that every section shares.   Run: pytest tests/unit/study/test_study_section.py"""

from __future__ import annotations

import math

import pydantic
import pytest

from maclaurin.study.orders import OrdersSection
from maclaurin.study.section import digest_of, find
from tiny.rows import row

CONFIG = {"b": [1, 2.5, None, True], "a": {"y": "é", "x": 1e-3}}


def test_a_digest_knows_values_and_not_the_order_of_keys() -> None:
    assert digest_of(CONFIG) == digest_of(dict(reversed(CONFIG.items())))
    for change in ({"b": [2.5, 1, None, True]}, {"b": [1, 2.5, None, False]}, {"a": {"y": "e", "x": 1e-3}}, {"c": 0}):
        assert digest_of(CONFIG | change) != digest_of(CONFIG)


def test_a_digest_is_the_same_in_every_process_and_version() -> None:
    """Another value would make every stored arm a stranger: a change has to be meant."""
    assert digest_of(CONFIG) == "f03f0a85da73fa54ea0b"


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_number_that_json_does_not_have_has_no_digest(value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest_of({"a": value})


def test_an_arm_carries_all_that_its_key_is_made_of() -> None:
    arm = OrdersSection().arm(mechanism="exp/sum", task="t", seed=3, order=2)
    assert arm.config == {"section": "orders", "mechanism": "exp/sum", "task": "t", "seed": 3, "order": 2}
    assert arm.key == digest_of(arm.config)
    assert (arm.section, arm.mechanism, arm.task, arm.seed) == ("orders", "exp/sum", "t", 3)


def test_a_section_cannot_be_changed() -> None:
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        OrdersSection().max_order = 3


def test_find_takes_what_is_named_and_leaves_the_rest() -> None:
    rows = [row("s", name, task, metric, [1.0]) for name in "ab" for task in "tu" for metric in ("x", "y")]
    assert find(rows, metric="x") == [rows[0], rows[2], rows[4], rows[6]]
    assert find(rows, metric="x", mechanism="b") == [rows[4], rows[6]]
    assert find(rows, metric="y", mechanism="b", task="u") == [rows[7]]
    assert find(rows, metric="z") == []
