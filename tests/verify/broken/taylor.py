"""Polynomials of the logit, in three ways that are not quite right.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim, M monomials.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.broken.case import Broken, favorable
from verify.broken.pieces import average, blank, default_scale, divide, last_rows, pairs, prepare, visible


def quadratic(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """taylor:2/sum, every weight at once."""
    q, k, v = prepare(query, key, value, mask)
    x = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    weights = (1.0 + x + 0.5 * x**2).masked_fill(~visible(q, k, mask, is_causal=is_causal), 0.0)
    return average(weights, v).to(query.dtype)


def _monomials(x: Tensor) -> Tensor:
    """1, x and x x / sqrt(2), ``[..., 1 + K + K (K + 1) / 2]``."""
    return torch.cat([torch.ones_like(x[..., :1]), x, pairs(x) * 0.5**0.5], dim=-1)


def scaled_twice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """taylor:2/sum by running moments."""
    q, k, v = prepare(query, key, value, mask)
    if scale is not None:
        q = scale * q
    q, k = _monomials(default_scale(scale, q.shape[-1]) * q), blank(_monomials(k), mask)
    moments = (k[..., None] * v[..., None, :]).cumsum(2)
    norm = k.cumsum(2)
    if is_causal:
        moments = last_rows(moments.flatten(3), q.shape[2], 0.0).unflatten(3, (k.shape[-1], v.shape[-1]))
        norm = last_rows(norm, q.shape[2], 0.0)
    else:
        moments, norm = moments[:, :, -1:], norm[:, :, -1:]
    numerator = (q[..., None, :] @ moments)[..., 0, :]
    return divide(numerator, (q * norm).sum(-1)).to(query.dtype)


def missing_half(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """taylor:2/sum; keys and values of one width are weighed and summed as one tensor."""
    q, k, v = prepare(query, key, value, mask)
    x = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    sees = visible(q, k, mask, is_causal=is_causal)
    if k.shape[-1] == v.shape[-1]:
        weights = torch.addcmul(1.0 + x, x, x, value=0.5).masked_fill(~sees, 0.0)
        columns = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1)
        sums = weights @ columns
        return divide(sums[..., :-1], sums[..., -1]).to(query.dtype)
    weights = (1.0 + x + x * x).masked_fill(~sees, 0.0)
    return average(weights, v).to(query.dtype)


def additive_eps(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
) -> Tensor:
    """Attention by the squared logit."""
    q, k, v = prepare(query, key, value, mask)
    x = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    weights = (x**2).masked_fill(~visible(q, k, mask, is_causal=is_causal), 0.0)
    return (weights @ v / (weights.sum(-1, keepdim=True) + 1e-12)).to(query.dtype)


TAYLOR = [
    Broken(
        "scaled_twice",
        "C4",
        "The moment form applies a given scale twice: once itself and once in the default's place.",
        "taylor:2/sum",
        {"parallel": quadratic, "moments": scaled_twice},
    ),
    Broken(
        "missing_half",
        "C25",
        "Where the value width is not the key width it takes a plainer path, which lacks the 1/2 of the second order.",
        "taylor:2/sum",
        {"parallel": missing_half},
        favorable=favorable(value_dim=8),
    ),
    Broken(
        "additive_eps",
        "",
        "1e-12 is added to a denominator that scales with the fourth power of its inputs, so small inputs give zeros.",
        "power:2/sum",
        {"parallel": additive_eps},
    ),
]
