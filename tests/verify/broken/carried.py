"""Attention that continues from a state, in three ways that are not quite right.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, P earlier keys, K key dim, V value dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from verify.broken.case import Broken
from verify.broken.pieces import (
    average,
    blank,
    clean,
    default_scale,
    divide,
    elu1,
    exponentials,
    finish,
    prepare,
    repeat_heads,
    visible,
    widen,
)


def stale_position(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    state: dict[str, Any] | None = None,
    return_state: bool = False,
) -> object:
    """Softmax attention with a cache that is written at a position."""
    sees, position = visible(query, key, is_causal=is_causal), 0
    new_position = key.shape[2]
    if state is not None:
        position = state["position"]
        key = torch.cat([state["key"][:, :, :position], key], dim=2)
        value = torch.cat([state["value"][:, :, :position], value], dim=2)
    sees = F.pad(sees, (position, 0), value=True)
    q, k, v = prepare(query, key, value)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    out = average(exponentials(logits, sees), v)
    return finish(out, query, {"key": key, "value": value, "position": new_position}, return_state=return_state)


def numerator_state(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
    state: tuple[Tensor, Tensor] | None = None,
    return_state: bool = False,
) -> object:
    """Attention by 1 + logit; the state is the sum of the values and that of keys times values."""
    q, k, v = widen(clean(query, mask), blank(key, mask), blank(value, mask))
    scale, heads = default_scale(scale, q.shape[-1]), q.shape[1]
    weights = 1.0 + scale * (q @ repeat_heads(k, heads).mT)
    weights = weights.masked_fill(~visible(q, k, mask, is_causal=is_causal), 0.0)
    numerator, denominator = weights @ repeat_heads(v, heads), weights.sum(-1)
    sums = v.sum(-2), k.mT @ v
    if state is not None:
        order_0, order_1 = (repeat_heads(x, heads) for x in state)
        numerator = numerator + order_0[:, :, None] + scale * (q @ order_1)
        sums = state[0] + sums[0], state[1] + sums[1]
    return finish(divide(numerator, denominator), query, sums, return_state=return_state)


def cache_for_state(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    mask: Tensor | None = None,
    state: tuple[Tensor, Tensor] | None = None,
    return_state: bool = False,
) -> object:
    """Linear attention with elu(x) + 1 and a state of constant size."""
    q, k, v = widen(clean(query, mask), blank(key, mask), blank(value, mask))
    q, k = elu1(q), blank(elu1(k), mask)
    sees = visible(q, k, is_causal=is_causal)
    if state is not None:
        k, v = torch.cat([state[0], k], dim=2), torch.cat([state[1], v], dim=2)
        sees = F.pad(sees, (state[0].shape[2], 0), value=True)
    weights = (q @ repeat_heads(k, q.shape[1]).mT).masked_fill(~sees, 0.0)
    out = average(weights, repeat_heads(v, q.shape[1]))
    return finish(out, query, (k, v), return_state=return_state)


CARRIED = [
    Broken(
        "stale_position",
        "C16",
        "The cache's position is the number of the last call's keys, not of all keys, so a third call has lost some.",
        "exp/sum",
        {"parallel": stale_position},
    ),
    Broken(
        "numerator_state",
        "C8",
        "The state lacks the denominator, so after a continuation only the new keys are in it.",
        "taylor:1/sum:signed",
        {"parallel": numerator_state},
    ),
    Broken(
        "cache_for_state",
        "C23",
        "The state is claimed to be of constant size and holds every key and value.",
        "elu1/sum",
        {"parallel": cache_for_state},
    ),
]
