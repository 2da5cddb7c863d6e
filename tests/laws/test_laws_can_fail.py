"""A law that nothing can break says nothing: merges, and more, are made wrong here, and the laws must notice.

Run: pytest tests/laws/test_laws_can_fail.py -q
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from laws.cases import Inputs, by, directions, members, serving
from laws.checks import RTOL, check_accumulators_merge, check_plans_agree, check_states_merge, pieces, whole
from laws.compare import assert_close
from laws.oracle import oracle
from maclaurin import Accumulator, Mechanism, State, attend
from maclaurin.algebra import mechanism
from maclaurin.evaluate.moments import Moments

CUTS = (11, 24)
SPLIT = ["parallel", "recurrent", "parallel"]


def keep_left(self: Accumulator, other: Accumulator) -> Accumulator:
    return self


def forget_the_gauge(self: Accumulator, other: Accumulator) -> Accumulator:
    """Adds sums of different log scales as if they were of one."""
    return Accumulator(
        self.numerator + other.numerator,
        self.denominator + other.denominator,
        self.count + other.count,
        torch.maximum(self.log_scale, other.log_scale),
    )


def swap_the_gauges(self: Accumulator, other: Accumulator) -> Accumulator:
    """Right numbers, wrong announcement of their scale."""
    merged = ORIGINAL(self, other)
    return replace(merged, log_scale=torch.minimum(self.log_scale, other.log_scale))


def forget_the_count(self: Accumulator, other: Accumulator) -> Accumulator:
    return replace(ORIGINAL(self, other), count=self.count)


ORIGINAL = Accumulator.merge
BROKEN = [keep_left, forget_the_gauge, swap_the_gauges, forget_the_count]


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("name", ["softmax", "taylor-2", "taylor-4-centered"])
def test_a_wrong_merge_of_accumulators_breaks_its_own_law(
    name: str, broken: Callable[..., Accumulator], inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs.of(mechanism(name))
    check_accumulators_merge(mechanism(name), given, CUTS)
    monkeypatch.setattr(Accumulator, "merge", broken)
    with pytest.raises(AssertionError):
        check_accumulators_merge(mechanism(name), given, CUTS)


@pytest.mark.parametrize("mechanism", members(lambda each: each.window is not None and each.far is not None))
def test_a_wrong_merge_of_accumulators_breaks_windows(
    mechanism: Mechanism, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every method merges what is inside with what is beyond, so it is the loops that notice."""
    given = inputs.of(mechanism)
    expected = oracle(mechanism, given, is_causal=True)
    for broken in BROKEN[:2]:
        monkeypatch.setattr(Accumulator, "merge", broken)
        for method in serving(mechanism):
            out = attend(mechanism, *given.qkv, **given.operands, **by(method)).output
            with pytest.raises(AssertionError):
                assert_close(out, expected, rtol=RTOL)


@pytest.mark.parametrize("mechanism", members(lambda each: each.window is None))
def test_a_wrong_merge_of_accumulators_breaks_the_splits(
    mechanism: Mechanism, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments and what stands before a chunk are merged with new pairs; a cache is one block with them."""
    given = inputs.of(mechanism)
    plan = pieces(SPLIT, CUTS, is_causal=True) if mechanism.far is not None else whole("chunked")
    check_plans_agree(mechanism, given, whole("parallel"), plan, is_causal=True)
    monkeypatch.setattr(Accumulator, "merge", keep_left)
    with pytest.raises(AssertionError):
        check_plans_agree(mechanism, given, whole("parallel"), plan, is_causal=True)


@pytest.mark.parametrize("mechanism", members())
def test_a_wrong_merge_of_states_breaks_everything(
    mechanism: Mechanism, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs.of(mechanism)
    original = State._followed

    def keep_the_first_nonempty(self: State, *later: object, **options: object) -> State:
        return original(self, *later, **options) if not bool(self.count.any()) else self

    monkeypatch.setattr(State, "_followed", keep_the_first_nonempty)
    with pytest.raises(AssertionError):
        check_states_merge(mechanism, given, CUTS, own_references=True)
    with pytest.raises(AssertionError):
        check_plans_agree(mechanism, given, whole("parallel"), whole("recurrent"), is_causal=True)
    is_causal = len(directions(mechanism)) == 1
    with pytest.raises(AssertionError):
        check_plans_agree(
            mechanism, given, whole("recurrent"), pieces(SPLIT, CUTS, is_causal=is_causal), is_causal=is_causal
        )


@pytest.mark.parametrize("name", ["taylor-2-centered", "taylor-4-centered"])
def test_merging_states_about_different_references_without_rebasing_is_noticed(
    name: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = inputs.of(mechanism(name))
    check_states_merge(mechanism(name), given, CUTS, own_references=True)
    monkeypatch.setattr(Moments, "rebase", lambda self, reference: replace(self, key_reference=reference))
    with pytest.raises(AssertionError):
        check_states_merge(mechanism(name), given, CUTS, own_references=True)


@pytest.mark.parametrize("name", ["softmax", "exp-length", "taylor-2-centered", "power-2"])
def test_a_severed_gradient_is_noticed(name: str, inputs: Inputs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right values, wrong gradient: what was carried in is detached."""
    given = inputs.of(mechanism(name))
    plan = pieces(SPLIT, CUTS, is_causal=True) if mechanism(name).far is not None else whole("chunked")
    monkeypatch.setattr(Accumulator, "merge", lambda self, other: ORIGINAL(detached(self), other))
    with pytest.raises(AssertionError, match="gradient"):
        check_plans_agree(mechanism(name), given, whole("recurrent"), plan, is_causal=True)


def detached(accumulator: Accumulator) -> Accumulator:
    total = accumulator.denominator
    return replace(
        accumulator,
        numerator=accumulator.numerator.detach(),
        denominator=None if total is None else total.detach(),
    )
