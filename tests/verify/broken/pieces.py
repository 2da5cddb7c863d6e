"""Right pieces that the broken functions share. Nothing in this file is broken.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim, M features.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class Sums(NamedTuple):
    """Sums over keys: features times values ``[B, Hkv, M, V]``, and features ``[B, Hkv, M]``."""

    kv: Tensor
    k: Tensor


def widen(*tensors: Tensor) -> list[Tensor]:
    """Half precision to float32, the rest as it is."""
    return [x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors]


def heads_first(*tensors: Tensor) -> list[Tensor]:
    """``[B, T, H, D]`` to ``[B, H, T, D]``, and back."""
    return [x.transpose(1, 2) for x in tensors]


def repeat_heads(x: Tensor, heads: int) -> Tensor:
    """One key/value head for each query head: query head h reads head h // (H / Hkv)."""
    return x.repeat_interleave(heads // x.shape[1], dim=1)


def blank(x: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros at hidden positions of ``[B, H, S, D]``."""
    return x if mask is None else x.masked_fill(~mask[:, None, :, None], 0.0)


def clean(query: Tensor, mask: Tensor | None) -> Tensor:
    """The query without what is not finite on hidden positions."""
    if mask is None:
        return query
    hidden = F.pad(~mask, (query.shape[2] - mask.shape[1], 0))[:, None, :, None]
    return torch.where(hidden & ~query.isfinite(), 0.0, query)


def prepare(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> list[Tensor]:
    """Widened, without padding content, and as many key/value heads as query heads."""
    heads = query.shape[1]
    q, k, v = widen(clean(query, mask), blank(key, mask), blank(value, mask))
    return [q, repeat_heads(k, heads), repeat_heads(v, heads)]


def visible(query: Tensor, key: Tensor, mask: Tensor | None = None, *, is_causal: bool = True) -> Tensor:
    """Which key a query sees, ``[B or 1, 1, T, S]``, aligned to the end."""
    num_queries, num_keys = query.shape[2], key.shape[2]
    sees = torch.ones(1, 1, num_queries, num_keys, dtype=torch.bool, device=query.device)
    sees = sees.tril(num_keys - num_queries) if is_causal else sees
    return sees if mask is None else sees & mask[:, None, None, :]


def default_scale(scale: float | None, key_dim: int) -> float:
    """``scale``, or the customary one."""
    return key_dim**-0.5 if scale is None else scale


def exponentials(logits: Tensor, sees: Tensor) -> Tensor:
    """exp(logits), each row relative to its largest visible logit; 0 where nothing is seen."""
    logits = logits.masked_fill(~sees, -torch.inf)
    top = F.pad(logits.detach(), (0, 1), value=-torch.inf).amax(-1, keepdim=True)
    return torch.exp(logits - top.masked_fill(top == -torch.inf, 0.0))


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Numerator over denominator, zero rows where the denominator is zero."""
    empty = denominator == 0
    return torch.where(empty[..., None], 0.0, numerator / denominator.masked_fill(empty, 1.0)[..., None])


def average(weights: Tensor, value: Tensor) -> Tensor:
    """Weighted mean of the values, ``[B, H, T, V]``."""
    return divide(weights @ value, weights.sum(-1))


def elu1(x: Tensor) -> Tensor:
    """elu(x) + 1."""
    return F.elu(x) + 1.0


def total(features: Tensor, value: Tensor) -> Sums:
    """Sums of ``[B, Hkv, S, M]`` and ``[B, Hkv, S, V]`` over keys."""
    return Sums(features.mT @ value, features.sum(-2))


def add(one: Sums | None, other: Sums) -> Sums:
    """Sums over both sets of keys."""
    return other if one is None else Sums(one.kv + other.kv, one.k + other.k)


def read(query: Tensor, sums: Sums | None) -> tuple[Tensor, Tensor] | tuple[float, float]:
    """Numerator ``[B, H, T, V]`` and denominator ``[B, H, T]`` that the query features find in the sums."""
    if sums is None:
        return 0.0, 0.0
    heads = query.shape[1]
    kv, k = repeat_heads(sums.kv, heads), repeat_heads(sums.k, heads)
    return query @ kv, (query @ k[..., None])[..., 0]


def finish(out: Tensor, like: Tensor, state: object, *, return_state: bool) -> object:
    """The output in the query's dtype, with the state if it was asked for."""
    out = out.to(like.dtype)
    return (out, state) if return_state else out


def linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    mask: Tensor | None = None,
    state: Sums | None = None,
    return_state: bool = False,
) -> object:
    """elu1/sum, every weight at once."""
    q, k, v = widen(clean(query, mask), blank(key, mask), blank(value, mask))
    q, k = elu1(q), blank(elu1(k), mask)
    weights = (q @ repeat_heads(k, q.shape[1]).mT).masked_fill(~visible(q, k, mask, is_causal=is_causal), 0.0)
    numerator, denominator = read(q, state)
    numerator = numerator + weights @ repeat_heads(v, q.shape[1])
    out = divide(numerator, denominator + weights.sum(-1))
    return finish(out, query, add(state, total(k, v)), return_state=return_state)


def segments(log_decay: Tensor) -> Tensor:
    """a_{s+1} + ... + a_t of ``[B, H, S]``, ``[B, H, S, S]``; -inf for s > t."""
    size = log_decay.shape[-1]
    after = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril(-1)
    steps = log_decay[..., None].expand(*log_decay.shape, size).masked_fill(~after, 0.0)
    future = torch.ones_like(after).triu(1)
    return steps.cumsum(-2).masked_fill(future, -torch.inf)


def remaining(log_decay: Tensor) -> Tensor:
    """a_{s+1} + ... up to the last time, of ``[B, H, S]``."""
    return F.pad(log_decay, (0, 1))[..., 1:].flip(-1).cumsum(-1).flip(-1)


def hold(log_decay: Tensor | None, key: Tensor, mask: Tensor | None) -> Tensor:
    """The log decay in the key's dtype, zero where none is given or the position is hidden."""
    if log_decay is None:
        return key.new_zeros(key.shape[:3])
    log_decay = log_decay.to(key.dtype)
    return log_decay if mask is None else log_decay.masked_fill(~mask[:, None, :], 0.0)


def last_rows(x: Tensor, rows: int, fill: float) -> Tensor:
    """The last rows of ``[..., S, *]``, filled in front where there are fewer."""
    return F.pad(x, (0, 0, rows - x.shape[-2], 0), value=fill)


def pairs(x: Tensor) -> Tensor:
    """Second-order monomials ``[..., K (K + 1) / 2]`` whose inner product is the squared inner product."""
    row, column = torch.triu_indices(x.shape[-1], x.shape[-1], device=x.device)
    weight = x.new_full(row.shape, 2.0**0.5).masked_fill(row == column, 1.0)
    return weight * x[..., row] * x[..., column]
