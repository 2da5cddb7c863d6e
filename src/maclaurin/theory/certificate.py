r"""How wrong a Taylor attention row can be, without computing it: a certified bound from its logits.

One row, logits x (after subtracting any center c: softmax does not change), weights w = exp(x) and w_N = T_N(x) with
sums Z and Z_N, outputs out = sum w v / Z and out_N = sum w_N v / Z_N, errors e = w_N - w. Two identities hold exactly:

    out_N - out = (1/Z)   sum_s e_s (v_s - out_N)      for Z out_N = (Z_N - sum e) out_N = sum w_N v - sum e out_N
    out_N - out = (1/Z_N) sum_s e_s (v_s - out)        for sum w_N (v - out) = sum e (v - out), as sum w (v - out) = 0

*The remainder.* e^x - T_N(x) = x^(N+1)/(N+1)! g_N(x), g_N(x) = E[e^(ux)] for u ~ Beta(1, N+1). As u shrinks with N,
x g_(N+1) <= x g_N; put into g_N = 1 + x g_(N+1)/(N+2) this gives g_N <= 1/(1 - x/(N+2)) for x < N+2, and one order
lower g_N >= 1/(1 - x/(N+1)) for x < 0. Also 0 < T_N <= e^x for x >= 0. R(x) is the upper bound on |e| that follows,
r(x) the lower one. R never exceeds Lagrange's max(1, e^x) |x|^(N+1)/(N+1)!.

*Signs.* N odd: e <= 0 everywhere. N even: e <= 0 for x >= 0, e >= 0 for x <= 0. So Z_N >= (1 - U + O) Z, with U the sum
of R/Z over keys of negative error and O that of r/Z over keys of positive error, and the second identity gives

    |out_N - out| <= sum_s (R_s/Z) |v_s - out| / (1 - U + O)       if the divisor is > 0; else nothing is certified.

*Positive weights* (N even; or N odd and all x > -1, since x^2k/(2k)! (1 + x/(2k+1)) > 0 pairs the terms) make out_N an
average of values, so that

    |out_N - out| <= max_s |v_s - out|.

Everything is derived here and holds in exact arithmetic; an evaluation adds its rounding.

Dimension key: T queries, S keys, V value dim, N order.
"""

from __future__ import annotations

from math import ceil, e, log

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp  # type: ignore[import-untyped]

from maclaurin.errors import ConfigError
from maclaurin.theory.expansion import log_term
from maclaurin.theory.unit import Array


def log_remainder_bound(x: Array, order: int) -> Array:
    r"""Natural log of :func:`remainder_bound`; finite (or -inf at 0) for any finite x and order."""
    _check_order(order)
    x = np.asarray(x, dtype=np.float64)
    inside = x < order + 2
    series = log_term(x, order + 1) - np.log1p(-np.where(inside, x, 0.0) / (order + 2))
    return np.asarray(np.where(x < 0, series, np.minimum(np.where(inside, series, np.inf), x)))


def _log_remainder_floor(x: Array, order: int) -> Array:
    """Natural log of the lower bound r on the remainder, for x <= 0."""
    return log_term(x, order + 1) - np.log1p(-x / (order + 1))


def remainder_bound(x: Array, order: int) -> Array:
    r"""Side-aware bound R on :math:`|e^x - T_N(x)|`, elementwise.

    .. math:: R = \frac{|x|^{N+1}}{(N+1)!} \, \frac{1}{1 - x/(N+2)} \text{ for } x < N+2,
              \qquad R \le e^x \text{ for } x \ge 0

    Args:
        x: logits of any shape.
        order: N >= 0.

    Returns:
        R of the shape of ``x``; inf where it exceeds float64. Never above Lagrange's bound
        :math:`|x|^{N+1} \max(1, e^x) / (N+1)!`.

    Raises:
        ConfigError: if ``order`` < 0.

    Example:
        >>> remainder_bound(np.array([-1.0, 1.0]), 4).round(4).tolist()   # the truth: .0071 and .0099
        [0.0071, 0.01]
    """
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(log_remainder_bound(x, order)))


def order_for(logit_bound: float, error: float) -> int:
    r"""The least order N >= 0 certified to a relative error on all logits in [-B, B].

    Least N with :math:`(N+1) \log B - \log (N+1)! \le \log \epsilon - B`: the left side bounds the remainder at -B,
    where the relative error is largest. About 3.5 B for eps = .1: the order grows in proportion to the logits.

    Args:
        logit_bound: B >= 0, finite.
        error: eps > 0, relative to e^x.

    Raises:
        ConfigError: on a value out of range.

    Cost: O(B + log(1/eps)).

    Example:
        >>> [order_for(b, 0.1) for b in (1, 2, 4, 8, 16, 41)]
        [4, 7, 14, 28, 56, 146]
    """
    if not 0 <= logit_bound < float("inf") or not error > 0:
        raise ConfigError(f"order_for(logit_bound={logit_bound}, error={error}): 0 <= B < inf and error > 0 must hold.")
    if logit_bound == 0:
        return 0
    # (N+1)! >= ((N+1)/e)^(N+1), so N+1 >= max(e^2 B, B - log eps) always suffices
    enough = ceil(max(e**2 * logit_bound, logit_bound - log(error), 1.0)) + 1
    powers = np.arange(1, enough + 1, dtype=np.float64)
    met = powers * log(logit_bound) - gammaln(powers + 1) <= log(error) - logit_bound
    return int(np.argmax(met))


def certificate(
    logits: Array, visible: npt.NDArray[np.bool_], values: Array, order: int, *, center: Array | None = None
) -> Array:
    r"""Bound on :math:`\|out_N - out\|_2` for every row: Taylor attention of order N against softmax, sum-normalized.

    Args:
        logits: ``[..., T, S]``, scaled; finite where visible.
        visible: bool, broadcasts to ``[..., T, S]``; what lies outside is not read.
        values: ``[..., S, V]``; leading dimensions broadcast against those of ``logits``.
        order: N >= 0; odd orders are certified as ``sum:signed``.
        center: point of expansion per row, ``[..., T]`` (default 0).

    Returns:
        ``[..., T]``, >= 0, never NaN; inf where nothing is certified (odd N beyond its reach; even N never, the bound
        is at most the largest distance of a visible value from the output). 0 for rows without a visible key.

    Raises:
        ConfigError: on shapes that do not fit, a mask that is not bool, a negative order, or a visible logit or value
            that is not finite.

    Cost: O(T S V) time, O(T S) memory, whatever the order.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> x, v = rng.uniform(-1, 1, (1, 16)), rng.normal(size=(16, 4))
        >>> [float(certificate(x, np.ones((1, 16), bool), v, order)[0].round(6)) for order in (2, 4, 8)]
        [0.090246, 0.003446, 1e-06]
    """
    _check_order(order)
    x_TS, visible_TS, v_SV = _checked(logits, visible, values, center)
    some_T = np.asarray(visible_TS.any(axis=-1))
    log_w_TS = np.where(visible_TS, x_TS, -np.inf)
    log_z_T = np.where(some_T, logsumexp(np.where(some_T[..., None], log_w_TS, 0.0), axis=-1), 0.0)
    distance_TS = _distances(np.exp(log_w_TS - log_z_T[..., None]) @ v_SV, v_SV, visible_TS)
    log_r_TS = np.where(visible_TS, log_remainder_bound(x_TS, order) - log_z_T[..., None], -np.inf)

    even = order % 2 == 0
    over_TS = even & (x_TS < 0)  # masked logits are 0 here
    floor_TS = np.where(over_TS, _log_remainder_floor(np.minimum(x_TS, 0.0), order) - log_z_T[..., None], -np.inf)
    with np.errstate(over="ignore", divide="ignore"):
        under_T = np.exp(logsumexp(np.where(over_TS, -np.inf, log_r_TS), axis=-1))
        log_divisor_T = np.logaddexp(np.log1p(-np.minimum(under_T, 1.0)), logsumexp(floor_TS, axis=-1))
        sum_T = logsumexp(log_r_TS + np.log(distance_TS), axis=-1)
        certified_T = log_divisor_T > -np.inf
        bound_T = np.exp(sum_T - np.where(certified_T, log_divisor_T, 0.0))
    average_T = even | (x_TS > -1.0).all(axis=-1)
    radius_T = np.where(average_T, distance_TS.max(axis=-1, initial=0.0), np.inf)
    return np.asarray(np.minimum(np.where(certified_T, bound_T, np.inf), radius_T))


def _distances(out_TV: Array, v_SV: Array, visible_TS: npt.NDArray[np.bool_]) -> Array:
    """Distance of each visible value from each output, ``[..., T, S]``, 0 elsewhere; one value column at a time."""
    squares_TS = np.zeros(visible_TS.shape)
    with np.errstate(over="ignore"):
        for column in range(v_SV.shape[-1]):
            squares_TS += (out_TV[..., :, None, column] - v_SV[..., None, :, column]) ** 2
    return np.where(visible_TS, np.sqrt(squares_TS), 0.0)


def _check_order(order: int) -> None:
    if not isinstance(order, (int, np.integer)) or order < 0:
        raise ConfigError(f"a Taylor order must be an integer >= 0, got {order!r}.")


def _checked(
    logits: Array, visible: npt.NDArray[np.bool_], values: Array, center: Array | None
) -> tuple[Array, npt.NDArray[np.bool_], Array]:
    """Centered logits with zeros where masked, the mask at full shape, and values with zeros where no row looks."""
    x_TS, v_SV, seen_TS = np.asarray(logits, float), np.asarray(values, float), np.asarray(visible)
    c_T = np.zeros(x_TS.shape[:-1]) if center is None else np.asarray(center, float)
    shapes = f"logits {x_TS.shape} · visible {seen_TS.shape} · values {v_SV.shape} · center {c_T.shape}"
    if seen_TS.dtype != np.bool_:
        raise ConfigError(f"certificate: visible must be bool, got {seen_TS.dtype}; compare it with 0 first.")
    try:
        full = np.broadcast_shapes(x_TS.shape, seen_TS.shape, (*v_SV.shape[:-2], 1, v_SV.shape[-2]), (*c_T.shape, 1))
    except (ValueError, IndexError):
        full = ()
    if len(full) < 2 or full[-2:] != x_TS.shape[-2:]:
        raise ConfigError(f"certificate: shapes do not fit.\n  {shapes}\n  want [T, S], [T, S], [S, V] and [T].")
    visible_TS: npt.NDArray[np.bool_] = np.broadcast_to(seen_TS, full)
    seen_S = np.asarray(visible_TS.any(axis=-2))
    v_SV = np.where(seen_S[..., None], v_SV, 0.0)
    x_TS = np.where(visible_TS, x_TS - c_T[..., None], 0.0)
    if not (np.all(np.isfinite(x_TS)) and np.all(np.isfinite(v_SV))):
        raise ConfigError("certificate: a visible logit, its center or a visible value is not finite.")
    return x_TS, visible_TS, v_SV
