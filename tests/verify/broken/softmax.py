"""Softmax attention, all weights at once, in ten ways that are not quite right.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from verify.broken.case import Broken, favorable
from verify.broken.pieces import (
    average,
    blank,
    clean,
    default_scale,
    exponentials,
    heads_first,
    prepare,
    repeat_heads,
    visible,
    widen,
)


def top_left(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention."""
    q, k, v = prepare(query, key, value, mask)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    sees = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device)
    if is_causal:
        sees = sees.tril()
    if mask is not None:
        sees = sees & mask[:, None, None, :]
    return average(exponentials(logits, sees), v).to(query.dtype)


def own_key_hidden(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention for a query that may be shorter than the keys."""
    q, k, v = prepare(query, key, value, mask)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    num_queries, num_keys = logits.shape[-2:]
    hidden = torch.zeros(num_queries, num_keys, dtype=torch.bool, device=q.device)
    if is_causal:
        offset = max(num_keys - num_queries, 1)
        hidden = torch.ones_like(hidden).triu(diagonal=offset)
    if mask is not None:
        hidden = hidden | ~mask[:, None, None, :]
    return average(exponentials(logits, ~hidden), v).to(query.dtype)


def single_unmasked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention; a batch of several prompts is padded to one length."""
    if query.shape[0] == 1:
        mask = None
    q, k, v = prepare(query, key, value, mask)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    return average(exponentials(logits, visible(q, k, mask, is_causal=is_causal)), v).to(query.dtype)


def empty_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention by ``torch.softmax``."""
    q, k, v = prepare(query, key, value, mask)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    logits = logits.masked_fill(~visible(q, k, mask, is_causal=is_causal), -torch.inf)
    return (torch.softmax(logits, dim=-1) @ v).to(query.dtype)


def bare_exponentials(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention with its numerator and denominator kept apart."""
    q, k, v = prepare(query, key, value, mask)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    hidden = ~visible(q, k, mask, is_causal=is_causal)
    weights = torch.exp(logits.masked_fill(hidden, -torch.inf))
    return average(weights, v).to(query.dtype)


def scale_or_default(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention on ``[B, T, H, D]``."""
    q, k, v = prepare(*heads_first(query, key, value), mask)
    scale = scale or q.shape[-1] ** -0.5
    weights = exponentials(scale * (q @ k.mT), visible(q, k, mask, is_causal=is_causal))
    return average(weights, v).transpose(1, 2).to(query.dtype)


def accepts_anything(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = True, scale: float | None = None, **kwargs: Any
) -> Tensor:
    """Softmax attention with the call of other backends; ``kwargs`` are theirs."""
    q, k, v = prepare(query, key, value)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    return average(exponentials(logits, visible(q, k, is_causal=is_causal)), v).to(query.dtype)


def tiled_heads(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention on ``[B, T, H, D]`` with grouped heads."""
    groups = query.shape[2] // key.shape[2]
    key, value = key.repeat(1, 1, groups, 1), value.repeat(1, 1, groups, 1)
    q, k, v = prepare(*heads_first(query, key, value), mask)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    weights = exponentials(logits, visible(q, k, mask, is_causal=is_causal))
    return average(weights, v).transpose(1, 2).to(query.dtype)


def shared_maximum(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention, stabilized by one number."""
    q, k, v = prepare(query, key, value, mask)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    sees = visible(q, k, mask, is_causal=is_causal)
    logits = logits.masked_fill(~sees, -torch.inf)
    if logits.numel() > 0:
        top = logits.detach().amax().clamp_min(torch.finfo(logits.dtype).min)
        logits = (logits - top).clamp_min(-80.0)
    return average(torch.exp(logits).masked_fill(~sees, 0.0), v).to(query.dtype)


def masked_in_place(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention whose output rows have length one."""
    if mask is not None:
        value.masked_fill_(~mask[:, None, :, None], 0.0)
    q, k, v = widen(clean(query, mask), blank(key, mask), value)
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    out = exponentials(logits, visible(q, k, mask, is_causal=is_causal)) @ v
    largest = out.detach().abs().amax(-1, keepdim=True)
    empty = largest == 0
    out = torch.where(empty, 1.0, out / largest.masked_fill(empty, 1.0))
    return torch.where(empty, 0.0, out / out.norm(dim=-1, keepdim=True)).to(query.dtype)


SOFTMAX = [
    Broken(
        "top_left",
        "C16",
        "The causal mask is aligned to the first query and key, so one query on many keys sees the first key alone.",
        "exp/sum",
        {"parallel": top_left},
    ),
    Broken(
        "own_key_hidden",
        "",
        "The causal mask is off by one where T is not S: with more keys than queries, a query's own key is hidden.",
        "exp/sum",
        {"parallel": own_key_hidden},
    ),
    Broken(
        "single_unmasked",
        "C2",
        "The mask is ignored when the batch holds one row.",
        "exp/sum",
        {"parallel": single_unmasked},
    ),
    Broken(
        "empty_rows",
        "C24",
        "A query that sees no key gets NaN, and so do the gradients.",
        "exp/sum",
        {"parallel": empty_rows},
    ),
    Broken(
        "bare_exponentials",
        "C11",
        "No maximum is subtracted before exp, so large logits overflow to NaN.",
        "exp/sum",
        {"parallel": bare_exponentials},
    ),
    Broken(
        "scale_or_default",
        "C4",
        "A scale of 0 is taken for a scale that was not given.",
        "exp/sum",
        {"parallel": scale_or_default},
        layout="bthd",
    ),
    Broken(
        "accepts_anything",
        "C22",
        "Keywords that it does not know, a mask among them, are swallowed in silence.",
        "exp/sum",
        {"parallel": accepts_anything},
    ),
    Broken(
        "tiled_heads",
        "",
        "Key/value heads are tiled instead of repeated, so grouped query heads read the wrong one.",
        "exp/sum",
        {"parallel": tiled_heads},
        layout="bthd",
        favorable=favorable(kv_heads=4),
    ),
    Broken(
        "shared_maximum",
        "",
        "One maximum for the whole batch, then a clamp: a row far below another batch row becomes a plain mean.",
        "exp/sum",
        {"parallel": shared_maximum},
    ),
    Broken(
        "masked_in_place",
        "",
        "The caller's value tensor is overwritten with zeros at masked positions.",
        "exp/l2",
        {"parallel": masked_in_place},
    ),
]
