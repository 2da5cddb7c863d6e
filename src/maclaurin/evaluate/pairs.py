"""Every query against every key it may see: new ones and cached ones pair by pair, the moments as they are.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Similarity
from maclaurin.algebra.accumulator import merged_log_denominator
from maclaurin.evaluate.block import accumulate_block, logits, mean_logit
from maclaurin.evaluate.log_denominator import log_sum
from maclaurin.evaluate.operands import map_visible
from maclaurin.evaluate.problem import Problem


@dataclass(frozen=True, eq=False)
class Pairs:
    """Keys that are weighed pair by pair: those in the state's cache, then the new ones.

    Args:
        key: as the state keeps them, ``[B, H, S, K]``.
        value: ``[B, H, S, V]``.
        visible: bool, broadcastable to ``[B, H, G, T, S]``.
        log_decay: broadcastable to the same, or None.
        hidden: bool ``[B, 1, S, 1]``, keys that no query sees, or None.
    """

    key: Tensor
    value: Tensor
    visible: Tensor
    log_decay: Tensor | None
    hidden: Tensor | None

    @classmethod
    def of(cls, problem: Problem) -> Pairs:
        keys, visible, decay = problem.keys, problem.visible, problem.pairwise_log_decay
        hidden = None if keys.visible is None else ~keys.visible[:, None, :, None]
        if problem.state is None or problem.state.cache is None:
            return cls(keys.key, keys.value, visible, decay, hidden)
        old, since = problem.state.cache.entries, problem.log_decay_of_state
        shown = old.visible[:, None, None, None]
        shape = torch.broadcast_shapes(shown.shape[:-1], visible.shape[:-1])  # type: ignore[no-untyped-call]
        if decay is not None and since is not None and old.log_weight is not None:
            decay = torch.cat([old.log_weight[:, :, None, None] + since[..., None], decay], dim=-1)
        return cls(
            torch.cat([old.key, keys.key], dim=2),
            torch.cat([old.value, keys.value], dim=2),
            torch.cat([shown.expand(*shape, -1), visible.expand(*shape, -1)], dim=-1),
            decay,
            torch.cat([~old.visible, ~keys.shown], dim=1)[:, None, :, None],
        )


def accumulate_pairs(problem: Problem) -> Accumulator:
    """The accumulator of every query over the state's keys and the new ones."""
    mechanism, pairs = problem.mechanism, Pairs.of(problem)
    near_visible = far_visible = pairs.visible
    if mechanism.window is not None:
        near_visible = mechanism.window.near(pairs.visible)
        far_visible = pairs.visible & ~near_visible
    found: Accumulator | None = None
    if mechanism.near is not None:
        assert problem.queries.near is not None
        x = logits(problem.queries.near, pairs.key, problem.queries.near_scale)
        found = _block(mechanism.near, x, pairs, near_visible)
    if mechanism.far is not None:
        far = _far(problem, mechanism.far, pairs, far_visible)
        found = far if found is None else found.merge(far)
    assert found is not None
    log_denominator = log_denominator_of(problem, found)
    return found if log_denominator is None else replace(found, log_denominator=log_denominator)


def largest_logit(problem: Problem) -> Tensor:
    """max |x| over the visible pairs of new keys, under the similarity that they are kept for; 0 without one."""
    queries, hidden = problem.queries, ~problem.visible
    query, scale = (queries.far, queries.far_scale) if queries.near is None else (queries.near, queries.near_scale)
    assert query is not None
    x = logits(query, problem.keys.key, scale).detach().abs().masked_fill(hidden, 0.0)
    return x.max() if x.numel() else x.new_zeros(())


def _block(similarity: Similarity, x: Tensor, pairs: Pairs, visible: Tensor) -> Accumulator:
    center = mean_logit(x, visible, pairs.log_decay) if similarity.is_centered else None
    return accumulate_block(similarity, x, pairs.value, visible, center_BHGT=center, log_decay=pairs.log_decay)


def _far(problem: Problem, similarity: Similarity, pairs: Pairs, visible: Tensor) -> Accumulator:
    """Keys that the moments hold, or will hold once the window has passed them."""
    queries, state, since = problem.queries, problem.state, problem.log_decay_of_state
    assert queries.far is not None
    key = pairs.key if problem.mechanism.near is None else map_visible(similarity.map, pairs.key, pairs.hidden)
    x = logits(queries.far, key, queries.far_scale)
    if state is None:
        far = _block(similarity, x, pairs, visible)
        return far if queries.far_log_weight is None else far.scaled(queries.far_log_weight.expand(far.count.shape))
    assert state.moments is not None
    center = None
    if similarity.is_centered:
        total = logits(queries.far, state.moments.key_sum[:, :, None], queries.far_scale)[..., 0]
        count = state.moments.count[..., None, None]
        kept = 1.0 if since is None else torch.exp(since)
        center = mean_logit(x, visible, pairs.log_decay, total * kept, count * kept)
    new = accumulate_block(similarity, x, pairs.value, visible, center_BHGT=center, log_decay=pairs.log_decay)
    if queries.far_log_weight is not None:
        new = new.scaled(queries.far_log_weight.expand(new.count.shape))
    old = state.read_moments(queries, center)
    return (old if since is None else old.decayed(since.expand(old.count.shape))).merge(new)


def log_denominator_of(problem: Problem, accumulator: Accumulator) -> Tensor | None:
    """log of the sum of exp(u) over every key that a query sees, ``[B, H, G, T]``; None for other normalizers."""
    u, state = problem.keys.denominator_logit, problem.state
    if u is None:
        return None
    new = log_sum(u, problem.visible, problem.pairwise_log_decay).expand(accumulator.count.shape)
    if state is None or state.log_denominator is None:
        return new
    old, since = state.log_denominator[..., None, None].expand(new.shape), problem.log_decay_of_state
    return merged_log_denominator(old if since is None else old + since, new)
