"""Rotary position embedding, half-split as in Llama."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, *, first_position: int = 0, base: float = 10000.0) -> Tensor:
    r"""Rotate pairs (i, i + K/2) of the last axis by position * base^(-2i/K).

    The inner product of a rotated query and key depends on the difference of their positions only.

    Args:
        x: ``[B, H, T, K]``, K even.
        first_position: position of x[:, :, 0]; what a state has seen before.
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
    position = torch.arange(first_position, first_position + x.shape[-2], device=x.device, dtype=dtype)
    angle = position[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    first, second = x[..., :half].to(dtype), x[..., half:].to(dtype)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
