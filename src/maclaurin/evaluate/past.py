"""Attention over keys that are kept as they are, a stretch of queries at a time.

Each stretch reads every key before it by some means, and forms pairs only with the keys it stands on. Decay enters as
one log weight per earlier key, a sum of log decays up to the stretch, and one per query, a sum inside it: never a
difference of running sums, so a reset is exact and nothing cancels.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, C chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from maclaurin.algebra import Accumulator, log_decay_after
from maclaurin.evaluate.cache import Cache
from maclaurin.evaluate.log_denominator import followed_log_denominator, log_sum_of
from maclaurin.evaluate.operands import Keys, Queries, chunk_sizes
from maclaurin.evaluate.pairs import accumulate_pairs
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.recompute import recomputed
from maclaurin.evaluate.tensor_tree import TensorTree

#: How queries read cached keys that all of them see.
ReadPast = Callable[[Queries, Sequence[Cache]], Accumulator]


@dataclass(frozen=True, eq=False)
class _Past(TensorTree):
    """Keys before a stretch, in blocks, and the log denominator over them."""

    blocks: tuple[Cache, ...]
    log_denominator: Tensor | None

    @classmethod
    def of(cls, problem: Problem) -> _Past:
        """The keys of the carried state."""
        state = problem.initial_state()
        assert state.cache is not None
        return cls((state.cache.entries,), state.log_denominator)

    def after(self, keys: Keys) -> _Past:
        """The past of the stretch after these keys."""
        decay = total = None
        if keys.log_decay is not None:
            decay, total = log_decay_after(keys.log_decay), keys.log_decay.sum(-1)
        block = Cache(keys.key, keys.value, keys.shown, decay)
        log_denominator = followed_log_denominator(self.log_denominator, log_sum_of(keys), total)
        return _Past((*(each.later(total) for each in self.blocks), block), log_denominator)


def accumulate_after_past(problem: Problem, read: ReadPast, chunk_size: int) -> Accumulator:
    """The accumulator of every query of a mechanism whose state is a growing cache.

    Args:
        problem: the call, without a mask per pair.
        read: how queries and earlier keys meet.
        chunk_size: C, queries at a time.
    """
    rows, columns = problem.num_queries, problem.num_keys
    shared = min(rows, columns) if problem.is_causal else 0  # queries that stand on a new key
    lengths = chunk_sizes(shared, chunk_size)
    early_keys = chunk_sizes(columns - shared, chunk_size)
    early_rows = chunk_sizes(rows - shared, chunk_size)
    queries, keys = problem.queries.split([*early_rows, *lengths]), problem.keys.split([*early_keys, *lengths])
    first, past = _Past.of(problem), _Past.of(problem)
    for each in keys[: len(early_keys)]:
        past = past.after(each)
    if not problem.is_causal:
        first = past  # queries see every key; causal ones that stand before all keys see none but the state's
    nothing = problem.keys.part(slice(0, 0))
    found = [_stretch(problem, each, nothing, first, read) for each in queries[: len(early_rows)]]
    for some_queries, some_keys in zip(queries[len(early_rows) :], keys[len(early_keys) :], strict=True):
        found.append(_stretch(problem, some_queries, some_keys, past, read))
        past = past.after(some_keys)
    if not found:
        found.append(_stretch(problem, problem.queries, nothing, first, read))
    return Accumulator.join(found)


@dataclass(frozen=True, eq=False)
class _Given(TensorTree):
    """What a stretch works on."""

    queries: Queries
    keys: Keys
    past: _Past


def _stretch(problem: Problem, queries: Queries, keys: Keys, past: _Past, read: ReadPast) -> Accumulator:
    """Queries over their own keys and all earlier ones."""

    def work(given: _Given) -> Accumulator:
        part = problem.of(given.queries, given.keys, None)
        new, old = accumulate_pairs(part), read(given.queries, given.past.blocks)
        if given.past.log_denominator is not None:
            before = given.past.log_denominator[..., None, None]
            old = replace(old, log_denominator=before.expand(old.count.shape))
        since = part.log_decay_of_state
        return (old if since is None else old.decayed(since.expand(old.count.shape))).merge(new)

    return recomputed(work, _Given(queries, keys, past))
