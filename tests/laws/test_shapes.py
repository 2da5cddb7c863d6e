"""Every shape is legal: few or many queries, none at all, one key, no key, and rows that see nothing.

Run: pytest tests/laws/test_shapes.py -q
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laws.cases import EVERY, Inputs, by, directions, draw, every, in_directions, pair_masked, serving
from laws.checks import (
    RTOL,
    assert_states_close,
    evaluate,
    gradients,
    numbers,
    pieces,
    well_conditioned_rows,
    whole,
)
from laws.compare import assert_close, assert_same
from laws.oracle import oracle
from maclaurin import Mechanism, attend


@pytest.mark.parametrize("mechanism", every())
def test_fewer_queries_than_keys_are_the_last_rows(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    last = inputs.part(slice(-3, None), slice(None))
    for method in serving(mechanism):
        expected = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method)).output[:, :, -3:]
        assert_close(attend(mechanism, *last.qkv, **last.operands, **by(method)).output, expected, rtol=RTOL)


@pytest.mark.parametrize("mechanism", every())
def test_more_queries_than_keys_leave_the_first_rows_empty(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=17).of(mechanism)
    few = inputs.part(slice(None), slice(5, None))
    rest = inputs.part(slice(5, None), slice(5, None))
    for method in serving(mechanism):
        leaves = few.leaves()
        out = attend(mechanism, *leaves.qkv, **leaves.operands, **by(method)).output
        assert not out[:, :, :5].any()
        expected = attend(mechanism, *rest.qkv, **rest.operands, **by(method)).output
        assert_close(out[:, :, 5:], expected, rtol=RTOL)
        for each in gradients(out[:, :, :5], leaves.tensors(), 1):
            assert not each.any()


@pytest.mark.parametrize(("mechanism", "is_causal"), in_directions(every()))
def test_no_query_and_no_key(mechanism: Mechanism, is_causal: bool, seed: int) -> None:
    inputs = draw(seed, queries=13).of(mechanism)
    no_query, no_key = inputs.part(slice(0, 0), slice(None)), inputs.part(slice(None), slice(0, 0))
    for method in serving(mechanism):
        out, state = evaluate(mechanism, no_query, whole(method), is_causal=is_causal)
        assert out.shape == (2, 6, 0, 7)
        expected = evaluate(mechanism, inputs, whole(method), is_causal=is_causal)[1]
        assert_states_close(state, expected)
        leaves = no_key.leaves()
        out, state = evaluate(mechanism, leaves, whole(method), is_causal=is_causal)
        assert out.shape == (2, 6, 13, 7)
        assert not out.any()
        assert not state.count.any()
        for each in gradients(out, leaves.tensors(), 1):
            assert not each.any()


@pytest.mark.parametrize("mechanism", every())
def test_one_key(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=1).of(mechanism)
    for method in serving(mechanism):
        for is_causal in directions(mechanism):
            out = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method), is_causal=is_causal).output
            assert_close(out, oracle(mechanism, inputs, is_causal=is_causal), rtol=RTOL, what=method)


@pytest.mark.parametrize("size", ["key_dim", "value_dim", "batch"])
@pytest.mark.parametrize("mechanism", every())
def test_a_dimension_of_size_zero_or_one(mechanism: Mechanism, size: str) -> None:
    """Without a key dim every logit is zero, so weights are kappa(0)."""
    for number in (0, 1):
        inputs = draw(1, queries=3, **{size: number}).of(mechanism)
        for method in serving(mechanism):
            out, state = evaluate(mechanism, inputs, whole(method), is_causal=True)
            if number or size == "key_dim":
                assert_close(out, oracle(mechanism, inputs, is_causal=True), rtol=RTOL, what=method)
            assert out.shape == (*inputs.query.shape[:3], inputs.value.shape[3])
            assert state.count.shape == inputs.key.shape[:2]


@pytest.mark.parametrize("mechanism", every())
def test_rows_without_a_visible_key_are_zero_and_give_zero_gradients(mechanism: Mechanism, seed: int) -> None:
    """Bias included: such a row is zero after everything."""
    clean = draw(seed, queries=7).of(mechanism)
    key_mask = torch.tensor([[False] * 4 + [True] * 3, [False] * 7])
    pair_mask = torch.rand(2, 6, 7, 7, generator=torch.Generator().manual_seed(1)) < 0.5
    pair_mask[0, 2] = False
    pair_mask[1, :, 3] = False
    blind = {
        "key": (~key_mask).cummin(1).values[:, None].expand(-1, 6, -1),
        "pair": ~pair_mask.tril().any(-1),
    }
    for method in serving(mechanism):
        for kind, mask in (("key", key_mask), ("pair", pair_mask)):
            if kind == "pair" and method not in pair_masked(mechanism):
                continue
            leaves = clean.leaves()
            out = attend(mechanism, *leaves.qkv, **leaves.operands, **by(method), mask=mask).output
            assert torch.equal((out == 0).all(-1) & blind[kind], blind[kind])
            assert bool(blind[kind].any())
            for each in gradients(out[blind[kind]], leaves.tensors(), 1):
                assert not each.any()
            for each in gradients(out, leaves.tensors(), 1):
                assert bool(each.isfinite().all())


@given(
    case=st.sampled_from(EVERY),
    sizes=st.tuples(*[st.integers(1, 3)] * 3, *[st.integers(1, 4)] * 2),
    lengths=st.tuples(st.integers(0, 6), st.integers(0, 6)),
    split=st.floats(0, 1),
    is_either=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_any_shape_and_split(
    case: tuple[str, Mechanism],
    sizes: tuple[int, int, int, int, int],
    lengths: tuple[int, int],
    split: float,
    is_either: bool,
    seed: int,
) -> None:
    """Loops, parallel, recurrent and a split of the keys agree on small shapes; rows that lose digits are left out.

    1e-9, not 1e-12: any of thousands of draws may have a numerator that nearly vanishes before a norm or a power.
    """
    _, mechanism = case
    is_causal = is_either or len(directions(mechanism)) == 1
    (batch, kv_heads, groups, key_dim, value_dim), (queries, keys) = sizes, lengths
    inputs = draw(
        seed,
        batch=batch,
        heads=kv_heads * groups,
        kv_heads=kv_heads,
        queries=queries,
        keys=keys,
        key_dim=key_dim,
        value_dim=value_dim + 1,
    ).of(mechanism)
    keep = well_conditioned_rows(mechanism, inputs, is_causal=is_causal)
    expected = oracle(mechanism, inputs, is_causal=is_causal) * keep
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    for method in serving(mechanism):
        out, state = evaluate(mechanism, inputs, whole(method), is_causal=is_causal)
        assert_close(out * keep, expected, rtol=1e-9, scale=scale, what=method)
        # queries that come last see every key, which is what causality leaves them only where they are one
        plan = pieces([method, "parallel"], [round(split * keys)], is_causal=False)
        split_out, split_state = evaluate(mechanism, inputs, plan, is_causal=len(directions(mechanism)) == 1)
        if not is_causal:
            assert_close(split_out * keep, expected, rtol=1e-9, scale=scale, what=f"{method}, split")
        pairs = zip(numbers(split_state).values(), numbers(state).values(), strict=True)
        for one, other in [pair for pair in pairs if pair[0].is_floating_point()]:
            size = float(other.abs().max()) if other.numel() else 0.0
            assert_close(one, other, rtol=RTOL, scale=max(1.0, size), what=f"{method}: state")


def test_inputs_need_not_be_contiguous(inputs: Inputs) -> None:
    for mechanism in ("exp/sum", "taylor:2@mean/sum"):
        strided = inputs.map(lambda each: each.transpose(0, -1).contiguous().transpose(0, -1))
        for method in ("parallel", "recurrent"):
            one, other = (attend(mechanism, *each.qkv, **by(method)).output for each in (inputs, strided))
            assert_close(other, one, rtol=RTOL)


def test_a_negative_scale_of_nothing_is_nothing(inputs: Inputs) -> None:
    empty = inputs.part(slice(0, 0), slice(0, 0))
    out = attend("exp/sum", *empty.qkv, scale=-1.0, return_diagnostics=True)
    assert out.output.shape == (2, 6, 0, 7)
    assert out.diagnostics.max_logit == 0.0
    assert_same(out.output, torch.zeros(2, 6, 0, 7, dtype=torch.float64))
