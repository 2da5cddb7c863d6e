r"""Functions of the logit: exp, and the polynomials that have a finite state.

Every function is evaluated relative to a log scale per row, so that neither exp(700) nor 1000**40 overflows:
``kappa(x) = exp(log_scale) * weights``. The log scale is a constant for gradients.

Dimension key: ... leading dims (batch, heads), T queries, S keys, N order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from maclaurin.errors import MechanismError

_LOG2_E = math.log2(math.e)
_LARGEST_LOGIT = {torch.float64: 500.0, torch.float32: 50.0, torch.bfloat16: 16.0, torch.float16: 16.0}


class Positivity(StrEnum):
    """What is known of the sign of kappa on the range of its logits."""

    POSITIVE = "positive"
    NONNEGATIVE = "nonnegative"
    SIGNED = "signed"


@dataclass(frozen=True)
class Function:
    """Base: a function kappa of the logit."""

    name: ClassVar[str] = ""
    #: Whether expanding around a center c, exp(c) * kappa(x - c), approximates the same thing better.
    can_center: ClassVar[bool] = False
    #: :meth:`values` takes logits times this, which whoever makes them multiplies into another factor.
    logit_unit: ClassVar[float] = 1.0

    @property
    def formula(self) -> str:
        """kappa(x) as text."""
        raise AssertionError("a function defines its formula")

    def weigh(self, logits: Tensor, visible: Tensor, log_decay: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """``kappa(logits) * exp(log_decay)`` as ``(weights [..., T, S], log_scale [..., T])``, zero where not visible.

        Args:
            logits: ``[..., T, S]``.
            visible: bool, broadcastable to ``[..., T, S]``.
            log_decay: broadcastable to ``[..., T, S]``; None for none.
        """
        raise AssertionError("a function defines weigh")

    def values(self, logits: Tensor) -> Tensor:
        """``kappa(x)`` in true scale, which may overflow; the logits may be overwritten. No gradient is kept.

        Args:
            logits: x times :attr:`logit_unit`.
        """
        raise AssertionError("a function defines values")

    def slope(self, logits: Tensor, values: Tensor) -> Tensor | float:
        """``kappa'(x)``, a new tensor or ``values``, or a number where it is the same everywhere.

        Args:
            logits: as :meth:`values` left them.
            values: what it returned.
        """
        raise AssertionError("a function defines its slope")

    def limit(self, dtype: torch.dtype) -> float:
        """Largest logit whose weight :meth:`values` gives about as well as ``dtype`` holds it."""
        return math.inf

    def positivity(self, *, nonnegative_logits: bool) -> Positivity:
        """The sign of kappa on R, or on [0, inf) with ``nonnegative_logits``."""
        raise AssertionError("a function defines its positivity")


@dataclass(frozen=True)
class Exp(Function):
    """kappa(x) = exp(x): softmax attention's function. No finite state."""

    name: ClassVar[str] = "exp"
    logit_unit: ClassVar[float] = _LOG2_E

    @property
    def formula(self) -> str:
        return "exp(x)"

    def weigh(self, logits: Tensor, visible: Tensor, log_decay: Tensor | None = None) -> tuple[Tensor, Tensor]:
        masked = torch.where(visible, logits if log_decay is None else logits + log_decay, -math.inf)
        log_scale = _row_max(masked.detach())
        log_scale = log_scale.masked_fill(log_scale == -math.inf, 0.0)
        # 2**(x log2 e) is exp(x) to a rounding of x; some builds' exp is ten times slower where it underflows
        return torch.exp2((masked - log_scale[..., None]) * _LOG2_E), log_scale

    def values(self, logits: Tensor) -> Tensor:
        return logits.exp2_()  # several times faster than some builds' exp

    def limit(self, dtype: torch.dtype) -> float:
        # a weight is as wrong as its logit's last digit; and sums over many keys must not overflow
        return _LARGEST_LOGIT[dtype]

    def slope(self, logits: Tensor, values: Tensor) -> Tensor | float:
        return values

    def positivity(self, *, nonnegative_logits: bool) -> Positivity:
        return Positivity.POSITIVE


@dataclass(frozen=True)
class Series(Function):
    r"""Base of the polynomials: kappa(x) = sum_n a_n x^n, with a finite state of symmetric monomials."""

    @property
    def series(self) -> tuple[float, ...]:
        """The coefficients (a_0, ..., a_N); a_N is not zero."""
        raise AssertionError("a series defines its coefficients")

    @property
    def degree(self) -> int:
        """The highest power N."""
        return len(self.series) - 1

    @property
    def orders(self) -> tuple[int, ...]:
        """The powers with a coefficient that is not zero."""
        return tuple(n for n, a in enumerate(self.series) if a != 0)

    def weigh(self, logits: Tensor, visible: Tensor, log_decay: Tensor | None = None) -> tuple[Tensor, Tensor]:
        masked = torch.where(visible, logits, 0.0)
        radius = _row_max(masked.detach().abs())
        radius = radius.masked_fill(radius == 0, 1.0)
        log_radius = radius.log()
        log_terms = {n: math.log(abs(self.series[n])) + n * log_radius for n in self.orders}
        log_scale = torch.stack(list(log_terms.values())).amax(0)

        def coefficient(n: int) -> Tensor:
            return (math.copysign(1.0, self.series[n]) * torch.exp(log_terms[n] - log_scale))[..., None]

        u = masked / radius[..., None]
        weights = coefficient(self.degree).expand_as(u)
        for n in range(self.degree - 1, -1, -1):  # Horner in u = x / radius, |u| <= 1, coefficients <= 1
            weights = torch.addcmul(coefficient(n), weights, u) if n in log_terms else weights * u
        weights = weights * visible.to(weights.dtype)
        return weights if log_decay is None else weights * torch.exp(log_decay), log_scale

    def values(self, logits: Tensor) -> Tensor:
        return _horner(self.series, logits)

    def slope(self, logits: Tensor, values: Tensor) -> Tensor | float:
        slopes = [n * a for n, a in enumerate(self.series)][1:] or [0.0]
        return _horner(slopes, logits) if len(slopes) > 1 else slopes[0]

    def shifted(self, center: Tensor, power: int) -> Tensor:
        r"""Coefficient of x^m in kappa(x - c): sum_{n>=m} a_n C(n, m) (-c)^{n-m}, as a tensor like ``center``."""
        return _horner([self.series[n] * math.comb(n, power) for n in range(power, self.degree + 1)], -center)

    def positivity(self, *, nonnegative_logits: bool) -> Positivity:
        lowest, size = _minimum(self.series, nonnegative_only=nonnegative_logits)
        if lowest > 1e-12 * size:  # the minimum is found in floating point: closer to 0 than this, it is 0
            return Positivity.POSITIVE
        return Positivity.NONNEGATIVE if lowest >= -1e-12 * size else Positivity.SIGNED


@dataclass(frozen=True)
class Taylor(Series):
    r"""kappa(x) = T_N(x) = sum_{n<=N} x^n / n!: the first N+1 recurrent networks inside softmax.

    Even N is positive everywhere (its minimum is x^N/N! at the zero of T_{N-1}) but not monotone, T_2(-2) = T_2(0);
    odd N is negative below its one real root. |exp(x) - T_N(x)| <= max(1, e^x) |x|^(N+1) / (N+1)!.

    Args:
        order: N, from 0 to 170.

    Raises:
        MechanismError: if ``order`` is negative, above 170 or not an integer.

    Source: Mongaras & Larson, arXiv 2507.23632.
    """

    order: int = field(metadata={"positional": True})

    name: ClassVar[str] = "taylor"
    can_center: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _require_integer("taylor", "order", self.order, least=0, most=170)

    @property
    def formula(self) -> str:
        return f"sum over n = 0..{self.order} of x^n / n!"

    @property
    def series(self) -> tuple[float, ...]:
        return tuple(1.0 / math.factorial(n) for n in range(self.order + 1))

    def positivity(self, *, nonnegative_logits: bool) -> Positivity:
        return Positivity.POSITIVE if nonnegative_logits or self.order % 2 == 0 else Positivity.SIGNED


@dataclass(frozen=True)
class Power(Series):
    """kappa(x) = x^p: one single order of the series.

    Args:
        exponent: p, from 1 to 170.

    Raises:
        MechanismError: if ``exponent`` is not such an integer.
    """

    exponent: int = field(metadata={"positional": True})

    name: ClassVar[str] = "power"

    def __post_init__(self) -> None:
        _require_integer("power", "exponent", self.exponent, least=1, most=170)

    @property
    def formula(self) -> str:
        return "x" if self.exponent == 1 else f"x^{self.exponent}"

    @property
    def series(self) -> tuple[float, ...]:
        return (0.0,) * self.exponent + (1.0,)

    def positivity(self, *, nonnegative_logits: bool) -> Positivity:
        return Positivity.NONNEGATIVE if nonnegative_logits or self.exponent % 2 == 0 else Positivity.SIGNED


@dataclass(frozen=True)
class Polynomial(Series):
    """kappa(x) = c0 + c1 x + c2 x^2 + ... with any coefficients.

    Args:
        coefficients: (c0, c1, ...), finite, not all zero; trailing zeros are dropped.

    Raises:
        MechanismError: if there is no coefficient that is not zero, or one is not finite.
    """

    coefficients: tuple[float, ...] = field(metadata={"positional": True})

    name: ClassVar[str] = "poly"

    def __post_init__(self) -> None:
        values = [float(each) for each in self.coefficients]
        while values and values[-1] == 0.0:
            values.pop()
        if not values or not all(math.isfinite(each) for each in values):
            raise MechanismError(
                f"poly:{','.join(map(str, self.coefficients))} asks for a polynomial without a finite coefficient "
                "that is not zero.\n  Give the coefficients from the constant upward, for instance poly:1,1,0.5."
            )
        object.__setattr__(self, "coefficients", tuple(values))

    @property
    def formula(self) -> str:
        return " + ".join(
            f"{a:g}" + ("" if n == 0 else " x" if n == 1 else f" x^{n}")
            for n, a in enumerate(self.coefficients)
            if a != 0
        )

    @property
    def series(self) -> tuple[float, ...]:
        return self.coefficients


#: The functions that have a name in the grammar.
FUNCTIONS: dict[str, type[Function]] = {each.name: each for each in (Exp, Taylor, Power, Polynomial)}


def _row_max(x: Tensor) -> Tensor:
    """Greatest value over the last axis; zeros for a row without keys."""
    return x.amax(-1) if x.shape[-1] else x.new_zeros(x.shape[:-1])


def _minimum(coefficients: Sequence[float], *, nonnegative_only: bool) -> tuple[float, float]:
    """Infimum of a polynomial on R or [0, inf), and the size of the terms it was computed from.

    Coefficients too far apart for float64 give minus infinity: nothing is known.
    """
    unknown = -math.inf, 1.0
    polynomial = np.polynomial.Polynomial(coefficients)
    degree, leading = len(coefficients) - 1, coefficients[-1]
    if degree >= 1 and (leading < 0 or (degree % 2 == 1 and not nonnegative_only)):
        return unknown
    candidates = [0.0]
    with np.errstate(all="ignore"):
        if degree >= 2:
            slope = polynomial.deriv()
            if not np.isfinite(slope.coef / slope.coef[-1]).all():
                return unknown
            roots = slope.roots()
            candidates += [float(r.real) for r in roots if abs(r.imag) <= 1e-9 * max(1.0, float(abs(r)))]
        points = np.array([x for x in candidates if x >= 0 or not nonnegative_only])
        values = polynomial(points)
        sizes = np.polynomial.Polynomial(np.abs(coefficients))(np.abs(points))
    if not np.isfinite(sizes).all():
        return unknown
    at = int(values.argmin())
    return float(values[at]), float(sizes[at])


def _require_integer(name: str, what: str, value: object, *, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise MechanismError(
            f"{name}:{value} asks for the {what} {value!r}.\n  The {what} must be an integer from {least} to {most} "
            f"(beyond, coefficients leave float64), for instance {name}:2."
        )


def _horner(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """``sum a_n x^n``, one pass over memory a degree; ``x`` itself for the polynomial x."""
    *lower, last = coefficients
    if not lower:
        return torch.full_like(x, last)
    if torch.compiler.is_compiling():  # which makes one pass of all by itself, and holds no tensors of ours
        out = x * last + lower[-1]
        for a in reversed(lower[:-1]):
            out = out * x + a
        return out
    *lower_constants, first = _constants(tuple(lower), x.dtype, x.device)
    out = x if last == 1.0 and lower[-1] == 0.0 else torch.add(first, x, alpha=last)
    for constant in reversed(lower_constants):
        out = torch.addcmul(constant, out, x)
    return out


@lru_cache(maxsize=256)
def _constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(each, dtype=dtype, device=device) for each in values)
