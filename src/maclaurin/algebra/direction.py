"""The direction of a vector, exactly invariant to its scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from maclaurin.algebra.tracing import is_traced


def unit(x: Tensor, length: float = 1.0, *, may_overwrite: bool = False) -> Tensor:
    r"""``length * x / ||x||_2`` over the last axis; a zero row gives zeros and zero gradient.

    No magnitude overflows or underflows and no epsilon is needed: ``unit(c * x) == unit(x)`` for every c > 0 up to
    rounding, and for powers of two in every bit. A row whose squares would leave the dtype's range is first multiplied
    by a power of two; no row depends on another.

    Args:
        x: ``[..., D]``, any floating dtype, kept.
        length: of every row.
        may_overwrite: whether x may hold the result where no gradient is wanted: fresh memory costs more than a pass.

    Example:
        >>> unit(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
        tensor([[0.6000, 0.8000],
                [0.0000, 0.0000]])
    """
    if x.shape[-1] == 0 or x.numel() == 0:
        return x
    if is_traced(x):
        peeled, norm, _ = _peeled(x)
        return peeled * (length / norm)
    if not (torch.is_grad_enabled() and x.requires_grad):
        return _divided(x, length, x if may_overwrite else torch.empty_like(x))
    found: Tensor = _Unit.apply(x, length)  # type: ignore[no-untyped-call]
    return found


def _divided(x: Tensor, length: float, out: Tensor) -> Tensor:
    peeled, norm, _ = _in_range(x)
    return torch.div(peeled, norm if length == 1.0 else norm / length, out=out)


class _Unit(torch.autograd.Function):
    """The direction, keeping nothing but x for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, length: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.length = length
        return _divided(x, length, torch.empty_like(x))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        peeled, norm, factor = _in_range(x)
        scaled = grad * (ctx.length / norm if factor is None else ctx.length / norm * factor)
        products = scaled * peeled
        along = products.sum(-1, keepdim=True) / norm.square()
        out = None if torch.is_grad_enabled() else products
        return torch.addcmul(scaled, peeled, along, value=-1.0, out=out).to(x.dtype), None


def _in_range(x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """What :func:`_peeled` returns; x itself and no factor where every row may keep its own."""
    norm = _norm(x)
    safe = torch.finfo(norm.dtype).tiny ** 0.5 * 1e3
    if x.device.type == "cpu":  # elsewhere a look at the numbers would wait for the device
        low, high = torch.aminmax(norm.detach())
        if safe < float(low) and float(high) < 1.0 / safe:
            return x, norm, None
    return _peeled(x)


def _peeled(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``(c x, ||c x||, c)`` with c a power of two that brings the row's largest magnitude near 1; 0 for a zero row."""
    wide = x.to(_wide(x.dtype))
    _, exponent = torch.frexp(wide.detach().abs().amax(-1, keepdim=True))
    half = torch.div(exponent, 2, rounding_mode="floor")
    one = torch.ones_like(wide[..., :1])
    first, second = torch.ldexp(one, -half), torch.ldexp(one, half - exponent)
    peeled = wide * first * second
    norm = _norm(peeled)
    is_zero = norm == 0
    return peeled, norm.masked_fill(is_zero, 1.0), (first * second).masked_fill(is_zero, 0.0)


def _norm(x: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=_wide(x.dtype))
    return norm


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32
