"""The accumulator: sums relative to a log scale, which never changes what they mean.

Run: pytest tests/unit/algebra/test_accumulator.py -q
"""

from __future__ import annotations

import math

import pytest
import torch

from laws.compare import assert_close, assert_same
from maclaurin import Accumulator
from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE, unscale

VISIBLE = torch.tensor([[True, True, False], [False, False, False]])


def accumulator() -> Accumulator:
    weights = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
    value = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]])
    return Accumulator.from_weights(weights, value, VISIBLE, torch.tensor([3.0, 0.0]))


def test_sums_over_the_visible_keys() -> None:
    each = accumulator()
    assert torch.equal(each.numerator, torch.tensor([[5.0, 50.0], [0.0, 0.0]]))
    assert torch.equal(each.denominator, torch.tensor([3.0, 0.0]))
    assert torch.equal(each.count, torch.tensor([2.0, 0.0]))
    assert torch.equal(each.log_scale, torch.tensor([3.0, EMPTY_LOG_SCALE]))
    assert_close(each.true_denominator, torch.tensor([3.0 * math.e**3, 0.0]), rtol=1e-6)


def test_merging_takes_the_larger_scale() -> None:
    small = Accumulator(torch.ones(1, 2), torch.ones(1), torch.ones(1), torch.tensor([-1.0]))
    large = Accumulator(torch.ones(1, 2), torch.ones(1), torch.ones(1), torch.tensor([700.0]))
    for merged in (small.merge(large), large.merge(small)):
        assert torch.equal(merged.log_scale, torch.tensor([700.0]))
        assert torch.equal(merged.numerator, torch.ones(1, 2))  # e^-701 is nothing beside 1
        assert torch.equal(merged.count, torch.tensor([2.0]))


def test_two_empty_ones_merge_to_an_empty_one() -> None:
    empty = accumulator()
    merged = empty.merge(empty)
    assert torch.equal(merged.log_scale[1], torch.tensor(EMPTY_LOG_SCALE))
    assert not merged.numerator[1].any()
    assert not bool(merged.numerator.isnan().any())


def test_a_denominator_survives_only_where_both_have_one() -> None:
    without = Accumulator(torch.ones(2, 2), None, torch.ones(2), torch.zeros(2))
    assert accumulator().merge(without).denominator is None
    assert without.merge(accumulator()).denominator is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_unscale_leaves_the_range_only_where_the_product_does(dtype: torch.dtype) -> None:
    limit = math.log(torch.finfo(dtype).max)
    inside = torch.tensor([-1e30, -limit, -1.0, 0.0, 1.0, limit - 1.0], dtype=dtype)
    assert_close(unscale(torch.ones(6, dtype=dtype), inside), inside.exp(), rtol=1e-5)
    assert bool(unscale(torch.ones(1, dtype=dtype), torch.tensor([limit + 1.0], dtype=dtype)).isinf().all())
    # the factor alone would overflow, the product does not
    tiny = torch.tensor([1e-20], dtype=dtype)
    assert_close(
        unscale(tiny, torch.tensor([limit + 20.0], dtype=dtype)),
        tiny.double() * math.exp(20) * torch.finfo(dtype).max,
        rtol=1e-4,
    )
    zero = unscale(torch.zeros(3, dtype=dtype), torch.tensor([-1e30, 0.0, 1e30], dtype=dtype))
    assert_same(zero, torch.zeros(3, dtype=dtype))


def test_unscale_has_the_gradient_of_a_factor() -> None:
    x = torch.tensor([0.0, 2.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(unscale(x, torch.tensor([1.0, -3.0], dtype=torch.float64)).sum(), x)
    assert_close(gradient, torch.tensor([math.e, math.e**-3], dtype=torch.float64), rtol=1e-14)
