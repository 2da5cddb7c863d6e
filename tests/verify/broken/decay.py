"""Attention with a scalar decay per head and time, in five ways that are not quite right.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.broken.case import Broken
from verify.broken.pieces import (
    Sums,
    average,
    blank,
    clean,
    default_scale,
    divide,
    elu1,
    exponentials,
    finish,
    heads_first,
    hold,
    last_rows,
    pairs,
    prepare,
    read,
    remaining,
    repeat_heads,
    segments,
    visible,
    widen,
)


def factored(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, log_decay: Tensor | None = None
) -> Tensor:
    """Causal attention by the squared logit; decay is put into queries and keys."""
    a = hold(log_decay, *widen(key), mask)
    q, k, v = prepare(query, key, value, mask)
    reach = repeat_heads(a.cumsum(-1), q.shape[1])[..., None]
    q = q * torch.exp(0.5 * last_rows(reach, q.shape[2], 0.0))
    k = k * torch.exp(-0.5 * reach)
    weights = (q.shape[-1] ** -0.5 * (q @ k.mT)) ** 2
    return average(weights.masked_fill(~visible(q, k, mask), 0.0), v).to(query.dtype)


def reset_forgets(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    log_decay: Tensor | None = None,
) -> Tensor:
    """Causal softmax attention with decay."""
    a = hold(log_decay, *widen(key), mask)
    q, k, v = prepare(query, key, value, mask)
    reach = repeat_heads(a.cumsum(-1), q.shape[1])[..., None]
    decay = last_rows(reach, q.shape[2], 0.0) - reach.mT
    decay = torch.nan_to_num(decay, nan=0.0, posinf=torch.inf, neginf=-torch.inf)
    sees = visible(q, k, mask)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT) + decay.masked_fill(~sees, 0.0)
    return average(exponentials(logits, sees), v).to(query.dtype)


def pads_decay(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    log_decay: Tensor | None = None,
    state: Sums | None = None,
    return_state: bool = False,
) -> object:
    """Causal linear attention with elu(x) + 1 and decay."""
    q, k, v = widen(clean(query, mask), blank(key, mask), blank(value, mask))
    q, k, heads = elu1(q), blank(elu1(k), mask), q.shape[1]
    a = hold(log_decay, k, None)
    decay = torch.exp(segments(a))
    weights = (q @ repeat_heads(k, heads).mT) * repeat_heads(last_rows(decay, q.shape[2], 0.0), heads)
    fade = torch.exp(last_rows(a.cumsum(-1)[..., None], q.shape[2], 0.0))
    earlier, earlier_norm = read(q * repeat_heads(fade, heads), state)
    out = divide(weights @ repeat_heads(v, heads) + earlier, weights.sum(-1) + earlier_norm)
    left = k * torch.exp(remaining(a))[..., None]
    kv, norm = left.mT @ v, left.sum(-2)
    if state is not None:
        whole = torch.exp(a.sum(-1))[..., None]
        kv, norm = kv + whole[..., None] * state.kv, norm + whole * state.k
    return finish(out, query, Sums(kv, norm), return_state=return_state)


def fade_severed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    log_decay: Tensor | None = None,
    state: Sums | None = None,
    return_state: bool = False,
) -> object:
    """Causal attention by the squared inner product, with decay."""
    q, k, v = widen(clean(query, mask), blank(key, mask), blank(value, mask))
    q, k, heads = pairs(q), pairs(k), q.shape[1]
    a = hold(log_decay, k, mask)
    decay = torch.exp(segments(a))
    weights = (q @ repeat_heads(k, heads).mT) * repeat_heads(last_rows(decay, q.shape[2], 0.0), heads)
    weights = weights.masked_fill(~visible(q, k, mask), 0.0)
    left = k * torch.exp(remaining(a))[..., None]
    sums = Sums(left.mT @ v, left.sum(-2))
    numerator, norm = weights @ repeat_heads(v, heads), weights.sum(-1)
    if state is not None:
        with torch.no_grad():
            fade, whole = torch.exp(a.cumsum(-1))[..., None], torch.exp(a.sum(-1))[..., None]
        earlier, earlier_norm = read(q * repeat_heads(last_rows(fade, q.shape[2], 1.0), heads), state)
        numerator, norm = numerator + earlier, norm + earlier_norm
        sums = Sums(sums.kv + whole[..., None] * state.kv, sums.k + whole * state.k)
    return finish(divide(numerator, norm), query, sums, return_state=return_state)


def decay_over_heads(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None = None, log_decay: Tensor | None = None
) -> Tensor:
    """Causal linear attention with elu(x) + 1 and decay on ``[B, T, H, D]``."""
    heads, size = query.shape[2], key.shape[1]
    a = heads_first(hold(log_decay.mT, *widen(key.transpose(1, 2)), mask))[0] if log_decay is not None else None
    q, k, v = prepare(*heads_first(query, key, value), mask)
    weights = elu1(q) @ elu1(k).mT
    if a is not None:
        later = torch.ones(size, size, dtype=torch.bool, device=a.device).tril(-1)
        steps = a[:, :, None, :].expand(-1, -1, size, -1)
        steps = steps.masked_fill(~later[:, :, None], 0.0).cumsum(-1)
        decay = torch.exp(steps).permute(0, 3, 1, 2)
        weights = weights * repeat_heads(last_rows(decay, q.shape[2], 0.0), heads)
    weights = weights.masked_fill(~visible(q, k, mask), 0.0)
    return average(weights, v).transpose(1, 2).to(query.dtype)


DECAY = [
    Broken(
        "factored",
        "C12",
        "Decay is split into exp(G) on queries and exp(-G) on keys, which overflows under strong decay and resets.",
        "power:2/sum+decay",
        {"parallel": factored},
    ),
    Broken(
        "reset_forgets",
        "C12",
        "Decay is a difference of running sums; after a reset that is NaN and replaced by no decay at all.",
        "exp/sum+decay",
        {"parallel": reset_forgets},
    ),
    Broken(
        "pads_decay",
        "C1",
        "Masked positions decay what came before them.",
        "elu1/sum+decay",
        {"parallel": pads_decay},
    ),
    Broken(
        "fade_severed",
        "C7",
        "The gradient of log_decay lacks the part that goes through a carried state.",
        "power:2/sum+decay",
        {"parallel": fade_severed},
    ),
    Broken(
        "decay_over_heads",
        "C5",
        "Log decay is summed over the heads instead of over time.",
        "elu1/sum+decay",
        {"parallel": decay_over_heads},
        layout="bthd",
    ),
]
