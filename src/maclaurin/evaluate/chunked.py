"""Chunk by chunk: the state before a chunk is read, pairs are formed inside it alone, then the state absorbs it.

For a finite state O(T) time, and beyond inputs and outputs O(T / C) memory: backward recomputes each chunk from the
state before it. Without a finite state every chunk also reads all keys before it, block by block under a running
maximum: O(T^2) time, O(T) memory.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, C chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from maclaurin.algebra import Accumulator, Mechanism, Similarity
from maclaurin.errors import MethodError
from maclaurin.evaluate.block import accumulate_block, logits
from maclaurin.evaluate.cache import Cache
from maclaurin.evaluate.legality import moment_refusal
from maclaurin.evaluate.operands import Queries, chunk_sizes
from maclaurin.evaluate.past import accumulate_after_past
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.scan import Stretch, chunk_of, scan
from maclaurin.evaluate.state import State

#: Chunk for keys that are read back block by block.
CACHE_CHUNK = 256


def refusal(mechanism: Mechanism) -> str | None:
    """Why this evaluation cannot serve the mechanism, or None if it can."""
    if mechanism.far is None and mechanism.similarity.is_centered:
        return "without a finite state the mean logit needs every pair before the first weight"
    return moment_refusal(mechanism)


def accumulate(
    problem: Problem, *, return_state: bool, chunk_size: int | None, kernel: str
) -> tuple[Accumulator, State | None]:
    """The accumulator of every query, and the state after every key if asked for.

    Args:
        problem: the call.
        return_state: whether the state is wanted.
        chunk_size: C; None: by the size of the state.
        kernel: ignored, there is one.

    Raises:
        MethodError: a mask per pair of query and key, which no state can serve.
    """
    if problem.pair_mask is not None:
        raise MethodError(
            "attend(method='chunked'): a mask [B, H, T, S] gives every query its own keys, and a state has one set "
            "for all.\n  Use a mask [B, S] over keys, or method='parallel'."
        )
    if problem.mechanism.is_finite_state:
        chunk = chunk_size or chunk_of(problem.mechanism, problem.key_dim)
        return scan(problem, _stretches(problem, chunk), return_state=return_state)
    read = partial(read_in_blocks, problem.mechanism.similarity)
    accumulator = accumulate_after_past(problem, read, chunk_size or CACHE_CHUNK)
    return accumulator, problem.initial_state().absorb(problem.keys) if return_state else None


def read_in_blocks(similarity: Similarity, queries: Queries, past: Sequence[Cache]) -> Accumulator:
    """The accumulator of the queries over cached keys, one block at a time; each block keeps its own maximum."""
    assert queries.near is not None
    found: Accumulator | None = None
    for block in past:
        x, visible = logits(queries.near, block.key, queries.near_scale), block.visible[:, None, None, None]
        decay = None if block.log_weight is None else block.log_weight[:, :, None, None]
        here = accumulate_block(similarity, x, block.value, visible, log_decay=decay)
        found = here if found is None else found.merge(here)
    assert found is not None
    return found


def _stretches(problem: Problem, chunk_size: int) -> list[Stretch]:
    """Keys that no query stands on first, or queries before all keys; then chunks of both; all keys if not causal."""
    rows, columns = problem.num_queries, problem.num_keys
    shared = min(rows, columns) if problem.is_causal else 0
    early_keys = [Stretch(0, each) for each in chunk_sizes(columns - shared, chunk_size)]
    early_rows = [Stretch(each, 0) for each in chunk_sizes(rows - shared, chunk_size)]
    both = [Stretch(each, each) for each in chunk_sizes(shared, chunk_size)]
    return [*early_keys, *early_rows, *both] or [Stretch(0, 0)]
