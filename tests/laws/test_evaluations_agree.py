"""Every evaluation is a bracketing of one sum: outputs, states and gradients are equal.

T = 37 in float64; tolerances with their reason in ``checks.RTOL``. Run: pytest tests/laws/test_evaluations_agree.py -q
"""

from __future__ import annotations

import random

import pytest
import torch

from laws.cases import Inputs, draw, every, in_directions, members, serving
from laws.checks import RTOL, Piece, check_plans_agree, evaluate, pieces, state_of, whole
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, attend


def others(mechanism: Mechanism) -> list[list[Piece]]:
    """Every way to do it all at once but the reference's."""
    return [whole(each) for each in serving(mechanism) if each != "parallel"]


def cuts(seed: int, length: int = 37) -> tuple[int, int]:
    """Two random places to split at, 0 < a < b < length."""
    first, second = sorted(random.Random(seed).sample(range(1, length), 2))
    return first, second


def test_the_catalogue_has_a_recurrent_and_a_chunked_form_throughout() -> None:
    for each in members():
        assert {"parallel", "recurrent", "chunked"} <= {*serving(each.values[0])}


@pytest.mark.parametrize(("mechanism", "is_causal"), in_directions(every()))
def test_every_method_equals_parallel(mechanism: Mechanism, is_causal: bool, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    check_plans_agree(mechanism, inputs, whole("parallel"), *others(mechanism), is_causal=is_causal)


@pytest.mark.parametrize("methods", ["parallel recurrent chunked", "chunked parallel recurrent"])
@pytest.mark.parametrize(("mechanism", "is_causal"), in_directions(members()))
def test_any_split_by_any_methods_equals_the_whole(
    mechanism: Mechanism, is_causal: bool, methods: str, inputs: Inputs
) -> None:
    plans = [pieces(methods.split(), cuts(seed), is_causal=is_causal) for seed in (1, 2)]
    check_plans_agree(mechanism, inputs.of(mechanism), whole("parallel"), *plans, is_causal=is_causal)


@pytest.mark.parametrize(("mechanism", "is_causal"), in_directions(every()))
def test_gradients_flow_into_a_carried_state_alike(mechanism: Mechanism, is_causal: bool, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    split = 23  # more keys than all but one window holds: moments of no key have no derivative
    carried = state_of(mechanism, inputs, slice(0, split))
    rest = inputs.part(slice(split, None), slice(split, None))
    check_plans_agree(mechanism, rest, whole("parallel"), *others(mechanism), is_causal=is_causal, state=carried)


@pytest.mark.parametrize("mechanism", members())
def test_decoding_one_token_at_a_time_equals_the_whole(mechanism: Mechanism, seed: int) -> None:
    """``auto`` answers one query on a state token by token; only the state is handed on."""
    inputs = draw(seed, queries=11).of(mechanism)
    expected = attend(mechanism, *inputs.qkv, **inputs.operands, method="parallel").output
    runs = []
    for _ in range(2):
        state, outputs = None, []
        for t in range(11):
            token = inputs.part(slice(t, t + 1), slice(t, t + 1))
            out, state, _ = attend(mechanism, *token.qkv, **token.operands, state=state, return_state=True)
            outputs.append(out)
        runs.append(torch.cat(outputs, dim=2))
    assert_close(runs[0], expected, rtol=RTOL)
    assert_same(runs[0], runs[1])


@pytest.mark.parametrize("mechanism", members())
def test_a_call_changes_none_of_its_inputs(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    state = state_of(mechanism, inputs, slice(0, 9))
    given = [*inputs.tensors(), *state.tensors()]
    copies = [each.clone() for each in given]
    for method in serving(mechanism):
        evaluate(mechanism, inputs, whole(method), is_causal=True, state=state)
    for each, copy in zip(given, copies, strict=True):
        assert torch.equal(each, copy)


@pytest.mark.parametrize("mechanism", every())
def test_time_and_heads_are_not_confused_where_their_sizes_agree(mechanism: Mechanism) -> None:
    """Ungrouped heads besides."""
    inputs = draw(3, heads=5, kv_heads=5, queries=5, key_dim=5, value_dim=5).of(mechanism)
    check_plans_agree(mechanism, inputs, whole("parallel"), *others(mechanism), is_causal=True)
