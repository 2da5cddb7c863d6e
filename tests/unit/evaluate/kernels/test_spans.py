"""The spans kernel: what it computes, its gradients, states in and out, what it keeps for backward.

Run: pytest tests/unit/evaluate/kernels/test_spans.py -q
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close
from maclaurin import attend, mechanism
from maclaurin.evaluate.call import Call, Options
from maclaurin.evaluate.finite_state import attend_finite_state, is_served
from maclaurin.evaluate.state import State
from unit.evaluate.kernels.by_definition import (
    RTOL,
    RTOL_32,
    assert_by_definition,
    assert_hidden_rows_may_hold_anything,
    assert_little_is_kept,
    assert_second_gradients,
    gradients,
    leaves,
    operands_of,
    parallel,
    qkv_of,
)

TEXTS = ("elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "power:2/l2", "taylor:3/sum:signed", "elu1/length")
GATED = ("elu1/sum+valuegate", "taylor:2/sum+outgate", "elu1/sum+decay", "taylor:2/sum+decay", "power:2/l2+decay")


class Outcome(NamedTuple):
    """Output ``[B, H, T, V]`` and the state, if asked for."""

    output: Tensor
    state: State | None


def spans(
    text: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    chunk_size: int | None = None,
    mask: Tensor | None = None,
    state: State | None = None,
    return_state: bool = False,
    **operands: Tensor,
) -> Outcome:
    """By this kernel, whatever would be fastest."""
    call = Call.of(mechanism(text), query, key, value, Options(True, None, mask, state, dict(operands)))
    shape = call.shape(return_state=return_state)
    assert is_served(call.mechanism, shape)
    output, after = attend_finite_state(call, shape, chunk_size)
    return Outcome(output.to(query.dtype), after)


def output(text: str, *qkv: Tensor, **keywords: Any) -> Tensor:
    """Of a call without a state."""
    return spans(text, *qkv, **keywords).output


@pytest.mark.parametrize("text", [*TEXTS, *GATED])
@pytest.mark.parametrize("length", [1, 7, 97, 257])
@pytest.mark.parametrize("chunk_size", [None, 16, 64])
def test_equals_the_definition(text: str, length: int, chunk_size: int | None) -> None:
    assert_by_definition(partial(output, chunk_size=chunk_size), text, length)


@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "power:2/l2", "elu1/sum+decay"])
def test_equals_the_definition_in_float32(text: str) -> None:
    assert_by_definition(partial(output, chunk_size=16), text, 257, torch.float32, rtol=RTOL_32)


@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "taylor:2/sum+decay"])
def test_several_spans_of_several_tiles(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call this small is one span of one tile otherwise."""
    monkeypatch.setattr("maclaurin.evaluate.finite_state._NUMBERS", {8: 1 << 12, 4: 1 << 12, 2: 1 << 12})
    assert_by_definition(partial(output, chunk_size=16), text, 257)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("spoiled", [math.nan, 1e30])
def test_hidden_rows_may_hold_anything(text: str, spoiled: float) -> None:
    assert_hidden_rows_may_hold_anything(partial(output, chunk_size=16), text, spoiled)


def test_the_gradient_of_a_gradient() -> None:
    assert_second_gradients(output, "taylor:2/sum")


@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum"])
def test_little_is_kept_for_backward(text: str) -> None:
    assert_little_is_kept(output, text, torch.float32)


def test_the_door_leads_here() -> None:
    """A chunk size leaves no other kernel."""
    inputs = qkv_of(97)
    found = attend("taylor:2/sum", *inputs, method="chunked", chunk_size=16).output
    assert torch.equal(found, spans("taylor:2/sum", *inputs, chunk_size=16).output)


@pytest.mark.parametrize("text", ["elu1/sum+decay", "taylor:2/sum+decay"])
def test_resets(text: str) -> None:
    """At, within and between chunks; what came before is gone from outputs and gradients."""
    length, inputs = 97, leaves(qkv_of(97))
    decay = operands_of(text, length)["log_decay"]
    for reset in (0, 5, 32, 90):
        decay[:, :, reset] = -math.inf
    found = spans(text, *inputs, chunk_size=16, log_decay=decay).output
    assert_close(found, parallel(text, *inputs, log_decay=decay), rtol=RTOL)
    wanted = gradients(parallel(text, *inputs, log_decay=decay), inputs)
    for one, other in zip(gradients(found, inputs), wanted, strict=True):
        assert_close(one, other, rtol=RTOL)
    late = spans(text, *inputs, chunk_size=16, log_decay=decay).output[:, :, 90:].sum()
    assert float(torch.autograd.grad(late, inputs[2])[0][:, :, :90].abs().max()) == 0.0


@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "power:2/l2", "elu1/sum+decay"])
def test_a_state_carries_on(text: str) -> None:
    """Two calls are one of the definition, gradients through the state included, and so is the last state."""
    length, cut = 97, 40
    operands = operands_of(text, length)
    given, exact = leaves(qkv_of(length)), leaves(qkv_of(length))
    early = {name: each[:, :, :cut] for name, each in operands.items()}
    late = {name: each[:, :, cut:] for name, each in operands.items()}
    first = spans(text, *(each[:, :, :cut] for each in given), chunk_size=16, return_state=True, **early)
    second = spans(
        text, *(each[:, :, cut:] for each in given), chunk_size=16, state=first.state, return_state=True, **late
    )
    wanted = attend(text, *exact, method="parallel", kernel="torch", return_state=True, **operands)
    whole = torch.cat([first.output, second.output], dim=2)
    assert_close(whole, wanted.output, rtol=RTOL)
    for one, other in zip(gradients(whole, given), gradients(wanted.output, exact), strict=True):
        assert_close(one, other, rtol=RTOL)
    assert second.state is not None and wanted.state is not None
    one_token = [each[:, :, :1] for each in qkv_of(1)]
    more = operands_of(text, 1)
    after, expected = (parallel(text, *one_token, state=each, **more) for each in (second.state, wanted.state))
    assert_close(after, expected, rtol=RTOL)
    for one, other in zip(gradients(after, given[1:]), gradients(expected, exact[1:]), strict=True):
        assert_close(one, other, rtol=RTOL)


def test_gradients_of_the_state_alone() -> None:
    grads = []
    for run in (spans, partial(attend, method="parallel", kernel="torch")):
        inputs = leaves(qkv_of(97))
        found = run("taylor:2/sum", *inputs, return_state=True).state
        assert found is not None and found.moments is not None
        total = sum(each.square().sum() for each in found.moments.numerators)
        assert isinstance(total, Tensor)
        grads.append(torch.autograd.grad(total, inputs[1:]))
    for one, other in zip(*grads, strict=True):
        assert_close(one, other, rtol=RTOL)
