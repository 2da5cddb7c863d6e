"""The direction of a vector, exactly invariant to its scale."""

from __future__ import annotations

import torch
from torch import Tensor


def unit(x: Tensor) -> Tensor:
    r"""``x / ||x||_2`` over the last axis; a zero row gives zeros and zero gradient.

    The row is divided by its largest magnitude first, so no magnitude overflows or underflows and no epsilon is
    needed: ``unit(c * x) == unit(x)`` for every c > 0 up to rounding. Scale invariance also makes it exact to
    treat that magnitude as a constant in the backward pass.

    Args:
        x: ``[..., D]``, any floating dtype, kept.

    Example:
        >>> unit(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    if x.shape[-1] == 0:
        return x
    magnitude = x.detach().abs().amax(-1, keepdim=True)
    is_zero = magnitude == 0
    peeled = x / magnitude.masked_fill(is_zero, 1.0)
    squares = peeled.square().sum(-1, keepdim=True).masked_fill(is_zero, 1.0)
    return (peeled * torch.rsqrt(squares)).masked_fill(is_zero, 0.0)
