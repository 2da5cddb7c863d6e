"""Comparisons for which NaN is never equal to anything, and the tolerances with their reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerance:
    """A relative tolerance and where its size comes from."""

    value: float
    reason: str


EXACT = Tolerance(0.0, "the same numbers in the same order: bit for bit")
#: Of values and of gradients computed in float64.
DOUBLE = Tolerance(
    1e-10, "float64 rounds to 1.1e-16; long sums, quotients and their gradients lose up to five digits, one is kept"
)
#: Of a target that computes in float32 whatever it is given.
SINGLE = Tolerance(1e-3, "the target computes in float32, 6e-8; sums, quotients and gradients lose up to four digits")
#: Of central differences with step 1e-5 in float64.
DIFFERENCES = Tolerance(2e-6, "central differences with step 1e-5 err by its square and by 1e-16 / 1e-5, times 1e4")
#: Of central differences with step 3e-3 in float32.
COARSE_DIFFERENCES = Tolerance(3e-2, "central differences with step 3e-3 in float32 are good to two digits")


@dataclass(frozen=True)
class Gap:
    """One comparison.

    Args:
        what: was compared.
        deviation: found; infinite where a number is not finite.
        tolerance: allowed, with its reason.
    """

    what: str
    deviation: float
    tolerance: Tolerance

    @property
    def is_failure(self) -> bool:
        """Whether the deviation is above the tolerance, or not a number."""
        return not self.deviation <= self.tolerance.value

    @property
    def ratio(self) -> float:
        """Deviation over tolerance, to find the worst."""
        if self.deviation == 0:
            return 0.0
        return self.deviation / self.tolerance.value if self.tolerance.value else float("inf")


def deviation(actual: Tensor, expected: Tensor, *, floor: float = 0.0) -> float:
    """max |actual - expected| / max(max |expected|, floor); infinite if anything is not finite.

    Example:
        >>> deviation(torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]))
        0.25
        >>> deviation(torch.tensor(float("nan")), torch.tensor(float("nan")))
        inf
    """
    if actual.shape != expected.shape:
        return float("inf")
    a, b = actual.detach().double(), expected.detach().double()
    if not (bool(a.isfinite().all()) and bool(b.isfinite().all())):
        return float("inf")
    if a.numel() == 0:
        return 0.0
    difference = float((a - b).abs().max())
    reference = max(float(b.abs().max()), floor)
    return 0.0 if difference == 0 else difference / reference if reference > 0 else float("inf")


def error_ratio(actual: Tensor, expected: Tensor) -> float:
    """||actual - expected|| / ||expected|| in float64; infinite if anything is not finite."""
    a, b = actual.detach().double(), expected.detach().double()
    if not (bool(a.isfinite().all()) and bool(b.isfinite().all())):
        return float("inf")
    difference, reference = float((a - b).norm()), float(b.norm())
    return 0.0 if difference == 0 else difference / reference if reference > 0 else float("inf")


def close(what: str, actual: Tensor, expected: Tensor, tolerance: Tolerance, *, floor: float = 0.0) -> Gap:
    """Equal up to rounding, relative to the largest expected number."""
    return Gap(what, deviation(actual, expected, floor=floor), tolerance)


def same(what: str, actual: Tensor, expected: Tensor) -> Gap:
    """Equal bit for bit, and finite."""
    return Gap(what, deviation(actual, expected), EXACT)


def zero(what: str, actual: Tensor) -> Gap:
    """Exact zeros."""
    found = actual.detach().double().abs().amax() if actual.numel() else torch.zeros(())
    return Gap(what, float("inf") if found.isnan() else float(found), EXACT)


def holds(what: str, fact: object, reason: str = "a yes or a no") -> Gap:
    """A fact without a size."""
    return Gap(what, 0.0 if bool(fact) else 1.0, Tolerance(0.0, reason))


def close_gradients(
    what: str,
    actual: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    tolerance: Tolerance,
    *,
    floor: float = 1e-3,
) -> Iterator[Gap]:
    """Every gradient that both have; relative to its own largest number, 1e-2 of the largest of all, or ``floor``.

    A gradient that is zero in exact arithmetic, of a norm of one number for instance, holds only rounding errors.
    """
    largest = max((float(each.detach().abs().amax()) for each in expected.values() if each.numel()), default=0.0)
    floor = max(floor, 1e-2 * largest if largest < float("inf") else 0.0)
    for name in expected:
        yield close(f"{what} of {name}", actual[name], expected[name], tolerance, floor=floor)


def finite(what: str, tensor: Tensor) -> Gap:
    """Neither NaN nor infinite."""
    return holds(what, torch.isfinite(tensor).all(), "no number may be NaN or infinite")
