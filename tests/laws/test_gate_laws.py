"""Gates on values and outputs, the learned denominator, and powers of the length, by their own identities.

Run: pytest tests/laws/test_gate_laws.py -q
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from laws.cases import Inputs, by, draw, every, in_directions, serving
from laws.checks import RTOL, gradients
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, attend
from maclaurin.algebra import OutputGate, parse


def with_operands(inputs: Inputs, **operands: torch.Tensor) -> Inputs:
    return replace(inputs, operands={**inputs.operands, **operands})


def output(mechanism: Mechanism, inputs: Inputs, method: str, **options: object) -> torch.Tensor:
    return attend(mechanism, *inputs.qkv, **inputs.operands, **by(method), **options).output


def without(mechanism: Mechanism, **gates: object) -> Mechanism:
    """The mechanism with some gates replaced."""
    return replace(mechanism, gates=replace(mechanism.gates, **gates))


@pytest.mark.parametrize(("mechanism", "is_causal"), in_directions(every(lambda each: each.gates.value)))
def test_a_value_gate_is_a_gate_folded_into_the_value(mechanism: Mechanism, is_causal: bool, seed: int) -> None:
    """Outputs bit for bit; gradients by the chain rule. The denominator never sees it."""
    inputs, plain = draw(seed, queries=13).of(mechanism), without(mechanism, value=False)
    for method in serving(mechanism):
        leaves = inputs.leaves()
        out = output(mechanism, leaves, method, is_causal=is_causal)
        other = inputs.leaves()
        folded = replace(other, value=other.value * other.operands["value_gate"][..., None]).of(plain)
        expected = output(plain, folded, method, is_causal=is_causal)
        assert_same(out, expected, what=method)
        for one, two in zip(gradients(out, leaves.tensors(), 1), gradients(expected, other.tensors(), 1), strict=True):
            assert_close(one, two, rtol=RTOL, what=method)


@pytest.mark.parametrize("mechanism", every(lambda each: each.gates.output is not None))
def test_gates_of_one_number_are_those_of_every_channel(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=13).of(mechanism)
    narrow = inputs.operands["output_gate"][..., 0]
    wide = narrow[..., None].expand_as(inputs.operands["output_gate"])
    for method in serving(mechanism):
        one, other = (output(mechanism, with_operands(inputs, output_gate=each), method) for each in (narrow, wide))
        assert_same(one, other, what=method)


@pytest.mark.parametrize("mechanism", every(lambda each: each.gates.output is not None))
def test_a_gate_after_multiplies_what_comes_out(mechanism: Mechanism, seed: int) -> None:
    """And one before is the same wherever the normalizer is linear in the numerator."""
    inputs = draw(seed, queries=13).of(mechanism)
    plain, after = without(mechanism, output=None), without(mechanism, output=OutputGate(after=True))
    before = without(mechanism, output=OutputGate(after=False))
    for method in serving(mechanism):
        expected = output(plain, inputs.of(plain), method) * inputs.operands["output_gate"]
        assert_same(output(after, inputs, method), expected, what=method)
        found = output(before, inputs, method)
        if mechanism.normalizer.is_scale_invariant:
            assert not torch.allclose(found, expected)
        else:
            assert_close(found, expected, rtol=RTOL, what=method)


@pytest.mark.parametrize("normalizer", ["l2", "l2:gain=64", "rms:weight", "layer:weight:bias"])
@pytest.mark.parametrize("similarity", ["exp", "taylor:2", "elu1"])
def test_a_gate_of_one_number_before_a_norm_is_dead(similarity: str, normalizer: str, seed: int) -> None:
    """The output forgets a positive gate, and its gradient is zero; a gate per channel lives."""
    mechanism = parse(f"{similarity}/{normalizer}+outgate")
    plain = without(mechanism, output=None)
    inputs = draw(seed, queries=13).of(mechanism)
    dead = with_operands(inputs, output_gate=inputs.operands["output_gate"][..., 0].contiguous())
    for method in serving(mechanism):
        leaves = dead.leaves()
        out = output(mechanism, leaves, method)
        assert_close(out, output(plain, inputs.of(plain), method), rtol=RTOL, what=method)
        gate, value = gradients(out, (leaves.operands["output_gate"], leaves.value), 1)
        assert float(gate.abs().max()) <= RTOL * float(value.abs().max())
        alive = inputs.leaves()
        (gate,) = gradients(output(mechanism, alive, method), (alive.operands["output_gate"],), 1)
        assert float(gate.abs().max()) > 1e-3


@pytest.mark.parametrize("mechanism", every(lambda each: each.gates.value or each.gates.output is not None))
def test_gates_of_ones_change_nothing(mechanism: Mechanism, seed: int) -> None:
    inputs, plain = draw(seed, queries=13).of(mechanism), without(mechanism, value=False, output=None)
    ones = {
        name: torch.ones_like(each) for name, each in inputs.operands.items() if name in ("value_gate", "output_gate")
    }
    for method in serving(mechanism):
        found = output(mechanism, with_operands(inputs, **ones), method)
        assert_same(found, output(plain, inputs.of(plain), method), what=method)


# ------------------------------------------------------------------------------------------------- cumgate

CUMGATES = every(lambda each: each.normalizer.name == "cumgate")


@pytest.mark.parametrize("mechanism", CUMGATES)
def test_a_learned_denominator_below_one_does_not_divide(mechanism: Mechanism, seed: int) -> None:
    """And its gradient is zero there."""
    inputs = draw(seed, queries=13).of(mechanism)
    plain = replace(mechanism, normalizer=parse("exp/none").normalizer)
    for method in serving(mechanism):
        leaves = with_operands(
            inputs, denominator_logit=torch.full_like(inputs.operands["denominator_logit"], -9.0)
        ).leaves()
        out = output(mechanism, leaves, method)
        assert_close(out, output(plain, inputs.of(plain), method), rtol=RTOL, what=method)
        assert not gradients(out, (leaves.operands["denominator_logit"],), 1)[0].any()


@pytest.mark.parametrize("mechanism", CUMGATES)
def test_a_learned_denominator_sums_what_is_visible(mechanism: Mechanism, seed: int) -> None:
    """As sums written out, one per row; the running maximum keeps exp(90) and exp(500) in float32's reach."""
    inputs = draw(seed, queries=13).of(mechanism)
    plain = replace(mechanism, normalizer=parse("exp/none").normalizer)
    u = inputs.operands["denominator_logit"]
    for method in serving(mechanism):
        numerator = output(plain, inputs.of(plain), method)
        rows = []
        for t in range(13):
            seen = u[:, :, : t + 1]
            if mechanism.gates.decay:
                log_decay = inputs.operands["log_decay"]
                seen = seen + torch.stack([log_decay[:, :, s + 1 : t + 1].sum(-1) for s in range(t + 1)], dim=-1)
            rows.append(seen.exp().sum(-1).clamp(min=1.0))
        divisor = torch.stack(rows, dim=-1).repeat_interleave(2, dim=1)[..., None]
        assert_close(output(mechanism, inputs, method), numerator / divisor, rtol=RTOL, what=method)
        for size in (90.0, 500.0):
            large = with_operands(inputs, denominator_logit=size + u).map(torch.Tensor.float)
            leaves = large.leaves()
            found = output(mechanism, leaves, method)
            assert bool(found.isfinite().all())
            for each in gradients(found, leaves.tensors(), 1):
                assert bool(each.isfinite().all())
            if size < 100.0:
                exact = output(mechanism, with_operands(inputs, denominator_logit=size + u), method)
                # u near 90 is known to 90 * 6e-8 in float32, and so is its exp
                assert_close(found, exact.float(), rtol=5e-5, what=method)


# ------------------------------------------------------------------------------------------------- length


@pytest.mark.parametrize("similarity", ["exp", "taylor:2@mean", "elu1"])
@pytest.mark.parametrize("parts", ["", "+decay", "+window:3:1"])
def test_powers_of_the_length(similarity: str, parts: str, seed: int) -> None:
    """p = 0 is none, p = 1 is length, p = 1/2 between; every head its own."""
    mechanism = parse(f"{similarity}/length:learned{parts}")
    inputs = draw(seed, queries=13).of(mechanism)
    plain, by_length = (replace(mechanism, normalizer=parse(f"exp/{name}").normalizer) for name in ("none", "length"))
    for method in serving(mechanism):
        none, length = (output(each, inputs.of(each), method) for each in (plain, by_length))
        p = torch.tensor([0.0, 1.0, 0.5, 2.0, -1.0, 0.25], dtype=torch.float64)
        found = output(mechanism, with_operands(inputs, length_exponent=p), method)
        ratio = (none.abs() + math.ulp(0.0)) / (length.abs() + math.ulp(0.0))  # the length itself
        expected = none / ratio ** p[:, None, None]
        assert_close(found, expected, rtol=RTOL, what=method)
        assert_close(found[:, 0], none[:, 0], rtol=RTOL)
        assert_close(found[:, 1], length[:, 1], rtol=RTOL)
