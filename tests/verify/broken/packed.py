"""Softmax attention over packed documents, in one way that is not quite right.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim, N documents.
"""

from __future__ import annotations

import torch
from torch import Tensor

from verify.broken.case import Broken
from verify.broken.pieces import average, default_scale, exponentials, prepare, visible


def leaks_over_edges(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    cu_seqlens: Tensor | None = None,
) -> Tensor:
    """Softmax attention; packed documents do not see each other."""
    q, k, v = prepare(query, key, value)
    sees = visible(q, k, is_causal=is_causal)
    if cu_seqlens is not None:
        positions = torch.arange(k.shape[2], device=k.device)
        document = torch.searchsorted(cu_seqlens[1:], positions)
        sees = sees & (document[:, None] == document[None, :])
    logits = default_scale(scale, q.shape[-1]) * (q @ k.mT)
    return average(exponentials(logits, sees), v).to(query.dtype)


PACKED = [
    Broken(
        "leaks_over_edges",
        "C18",
        "The first token of every packed document but the first is counted to the document before it.",
        "exp/sum",
        {"parallel": leaks_over_edges},
    ),
]
