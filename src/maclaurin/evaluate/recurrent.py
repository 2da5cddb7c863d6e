"""Token by token: absorb one key, answer one query. What decoding does, and the second bracketing of the sum.

O(T) steps, each of constant size for a finite state; a key/value cache otherwise. Autograd through everything, the
carried state included.
"""

from __future__ import annotations

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
            state = state.absorb(problem.keys.part(slice(s, s + 1)))
        absorbed = max(absorbed, seen)
        accumulators.append(state.read(problem.queries.part(slice(t, t + 1))))
    for s in range(absorbed, problem.num_keys):
        state = state.absorb(problem.keys.part(slice(s, s + 1)))
    if not accumulators:
        accumulators.append(state.read(problem.queries))
    return Accumulator.join(accumulators), state if return_state else None
