"""A state carried through stretches of time, and back: memory for inputs, outputs and one state per stretch.

Forward keeps the state before each stretch and nothing that was computed inside. Backward goes through the stretches
in reverse, computes each again from its state, and hands the gradient of that state to the stretch before.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Mechanism
from maclaurin.evaluate.operands import Keys, Queries
from maclaurin.evaluate.pairs import accumulate_pairs
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.recompute import Found, gradients, leaf, skeleton, wants_gradient
from maclaurin.evaluate.state import State
from maclaurin.evaluate.tensor_tree import TensorTree

#: Axis of time of what a stretch is given, and of the sums it leaves.
_TIME = {
    "queries.near": 3,
    "queries.far": 3,
    "keys.key": 2,
    "keys.value": 2,
    "keys.visible": 1,
    "keys.log_decay": 2,
    "keys.denominator_logit": 2,
    "numerator": 3,
    "denominator": 3,
    "count": 3,
    "log_scale": 3,
    "log_denominator": 3,
}


class Stretch(NamedTuple):
    """Numbers of queries and of keys; queries are answered first, aligned to the end of the keys, if both are there."""

    queries: int
    keys: int


@dataclass(frozen=True, eq=False)
class _Given(TensorTree):
    """What a stretch works on."""

    queries: Queries
    keys: Keys
    state: State


def chunk_of(mechanism: Mechanism, key_dim: int) -> int:
    """A power of two near the number of moments, where reading pairs and moments cost alike, and over the window."""
    window = mechanism.window
    wanted = max(mechanism.num_moments(key_dim), 0 if window is None else window.width)
    return max(64, min(256, 1 << (wanted - 1).bit_length()))


def scan(problem: Problem, stretches: Sequence[Stretch], *, return_state: bool) -> tuple[Accumulator, State | None]:
    """The accumulator of every query, and the state after every key if asked for.

    Args:
        problem: the call, without a mask per pair.
        stretches: at least one, in order; together they hold every query and every key once.
        return_state: whether the keys of the last one are absorbed too.
    """
    given = _Given(problem.queries, problem.keys, problem.initial_state())
    plan = _Plan(problem, tuple(stretches), return_state)
    if not wants_gradient(given):
        found = plan.run(given)
    else:
        shape: list[Found] = []
        outputs = _Scan.apply(plan, given, shape, *given.tensors())  # type: ignore[no-untyped-call]
        found = shape[0].rebuilt(outputs)
    return found.accumulator, found.state


@dataclass(frozen=True, eq=False)
class _Plan:
    problem: Problem
    stretches: tuple[Stretch, ...]
    keeps_last: bool

    @cached_property
    def starts(self) -> list[tuple[int, int]]:
        """The first query and the first key of every stretch."""
        queries, keys = (accumulate(each, initial=0) for each in zip(*self.stretches, strict=True))
        return [*zip(queries, keys, strict=True)]

    def part(self, number: int, given: _Given, state: State) -> _Given:
        """What one stretch works on."""
        queries, keys = self.starts[number]
        here = self.stretches[number]
        return _Given(
            given.queries.part(slice(queries, queries + here.queries)),
            given.keys.part(slice(keys, keys + here.keys)),
            state,
        )

    def step(self, number: int, part: _Given) -> Found:
        """One stretch."""
        sums = accumulate_pairs(self.problem.of(part.queries, part.keys, part.state))
        is_wanted = self.keeps_last or number < len(self.stretches) - 1
        return Found.of(sums, part.state.absorb(part.keys) if is_wanted else None)

    def run(self, given: _Given) -> Found:
        """Every stretch, autograd following."""
        queries, keys = zip(*self.stretches, strict=True)
        state: State | None = given.state
        found = []
        for number, part in enumerate(zip(given.queries.split(queries), given.keys.split(keys), strict=True)):
            assert state is not None
            found.append(self.step(number, _Given(*part, state)))
            state = found[-1].state
        return Found.of(Accumulator.join([each.accumulator for each in found]), state)


class _Scan(torch.autograd.Function):
    """:meth:`_Plan.run`, keeping only the state before each stretch."""

    @staticmethod
    def forward(ctx: Any, plan: _Plan, given: _Given, shape: list[Found], *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.plan, ctx.shape, ctx.states = plan, skeleton(given), []
        ctx.save_for_backward(*tensors)
        whole: dict[str, Tensor] = {}
        state: State | None = given.state
        queries = 0
        for number, stretch in enumerate(plan.stretches):
            assert state is not None
            ctx.states.append(state)
            found = plan.step(number, plan.part(number, given, state))
            state = found.state
            for name, each in replace(found, state=None).named_tensors().items():
                if name not in whole:
                    size = [*each.shape]
                    size[_TIME[name]] = plan.problem.num_queries
                    whole[name] = each.new_empty(size)
                whole[name].narrow(_TIME[name], queries, stretch.queries).copy_(each)
            queries += stretch.queries
        # a state that absorbed nothing may still hold what was given; an output must be a tensor of its own
        state = None if state is None else state.map_tensors(lambda each: each.clone())
        shape.append(
            replace(found, state=state).rebuilt([*whole.values(), *(() if state is None else state.tensors())])
        )
        outputs = shape[0].named_tensors()
        ctx.mark_non_differentiable(*shape[0].constants)
        ctx.set_materialize_grads(False)
        ctx.names = tuple(outputs)
        return tuple(outputs.values())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given: _Given = ctx.shape.rebuilt(ctx.saved_tensors)
        of_outputs = {name: each for name, each in zip(ctx.names, grads, strict=True) if each is not None}
        if torch.is_grad_enabled():  # someone differentiates the gradient
            found = gradients(ctx.plan.run(given).named_tensors(), given.named_tensors(), of_outputs, twice=True)
        else:
            found = _backward(ctx.plan, given, ctx.states, of_outputs)
        return None, None, None, *(found.get(name) for name in given.named_tensors())


def _backward(plan: _Plan, given: _Given, states: list[State], of_outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of what was given, by name, from those of what was found."""
    total: dict[str, Tensor] = {}
    inputs = given.named_tensors()
    of_state = {name: each for name, each in of_outputs.items() if name.startswith("state.")}
    for number, here in reversed([*enumerate(plan.stretches)]):
        queries, keys = plan.starts[number]
        part = plan.part(number, given, states[number]).map_tensors(leaf)
        with torch.enable_grad():
            found = plan.step(number, part).named_tensors()
        wanted = {
            name: each.narrow(_TIME[name], queries, here.queries) for name, each in of_outputs.items() if name in _TIME
        }
        got = gradients(found, part.named_tensors(), {**wanted, **of_state})
        of_state = {name: each for name, each in got.items() if name.startswith("state.")}
        for name, each in got.items():
            if name in of_state:
                continue
            if name not in total:
                total[name] = torch.zeros_like(inputs[name])
            start = queries if name.startswith("queries.") else keys
            place = total[name].narrow(_TIME[name], start, each.shape[_TIME[name]]) if name in _TIME else total[name]
            place.add_(each)
    return {**total, **of_state}
