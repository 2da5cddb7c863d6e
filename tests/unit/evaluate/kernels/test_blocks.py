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
from unit.evaluate.kernels.by_definition import (
    RTOL_32,
    assert_by_definition,
    assert_hidden_rows_may_hold_anything,
    assert_little_is_kept,
    assert_second_gradients,
    draw,
    parallel,
    qkv_of,
)

TEXTS = ("exp/sum", "exp/l2", "exp/length", "elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "power:2/l2")
GATED = ("exp/sum+valuegate", "exp/l2+outgate", "taylor:2/sum+valuegate")
RTOL_16 = 1.1e-2  # bfloat16: 2^-9 of weights from logits up to about 2, of the largest output


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


@pytest.mark.parametrize("text", [*TEXTS, *GATED])
@pytest.mark.parametrize("length", [1, 7, 97, 257])
def test_equals_the_definition(text: str, length: int) -> None:
    assert_by_definition(served, text, length)


@pytest.mark.parametrize("text", TEXTS)
def test_equals_the_definition_in_float32(text: str) -> None:
    assert_by_definition(served, text, 97, torch.float32, rtol=RTOL_32)


@pytest.mark.parametrize("text", ["exp/sum", "exp/l2", "elu1/sum", "taylor:2/sum"])
@pytest.mark.parametrize("length", [7, 97, 257])
def test_equals_the_definition_in_bfloat16(text: str, length: int) -> None:
    """Gradients go through weights and cotangents that were rounded each: twice the outputs' tolerance.

    Values of 16 numbers: the norm of a few that cancel is small, and rounding errors large beside it.
    """
    assert_by_definition(served, text, length, torch.bfloat16, rtol=RTOL_16, grad_rtol=2 * RTOL_16, value_dim=16)


@pytest.mark.parametrize("text", ["exp/sum", "taylor:2@mean/sum"])
def test_several_tiles(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call this small is one tile otherwise."""
    monkeypatch.setattr("maclaurin.evaluate.quadratic._PAIRS", 1)
    assert_by_definition(served, text, 97)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("spoiled", [math.nan, 1e30])
def test_hidden_rows_may_hold_anything(text: str, spoiled: float) -> None:
    assert_hidden_rows_may_hold_anything(served, text, spoiled)


@pytest.mark.parametrize("text", ["exp/sum", "exp/l2", "taylor:2/sum"])
def test_the_gradient_of_a_gradient(text: str) -> None:
    assert_second_gradients(served, text)


def test_little_is_kept_for_backward() -> None:
    assert_little_is_kept(served, "exp/l2", torch.bfloat16)


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
