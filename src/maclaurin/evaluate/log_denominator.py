"""The denominator that no query enters: L = log of the sum of d exp(u) over visible keys, for ``cumgate``.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from maclaurin.algebra import log_decay_after
from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE, merged_log_denominator
from maclaurin.evaluate.operands import Keys


def log_sum(denominator_logit_BHS: Tensor, visible: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """L of each query, ``[B, H, G, T]``.

    Args:
        denominator_logit_BHS: u.
        visible: bool, broadcastable to ``[B, H, G, T, S]``.
        log_decay: log d, broadcastable to the same; None for none.
    """
    u = denominator_logit_BHS[:, :, None, None]
    u = u if log_decay is None else u + log_decay
    u = torch.where(visible, u, EMPTY_LOG_SCALE).clamp(min=EMPTY_LOG_SCALE)
    if u.shape[-1] == 0:
        return u.new_full(u.shape[:-1], EMPTY_LOG_SCALE)
    return torch.logsumexp(u, dim=-1).clamp(min=EMPTY_LOG_SCALE)


def log_sum_of(keys: Keys) -> Tensor | None:
    """L after the last of some keys, ``[B, H]``; None without ``denominator_logit``."""
    if keys.denominator_logit is None:
        return None
    decay = None if keys.log_decay is None else log_decay_after(keys.log_decay)[:, :, None, None]
    return log_sum(keys.denominator_logit, keys.shown[:, None, None, None], decay)[:, :, 0, 0]


def followed_log_denominator(own: Tensor | None, later: Tensor | None, log_decay: Tensor | None) -> Tensor | None:
    """L of earlier keys, decayed, and of later ones together; None where there is none."""
    if own is not None and log_decay is not None:
        own = (own + log_decay).clamp(min=EMPTY_LOG_SCALE)
    return merged_log_denominator(own, later)
