r"""The separation that survives a trained readout: signal against noise in the spike's row.

Without noise any trained readout separates the two data sets exactly, also on linear attention; only a random
readout at one threshold cannot. With noise on the values a readout has something to lose in: what counts is the
distance of the two classes in standard deviations, d'. Derived here; the construction is after Deng et al. 2023
(reconstructed).

Model, entries in true size, L = sqrt(log n): row sums s_i = L + row_noise * N(0,1), the spike's (1+a) L + the same;
logits s_j s_i; value entries carry N(0, sigma^2); the spike's position is uniform. The statistic is the first
coordinate of the spike row's output,

    f a L + sigma |f|_2 N(0,1),        f the row's attention.

It is the best linear one of that row: averaged over the spike's position every other coordinate has the same mean in
both classes and no covariance with the first, so Fisher's direction is the first coordinate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt

import numpy as np
from scipy.optimize import brentq  # type: ignore[import-untyped]
from scipy.special import expit, ndtri  # type: ignore[import-untyped]

from maclaurin.errors import ConfigError
from maclaurin.theory.separation import spike_shares
from maclaurin.theory.unit import Array, Unit

Interval = tuple[float, float]


@dataclass(frozen=True)
class NoiseModel:
    """The noise of the statistic and the two spikes.

    Args:
        sigma: standard deviation on value entries, > 0.
        row_noise: standard deviation on row sums, >= 0.
        a0: spike of class 0.
        a1: spike of class 1, a1 > a0 > 0.

    Raises:
        ConfigError: with the inequality that fails.
    """

    sigma: float = 0.3
    row_noise: float = 0.05
    a0: float = 0.05
    a1: float = 0.7

    def __post_init__(self) -> None:
        if not (self.sigma > 0 and self.row_noise >= 0 and 0 < self.a0 < self.a1):
            raise ConfigError(f"{self}: sigma > 0, row_noise >= 0 and 0 < a0 < a1 must hold.")


@dataclass(frozen=True)
class NoisyStatistic:
    """What :func:`noisy_statistic` measured: AUC and d' with 95 % intervals, and d' as predicted without row noise."""

    unit: str
    n: int
    num_draws: int
    auc: float
    auc_interval: Interval
    dprime: float
    dprime_interval: Interval
    predicted_dprime: float


def noisy_statistic(
    unit: Unit, n: int, *, num_draws: int = 10_000, seed: int = 0, noise: NoiseModel | None = None
) -> NoisyStatistic:
    r"""Draw the statistic ``num_draws`` times in each class and say how far apart the classes are.

    Args:
        unit: the row's unit.
        n: number of tokens, n >= 30.
        num_draws: draws per class, >= 2.
        seed: seed of a generator of its own; two units with one seed see the same noise.
        noise: sigma .3, row noise .05, spikes .05 and .7 by default.

    Returns:
        AUC in [0, 1] (the chance that a draw of class 1 exceeds one of class 0, ties half) with its interval, and
        d' = difference of means / root mean square of the two standard deviations, with its interval.

    Raises:
        ConfigError: on a setting out of range, or noise so large that a unit meets a logit without a legal weight.

    Accuracy: value noise is summed over keys exactly; the two sums over the n - 1 ordinary keys' noisy weights
        (their total and their squares) are drawn from their normal limit with exact moments.
    Cost: O(num_draws), for any n; 10^5 draws per class take about 0.2 s.

    Example:
        >>> from maclaurin.theory import IDENTITY_LINEAR, SOFTMAX
        >>> for unit in (SOFTMAX, IDENTITY_LINEAR):
        ...     print(unit.name, [round(noisy_statistic(unit, n).auc, 1) for n in (100, 25_600)])
        softmax [1.0, 1.0]
        identity-linear [0.7, 0.5]
    """
    noise = noise or NoiseModel()
    if n < 30 or num_draws < 2:
        raise ConfigError(f"noisy_statistic(n={n}, num_draws={num_draws}): n >= 30 and num_draws >= 2 must hold.")
    rng = np.random.default_rng(seed)
    class_0 = np.sort(_draw_statistic(unit, n, noise.a0, noise, rng.standard_normal((4, num_draws))))
    class_1 = _draw_statistic(unit, n, noise.a1, noise, rng.standard_normal((4, num_draws)))
    below = np.searchsorted(class_0, class_1, side="left") + np.searchsorted(class_0, class_1, side="right")
    auc = float(below.mean() / (2 * num_draws))
    dprime, dprime_interval = _dprime(class_0, class_1)
    predicted = predicted_dprime(unit, n, noise=noise)
    interval = auc_interval(auc, num_draws, num_draws)
    return NoisyStatistic(unit.name, n, num_draws, auc, interval, dprime, dprime_interval, predicted)


def _draw_statistic(unit: Unit, n: int, spike: float, noise: NoiseModel, normals_4Q: Array) -> Array:
    """Q draws of the statistic; the four normals move the spike's row sum, the two sums over keys, and the values."""
    length = sqrt(log(n))
    row_Q, total_Q, square_Q, value_Q = normals_4Q
    query_Q = (1.0 + spike) * length + noise.row_noise * row_Q
    nodes_G, weights_G = np.polynomial.hermite_e.hermegauss(20)
    keys_QG = query_Q[:, None] * (length + noise.row_noise * nodes_G)
    log_base_Q = unit.log_weight(query_Q * length)
    key_weights_QG = np.exp(unit.log_weight(keys_QG) - log_base_Q[:, None])
    expect = [key_weights_QG**power @ weights_G / weights_G.sum() for power in range(1, 5)]
    total_sd = np.sqrt(np.maximum(expect[1] - expect[0] ** 2, 0.0))
    shared = np.divide(expect[2] - expect[0] * expect[1], total_sd, out=np.zeros_like(total_sd), where=total_sd > 0)
    own_sd = np.sqrt(np.maximum(expect[3] - expect[1] ** 2 - shared**2, 0.0))
    total = (n - 1) * expect[0] + sqrt(n - 1) * total_sd * total_Q
    squares = (n - 1) * expect[1] + sqrt(n - 1) * (shared * total_Q + own_sd * square_Q)
    f_Q = expit(unit.log_weight(query_Q**2) - log_base_Q - np.log(total))
    other_Q = (1.0 - f_Q) ** 2 * np.maximum(squares / total**2, 1.0 / (n - 1))
    return np.asarray(f_Q * spike * length + noise.sigma * np.sqrt(f_Q**2 + other_Q) * value_Q)


def predicted_dprime(unit: Unit, n: int, *, noise: NoiseModel | None = None) -> float:
    r"""d' of the statistic when row sums carry no noise, in closed form.

    .. math:: d' = \frac{(f_1 a_1 - f_0 a_0) L}{\sigma \sqrt{(|f_1|^2 + |f_0|^2) / 2}}

    Identity-linear: :math:`(a_1(1+a_1) - a_0(1+a_0)) L / (\sigma \sqrt n)` up to a factor 1 + O(1/n): it dies out like
    sqrt(log n / n), while softmax's grows like sqrt(log n).

    Example:
        >>> from maclaurin.theory import IDENTITY_LINEAR
        >>> [round(predicted_dprime(IDENTITY_LINEAR, n), 3) for n in (400, 1600, 6400)]
        [0.463, 0.257, 0.14]
    """
    noise = noise or NoiseModel()
    means, squares = [], []
    for spike in (noise.a0, noise.a1):
        f, other = spike_shares(unit, n, spike)[0]
        means.append(f * spike * sqrt(log(n)))
        squares.append(f**2 + (n - 1) * other**2)
    return float((means[1] - means[0]) / (noise.sigma * sqrt(sum(squares) / 2)))


def _dprime(class_0: Array, class_1: Array, *, confidence: float = 0.95) -> tuple[float, Interval]:
    """d' and its interval by the delta method: variance of the mean difference plus that of the pooled variance."""
    count = len(class_0)
    variances = np.array([class_0.var(ddof=1), class_1.var(ddof=1)])
    pooled = variances.mean()
    dprime = float((class_1.mean() - class_0.mean()) / np.sqrt(pooled))
    of_scale = (variances**2).sum() / (2 * count * pooled**2)
    half = float(ndtri(0.5 + confidence / 2) * np.sqrt(2 / count + dprime**2 / 4 * of_scale))
    return dprime, (dprime - half, dprime + half)


def auc_interval(auc: float, num_negative: int, num_positive: int, *, confidence: float = 0.95) -> Interval:
    r"""Score interval for an AUC: all theta with :math:`|\mathrm{AUC} - \theta| \le z \sqrt{V(\theta)}`.

    V is Hanley and McNeil's (1982) variance with their exponential model; inverting it instead of plugging the
    estimate in (as Newcombe 2006 does) keeps the interval open at an AUC of 0 or 1.

    Example:
        >>> [round(end, 3) for end in auc_interval(0.5, 1000, 1000)]
        [0.475, 0.525]
        >>> auc_interval(1.0, 1000, 1000)[0] > 0.99
        True
    """
    z = float(ndtri(0.5 + confidence / 2))

    def outside(theta: float) -> float:
        positive_pair = theta / (2 - theta) - theta**2
        negative_pair = 2 * theta**2 / (1 + theta) - theta**2
        spread = theta * (1 - theta) + (num_positive - 1) * positive_pair + (num_negative - 1) * negative_pair
        return abs(auc - theta) - z * sqrt(max(spread, 0.0) / (num_positive * num_negative))

    return (
        _root(outside, 0.0, min(auc, 1 - 1e-15)) if auc > 0 else 0.0,
        _root(outside, 1.0, max(auc, 1e-15)) if auc < 1 else 1.0,
    )


def _root(outside: Callable[[float], float], far: float, near: float) -> float:
    return float(brentq(outside, far, near, xtol=1e-15))
