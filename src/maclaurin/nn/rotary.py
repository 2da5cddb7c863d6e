"""Rotary position embedding, half-split as in Llama."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, *, position: Tensor | None = None, base: float = 10000.0) -> Tensor:
    r"""Rotate pairs (i, i + K/2) of the last axis by position * base^(-2i/K).

    The inner product of a rotated query and key depends on the difference of their positions only.

    Args:
        x: ``[B, H, T, K]``, K even.
        position: int64 ``[T]``, or ``[B, T]`` where rows differ, as with padding; None: 0, 1, ..., T - 1.
        base: of the frequencies.

    Source: Su et al., arXiv 2104.09864.

    Example:
        >>> x = torch.ones(1, 1, 2, 2)
        >>> rotate(x)[0, 0, 0]
        tensor([1., 1.])
    """
    half = x.shape[-1] // 2
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    frequency = base ** (-torch.arange(half, device=x.device, dtype=dtype) / half)
    if position is None:
        position = torch.arange(x.shape[-2], device=x.device)
    angle = (position.to(dtype)[..., None] * frequency).unsqueeze(-3)  # the same for every head
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half].to(dtype), x[..., half:].to(dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
