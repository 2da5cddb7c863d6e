"""The reference: every query against every key at once, as the definition reads.

O(T S) time and memory, any float dtype from float32 up, autograd through everything. Fast paths are checked against
this file; it imports none of them.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys.
"""

from __future__ import annotations

from torch import Tensor

from maclaurin.algebra import Accumulator
from maclaurin.evaluate.block import accumulate_block, logits, mean_logit
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.state import State


def accumulate(problem: Problem, *, return_state: bool) -> tuple[Accumulator, State | None]:
    """The accumulator of every query, and the state after every key if asked for."""
    similarity, state = problem.mechanism.similarity, problem.state
    x, visible = logits(problem.query, problem.key, problem.scale), problem.visible
    center = None
    if similarity.is_centered:
        center = mean_logit(x, visible, *_state_logits(problem))
    accumulator = accumulate_block(similarity, x, problem.value, visible, center)
    if state is not None:
        accumulator = state.read(problem.query, problem.scale, center).merge(accumulator)
    if not return_state:
        return accumulator, None
    return accumulator, problem.initial_state().absorb(problem.key, problem.value, problem.key_mask)


def largest_logit(problem: Problem) -> Tensor:
    """max |x| over the visible pairs of new keys; 0 without one."""
    hidden = ~problem.visible
    x = logits(problem.query, problem.key, problem.scale).detach().abs().masked_fill(hidden, 0.0)
    return x.max() if x.numel() else x.new_zeros(())


def _state_logits(problem: Problem) -> tuple[Tensor | float, Tensor | float]:
    """Sum of the logits of the state's keys for every query, and the number of those keys."""
    if problem.state is None:
        return 0.0, 0.0
    total = logits(problem.query, problem.state.key_sum[:, :, None], problem.scale)[..., 0]
    return total, problem.state.count[..., None, None]
