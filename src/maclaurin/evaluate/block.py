"""Queries against keys pair by pair: the quadratic form that all definitions are written in.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K features of the
mapped key, V value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Similarity


def logits(query_BHGTK: Tensor, key_BHSK: Tensor, scale: float) -> Tensor:
    """x = scale * <phi(q), phi(k)> of every pair, ``[B, H, G, T, S]``."""
    return (query_BHGTK * scale) @ key_BHSK[:, :, None].transpose(-1, -2)


def mean_logit(
    logits_BHGTS: Tensor,
    visible: Tensor,
    log_decay: Tensor | None = None,
    more_sum: Tensor | float = 0.0,
    more_count: Tensor | float = 0.0,
) -> Tensor:
    """c: the decay-weighted mean logit of each query's visible keys, ``[B, H, G, T]``; 0 for a query that sees none.

    Args:
        logits_BHGTS: the block's logits.
        visible: bool, broadcastable to them.
        log_decay: broadcastable to them; None for none.
        more_sum: sum of the logits of keys outside the block, broadcastable to ``[B, H, G, T]``.
        more_count: their number.
    """
    weight = visible.to(logits_BHGTS.dtype)
    if log_decay is not None:
        weight = weight * torch.exp(log_decay)
    total = (logits_BHGTS.masked_fill(~visible, 0.0) * weight).sum(-1) + more_sum
    count = weight.sum(-1) + more_count
    return total / count.masked_fill(count <= 0, 1.0)


def accumulate_block(
    similarity: Similarity,
    logits_BHGTS: Tensor,
    value_BHSV: Tensor,
    visible: Tensor,
    *,
    center_BHGT: Tensor | None = None,
    log_decay: Tensor | None = None,
) -> Accumulator:
    """The accumulator of a block: weights of every pair, summed over keys."""
    weights, log_scale = similarity.weigh(logits_BHGTS, visible, center_BHGT, log_decay)
    return Accumulator.from_weights(weights, value_BHSV[:, :, None], visible, log_scale, log_decay)
