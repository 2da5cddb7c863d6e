"""The blocks kernel: what it computes, its gradients, when it declines, what it keeps for backward.

Run: pytest tests/unit/evaluate/kernels/test_blocks.py -q
"""

from __future__ import annotations

import math
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close
from maclaurin import attend, mechanism
from maclaurin.evaluate.call import Call, Options
from maclaurin.evaluate.plan.choice import Predicted
from maclaurin.evaluate.plan.ways import WAYS
from maclaurin.evaluate.quadratic import attend_quadratically, is_served

TEXTS = ("exp/sum", "exp/l2", "exp/length", "elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "power:2/l2")
GATED = ("exp/sum+valuegate", "exp/l2+outgate", "taylor:2/sum+valuegate")
RTOL = 1e-10  # float64: rounding errors of a few hundred terms, and of quotients of them
RTOL_32 = 1e-4  # float32: a few hundred terms of 6e-8 each, gradients through quotients
RTOL_16 = 1.1e-2  # bfloat16: what ``attend`` promises of outputs, relative to the largest


def blocks(
    text: str, query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, **operands: Tensor
) -> Tensor | None:
    """By this kernel with 16 queries at a time, whatever would be fastest; None where it declines."""
    call = Call.of(mechanism(text), query, key, value, Options(True, None, mask, None, dict(operands)))
    shape = call.shape(return_state=False)
    assert is_served(call.mechanism, shape)
    found = attend_quadratically(call, shape, 16)
    return None if found is None else found[0].to(query.dtype)


def served(text: str, *qkv: Tensor, mask: Tensor | None = None, **operands: Tensor) -> Tensor:
    """:func:`blocks`, which does not decline."""
    found = blocks(text, *qkv, mask=mask, **operands)
    assert found is not None
    return found


def parallel(text: str, *qkv: Tensor, mask: Tensor | None = None, **operands: Tensor) -> Tensor:
    """By definition."""
    return attend(text, *qkv, method="parallel", kernel="torch", mask=mask, **operands).output


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qkv_of(length: int, value_dim: int = 3) -> list[Tensor]:
    """Two rows, four query heads over two key/value heads, keys of 5 numbers."""
    return [draw(2, 4, length, 5), draw(2, 2, length, 5, seed=1), draw(2, 2, length, value_dim, seed=2)]


def operands_of(text: str, length: int) -> dict[str, Tensor]:
    found = {}
    if "valuegate" in text:
        found["value_gate"] = draw(2, 2, length, seed=3)
    if "outgate" in text:
        found["output_gate"] = draw(2, 4, length, seed=4)
    return found


def leaves(tensors: list[Tensor]) -> list[Tensor]:
    return [each.detach().clone().requires_grad_() for each in tensors]


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad((output.double() * draw(*output.shape, seed=9)).sum(), inputs))


def check(text: str, length: int, dtype: torch.dtype, rtol: float, grad_rtol: float, value_dim: int = 3) -> None:
    """Output and every gradient against the definition in float64, of the same numbers."""
    operands = operands_of(text, length)
    given = leaves([each.to(dtype) for each in [*qkv_of(length, value_dim), *operands.values()]])
    exact = leaves([each.double() for each in given])
    found = served(text, *given[:3], **dict(zip(operands, given[3:], strict=True)))
    wanted = parallel(text, *exact[:3], **dict(zip(operands, exact[3:], strict=True)))
    assert found.dtype == dtype
    assert_close(found, wanted, rtol=rtol, what="output")
    names = ["query", "key", "value", *operands]
    for name, one, other in zip(names, gradients(found, given), gradients(wanted, exact), strict=True):
        if float(other.abs().max()) < rtol:  # none but rounding, as the query's of one key alone
            assert float(one.abs().max()) < grad_rtol, name
        else:
            assert_close(one, other, rtol=grad_rtol, what=name)


@pytest.mark.parametrize("text", [*TEXTS, *GATED])
@pytest.mark.parametrize("length", [1, 7, 97, 257])
def test_equals_the_definition(text: str, length: int) -> None:
    check(text, length, torch.float64, RTOL, RTOL)


@pytest.mark.parametrize("text", TEXTS)
def test_equals_the_definition_in_float32(text: str) -> None:
    check(text, 97, torch.float32, RTOL_32, RTOL_32)


@pytest.mark.parametrize("text", ["exp/sum", "exp/l2", "elu1/sum", "taylor:2/sum"])
@pytest.mark.parametrize("length", [7, 97, 257])
def test_equals_the_definition_in_bfloat16(text: str, length: int) -> None:
    """Gradients go through weights and cotangents that were rounded each: twice the outputs' tolerance.

    Values of 16 numbers: the norm of a few that cancel is small, and rounding errors large beside it.
    """
    check(text, length, torch.bfloat16, RTOL_16, 2 * RTOL_16, value_dim=16)


def test_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call this small is one tile otherwise."""
    monkeypatch.setattr("maclaurin.evaluate.quadratic._PAIRS", 1)
    for text in ("exp/sum", "taylor:2@mean/sum"):
        check(text, 97, torch.float64, RTOL, RTOL)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("spoiled", [math.nan, 1e30])
def test_hidden_rows_may_hold_anything(text: str, spoiled: float) -> None:
    length = 97
    mask = torch.rand(2, length, generator=torch.Generator().manual_seed(6)) < 0.6
    mask[0, :5] = False  # queries that see no key
    rows, plain = mask[:, None, :, None], leaves(qkv_of(length))
    given = leaves([plain[0], *(each.masked_fill(~rows, spoiled) for each in plain[1:])])
    found, wanted = served(text, *given, mask=mask), parallel(text, *plain, mask=mask)
    assert_close(found, wanted, rtol=RTOL)
    assert float(found.detach()[0, :, :5].abs().max()) == 0.0
    grads = gradients(found, given)
    for one, other in zip(grads, gradients(wanted, plain), strict=True):
        assert_close(one, other, rtol=RTOL)
    for each in grads[1:]:
        assert float(each.masked_fill(rows, 0.0).abs().max()) == 0.0


@pytest.mark.parametrize("text", ["exp/sum", "exp/l2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_huge_logits_are_left_to_others(text: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of thousands: exp of them is infinite without a maximum taken away first."""
    answers = []

    def watched(*args: Any) -> tuple[Tensor, None] | None:
        answers.append(attend_quadratically(*args))
        return answers[-1]

    way = next(each for each in WAYS if each.name == "blocks of exp")
    only = [Predicted(replace(way, direct=watched), 0.0)]
    door = import_module("maclaurin.evaluate.attend")
    q, k, v = (each.to(dtype) for each in qkv_of(97))
    q, k = q * 64, k * 64
    wanted = parallel(text, q.double(), k.double(), v.double())
    monkeypatch.setattr(door, "ways_of", lambda *args, **keywords: only)
    found = attend(text, q, k, v, method="fused").output
    assert answers == [None]
    # float32: logits of 1e4 are exact to 1e-3, and so are their exps
    assert_close(found, wanted, rtol=RTOL_16 if dtype == torch.bfloat16 else 2e-3)


def test_long_vectors_with_small_logits_are_served() -> None:
    """In bfloat16 the logits themselves are looked at where the longest query and key do not settle it."""
    q, k, v = (torch.zeros(1, 1, 33, 4), torch.zeros(1, 1, 33, 4), draw(1, 1, 33, 4).float())
    q[..., 0], k[..., 1] = 1e3, 1e3
    q[..., 2], k[..., 2] = draw(1, 1, 33, seed=1), draw(1, 1, 33, seed=2)
    inputs = [each.bfloat16() for each in (q, k, v)]
    wanted = parallel("exp/sum", *(each.double() for each in inputs))
    assert_close(served("exp/sum", *inputs), wanted, rtol=RTOL_16)
    assert blocks("exp/sum", *(each.float() for each in inputs)) is None  # where nothing is gained by looking closer


@pytest.mark.parametrize("text", ["exp/sum", "exp/l2", "taylor:2/sum"])
def test_the_gradient_of_a_gradient(text: str) -> None:
    seconds = []
    for run in (served, parallel):
        inputs = leaves(qkv_of(23))
        first = torch.autograd.grad(run(text, *inputs).pow(3).sum(), inputs, create_graph=True)
        total = sum(each.square().sum() for each in first)
        assert isinstance(total, Tensor)
        seconds.append(torch.autograd.grad(total, inputs))
    for one, other in zip(*seconds, strict=True):
        assert_close(one, other, rtol=RTOL)


def test_little_is_kept_for_backward() -> None:
    """Query, key, value, sums, and what is one number a token; all pairs alone would be 32 times the query."""
    inputs = leaves([draw(1, 2, 1024, 32, seed=each).bfloat16() for each in range(3)])
    storages: dict[int, int] = {}

    def pack(each: Tensor) -> Tensor:
        storages[each.untyped_storage().data_ptr()] = each.untyped_storage().nbytes()
        return each

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda each: each):
        output = served("exp/l2", *inputs)
    assert output.requires_grad
    assert 3 * inputs[0].nbytes <= sum(storages.values()) <= 5 * inputs[0].nbytes
