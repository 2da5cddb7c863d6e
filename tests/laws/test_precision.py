"""What each dtype promises: the output keeps it, sums and states are float32 or wider, errors stay at its rounding.

Run: pytest tests/laws/test_precision.py -q
"""

from __future__ import annotations

from itertools import product

import pytest
import torch

from laws.cases import Inputs, by, draw, every, members, serving
from laws.checks import KERNELS, RTOL, bound_of, gradients, numbers, state_of, well_conditioned_rows
from laws.compare import assert_close, assert_same, error_ratio
from maclaurin import Mechanism, State, attend
from maclaurin.algebra import parse

#: ||a - b|| / ||b|| against float64 on the same rounded inputs. Rounding the output alone costs 2^-9 / sqrt(3) = 1.1e-3
#: (bfloat16) and 1.4e-4 (float16) of each number on average of the worst octave. Float32 sums cost a few 6e-8; what
#: cancels costs more: 1.5e-6 is the worst found, for power-2 read from moments where q and k are nearly orthogonal.
BOUNDS = {torch.float32: 3e-6, torch.bfloat16: 3e-3, torch.float16: 4e-4, torch.float64: RTOL}
#: Signed sums are of what nearly vanishes: two or three digits are lost on the rows that are kept.
ILL_CONDITIONED = {"power:3/sum:signed": 5e-5, "power:3/layer": 5e-5, "taylor:1/sum:signed+decay": 2e-5}


def sums_of(state: State) -> list[torch.Tensor]:
    """The numbers of a state that carry gradients."""
    return [each for path, each in numbers(state).items() if each.is_floating_point() and "key_reference" not in path]


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("mechanism", every())
def test_dtype_contract(mechanism: Mechanism, dtype: torch.dtype, inputs: Inputs) -> None:
    given = inputs.of(mechanism).map(lambda each: each.to(dtype))
    exact = given.map(torch.Tensor.double)
    state_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    keep = well_conditioned_rows(mechanism, exact, is_causal=True)
    expected, expected_state, _ = attend(mechanism, *exact.qkv, **exact.operands, method="parallel", return_state=True)
    for method in serving(mechanism):
        out, state, _ = attend(mechanism, *given.qkv, **given.operands, **by(method), return_state=True)
        assert out.dtype == dtype
        assert {each.dtype for each in state.tensors()} <= {state_dtype, torch.bool}
        bound = max(BOUNDS[dtype], ILL_CONDITIONED.get(str(mechanism), 0.0) if dtype != torch.float64 else 0.0)
        assert error_ratio(out * keep, expected * keep) <= bound, method
        for one, other in zip(sums_of(state), sums_of(expected_state), strict=True):
            if other.any():  # sums of float32 products: no digit is lost beyond accumulation
                assert error_ratio(one, other) <= 5e-7


@pytest.mark.parametrize("mechanism", every())
def test_outputs_alone_by_every_kernel(mechanism: Mechanism, inputs: Inputs) -> None:
    """Without a state, which is always of wide factors, kernels may multiply narrow ones."""
    given = inputs.of(mechanism).map(torch.Tensor.bfloat16)
    exact = given.map(torch.Tensor.double)
    keep = well_conditioned_rows(mechanism, exact, is_causal=True)
    expected = attend(mechanism, *exact.qkv, **exact.operands, method="parallel").output
    for method, kernel in product(serving(mechanism), KERNELS):
        out = attend(mechanism, *given.qkv, **given.operands, **by(method), kernel=kernel).output
        strict = BOUNDS[torch.bfloat16]
        assert error_ratio(out * keep, expected * keep) <= bound_of(strict, torch.bfloat16, kernel), method


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("mechanism", members())
def test_gradients_keep_the_dtype(mechanism: Mechanism, dtype: torch.dtype, seed: int) -> None:
    inputs = draw(seed, queries=11).of(mechanism)
    for method, kernel in product(serving(mechanism), KERNELS):
        leaves = inputs.map(lambda each: each.to(dtype)).leaves()
        exact = leaves.map(torch.Tensor.double).leaves()
        keep = well_conditioned_rows(mechanism, exact, is_causal=True)
        out = attend(mechanism, *leaves.qkv, **leaves.operands, **by(method), kernel=kernel).output.double() * keep
        found = gradients(out, leaves.tensors(), 1)
        out = attend(mechanism, *exact.qkv, **exact.operands, method="parallel").output * keep
        for one, other in zip(found, gradients(out, exact.tensors(), 1), strict=True):
            assert one.dtype == dtype
            strict = max(2 * BOUNDS[dtype], 1e-4)  # rows near |Z| = 1e-3 sum |w| dominate
            assert error_ratio(one, other) <= bound_of(strict, dtype, kernel, passes=2)


@pytest.mark.parametrize("mechanism", members())
def test_half_precision_continues_a_float32_state(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism).map(torch.Tensor.bfloat16)
    for method in serving(mechanism):
        first, rest = inputs.part(slice(0, 20), slice(0, 20)), inputs.part(slice(20, None), slice(20, None))
        state = attend(mechanism, *first.qkv, **first.operands, **by(method), return_state=True).state
        out = attend(mechanism, *rest.qkv, **rest.operands, **by(method), state=state).output
        for kernel in KERNELS:
            expected = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method), kernel=kernel).output[:, :, 20:]
            # one rounding of bfloat16 either way, 2^-8
            assert error_ratio(out, expected) <= bound_of(8e-3, torch.bfloat16, kernel)


@pytest.mark.parametrize("mechanism", members())
def test_autocast_changes_nothing(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=11, dtype=torch.float32).of(mechanism)
    for method in serving(mechanism):
        expected, expected_state, _ = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method), return_state=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, state, _ = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method), return_state=True)
        assert_same(out, expected)
        for one, other in zip(sums_of(state), sums_of(expected_state), strict=True):
            assert_same(one, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("mechanism", every(lambda each: each.is_finite_state))
def test_bytes_of_a_state_are_those_announced(mechanism: Mechanism, dtype: torch.dtype, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    announced = mechanism.state_size(5, 7) * 2 * 3 * dtype.itemsize
    for keys in (slice(0, 0), slice(0, 1), slice(None)):
        assert state_of(mechanism, inputs.map(lambda each: each.to(dtype)), keys).nbytes == announced


@pytest.mark.parametrize("mechanism", every(lambda each: not each.is_finite_state))
def test_bytes_of_a_cache_are_those_announced(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    for length in (0, 1, 37):
        state = state_of(mechanism, inputs, slice(0, length))
        marks = 2 * length  # one byte per batch row and key says whether it may be seen
        of_heads = mechanism.cache_size(5, 7, length) + (1 if mechanism.normalizer.uses_log_denominator else 0)
        assert state.nbytes == of_heads * 2 * 3 * 8 + marks


# ------------------------------------------------------------------------------------------- key reference

CENTERED = every(lambda each: each.far is not None and each.far.is_centered)


def offset_inputs(seed: int) -> Inputs:
    """Logits of mean -25 and standard deviation 3 at K = 8, scale K ** -0.5."""
    inputs = draw(seed, key_dim=8, value_dim=7)
    q, k, v = inputs.qkv
    direction = torch.nn.functional.normalize(torch.ones(8, dtype=torch.float64), dim=0)
    q = q - (q @ direction)[..., None] * direction + 8.0 * direction
    k = 1.3 * k - (1.3 * k @ direction)[..., None] * direction - 25.0 * 8**0.5 / 8.0 * direction
    q = q * (3.0 / (q @ k.repeat_interleave(2, 1).mT / 8**0.5).std())
    k = k + ((-25.0 - (q @ k.repeat_interleave(2, 1).mT / 8**0.5).mean()) * 8**0.5 / (q @ direction).mean()) * direction
    return Inputs(q, k, v, {})


def empty(mechanism: Mechanism, inputs: Inputs, reference: torch.Tensor | None) -> State:
    return State.empty(
        mechanism,
        batch_size=2,
        num_kv_heads=3,
        key_dim=inputs.key.shape[-1],
        value_dim=7,
        dtype=inputs.key.dtype,
        key_reference=reference,
    )


def test_a_key_reference_keeps_float32_moments_accurate(seed: int) -> None:
    mechanism = parse("taylor:4@mean/sum")
    exact = offset_inputs(seed)
    x = exact.query @ exact.key.repeat_interleave(2, 1).mT / 8**0.5
    assert abs(float(x.mean()) + 25.0) < 0.1
    assert abs(float(x.std()) - 3.0) < 0.3
    rounded = exact.map(torch.Tensor.float)
    expected = attend(mechanism, *rounded.map(torch.Tensor.double).qkv, method="parallel").output
    errors = {}
    for name, reference in (
        ("first key", None),
        ("mean key", rounded.key.mean(2)),
        ("next to none", torch.full((2, 3, 8), 1e-20)),
    ):
        state = empty(mechanism, rounded, reference)
        out = attend(mechanism, *rounded.qkv, method="recurrent", state=state).output
        errors[name] = error_ratio(out, expected)
    # Around the reference, logits reach 10: terms of 10^4 / 4! cancel, three digits of 6e-8. Found: 8e-5 and 4e-5.
    assert errors["first key"] <= 2e-4
    assert errors["mean key"] <= 2e-4
    assert errors["next to none"] >= 5e-3  # moments about zero lose what the rule saves; found 9e-3


@pytest.mark.parametrize("mechanism", CENTERED)
def test_a_key_reference_changes_no_value(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    keep = well_conditioned_rows(mechanism, inputs, is_causal=True)
    expected = attend(mechanism, *inputs.qkv, **inputs.operands, method="parallel").output * keep
    for reference in (inputs.value[:, :, 0, :5], inputs.key.mean(2), torch.zeros(2, 3, 5, dtype=torch.float64)):
        for method in serving(mechanism):
            state = empty(mechanism, inputs, reference)
            out, state, _ = attend(
                mechanism, *inputs.qkv, **inputs.operands, **by(method), state=state, return_state=True
            )
            assert_close(out * keep, expected, rtol=RTOL, what=method)
            is_first_key = not bool(reference.any())
            first = 0 if mechanism.window is None else mechanism.window.sinks  # the first that leaves the window
            kept = mechanism.similarity.map(inputs.key)[:, :, first] if is_first_key else reference
            assert_same(state.key_reference, kept)


@pytest.mark.parametrize("mechanism", CENTERED)
def test_a_key_reference_is_a_constant_for_gradients(mechanism: Mechanism, inputs: Inputs) -> None:
    leaves = inputs.of(mechanism).leaves()
    reference = inputs.value[:, :, 0, :5].clone().requires_grad_()
    for method in serving(mechanism):
        for given in (reference, None):
            state = empty(mechanism, inputs, given)
            out, state, _ = attend(
                mechanism, *leaves.qkv, **leaves.operands, **by(method), state=state, return_state=True
            )
            assert not state.key_reference.requires_grad
            assert not state.rebase(reference).key_reference.requires_grad
            found = torch.autograd.grad(out.sum(), (reference, leaves.value), retain_graph=True, allow_unused=True)
            assert found[0] is None


@pytest.mark.parametrize("mechanism", CENTERED)
def test_the_key_reference_does_not_enter_a_gradient(mechanism: Mechanism, inputs: Inputs) -> None:
    """Moving the reference moves the state's numbers and nothing that is read from them."""
    inputs = inputs.of(mechanism)
    keep = well_conditioned_rows(mechanism, inputs, is_causal=True)
    found = []
    for reference in (None, inputs.value[:, :, 0, :5]):
        leaves = inputs.leaves()
        state = empty(mechanism, inputs, reference)
        out = attend(mechanism, *leaves.qkv, **leaves.operands, method="recurrent", state=state).output
        found.append(gradients(out * keep, leaves.tensors(), 1))
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=RTOL)
