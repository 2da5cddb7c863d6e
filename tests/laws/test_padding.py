"""What stands on padding, NaN included, reaches no valid output, no state and no gradient.

Run: pytest tests/laws/test_padding.py -q
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from laws.cases import KEY_TIME, QUERY_TIME, Inputs, by, draw, every, in_directions, like, members, serving
from laws.checks import RTOL, assert_states_close, gradients, moving_numbers, numbers, state_of, well_conditioned_rows
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, State, attend
from maclaurin.algebra import L2, CallableMap, Power, Similarity
from maclaurin.evaluate.cache import Cache

LENGTH = 13
#: Two batch rows each, with pads in different places and numbers. True: a token; False: a pad.
PATTERNS = {
    "left": [[False] * 4 + [True] * 9, [False] * 1 + [True] * 12],
    "right": [[True] * 9 + [False] * 4, [True] * 12 + [False] * 1],
    "interior": [[True, False, True] * 4 + [True], [True] * 6 + [False] * 5 + [True] * 2],
}
CONTENTS = {"random": 1.0, "huge": 1e30, "nan": math.nan}


def padded(inputs: Inputs, mask: Tensor, content: float) -> Inputs:
    """The call with ``content`` times noise in everything that has a time, wherever the mask hides."""

    def dirty(x: Tensor) -> Tensor:
        hidden = ~mask[:, None].reshape(len(mask), 1, -1, *[1] * (x.ndim - 3))
        return torch.where(hidden, content * like(x, 5 + x.ndim), x)

    return inputs.along(dirty, dirty)


def outcome(
    mechanism: Mechanism, inputs: Inputs, mask: Tensor, method: str, *, is_causal: bool = True
) -> tuple[Tensor, State, list[Tensor]]:
    """Output on valid rows (zeros on pads), state, gradients of both."""
    leaves = inputs.leaves()
    out, state, _ = attend(
        mechanism, *leaves.qkv, **leaves.operands, **by(method), mask=mask, is_causal=is_causal, return_state=True
    )
    assert state is not None
    out = torch.where(mask[:, None, :, None], out, 0.0)
    return out, state, gradients([out, *moving_numbers(state)], leaves.tensors(), 1)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("mechanism", members())
def test_pads_reach_nothing(mechanism: Mechanism, pattern: str, seed: int) -> None:
    clean, mask = draw(seed, queries=LENGTH).of(mechanism), torch.tensor(PATTERNS[pattern])
    for method in serving(mechanism):
        results = [outcome(mechanism, padded(clean, mask, each), mask, method) for each in CONTENTS.values()]
        first_out, first_state, first_grads = results[0]
        for out, state, grads in results[1:]:
            assert_same(out, first_out)
            for one, other in zip(numbers(state).values(), numbers(first_state).values(), strict=True):
                assert_same(one, other)
            for one, other in zip(grads, first_grads, strict=True):
                assert_same(one, other)
        timed = [name in KEY_TIME + QUERY_TIME for name in clean.operands]
        for each, _ in [pair for pair in zip(first_grads, [True] * 3 + timed, strict=True) if pair[1]]:
            pads, tokens = each.transpose(1, 2)[~mask], each.transpose(1, 2)[mask]
            assert not pads.any()
            assert tokens.any()


def _of_row(state: State, batch: int, tokens: Tensor) -> State:
    """The state of one batch row; of a cache that keeps pads too, the tokens."""
    state = state.reorder([batch])
    if not isinstance(state.cache, Cache):
        return state
    assert torch.equal(state.cache.visible[0], tokens)
    cache = replace(
        state.cache,
        key=state.cache.key[:, :, tokens],
        value=state.cache.value[:, :, tokens],
        visible=state.cache.visible[:, tokens],
        log_weight=None if state.cache.log_weight is None else state.cache.log_weight[:, :, tokens],
    )
    return replace(state, cache=cache)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("mechanism", members())
def test_padded_equals_unpadded(mechanism: Mechanism, pattern: str, seed: int) -> None:
    clean, mask = draw(seed, queries=LENGTH).of(mechanism), torch.tensor(PATTERNS[pattern])
    for method in serving(mechanism):
        leaves = padded(clean, mask, math.nan).leaves()
        out, state, _ = attend(mechanism, *leaves.qkv, **leaves.operands, **by(method), mask=mask, return_state=True)
        assert state is not None
        for b, tokens in enumerate(mask):
            alone = clean.row(b, tokens).leaves()
            keep = well_conditioned_rows(mechanism, alone, is_causal=True)
            expected, expected_state, _ = attend(
                mechanism, *alone.qkv, **alone.operands, **by(method), return_state=True
            )
            row = out[b : b + 1, :, tokens]
            assert_close(row * keep, expected * keep, rtol=RTOL, what=method)
            names = list(leaves.operands)
            found = gradients(row * keep, leaves.tensors(), 2)
            found = Inputs(*found[:3], dict(zip(names, found[3:], strict=True))).row(b, tokens).tensors()
            for one, other in zip(found, gradients(expected * keep, alone.tensors(), 2), strict=True):
                assert_close(one, other, rtol=RTOL, what=f"{method}: gradient")
            assert_states_close(_of_row(state, b, tokens), expected_state, what=f"{method}: state")


@pytest.mark.parametrize(("mechanism", "is_causal"), in_directions(every()))
def test_pads_reach_nothing_in_both_directions(mechanism: Mechanism, is_causal: bool, seed: int) -> None:
    clean, mask = draw(seed, queries=LENGTH).of(mechanism), torch.tensor(PATTERNS["interior"])
    for method in serving(mechanism):
        results = [
            outcome(mechanism, padded(clean, mask, each), mask, method, is_causal=is_causal) for each in (1.0, math.nan)
        ]
        (out, _, grads), (other_out, _, other_grads) = results
        assert_same(out, other_out)
        for one, other in zip(grads, other_grads, strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("mechanism", members())
def test_decoding_after_a_padded_prompt(mechanism: Mechanism, seed: int) -> None:
    """The states of two prompts of different length, left-padded into one batch, go on as each alone would."""
    clean, mask = draw(seed, queries=LENGTH).of(mechanism), torch.tensor(PATTERNS["left"])
    prompt, token = slice(0, LENGTH - 1), slice(LENGTH - 1, None)
    batch = padded(clean, mask, math.nan)
    first = batch.part(prompt, prompt)
    state = attend(mechanism, *first.qkv, **first.operands, mask=mask[:, prompt], return_state=True).state
    last = batch.part(token, token)
    out = attend(mechanism, *last.qkv, **last.operands, state=state).output
    for b, tokens in enumerate(mask):
        alone = clean.row(b, tokens)
        expected = attend(mechanism, *alone.qkv, **alone.operands, method="parallel").output
        assert_close(out[b : b + 1], expected[:, :, -1:], rtol=RTOL)


@pytest.mark.parametrize("mechanism", every())
def test_keys_hidden_from_every_query_by_a_pair_mask_may_hold_anything(mechanism: Mechanism, seed: int) -> None:
    clean = draw(seed, queries=LENGTH).of(mechanism)
    key_mask = torch.tensor(PATTERNS["interior"])
    hidden = ~key_mask[:, None, :, None]
    pair_mask = key_mask[:, None, None].expand(-1, 6, LENGTH, -1).clone()
    pair_mask[:, :, 0, 7] = True  # allowed by the mask alone, and forbidden by causality

    def run(content: float, mask: Tensor) -> list[Tensor]:
        leaves = clean.leaves()
        dirty = leaves.along(
            lambda each: each, lambda each: torch.where(hidden if each.ndim == 4 else hidden[..., 0], content, each)
        )
        out = attend(mechanism, *dirty.qkv, **dirty.operands, mask=mask).output
        return [out, *gradients(out, leaves.tensors(), 1)]

    for one, two, three in zip(run(math.nan, pair_mask), run(0.0, pair_mask), run(0.0, key_mask), strict=True):
        assert_same(one, two)
        assert_close(one, three, rtol=RTOL)


@pytest.mark.parametrize("mechanism", members())
def test_queries_on_pads_may_hold_nan_when_there_are_more_queries_than_keys(mechanism: Mechanism, seed: int) -> None:
    clean = draw(seed, queries=9, keys=6).of(mechanism)
    mask = torch.tensor([[False, False, True, True, True, True], [True, True, True, False, True, True]])
    stands_on_pad = torch.cat([torch.zeros(2, 3, dtype=torch.bool), ~mask], dim=1)[:, None, :, None]
    for method in serving(mechanism):
        results = []
        for content in (1.0, math.nan):
            leaves = clean.leaves()
            dirty = leaves.along(
                lambda each, content=content: torch.where(stands_on_pad, content, each), lambda each: each
            )
            out = attend(mechanism, *dirty.qkv, **dirty.operands, **by(method), mask=mask).output
            out = torch.where(stands_on_pad, 0.0, out)
            results.append([out, *gradients(out, leaves.tensors(), 1)])
        for one, other in zip(*results, strict=True):
            assert_same(one, other)


def test_a_map_that_is_not_finite_at_zero_meets_no_zeros() -> None:
    """x / |x| and its slope are NaN at zero, where hidden content must not be moved to."""
    direction = CallableMap(lambda x: x / x.norm(dim=-1, keepdim=True))
    mechanism = Mechanism(Similarity(Power(1), direction), L2())
    mask = torch.tensor(PATTERNS["left"])
    clean = draw(4, queries=LENGTH).of(mechanism)
    for method in serving(mechanism):
        out, state, grads = outcome(mechanism, padded(clean, mask, math.nan), mask, method)
        expected, expected_state, expected_grads = outcome(mechanism, padded(clean, mask, 1.0), mask, method)
        pairs = [(out, expected), *zip(grads, expected_grads, strict=True)]
        for one, other in [*pairs, *zip(state.tensors(), expected_state.tensors(), strict=True)]:
            assert_same(one, other)


def test_a_batch_row_of_pads_alone_leaves_an_empty_state() -> None:
    mask = torch.tensor([[False] * LENGTH, [True] * LENGTH])
    for mechanism in ("taylor:2@mean/sum", "exp/sum", "cosine/layer:weight:bias"):
        clean = draw(2, queries=LENGTH)
        inputs = padded(clean, mask, math.nan)
        out, state, _ = attend(mechanism, *inputs.qkv, mask=mask, return_state=True)
        assert not out[0].any()
        assert torch.equal(state.count, torch.tensor([[0.0] * 3, [float(LENGTH)] * 3], dtype=torch.float64))
        more = draw(3, queries=5)
        expected = attend(mechanism, *(each[:1] for each in more.qkv)).output
        assert_close(attend(mechanism, *more.qkv, state=state).output[:1], expected, rtol=RTOL)


def test_the_state_helper_sees_the_same_keys(inputs: Inputs) -> None:
    """Guards the tests above: absorbing under a mask equals absorbing the visible keys."""
    state = state_of(Mechanism(Similarity(Power(2)), L2()), replace(inputs, operands={}), slice(0, 5))
    mask = torch.arange(37).lt(5).expand(2, -1)
    masked = attend("power:2/l2", *inputs.qkv, mask=mask, return_state=True).state
    for one, other in zip(masked.tensors(), state.tensors(), strict=True):
        assert_close(one, other, rtol=RTOL)
