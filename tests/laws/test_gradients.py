"""Gradients are those of finite differences, first and second order, the carried state's included.

Run: pytest tests/laws/test_gradients.py -q
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from laws.cases import Inputs, by, compact, draw, every, members, serving
from laws.checks import differentiable, state_of
from maclaurin import Mechanism, State, attend


def is_plain(mechanism: Mechanism) -> bool:
    """Whether the gradient is meant to be the derivative."""
    return not getattr(mechanism.normalizer, "detach", False)


def small(mechanism: Mechanism, seed: int, queries: int = 5) -> Inputs:
    """Few numbers, no two of them where relu or a clamp has its kink."""
    return (
        draw(seed, batch=1, heads=2, kv_heads=1, queries=queries, key_dim=2, value_dim=3).without_reset().of(mechanism)
    )


def replaced(state: State, numbers: tuple[Tensor, ...]) -> State:
    """The state with its differentiable tensors replaced, in order."""
    own = differentiable(state)
    given = iter(numbers)
    return state.map_tensors(lambda each: next(given) if any(each is other for other in own) else each)


def function_of(mechanism: Mechanism, inputs: Inputs, method: str, state: State | None) -> object:
    """Output and, after a state, the next state, as a function of every tensor that has a gradient."""
    names = list(inputs.operands)

    def function(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        learned = dict(zip(names, rest, strict=False))
        given = None if state is None else replaced(state, rest[len(names) :])
        out, after, _ = attend(
            mechanism, q, k, v, **learned, **by(method, 2), state=given, return_state=given is not None
        )
        # a state that began empty takes its reference from the first key, as a constant: no derivative there
        return (out,) if after is None else (out, *differentiable(after))

    return function


@pytest.mark.parametrize("mechanism", every(is_plain))
def test_first_order(mechanism: Mechanism, seed: int) -> None:
    """``fast_mode``: one random direction per input instead of every one."""
    mechanism = compact(mechanism)
    inputs = small(mechanism, seed)
    for method in serving(mechanism):
        leaves = inputs.leaves()
        assert gradcheck(function_of(mechanism, inputs, method, None), leaves.tensors(), fast_mode=True)


@pytest.mark.parametrize("mechanism", every(is_plain))
def test_first_order_through_a_carried_state(mechanism: Mechanism, seed: int) -> None:
    """Of more keys than windows hold: moments of no key have no derivative."""
    mechanism = compact(mechanism)
    inputs = small(mechanism, seed, queries=9)
    state = state_of(mechanism, inputs, slice(0, 7))
    rest = inputs.part(slice(7, None), slice(7, None))
    for method in serving(mechanism):
        carried = [each.clone().requires_grad_() for each in differentiable(state)]
        wrt = (*rest.leaves().tensors(), *carried)
        assert gradcheck(function_of(mechanism, rest, method, state), wrt, fast_mode=True)


@pytest.mark.parametrize("mechanism", members(is_plain))
def test_every_single_derivative(mechanism: Mechanism, seed: int) -> None:
    mechanism = compact(mechanism)
    inputs = small(mechanism, seed).part(slice(0, 3), slice(0, 3))
    for method in serving(mechanism):
        assert gradcheck(function_of(mechanism, inputs, method, None), inputs.leaves().tensors())


@pytest.mark.parametrize("mechanism", members(is_plain))
def test_second_order(mechanism: Mechanism, seed: int) -> None:
    """Constants of the backward pass (log scales, largest magnitudes) are exact to any order."""
    mechanism = compact(mechanism)
    inputs = small(mechanism, seed, queries=4)
    for method in serving(mechanism):
        leaves = inputs.leaves()
        function = function_of(mechanism, inputs, method, None)
        assert gradgradcheck(function, leaves.tensors(), fast_mode=True)


def test_detach_stops_the_gradient_of_the_denominator_and_changes_no_value(inputs: Inputs) -> None:
    for method in ("parallel", "recurrent", "chunked"):
        found = {}
        for text in ("taylor:2/sum", "taylor:2/sum:detach"):
            leaves = replace(inputs, operands={}).leaves()
            out = attend(text, *leaves.qkv, method=method).output
            found[text] = (out, *torch.autograd.grad(out.square().sum(), leaves.qkv))
        plain, detached = found.values()
        assert torch.equal(plain[0], detached[0])
        assert torch.allclose(plain[3], detached[3], rtol=1e-12)  # values do not enter the denominator
        assert not torch.allclose(plain[1], detached[1], rtol=1e-2)
    leaves = replace(inputs, operands={}).leaves()
    weights = attend("taylor:2/none", *leaves.qkv).output
    total = attend("taylor:2/none", *leaves.qkv[:2], torch.ones_like(leaves.value)).output.detach()
    by_hand = torch.autograd.grad((weights / total).square().sum(), leaves.qkv)
    for one, other in zip(detached[1:], by_hand, strict=True):
        assert torch.allclose(one, other, rtol=1e-10, atol=1e-12)
