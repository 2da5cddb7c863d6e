"""Merging is associative, commutative, has an identity, and bracketing never matters.

Run: pytest tests/laws/test_merge.py -q
"""

from __future__ import annotations

import pytest
import torch

from laws.cases import Inputs, directions, every, members
from laws.checks import assert_states_close, check_accumulators_merge, check_states_merge, state_of
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism

CUTS = [(11, 24), (1, 36), (18, 18)]


@pytest.mark.parametrize("cuts", CUTS, ids=str)
@pytest.mark.parametrize("mechanism", every())
def test_accumulators(mechanism: Mechanism, cuts: tuple[int, int], inputs: Inputs) -> None:
    check_accumulators_merge(mechanism, inputs.of(mechanism), cuts)


@pytest.mark.parametrize("own_references", [True, False], ids=["own reference", "one reference"])
@pytest.mark.parametrize("mechanism", every())
def test_states(mechanism: Mechanism, own_references: bool, inputs: Inputs) -> None:
    for cuts in CUTS:
        check_states_merge(mechanism, inputs.of(mechanism), cuts, own_references=own_references)


@pytest.mark.parametrize("mechanism", members(lambda each: each.is_finite_state and len(directions(each)) == 2))
def test_moments_merge_commutatively_bit_for_bit_under_one_reference(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    reference = inputs.key[:, :, 3] if mechanism.similarity.is_centered else None
    a, b = (state_of(mechanism, inputs, each, reference=reference) for each in (slice(0, 9), slice(9, None)))
    for one, other in zip(a.merge(b).tensors(), b.merge(a).tensors(), strict=True):
        assert_same(one, other)


def has_moving_reference(mechanism: Mechanism) -> bool:
    """Whether the numbers of the state depend on its key reference: moments of order 0 do not."""
    return mechanism.far is not None and mechanism.far.is_centered and max(mechanism.moment_orders) > 0


@pytest.mark.parametrize("mechanism", every(has_moving_reference))
def test_rebasing_there_and_back_is_the_identity(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    state = state_of(mechanism, inputs, slice(None))
    about_another_key = state.rebase(inputs.key[:, :, 5])
    assert not torch.equal(about_another_key.moments.numerators[-1], state.moments.numerators[-1])
    assert_states_close(about_another_key.rebase(state.key_reference), state)
    directly = state_of(mechanism, inputs, slice(None), reference=inputs.key[:, :, 5])
    assert_states_close(about_another_key, directly)


@pytest.mark.parametrize("mechanism", every())
def test_a_state_counts_the_keys_it_has_seen(mechanism: Mechanism, inputs: Inputs) -> None:
    """Each as far as it has not decayed, and without a finite state for what left a window only those inside."""
    kept = torch.ones(2, 3, 11, dtype=torch.float64)
    if mechanism.gates.decay:
        later = inputs.operands["log_decay"][:, :, 5:16]
        kept = torch.stack([later[..., s + 1 :].sum(-1).exp() for s in range(11)], dim=-1)
    if mechanism.window is not None and mechanism.far is None:
        width, sinks = mechanism.window.width, mechanism.window.sinks
        kept = kept[..., [s < sinks or s >= 11 - width for s in range(11)]]
    assert_close(state_of(mechanism, inputs.of(mechanism), slice(5, 16)).count, kept.sum(-1), rtol=1e-14)
