"""A state as a value: reorder, merge with decay, rebase, detach, padded caches, and its size in bytes.

Run: pytest tests/unit/evaluate/test_state_methods.py -q
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from laws.cases import Inputs, draw, members, named
from laws.checks import assert_states_close, gradients, numbers
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, State, attend
from maclaurin.algebra import parse
from maclaurin.errors import StateError
from maclaurin.evaluate.cache import Cache, CacheBuffer, Slots, SlotsBuffer

RTOL = 1e-12  # float64 sums over two dozen keys, in another order
TEXTS = (
    "exp/l2+valuegate+decay+outgate:after",
    "taylor:2@mean/sum+window:4:2",
    "taylor:2@mean/sum+decay",
    "elu1/sum+decay+window:5",
    "power:2/sum+decay",
    "power:3/l2+decay",
    "exp/sum+window:8:2",
    "exp/cumgate+decay",
    "elu1>taylor:2/cumgate+decay+window:3:1",
    "exp/cumgate+window:3",
    "taylor:2/sum",
    "exp/sum",
)  # fmt: skip
CASES = named((text, parse(text)) for text in TEXTS)


def inputs_of(mechanism: Mechanism, seed: int = 5, tokens: int = 23) -> Inputs:
    return draw(seed, batch=3, heads=4, kv_heads=2, queries=tokens, key_dim=3, value_dim=5).of(mechanism)


def state_of(mechanism: Mechanism, inputs: Inputs, state: State | None = None) -> State:
    found = attend(mechanism, *inputs.qkv, **inputs.operands, state=state, return_state=True).state
    assert found is not None
    return found


def empty(mechanism: Mechanism) -> State:
    return State.empty(mechanism, batch_size=3, num_kv_heads=2, key_dim=3, value_dim=5, dtype=torch.float64)


def total_decay(inputs: Inputs) -> Tensor | None:
    return inputs.operands["log_decay"].sum(-1) if "log_decay" in inputs.operands else None


# ------------------------------------------------------------------------------------------------- merge


@pytest.mark.parametrize("mechanism", CASES)
@pytest.mark.parametrize("cut", [0, 1, 9, 22, 23])
def test_a_state_merged_with_a_later_one_is_the_state_of_both(mechanism: Mechanism, cut: int) -> None:
    whole = inputs_of(mechanism)
    first, second = whole.part(*[slice(0, cut)] * 2), whole.part(*[slice(cut, None)] * 2)
    merged = state_of(mechanism, first).merge(state_of(mechanism, second), total_decay(second))
    expected = state_of(mechanism, whole)
    if merged.key_reference is not None:  # of the later state's own first key where the earlier one saw none
        merged, expected = (each.rebase(torch.zeros_like(each.key_reference)) for each in (merged, expected))
    # a window too: the later state's sinks are the whole's where the earlier one had too few, and leave otherwise
    assert_states_close(merged, expected, rtol=RTOL)
    assert_close(merged.count, expected.count, rtol=RTOL)


@pytest.mark.parametrize("text", ["power:2/sum+decay", "exp/cumgate+decay", "taylor:2/sum", "exp/sum"])
def test_gradients_flow_through_a_merge_and_its_decay(text: str) -> None:
    mechanism = parse(text)
    leaves = inputs_of(mechanism).without_reset().leaves()
    first, second = leaves.part(*[slice(0, 9)] * 2), leaves.part(*[slice(9, None)] * 2)
    merged = state_of(mechanism, first).merge(state_of(mechanism, second), total_decay(second))
    whole = state_of(mechanism, leaves)
    carry = [[each for path, each in numbers(state).items() if each.requires_grad] for state in (merged, whole)]
    pairs = zip(*(gradients(each, leaves.tensors(), seed=3) for each in carry), strict=True)
    for one, other in pairs:
        assert_close(one, other, rtol=RTOL)


@pytest.mark.parametrize("text", ["power:2/sum", "exp/sum", "taylor:2/sum+window:2", "exp/cumgate"])
def test_a_decay_is_needed_exactly_with_decay(text: str) -> None:
    plain, decaying = empty(parse(text)), empty(parse(f"{text}+decay" if "+" not in text else "exp/sum+decay"))
    decay = torch.zeros(3, 2, dtype=torch.float64)
    with pytest.raises(StateError, match=re.escape(f"merge: {text} has no decay and takes no log_decay")):
        plain.merge(plain, decay)
    with pytest.raises(StateError, match=r"\+decay needs log_decay, the sum of the log decays over the later state"):
        decaying.merge(decaying)


def test_a_reset_in_the_later_part_forgets_the_earlier_state() -> None:
    mechanism = parse("power:2/sum+decay")
    inputs = inputs_of(mechanism)
    gone = torch.full((3, 2), -torch.inf, dtype=torch.float64)
    later = state_of(mechanism, inputs)
    assert_states_close(state_of(mechanism, inputs_of(mechanism, seed=1)).merge(later, gone), later, rtol=0.0)


# ------------------------------------------------------------------------------------------------- reorder


@pytest.mark.parametrize("mechanism", CASES)
def test_reorder_chooses_rows(mechanism: Mechanism) -> None:
    """Beam search: rows swap, one is repeated, and each goes on by itself."""
    inputs = inputs_of(mechanism)
    first, second = inputs.part(*[slice(0, 12)] * 2), inputs.part(*[slice(12, None)] * 2)
    state = state_of(mechanism, first)
    rows = torch.tensor([2, 0, 2, 1])
    chosen = second.along(*[lambda each: each[rows]] * 2)
    found = attend(mechanism, *chosen.qkv, **chosen.operands, state=state.reorder(rows)).output
    expected = attend(mechanism, *second.qkv, **second.operands, state=state).output
    assert_close(found, expected[rows], rtol=RTOL)
    assert state.reorder([1]).layout == (1, *state.layout[1:])
    for one, other in zip(state.reorder([0, 1, 2]).tensors(), state.tensors(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    "indices", [[3], [-1], [0, 5], [[0, 1]], 1, [0.0, 1.0], [True, False, True], torch.tensor([0, 7]), []], ids=str
)
def test_rows_that_do_not_exist(indices: object) -> None:
    with pytest.raises(StateError, match=r"reorder: .* is no list of batch rows\.\n  Give whole numbers from 0 to 2"):
        empty(parse("taylor:2/sum")).reorder(indices)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- rebase


@pytest.mark.parametrize("text", ["taylor:2@mean/sum", "taylor:4@mean/sum+decay", "taylor:2@mean/sum+window:4:2"])
def test_rebasing_changes_no_answer_and_comes_back(text: str) -> None:
    mechanism = parse(text)
    inputs = inputs_of(mechanism)
    first, second = inputs.part(*[slice(0, 12)] * 2), inputs.part(*[slice(12, None)] * 2)
    state = state_of(mechanism, first)
    assert state.key_reference is not None
    other = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    moved = state.rebase(other)
    assert_same(moved.key_reference, other)
    assert moved.moments is not None and state.moments is not None
    assert not torch.equal(moved.moments.numerators[1], state.moments.numerators[1])
    outputs = [attend(mechanism, *second.qkv, **second.operands, state=each).output for each in (moved, state)]
    assert_close(*outputs, rtol=1e-11)  # shifts of order 4 add and take away terms ten times the sum's size
    assert_states_close(moved.rebase(state.key_reference), state, rtol=1e-11)


# ------------------------------------------------------------------------------------------------- detach


@pytest.mark.parametrize("mechanism", CASES)
def test_detach_cuts_every_gradient_and_changes_no_number(mechanism: Mechanism) -> None:
    state = state_of(mechanism, inputs_of(mechanism).leaves())
    assert any(each.requires_grad for each in state.tensors())
    cut = state.detach()
    assert not any(each.requires_grad for each in cut.tensors())
    for one, other in zip(cut.tensors(), state.tensors(), strict=True):
        assert torch.equal(one, other)


# ------------------------------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("mechanism", [*CASES, *members()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bytes_are_the_state_size_for_every_batch_head_and_item(mechanism: Mechanism, dtype: torch.dtype) -> None:
    inputs = draw(1, batch=3, heads=4, kv_heads=2, queries=23, key_dim=3, value_dim=5, dtype=dtype).of(mechanism)
    state = attend(mechanism, *inputs.qkv, **inputs.operands, return_state=True).state
    assert state is not None
    if mechanism.is_finite_state:
        assert state.nbytes == mechanism.state_size(3, 5) * 3 * 2 * dtype.itemsize
        assert empty(mechanism).nbytes == mechanism.state_size(3, 5) * 3 * 2 * 8
    else:
        logs = 1 if state.log_denominator is not None else 0
        masks = 3 * 23
        assert state.nbytes == (mechanism.cache_size(3, 5, 23) + logs) * 3 * 2 * dtype.itemsize + masks


# ------------------------------------------------------------------------------------------------- caches


def test_a_padded_cache_answers_as_before() -> None:
    mechanism = parse("exp/sum+decay")
    inputs = inputs_of(mechanism)
    first, second = inputs.part(*[slice(0, 12)] * 2), inputs.part(*[slice(12, None)] * 2)
    state = state_of(mechanism, first)
    assert isinstance(state.cache, Cache)
    padded = State(mechanism, state.cache.padded(20), None, None)
    assert padded.cache is not None
    assert (state.cache.num_entries, padded.cache.num_entries) == (12, 20)
    assert not padded.cache.entries.visible[:, :8].any()
    outputs = [attend(mechanism, *second.qkv, **second.operands, state=each).output for each in (padded, state)]
    assert_close(*outputs, rtol=RTOL)


def entry_of(value: float, cache: Cache) -> Cache:
    one = cache.entries.map_tensors(lambda each: each.narrow(-1 if each.ndim == 2 else 2, 0, 1).clone())
    return Cache(
        torch.full_like(one.key, value),
        torch.full_like(one.value, value),
        torch.ones_like(one.visible),
        None if one.log_weight is None else torch.zeros_like(one.log_weight),
    )


@pytest.mark.parametrize("seen", range(9))
@pytest.mark.parametrize("text", ["exp/sum+decay+window:3:2", "exp/sum+window:1", "exp/sum+window:3", "exp/sum"])
def test_a_buffer_takes_keys_as_its_cache_does(text: str, seen: int) -> None:
    """From every filling, each row its own, a dozen keys go in; what leaves is the same too."""
    mechanism = parse(text)
    inputs = inputs_of(mechanism, tokens=8)
    mask = torch.arange(8) < torch.tensor([seen, max(seen - 3, 0), 8])[:, None]
    start = attend(mechanism, *inputs.qkv, **inputs.operands, mask=mask, return_state=True).state
    assert start is not None and start.cache is not None
    cache: Cache | Slots = start.cache
    buffer: CacheBuffer | SlotsBuffer = cache.buffer()
    decay = torch.full((3, 2), -0.5, dtype=torch.float64) if mechanism.gates.decay else None
    for t in range(12):
        entry = entry_of(float(t), cache.entries if cache.num_entries else entry_of(0.0, cache))
        gone = buffer.push(entry, decay)
        cache, whole, left = cache.take(entry, decay)
        for path, each in buffer.freeze().named_tensors().items():
            assert torch.equal(each, cache.named_tensors()[path]), (t, path)
        if left is None:
            assert gone is None
            continue
        assert gone is not None
        assert torch.equal(gone.visible.any(1), left.any(1))
        for row in range(3):
            assert torch.equal(gone.key[row][:, gone.visible[row]], whole.key[row][:, left[row]])
            assert torch.equal(gone.value[row][:, gone.visible[row]], whole.value[row][:, left[row]])
            if gone.log_weight is not None and whole.log_weight is not None:
                assert torch.equal(gone.log_weight[row][:, gone.visible[row]], whole.log_weight[row][:, left[row]])
