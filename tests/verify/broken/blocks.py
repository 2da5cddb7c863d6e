"""Two or three forms of one attention, of which one, in blocks of keys, is not quite right.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim, N chunks.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from verify.broken.case import Broken, favorable
from verify.broken.pieces import (
    Sums,
    add,
    average,
    blank,
    clean,
    default_scale,
    divide,
    elu1,
    exponentials,
    finish,
    linear,
    prepare,
    read,
    repeat_heads,
    total,
    visible,
    widen,
)


def softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Softmax attention, every weight at once."""
    q, k, v = prepare(query, key, value, mask)
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    return average(exponentials(logits, visible(q, k, mask, is_causal=is_causal)), v).to(query.dtype)


def stops_at_diagonal(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
    chunk_size: int = 8,
) -> Tensor:
    """Softmax attention block by block, with a running maximum."""
    q, k, v = prepare(query, key, value, mask)
    sees, scale = visible(q, k, mask, is_causal=is_causal), default_scale(scale, q.shape[-1])
    num_queries, num_keys = q.shape[2], k.shape[2]
    out = [v.new_zeros(*q.shape[:2], 0, v.shape[-1])]
    for start in range(0, num_queries, chunk_size):
        rows = slice(start, min(start + chunk_size, num_queries))
        top = q.new_full((*q.shape[:2], rows.stop - start, 1), -torch.inf)
        numerator, denominator = top.new_zeros(*top.shape[:3], v.shape[-1]), torch.zeros_like(top)
        num_reached = rows.stop + num_keys - num_queries
        for first in range(0, num_reached, chunk_size):
            block = slice(first, first + chunk_size)
            logits = scale * (q[:, :, rows] @ k[:, :, block].mT)
            logits = logits.masked_fill(~sees[:, :, rows, block], -torch.inf)
            new_top = torch.maximum(top, logits.detach().amax(-1, keepdim=True))
            shift = new_top.masked_fill(new_top == -torch.inf, 0.0)
            weights, fade = torch.exp(logits - shift), torch.exp(top - shift)
            numerator = fade * numerator + weights @ v[:, :, block]
            denominator = fade * denominator + weights.sum(-1, keepdim=True)
            top = new_top
        out.append(divide(numerator, denominator[..., 0]))
    return torch.cat(out, dim=2).to(query.dtype)


def token_by_token(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    mask: Tensor | None = None,
    state: Sums | None = None,
    return_state: bool = False,
) -> object:
    """elu1/sum, one query at a time."""
    q, k, v = widen(clean(query, mask), blank(key, mask), blank(value, mask))
    q, k = elu1(q), blank(elu1(k), mask)
    state, seen = add(state, total(k[:, :, :0], v[:, :, :0])), 0
    rows = [v.new_zeros(*q.shape[:2], 0, v.shape[-1])]
    for t in range(q.shape[2]):
        stop = max(t + 1 + k.shape[2] - q.shape[2], 0) if is_causal else k.shape[2]
        state, seen = add(state, total(k[:, :, seen:stop], v[:, :, seen:stop])), stop
        rows.append(divide(*read(q[:, :, t : t + 1], state)))
    state = add(state, total(k[:, :, seen:], v[:, :, seen:]))
    return finish(torch.cat(rows, dim=2), query, state, return_state=return_state)


def starts_from_nothing(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    mask: Tensor | None = None,
    state: Sums | None = None,
    return_state: bool = False,
    chunk_size: int = 8,
) -> object:
    """elu1/sum: sums before each chunk, and every weight within it."""
    size = query.shape[2]
    if not is_causal or size != key.shape[2] or size == 0:
        return linear(query, key, value, is_causal=is_causal, mask=mask, state=state, return_state=return_state)
    q, k, v = widen(clean(query, mask), blank(key, mask), blank(value, mask))
    q, k = elu1(q), blank(elu1(k), mask)
    new_state = add(state, total(k, v))
    q, k, v = (F.pad(x, (0, 0, 0, -size % chunk_size)).unflatten(2, (-1, chunk_size)) for x in (q, k, v))
    kv, norm = k.mT @ v, k.sum(-2)
    kv_before = torch.cat([torch.zeros_like(kv[:, :, :1]), kv], dim=2).cumsum(2)[:, :, :-1]
    norm_before = torch.cat([torch.zeros_like(norm[:, :, :1]), norm], dim=2).cumsum(2)[:, :, :-1]
    k, v, kv_before, norm_before = (repeat_heads(x, q.shape[1]) for x in (k, v, kv_before, norm_before))
    weights = (q @ k.mT).tril()
    numerator = weights @ v + q @ kv_before
    denominator = weights.sum(-1) + (q @ norm_before[..., None])[..., 0]
    out = divide(numerator, denominator).flatten(2, 3)[:, :, :size]
    return finish(out, query, new_state, return_state=return_state)


def drops_tail(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    mask: Tensor | None = None,
    state: Sums | None = None,
    return_state: bool = False,
    chunk_size: int = 16,
) -> object:
    """elu1/sum, a loop over chunks."""
    if not is_causal or query.shape[2] != key.shape[2]:
        return linear(query, key, value, is_causal=is_causal, mask=mask, state=state, return_state=return_state)
    out = [value.new_zeros(*query.shape[:2], 0, value.shape[-1])]
    num_chunks = query.shape[2] // chunk_size
    for start in range(0, num_chunks * chunk_size, chunk_size):
        part = slice(start, start + chunk_size)
        q, k, v = query[:, :, part], key[:, :, part], value[:, :, part]
        seen = None if mask is None else mask[:, part]
        rows, state = linear(q, k, v, mask=seen, state=state, return_state=True)
        out.append(rows)
    rows = torch.cat(out, dim=2)
    rows = F.pad(rows, (0, 0, 0, query.shape[2] - rows.shape[2]))
    return finish(rows, query, state, return_state=return_state)


BLOCKS = [
    Broken(
        "stops_at_diagonal",
        "C3",
        "The blockwise form never looks at a block past the diagonal, with is_causal=False either.",
        "exp/sum",
        {"parallel": softmax, "blockwise": stops_at_diagonal},
    ),
    Broken(
        "starts_from_nothing",
        "C3",
        "The chunked form returns the right state but does not read the one that it is given.",
        "elu1/sum",
        {"parallel": linear, "chunked": starts_from_nothing, "recurrent": token_by_token},
    ),
    Broken(
        "drops_tail",
        "C10",
        "The chunked form leaves out the tokens after the last whole chunk.",
        "elu1/sum",
        {"parallel": linear, "chunked": drops_tail},
        favorable=favorable(queries=32, keys=32),
    ),
]
