"""Linear attention by feature maps, in five ways that are not quite right.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.broken.case import Broken
from verify.broken.pieces import (
    Sums,
    add,
    average,
    blank,
    clean,
    divide,
    elu1,
    finish,
    heads_first,
    prepare,
    repeat_heads,
    visible,
    widen,
)


def future_stabilizer(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = True, mask: Tensor | None = None
) -> Tensor:
    """Attention with the features exp(x), each side relative to its maximum."""
    q, k, v = prepare(query, key, value, mask)
    hidden = torch.zeros_like(k[..., :1], dtype=torch.bool) if mask is None else ~mask[:, None, :, None]
    k = k.masked_fill(hidden, -torch.inf)
    if k.numel() > 0:
        top = k.detach().amax(dim=(-2, -1), keepdim=True)
        k = k - top.masked_fill(top == -torch.inf, 0.0)
    q = torch.exp(q - q.detach().amax(-1, keepdim=True))
    weights = q @ torch.exp(k).mT
    return average(weights.masked_fill(~visible(q, k, mask, is_causal=is_causal), 0.0), v).to(query.dtype)


def severed_denominator(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    mask: Tensor | None = None,
    state: Sums | None = None,
    return_state: bool = False,
) -> object:
    """Linear attention with elu(x) + 1."""
    q, k, v = widen(clean(query, mask), blank(key, mask), blank(value, mask))
    q, k = elu1(q), blank(elu1(k), mask)
    weights = (q @ repeat_heads(k, q.shape[1]).mT).masked_fill(~visible(q, k, mask, is_causal=is_causal), 0.0)
    numerator, norm = weights @ repeat_heads(v, q.shape[1]), weights.sum(-1)
    if state is not None:
        numerator = numerator + q @ repeat_heads(state.kv, q.shape[1])
        norm = norm + (q @ repeat_heads(state.k, q.shape[1])[..., None])[..., 0]
    with torch.no_grad():
        inverse = torch.where(norm == 0, 0.0, 1.0 / norm)
    return finish(
        numerator * inverse[..., None], query, add(state, Sums(k.mT @ v, k.sum(-2))), return_state=return_state
    )


def pads_counted(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = True, mask: Tensor | None = None
) -> Tensor:
    """Linear attention with elu(x) + 1 on ``[B, T, H, D]``; values of padding are set to zero."""
    q, k, v = prepare(*heads_first(query, key, value), mask)
    weights = elu1(q) @ elu1(k).mT
    weights = weights.masked_fill(~visible(q, k, is_causal=is_causal), 0.0)
    return average(weights, v).transpose(1, 2).to(query.dtype)


def half_sums(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    state: Sums | None = None,
    return_state: bool = False,
) -> object:
    """Causal linear attention with relu, token by token."""
    q = torch.relu(clean(query, mask))
    k, v = torch.relu(blank(key, mask)), blank(value, mask)
    if state is None:
        state = Sums(k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), k.new_zeros(*k.shape[:2], k.shape[-1]))
    kv, total, seen = state.kv, state.k, 0
    rows = [v.new_zeros(*q.shape[:2], 0, v.shape[-1])]
    for t in range(q.shape[2]):
        while seen < t + 1 + k.shape[2] - q.shape[2]:
            kv = kv + k[:, :, seen, :, None] * v[:, :, seen, None, :]
            total = total + k[:, :, seen]
            seen += 1
        row = q[:, :, t : t + 1]
        norm = (row @ repeat_heads(total, q.shape[1])[..., None])[..., 0]
        rows.append(divide(row @ repeat_heads(kv, q.shape[1]), norm))
    return finish(torch.cat(rows, dim=2), query, Sums(kv, total), return_state=return_state)


def zero_times_padding(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = True, mask: Tensor | None = None
) -> Tensor:
    """Linear attention with relu; padding is multiplied away."""
    q, k, v = widen(torch.relu(clean(query, mask)), torch.relu(key), value)
    if mask is not None:
        keep = mask[:, None, :, None].to(k.dtype)
        k, v = k * keep, v * keep
    k, v = repeat_heads(k, q.shape[1]), repeat_heads(v, q.shape[1])
    weights = (q @ k.mT).masked_fill(~visible(q, k, is_causal=is_causal), 0.0)
    return average(weights, v).to(query.dtype)


LINEAR = [
    Broken(
        "future_stabilizer",
        "C6",
        "Keys are taken relative to their maximum over all times, so one huge future key wipes out the past.",
        "expmap/sum",
        {"parallel": future_stabilizer},
    ),
    Broken(
        "severed_denominator",
        "C7",
        "No gradient flows through the denominator.",
        "elu1/sum",
        {"parallel": severed_denominator},
    ),
    Broken(
        "pads_counted",
        "C1",
        "Masked keys stay in the denominator.",
        "elu1/sum",
        {"parallel": pads_counted},
        layout="bthd",
    ),
    Broken(
        "half_sums",
        "",
        "With half-precision inputs the sums, and the state, are kept in half precision.",
        "relu/sum",
        {"recurrent": half_sums},
    ),
    Broken(
        "zero_times_padding",
        "C1",
        "Padding is multiplied by zero instead of replaced, so NaN or infinity on a pad reaches every later output.",
        "relu/sum",
        {"parallel": zero_times_padding},
    ),
]
