"""One block of keys against queries, every pair at once: the quadratic form all definitions are written in.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K features of the
mapped key, V value dim.
"""

from __future__ import annotations

from torch import Tensor

from maclaurin.algebra import Accumulator, Similarity


def logits(query_BHGTK: Tensor, key_BHSK: Tensor, scale: float) -> Tensor:
    """x = scale * <phi(q), phi(k)> of every pair, ``[B, H, G, T, S]``."""
    return (query_BHGTK * scale) @ key_BHSK[:, :, None].transpose(-1, -2)


def mean_logit(
    logits_BHGTS: Tensor, visible: Tensor, more_sum: Tensor | float = 0.0, more_count: Tensor | float = 0.0
) -> Tensor:
    """c: the mean logit of each query's visible keys, ``[B, H, G, T]``; 0 for a query that sees none.

    Args:
        logits_BHGTS: the block's logits.
        visible: bool, broadcastable to them.
        more_sum: sum of the logits of keys outside the block, broadcastable to ``[B, H, G, T]``.
        more_count: their number.
    """
    total = logits_BHGTS.masked_fill(~visible, 0.0).sum(-1) + more_sum
    count = visible.to(logits_BHGTS.dtype).sum(-1) + more_count
    return total / count.clamp(min=1.0)


def accumulate_block(
    similarity: Similarity,
    logits_BHGTS: Tensor,
    value_BHSV: Tensor,
    visible: Tensor,
    center_BHGT: Tensor | None,
) -> Accumulator:
    """The accumulator of a block: weights of every pair, summed over keys."""
    weights, log_scale = similarity.weigh(logits_BHGTS, visible, center_BHGT)
    return Accumulator.from_weights(weights, value_BHSV[:, :, None], visible, log_scale)
