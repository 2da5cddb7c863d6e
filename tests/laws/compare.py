"""Comparisons that cannot warn instead of failing, and for which NaN is never equal to NaN."""

from __future__ import annotations

import torch
from torch import Tensor


def deviation(actual: Tensor, expected: Tensor, *, scale: float | Tensor | None = None) -> float:
    """max |actual - expected| / scale; scale is max |expected| if None. Infinite if anything is not finite."""
    a, b = actual.detach().double(), expected.detach().double()
    if not (bool(a.isfinite().all()) and bool(b.isfinite().all())):
        return float("inf")
    if a.numel() == 0:
        return 0.0
    difference = float((a - b).abs().max())
    reference = float(b.abs().max() if scale is None else torch.as_tensor(scale).max())
    return 0.0 if difference == 0 else difference / reference if reference > 0 else float("inf")


def assert_close(
    actual: Tensor, expected: Tensor, *, rtol: float, scale: float | Tensor | None = None, what: str = "tensors"
) -> None:
    """Fail unless both are finite, of one shape, and differ by at most ``rtol * scale`` anywhere.

    Args:
        actual: what was computed.
        expected: what it should be.
        rtol: tolerance relative to ``scale``.
        scale: the magnitude that rounding errors are relative to; None: max |expected|.
        what: named in the message.
    """
    if actual.shape != expected.shape:
        raise AssertionError(f"{what}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    found = deviation(actual, expected, scale=scale)
    if not found <= rtol:
        raise AssertionError(f"{what}: deviation {found:.2e} > {rtol:.0e}")


def assert_same(actual: Tensor, expected: Tensor, *, what: str = "tensors") -> None:
    """Fail unless both are finite, of one shape and dtype, and equal number by number."""
    if actual.dtype != expected.dtype:
        raise AssertionError(f"{what}: {actual.dtype}, expected {expected.dtype}")
    assert_close(actual, expected, rtol=0.0, what=what)


def error_ratio(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected|| in float64; infinite if anything is not finite."""
    a, b = actual.detach().double(), expected.detach().double()
    if not (bool(a.isfinite().all()) and bool(b.isfinite().all())):
        return float("inf")
    return float((a - b).norm() / b.norm())
