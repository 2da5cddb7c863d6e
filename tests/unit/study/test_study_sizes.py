"""Bytes per head and break-even lengths, counted by hand.   Run: pytest tests/unit/study/test_study_sizes.py"""

from __future__ import annotations

from math import comb

import pytest

from maclaurin.study.sizes import size_measurements


def sizes(mechanism: str, key_dim: int = 4, value_dim: int = 6, length: int = 10) -> dict[str, float]:
    found = size_measurements(mechanism, key_dim=key_dim, value_dim=value_dim, length=length)
    return {each.metric: each.value for each in found}


@pytest.mark.parametrize("mechanism", ["exp/sum", "exp-l2", "softmax"])
def test_what_grows_has_its_bytes_at_the_length_and_no_break_even(mechanism: str) -> None:
    assert sizes(mechanism) == {"state_bytes": 4.0 * 10 * (4 + 6)}
    assert sizes(mechanism, length=20)["state_bytes"] == 2 * sizes(mechanism)["state_bytes"]


@pytest.mark.parametrize("order", [0, 2, 4, 12])
def test_a_taylor_state_is_its_monomials_times_values_and_one(order: int) -> None:
    features = comb(4 + order, order)  # all monomials of at most that degree in 4 variables
    found = sizes(f"taylor:{order}/sum")
    assert found["state_bytes"] == 4.0 * features * (6 + 1)
    assert found == sizes(f"taylor:{order}/sum", length=99)


def test_break_even_is_the_16_bit_cache_as_large_as_the_moments() -> None:
    features = comb(4 + 2, 2)
    per_token = 2 * (4 + 6)  # bytes of one key and value
    assert sizes("taylor-2")["break_even_tokens"] == 4 * features * (6 + 1) / per_token


def test_order_two_at_64_is_what_the_design_says() -> None:
    assert sizes("taylor-2", key_dim=64, value_dim=64)["break_even_tokens"] == pytest.approx(2180, abs=5)
