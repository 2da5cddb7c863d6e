"""The reference: every query against every key at once, as the definition reads.

O(T S) time and memory, any float dtype from float32 up, autograd through everything. Fast paths are checked against
this file; it imports none of them.
"""

from __future__ import annotations

from maclaurin.algebra import Accumulator
from maclaurin.evaluate.pairs import accumulate_pairs
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.state import State


def accumulate(problem: Problem, *, return_state: bool) -> tuple[Accumulator, State | None]:
    """The accumulator of every query, and the state after every key if asked for."""
    return accumulate_pairs(problem), problem.initial_state().absorb(problem.keys) if return_state else None
