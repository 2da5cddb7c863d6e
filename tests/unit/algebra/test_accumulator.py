"""The accumulator: sums relative to a log scale, which never changes what they mean.

Run: pytest tests/unit/algebra/test_accumulator.py -q
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from laws.compare import assert_close, assert_same
from maclaurin import Accumulator
from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE, merged_log_denominator, unscale

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


# ------------------------------------------------------------------------------------- decay, factors, joining


def with_denominator_logit() -> Accumulator:
    """Two queries, L = log 8 and log 2."""
    each = accumulator()
    return replace(each, count=torch.tensor([2.0, 1.0]), log_denominator=torch.tensor([8.0, 2.0]).log())


def test_decay_multiplies_every_weight_and_counts_keys_so_far() -> None:
    log_decay = torch.tensor([math.log(0.25), 0.0])
    before, after = with_denominator_logit(), with_denominator_logit().decayed(log_decay)
    factor = torch.tensor([0.25, 1.0])
    assert_close(after.true_denominator, before.true_denominator * factor, rtol=1e-6)
    assert_same(after.numerator, before.numerator)  # the factor went into the log scale, digits kept
    assert_close(after.count, before.count * factor, rtol=1e-6)
    assert_close(after.log_denominator.exp(), torch.tensor([2.0, 2.0]), rtol=1e-6)
    assert after.log_scale[1] == EMPTY_LOG_SCALE


def test_decay_far_beyond_the_range_of_exp_keeps_the_sums() -> None:
    far = accumulator().decayed(torch.tensor([-500.0, -500.0]))
    assert_same(far.numerator, accumulator().numerator)
    assert far.log_scale[0] == 3.0 - 500.0
    assert_same(far.merge(far).numerator, 2 * accumulator().numerator)


def test_a_reset_leaves_an_empty_accumulator() -> None:
    reset = with_denominator_logit().decayed(torch.tensor([-math.inf, -math.inf]))
    assert not reset.numerator.any()
    assert not reset.denominator.any()
    assert not reset.count.any()
    assert bool((reset.log_scale == EMPTY_LOG_SCALE).all())
    assert bool((reset.log_denominator == EMPTY_LOG_SCALE).all())
    later = with_denominator_logit()
    merged = reset.merge(later)
    for name in ("numerator", "denominator", "count", "log_scale"):
        assert_same(getattr(merged, name), getattr(later, name))
    assert_close(merged.log_denominator, later.log_denominator, rtol=1e-7)


@pytest.mark.parametrize("log_factor", [-0.5, 0.0, 40.0])
def test_decay_and_factors_carry_their_gradient(log_factor: float) -> None:
    """d/da of e^(l + a) N is that number itself; the value of a is in the log scale alone."""
    for change in (Accumulator.decayed, Accumulator.scaled):
        factor = torch.full((1,), log_factor, dtype=torch.float64, requires_grad=True)
        one = Accumulator(*(torch.ones(shape).double() for shape in ((1, 1), 1, 1)), torch.zeros(1).double())
        changed = change(one, factor)
        assert not changed.log_scale.requires_grad
        for true in (changed.true_denominator, unscale(changed.numerator, changed.log_scale[:, None])):
            (gradient,) = torch.autograd.grad(true.sum(), factor, retain_graph=True)
            assert_close(gradient, torch.tensor([math.exp(log_factor)], dtype=torch.float64), rtol=1e-14)


def test_a_factor_leaves_the_count_and_an_empty_row() -> None:
    scaled = with_denominator_logit().scaled(torch.tensor([2.0, 2.0]))
    assert_same(scaled.count, torch.tensor([2.0, 1.0]))
    assert_same(scaled.log_scale, torch.tensor([5.0, EMPTY_LOG_SCALE]))
    assert_same(scaled.log_denominator, with_denominator_logit().log_denominator)


def test_a_gate_reaches_the_numerator_alone() -> None:
    gated = accumulator().gated(torch.tensor([[0.5], [2.0]]))
    assert_same(gated.numerator, torch.tensor([[2.5, 25.0], [0.0, 0.0]]))
    assert_same(gated.denominator, accumulator().denominator)


def test_decayed_keys_are_counted_as_far_as_they_are_left() -> None:
    log_decay = torch.tensor([[math.log(0.5), 0.0, 0.0]]).expand(2, 3)
    weights = torch.tensor([[0.5, 1.0, 0.0], [0.0, 0.0, 0.0]])
    each = Accumulator.from_weights(weights, torch.ones(3, 2), VISIBLE, torch.zeros(2), log_decay)
    assert_close(each.count, torch.tensor([1.5, 0.0]), rtol=1e-7)
    assert_same(each.denominator, torch.tensor([1.5, 0.0]))  # the weights came with their decay


def test_log_denominators_add_where_both_have_one() -> None:
    one = with_denominator_logit()
    assert_close(one.merge(one).log_denominator.exp(), torch.tensor([16.0, 4.0]), rtol=1e-6)
    assert one.merge(accumulator()).log_denominator is None
    empty = torch.full((2,), EMPTY_LOG_SCALE)
    assert_same(merged_log_denominator(empty, empty), empty + math.log(2.0))
    assert_same(merged_log_denominator(empty, one.log_denominator), one.log_denominator)


def test_joining_is_along_the_queries() -> None:
    whole = with_denominator_logit()

    def row(index: int) -> Accumulator:
        at = slice(index, index + 1)
        return Accumulator(
            whole.numerator[at], whole.denominator[at], whole.count[at], whole.log_scale[at], whole.log_denominator[at]
        )

    joined = Accumulator.join([row(0), row(1)])
    for name in ("numerator", "denominator", "count", "log_scale", "log_denominator"):
        assert_same(getattr(joined, name), getattr(whole, name))
    bare = replace(accumulator(), denominator=None)
    assert Accumulator.join([bare, bare]).denominator is None
    assert Accumulator.join([bare, bare]).log_denominator is None
    assert Accumulator.join([bare, bare]).numerator.shape == (4, 2)
