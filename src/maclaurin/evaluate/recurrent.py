"""Token by token: absorb one key, answer one query. What decoding does, and the second bracketing of the sum.

O(T) steps, each of constant size for a finite state; a key/value cache otherwise. Autograd through everything, the
carried state included.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Mechanism
from maclaurin.errors import MethodError
from maclaurin.evaluate.legality import moment_refusal
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.state import State


def refusal(mechanism: Mechanism) -> str | None:
    """Why this evaluation cannot serve the mechanism, or None if it can."""
    return moment_refusal(mechanism)


def accumulate(problem: Problem, *, return_state: bool) -> tuple[Accumulator, State | None]:
    """The accumulator of every query, and the state after every key if asked for.

    Raises:
        MethodError: a mask per pair of query and key, which no state can serve.
    """
    if problem.pair_mask is not None:
        raise MethodError(
            "attend(method='recurrent'): a mask [B, H, T, S] gives every query its own keys, and a state has one set "
            "for all.\n  Use a mask [B, S] over keys, or method='parallel'."
        )
    state = problem.initial_state()
    absorbed = 0
    accumulators = []
    for t in range(problem.num_queries):
        seen = t + 1 + problem.num_keys - problem.num_queries if problem.is_causal else problem.num_keys
        for s in range(absorbed, seen):
            state = _absorb_one(state, problem, s)
        absorbed = max(absorbed, seen)
        accumulators.append(state.read(problem.query[:, :, :, t : t + 1], problem.scale))
    for s in range(absorbed, problem.num_keys):
        state = _absorb_one(state, problem, s)
    if not accumulators:
        accumulators.append(state.read(problem.query, problem.scale))
    return _joined(accumulators), state if return_state else None


def _absorb_one(state: State, problem: Problem, position: int) -> State:
    here = slice(position, position + 1)
    mask = None if problem.key_mask is None else problem.key_mask[:, here]
    return state.absorb(problem.key[:, :, here], problem.value[:, :, here], mask)


def _joined(accumulators: list[Accumulator]) -> Accumulator:
    """One accumulator of all queries, from one for each."""

    def along_time(tensors: Iterable[Tensor | None], dim: int) -> Tensor | None:
        present = [each for each in tensors if each is not None]
        return torch.cat(present, dim=dim) if present else None

    numerator = along_time((each.numerator for each in accumulators), -2)
    count = along_time((each.count for each in accumulators), -1)
    log_scale = along_time((each.log_scale for each in accumulators), -1)
    assert numerator is not None and count is not None and log_scale is not None
    return Accumulator(numerator, along_time((each.denominator for each in accumulators), -1), count, log_scale)
