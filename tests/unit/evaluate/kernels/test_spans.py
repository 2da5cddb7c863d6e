"""The spans kernel: what it computes, its gradients, states in and out, what it keeps for backward.

Run: pytest tests/unit/evaluate/kernels/test_spans.py -q
"""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close
from maclaurin import attend, mechanism
from maclaurin.evaluate.call import Call, Options
from maclaurin.evaluate.finite_state import attend_finite_state, is_served
from maclaurin.evaluate.state import State

TEXTS = ("elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "power:2/l2", "taylor:3/sum:signed", "elu1/length")
GATED = ("elu1/sum+valuegate", "taylor:2/sum+outgate", "elu1/sum+decay", "taylor:2/sum+decay", "power:2/l2+decay")
RTOL = 1e-10  # float64: rounding errors of a few hundred terms, and of quotients of them
RTOL_32 = 1e-4  # float32: a few hundred terms of 6e-8 each, gradients through quotients


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


def parallel(text: str, *qkv: Tensor, **keywords: Tensor | State | bool | None) -> Outcome:
    """By definition."""
    found = attend(text, *qkv, method="parallel", kernel="torch", **keywords)
    return Outcome(found.output, found.state)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv_of(length: int) -> list[Tensor]:
    """Two rows, four query heads over two key/value heads, keys of 5 and values of 3 numbers."""
    return [draw(2, 4, length, 5), draw(2, 2, length, 5, seed=1), draw(2, 2, length, 3, seed=2)]


def operands_of(text: str, length: int) -> dict[str, Tensor]:
    found = {}
    if "valuegate" in text:
        found["value_gate"] = draw(2, 2, length, seed=3)
    if "outgate" in text:
        found["output_gate"] = draw(2, 4, length, seed=4)
    if "decay" in text:
        found["log_decay"] = -draw(2, 2, length, seed=5).abs() / 4
    return found


def leaves(tensors: list[Tensor]) -> list[Tensor]:
    return [each.detach().clone().requires_grad_() for each in tensors]


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """Of a fixed mixture of the outputs."""
    cotangent = draw(*output.shape, seed=9)
    return list(torch.autograd.grad((output.double() * cotangent).sum(), inputs, retain_graph=True))


def check(text: str, length: int, chunk_size: int | None, dtype: torch.dtype, rtol: float) -> None:
    """Output and every gradient against the definition in float64, of the same numbers."""
    operands = operands_of(text, length)
    given = leaves([each.to(dtype) for each in [*qkv_of(length), *operands.values()]])
    exact = leaves([each.double() for each in given])
    found = spans(text, *given[:3], chunk_size=chunk_size, **dict(zip(operands, given[3:], strict=True))).output
    wanted = parallel(text, *exact[:3], **dict(zip(operands, exact[3:], strict=True))).output
    assert found.dtype == dtype
    assert_close(found, wanted, rtol=rtol, what="output")
    names = ["query", "key", "value", *operands]
    for name, one, other in zip(names, gradients(found, given), gradients(wanted, exact), strict=True):
        if float(other.abs().max()) < rtol:  # none but rounding, as the query's of one key alone
            assert float(one.abs().max()) < rtol, name
        else:
            assert_close(one, other, rtol=rtol, what=name)


@pytest.mark.parametrize("text", [*TEXTS, *GATED])
@pytest.mark.parametrize("length", [1, 7, 97, 257])
@pytest.mark.parametrize("chunk_size", [None, 16, 64])
def test_equals_the_definition(text: str, length: int, chunk_size: int | None) -> None:
    check(text, length, chunk_size, torch.float64, RTOL)


@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "power:2/l2", "elu1/sum+decay"])
def test_equals_the_definition_in_float32(text: str) -> None:
    check(text, 257, 16, torch.float32, RTOL_32)


def test_several_spans_of_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call this small is one span of one tile otherwise."""
    monkeypatch.setattr("maclaurin.evaluate.finite_state._NUMBERS", {8: 1 << 12, 4: 1 << 12, 2: 1 << 12})
    for text in ("elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "taylor:2/sum+decay"):
        check(text, 257, 16, torch.float64, RTOL)


def test_the_door_leads_here() -> None:
    """A chunk size leaves no other kernel."""
    inputs = qkv_of(97)
    found = attend("taylor:2/sum", *inputs, method="chunked", chunk_size=16).output
    assert torch.equal(found, spans("taylor:2/sum", *inputs, chunk_size=16).output)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("spoiled", [math.nan, 1e30])
def test_hidden_rows_may_hold_anything(text: str, spoiled: float) -> None:
    length = 97
    mask = torch.rand(2, length, generator=torch.Generator().manual_seed(6)) < 0.6
    mask[0, :5] = False  # queries that see no key
    rows, plain = mask[:, None, :, None], leaves(qkv_of(length))
    given = leaves([plain[0], *(each.masked_fill(~rows, spoiled) for each in plain[1:])])
    found = spans(text, *given, chunk_size=16, mask=mask).output
    wanted = parallel(text, *plain, mask=mask).output
    assert_close(found, wanted, rtol=RTOL)
    for one, other in zip(gradients(found, given), gradients(wanted, plain), strict=True):
        assert_close(one, other, rtol=RTOL)
    for each in gradients(found, given)[1:]:
        assert float(each.masked_fill(rows, 0.0).abs().max()) == 0.0
    assert float(found.detach()[0, :, :5].abs().max()) == 0.0


@pytest.mark.parametrize("text", ["elu1/sum+decay", "taylor:2/sum+decay"])
def test_resets(text: str) -> None:
    """At, within and between chunks; what came before is gone from outputs and gradients."""
    length, inputs = 97, leaves(qkv_of(97))
    decay = operands_of(text, length)["log_decay"]
    for reset in (0, 5, 32, 90):
        decay[:, :, reset] = -math.inf
    found = spans(text, *inputs, chunk_size=16, log_decay=decay).output
    assert_close(found, parallel(text, *inputs, log_decay=decay).output, rtol=RTOL)
    wanted = gradients(parallel(text, *inputs, log_decay=decay).output, inputs)
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
    wanted = parallel(text, *exact, return_state=True, **operands)
    output = torch.cat([first.output, second.output], dim=2)
    assert_close(output, wanted.output, rtol=RTOL)
    for one, other in zip(gradients(output, given), gradients(wanted.output, exact), strict=True):
        assert_close(one, other, rtol=RTOL)
    assert second.state is not None and wanted.state is not None
    one_token = [each[:, :, :1] for each in qkv_of(1)]
    more = operands_of(text, 1)
    after, expected = (parallel(text, *one_token, state=each, **more).output for each in (second.state, wanted.state))
    assert_close(after, expected, rtol=RTOL)
    for one, other in zip(gradients(after, given[1:]), gradients(expected, exact[1:]), strict=True):
        assert_close(one, other, rtol=RTOL)


def test_gradients_of_the_state_alone() -> None:
    grads = []
    for run in (spans, parallel):
        inputs = leaves(qkv_of(97))
        found = run("taylor:2/sum", *inputs, return_state=True).state
        assert found is not None and found.moments is not None
        total = sum(each.square().sum() for each in found.moments.numerators)
        assert isinstance(total, Tensor)
        grads.append(torch.autograd.grad(total, inputs[1:]))
    for one, other in zip(*grads, strict=True):
        assert_close(one, other, rtol=RTOL)


def test_the_gradient_of_a_gradient() -> None:
    seconds = []
    for run in (spans, parallel):
        inputs = leaves(qkv_of(23))
        first = torch.autograd.grad(run("taylor:2/sum", *inputs).output.pow(3).sum(), inputs, create_graph=True)
        total = sum(each.square().sum() for each in first)
        assert isinstance(total, Tensor)
        seconds.append(torch.autograd.grad(total, inputs))
    for one, other in zip(*seconds, strict=True):
        assert_close(one, other, rtol=RTOL)


@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum"])
def test_little_is_kept_for_backward(text: str) -> None:
    """Query, key, value, sums, and what is one number a token; all pairs alone would be 32 times the query."""
    inputs = leaves([draw(1, 2, 1024, 32, seed=each).float() for each in range(3)])
    storages: dict[int, int] = {}

    def pack(each: Tensor) -> Tensor:
        storages[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        return each

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
        output = spans(text, *inputs).output
    assert output.requires_grad
    assert 3 * inputs[0].nbytes <= sum(storages.values()) <= 5 * inputs[0].nbytes
