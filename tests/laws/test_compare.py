"""The comparisons that every law rests on can only fail: NaN equals nothing, and nothing becomes a warning.

Run: pytest tests/laws/test_compare.py -q
"""

from __future__ import annotations

import math

import pytest
import torch

from laws.compare import assert_close, assert_same, deviation, error_ratio

ONES = torch.ones(3, dtype=torch.float64)
NAN = torch.tensor([1.0, math.nan, 1.0], dtype=torch.float64)
INFINITE = torch.tensor([1.0, math.inf, 1.0], dtype=torch.float64)


@pytest.mark.parametrize("bad", [NAN, INFINITE], ids=["nan", "inf"])
def test_what_is_not_finite_equals_nothing(bad: torch.Tensor) -> None:
    for pair in ((bad, ONES), (ONES, bad), (bad, bad)):
        with pytest.raises(AssertionError, match="deviation inf"):
            assert_close(*pair, rtol=1e9)
        assert error_ratio(*pair) == math.inf


def test_shape_and_dtype_count() -> None:
    with pytest.raises(AssertionError, match="shape"):
        assert_close(ONES, ONES[:, None], rtol=1.0)
    with pytest.raises(AssertionError, match=r"torch\.float32"):
        assert_same(ONES.float(), ONES)


def test_deviation_is_relative_to_the_scale() -> None:
    other = ONES + torch.tensor([0.0, 1e-3, 0.0], dtype=torch.float64)
    assert deviation(other, ONES, scale=10.0) == pytest.approx(1e-4)
    assert_close(other, ONES, rtol=2e-4, scale=10.0)
    with pytest.raises(AssertionError, match=r"here: deviation 1\.00e-03 > 1e-04"):
        assert_close(other, ONES, rtol=1e-4, what="here")
    with pytest.raises(AssertionError):
        assert_same(other, ONES)


def test_zero_is_compared_exactly() -> None:
    assert_close(0.0 * ONES, 0.0 * ONES, rtol=0.0)
    with pytest.raises(AssertionError):
        assert_close(1e-300 * ONES, 0.0 * ONES, rtol=1e9)
