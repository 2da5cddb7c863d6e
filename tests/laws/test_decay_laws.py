"""Decay: sums of what lies between, never differences; minus infinity is an exact reset; pads decay nothing.

Run: pytest tests/laws/test_decay_laws.py -q
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from laws.cases import Inputs, by, compact, draw, every, serving
from laws.checks import RTOL, evaluate, gradients, state_of, well_conditioned_rows, whole
from laws.compare import assert_close, assert_same, error_ratio
from laws.oracle import oracle
from maclaurin import Mechanism, attend
from maclaurin.algebra import parse

DECAYING = every(lambda each: each.gates.decay)


def with_decay(inputs: Inputs, log_decay: Tensor) -> Inputs:
    return replace(inputs, operands={**inputs.operands, "log_decay": log_decay})


def outputs(mechanism: Mechanism, inputs: Inputs, method: str) -> Tensor:
    return evaluate(mechanism, inputs, whole(method), is_causal=True, return_state=False)[0]


def without_sinks(mechanism: Mechanism) -> bool:
    """The first keys of a segment are not the first of all: sinks tell one from the other."""
    return mechanism.gates.decay and (mechanism.window is None or mechanism.window.sinks == 0)


@pytest.mark.parametrize("mechanism", every(without_sinks))
def test_a_reset_is_the_start_of_another_sequence(mechanism: Mechanism, seed: int) -> None:
    """In every head at once, on a chunk's edge and inside one; outputs and gradients of the parts alone."""
    starts = [slice(0, 4), slice(4, 9), slice(9, 10), slice(10, 17)]
    inputs = draw(seed, queries=17).without_reset().of(mechanism)
    log_decay = inputs.operands["log_decay"].clone()
    log_decay[:, :, [4, 9, 10]] = -math.inf
    inputs = with_decay(inputs, log_decay)
    keep = well_conditioned_rows(mechanism, inputs, is_causal=True)
    for method in serving(mechanism):
        leaves = inputs.leaves()
        out = outputs(mechanism, leaves, method) * keep
        other = inputs.leaves()
        parts = [outputs(mechanism, other.part(each, each), method) for each in starts]
        expected = torch.cat(parts, dim=2) * keep
        assert_close(out, expected, rtol=RTOL, what=method)
        pairs = zip(gradients(out, leaves.tensors(), 1), gradients(expected, other.tensors(), 1), strict=True)
        for i, (one, two) in enumerate(pairs):
            assert_close(one, two, rtol=RTOL, what=f"{method}: gradient {i}")


@pytest.mark.parametrize("mechanism", DECAYING)
def test_what_stands_on_a_pad_decays_nothing(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=13).of(mechanism)
    mask = torch.tensor([[True, False, True] * 4 + [True], [False] * 3 + [True] * 6 + [False] * 4])
    pads = ~mask[:, None].expand_as(inputs.operands["log_decay"])
    for method in serving(mechanism):
        found = []
        for content in (0.0, -1.0, -math.inf, 5.0, math.nan):
            given = with_decay(inputs, inputs.operands["log_decay"].masked_fill(pads, content))
            found.append(attend(mechanism, *given.qkv, **given.operands, **by(method), mask=mask).output)
        for each in found[1:]:
            assert_same(each, found[0], what=method)


@pytest.mark.parametrize("mechanism", DECAYING)
def test_the_first_log_decay_is_that_of_the_carried_state(mechanism: Mechanism, seed: int) -> None:
    """Without one it changes nothing, and its gradient is zero; with one, minus infinity forgets the state."""
    inputs = draw(seed, queries=13).of(mechanism)
    first = inputs.operands["log_decay"].clone()
    first[:, :, 0] = -7.0
    carried = state_of(mechanism, draw(seed + 1, queries=23).of(mechanism), slice(None))
    for method in serving(mechanism):
        leaves = inputs.leaves()
        out = outputs(mechanism, leaves, method)
        assert_same(outputs(mechanism, with_decay(inputs, first), method), out)
        gradient = gradients(out, (leaves.operands["log_decay"],), 1)[0]
        assert not gradient[:, :, 0].any()
        assert gradient[:, :, 1:].any()
        if mechanism.window is not None:
            continue  # a window and its sinks count keys that have decayed to nothing
        forgotten = first.clone()
        forgotten[:, :, 0] = -math.inf
        after = attend(
            mechanism, *inputs.qkv, **{**inputs.operands, "log_decay": forgotten}, **by(method), state=carried
        ).output
        keep = well_conditioned_rows(mechanism, inputs, is_causal=True)
        assert_close(after * keep, out * keep, rtol=RTOL, what=method)
        remembered = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method), state=carried).output
        assert not torch.allclose(remembered, out)


@pytest.mark.parametrize("rate", [-4.0, -40.0])
@pytest.mark.parametrize("mechanism", DECAYING)
def test_strong_decay_for_64_tokens(mechanism: Mechanism, rate: float) -> None:
    """exp(+4 * 64) is infinite in float32, which a quotient of running products would meet; sums of terms are exact."""
    # a power of one key alone loses (|q| |k| / <q, k>)^p: no query of this seed is nearly orthogonal to its own key
    exact = draw(9, batch=1, heads=2, kv_heads=1, queries=64, key_dim=3, value_dim=4)
    constant = torch.full_like(exact.operands["log_decay"], rate)
    rounded = with_decay(exact, constant).of(compact(mechanism)).map(torch.Tensor.float)
    exact = rounded.map(torch.Tensor.double)
    mechanism = compact(mechanism)
    keep = well_conditioned_rows(mechanism, exact, is_causal=True)
    expected = oracle(mechanism, exact, is_causal=True)
    for method in serving(mechanism):
        assert_close(outputs(mechanism, exact, method) * keep, expected * keep, rtol=RTOL, what=method)
        leaves = rounded.leaves()
        out = outputs(mechanism, leaves, method)
        # a row under strong decay is its own key alone: a power of a nearly orthogonal pair, with three digits less
        assert error_ratio(out * keep, expected * keep) <= 5e-5, method
        for each in gradients(out, leaves.tensors(), 1):
            assert bool(each.isfinite().all())


@pytest.mark.parametrize("mechanism", DECAYING)
def test_a_reset_that_is_finite_but_enormous_leaves_later_decays_alone(mechanism: Mechanism) -> None:
    """Differences of running sums would lose every later -1 beside -3.4e37."""
    mechanism = compact(mechanism)
    inputs = draw(6, batch=1, heads=2, kv_heads=1, queries=19, key_dim=3, value_dim=4).of(mechanism)
    log_decay = torch.full_like(inputs.operands["log_decay"], -1.0)
    log_decay[:, :, 7] = -0.1 * torch.finfo(torch.float32).max
    rounded = with_decay(inputs, log_decay).map(torch.Tensor.float)
    exact = rounded.map(torch.Tensor.double)
    keep = well_conditioned_rows(mechanism, exact, is_causal=True)
    expected = oracle(mechanism, exact, is_causal=True) * keep
    for method in serving(mechanism):
        assert_close(outputs(mechanism, exact, method) * keep, expected, rtol=RTOL, what=method)
        assert error_ratio(outputs(mechanism, rounded, method) * keep, expected) <= 5e-5, method


@pytest.mark.parametrize("mechanism", DECAYING)
def test_no_decay_at_all_is_the_mechanism_without(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=13).of(mechanism)
    plain = replace(mechanism, gates=replace(mechanism.gates, decay=False))
    keep = well_conditioned_rows(plain, inputs.of(plain), is_causal=True)
    given = with_decay(inputs, torch.zeros_like(inputs.operands["log_decay"]))
    for method in serving(mechanism):
        expected = outputs(plain, inputs.of(plain), method)
        assert_close(outputs(mechanism, given, method) * keep, expected * keep, rtol=RTOL, what=method)


def test_a_constant_decay_is_retention() -> None:
    """sum over s of gamma^(t-s) <q, k> v, written as one masked product."""
    inputs = draw(3, heads=3, kv_heads=3, queries=17)
    rates = torch.tensor([0.9, 0.5, 0.99], dtype=torch.float64)
    log_decay = rates.log()[:, None].expand(2, 3, 17)
    distance = torch.arange(17)[:, None] - torch.arange(17)
    decay = torch.where(distance >= 0, rates[:, None, None] ** distance.clamp(min=0), 0.0)
    q, k, v = inputs.qkv
    expected = (q @ k.mT * 5**-0.5 * decay) @ v
    mechanism = parse("power:1/none+decay")
    for method in serving(mechanism):
        out = attend(mechanism, q, k, v, log_decay=log_decay, **by(method)).output
        assert_close(out, expected, rtol=RTOL, what=method)
