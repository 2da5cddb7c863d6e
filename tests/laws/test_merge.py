"""Merging is associative, commutative, has an identity, and bracketing never matters.

Run: pytest tests/laws/test_merge.py -q
"""

from __future__ import annotations

import pytest
import torch

from laws.cases import Inputs, every, members
from laws.checks import RTOL, check_accumulators_merge, check_states_merge, state_of
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


@pytest.mark.parametrize("mechanism", members(lambda each: each.is_finite_state))
def test_moments_merge_commutatively_bit_for_bit_under_one_reference(mechanism: Mechanism, inputs: Inputs) -> None:
    reference = inputs.key[:, :, 3] if mechanism.similarity.is_centered else None
    a, b = (state_of(mechanism, inputs, each, reference=reference) for each in (slice(0, 9), slice(9, None)))
    for one, other in zip(a.merge(b).tensors(), b.merge(a).tensors(), strict=True):
        assert_same(one, other)


@pytest.mark.parametrize("mechanism", members(lambda each: each.is_finite_state and each.similarity.is_centered))
def test_rebasing_there_and_back_is_the_identity(mechanism: Mechanism, inputs: Inputs) -> None:
    state = state_of(mechanism, inputs, slice(None))
    about_another_key = state.rebase(inputs.key[:, :, 5])
    assert not torch.equal(about_another_key.numerators[-1], state.numerators[-1])
    for one, other in zip(about_another_key.rebase(state.key_reference).tensors(), state.tensors(), strict=True):
        assert_close(one, other, rtol=RTOL)
    directly = state_of(mechanism, inputs, slice(None), reference=inputs.key[:, :, 5])
    for one, other in zip(about_another_key.tensors(), directly.tensors(), strict=True):
        assert_close(one, other, rtol=RTOL)


@pytest.mark.parametrize("mechanism", members())
def test_a_state_counts_the_keys_it_has_seen(mechanism: Mechanism, inputs: Inputs) -> None:
    assert torch.equal(state_of(mechanism, inputs, slice(5, 16)).count, torch.full((2, 3), 11.0, dtype=torch.float64))
