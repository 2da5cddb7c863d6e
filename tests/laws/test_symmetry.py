"""Batch rows and heads do not see each other; order of keys is immaterial; grouped heads share their keys.

Run: pytest tests/laws/test_symmetry.py -q
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from laws.cases import KEY_TIME, QUERY_TIME, Inputs, by, directions, draw, every, members, serving
from laws.checks import RTOL, gradients, well_conditioned_rows
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, attend

BATCH_ORDER = torch.tensor([1, 0])
KV_ORDER = torch.tensor([2, 0, 1])
#: The query heads in the order that their key/value heads are in.
HEAD_ORDER = torch.tensor([4, 5, 0, 1, 2, 3])


def per_head(inputs: Inputs) -> Inputs:
    """Learned tensors with a value of their own for every head."""
    steps = torch.linspace(0.5, 1.5, 6, dtype=torch.float64)[:, None]
    operands = {name: each * steps if name == "norm_bias" else each for name, each in inputs.operands.items()}
    return replace(inputs, operands=operands)


def permuted(inputs: Inputs) -> Inputs:
    """Batch rows and heads in another order, everything that belongs to them with them."""
    timed = inputs.along(lambda each: each[BATCH_ORDER][:, HEAD_ORDER], lambda each: each[BATCH_ORDER][:, KV_ORDER])
    of_heads = {name: each[HEAD_ORDER] for name, each in inputs.operands.items() if name not in KEY_TIME + QUERY_TIME}
    return replace(timed, operands={**timed.operands, **of_heads})


def with_repeated_heads(inputs: Inputs) -> Inputs:
    """A key/value head of its own for every query head."""
    return inputs.along(lambda each: each, lambda each: each.repeat_interleave(2, dim=1))


@pytest.mark.parametrize("mechanism", every())
def test_permuting_batch_and_heads_permutes_the_output(mechanism: Mechanism, seed: int) -> None:
    inputs = per_head(draw(seed, queries=13).of(mechanism))
    moved = permuted(inputs)
    for method in serving(mechanism):
        out = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method)).output
        other = attend(mechanism, *moved.qkv, **moved.operands, **by(method)).output
        assert_close(other, out[BATCH_ORDER][:, HEAD_ORDER], rtol=RTOL, what=method)
        assert not torch.allclose(other, out)


@pytest.mark.parametrize("mechanism", members())
def test_a_batch_row_alone_gives_the_same(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=13).of(mechanism)
    for method in serving(mechanism):
        out = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method)).output
        row = inputs.along(lambda each: each[1:], lambda each: each[1:])
        alone = attend(mechanism, *row.qkv, **row.operands, **by(method)).output
        assert_close(alone, out[1:], rtol=RTOL, what=method)


@pytest.mark.parametrize("mechanism", every(lambda each: len(directions(each)) == 2))
def test_order_of_keys_is_immaterial_when_bidirectional(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=13).of(mechanism)
    order = torch.randperm(13, generator=torch.Generator().manual_seed(3))
    shuffled = inputs.along(lambda each: each, lambda each: each[:, :, order])
    keep = well_conditioned_rows(mechanism, inputs, is_causal=False)
    for method in serving(mechanism):
        out, other = (
            attend(mechanism, *each.qkv, **each.operands, **by(method), is_causal=False).output
            for each in (inputs, shuffled)
        )
        assert_close(other * keep, out * keep, rtol=RTOL, what=method)
        causal = attend(mechanism, *shuffled.qkv, **shuffled.operands, **by(method)).output
        assert not torch.allclose(causal[:, :, :-1], out[:, :, :-1])


@pytest.mark.parametrize("mechanism", every())
def test_grouped_heads_are_repeated_heads(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=13).of(mechanism)
    repeated = with_repeated_heads(inputs)
    keep = well_conditioned_rows(mechanism, inputs, is_causal=True)
    for method in serving(mechanism):
        one, other = (attend(mechanism, *each.qkv, **each.operands, **by(method)).output for each in (inputs, repeated))
        assert_close(one * keep, other * keep, rtol=RTOL, what=method)


def of_keys(inputs: Inputs) -> list[Tensor]:
    """What every key/value head has of its own."""
    return [inputs.key, inputs.value, *(inputs.operands[name] for name in KEY_TIME if name in inputs.operands)]


@pytest.mark.parametrize("mechanism", members())
def test_gradients_of_grouped_heads_are_sums_over_the_group(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=13).of(mechanism)
    keep = well_conditioned_rows(mechanism, inputs, is_causal=True)
    for method in serving(mechanism):
        leaves = inputs.leaves()
        out = attend(mechanism, *leaves.qkv, **leaves.operands, **by(method)).output
        grouped = gradients((out * keep).square(), of_keys(leaves), 1)
        leaves = with_repeated_heads(inputs).leaves()
        out = attend(mechanism, *leaves.qkv, **leaves.operands, **by(method)).output
        repeated = gradients((out * keep).square(), of_keys(leaves), 1)
        for one, other in zip(grouped, repeated, strict=True):
            assert_close(one, other.unflatten(1, (3, 2)).sum(2), rtol=RTOL, what=method)


def test_values_enter_linearly_before_a_norm() -> None:
    """Two value channels are two attentions with the same weights."""
    inputs = draw(1)
    for mechanism in ("exp/sum", "taylor:4@mean/sum", "power:2/length"):
        q, k, v = inputs.qkv
        out = attend(mechanism, q, k, v, method="recurrent").output
        first, rest = (attend(mechanism, q, k, each, method="recurrent").output for each in (v[..., :2], v[..., 2:]))
        assert_close(torch.cat([first, rest], dim=-1), out, rtol=RTOL)
        assert_same(attend(mechanism, q, k, 0.0 * v).output, 0.0 * out)
