r"""What the separation must show, before it is measured: shares, thresholds, rates and sizes in closed form.

All derived here for the construction after Deng et al. 2023 (reconstructed); letters as in ``separation``: n tokens,
d features, m neurons (width), a spike, b block weight, c = 1 - b, all entries in units of L = sqrt(log n).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import ceil, comb, inf, log, log1p, sqrt

from scipy.optimize import brentq  # type: ignore[import-untyped]

from maclaurin.errors import ConfigError
from maclaurin.theory.separation import Problem, spike_shares
from maclaurin.theory.unit import IDENTITY_LINEAR, SOFTMAX, Unit


@dataclass(frozen=True)
class DetectionRates:
    """The predicted probability of each count of ``DetectionCounts``."""

    strong_silent_d0: float
    strong_fires_d1: float
    weak_silent_d0: float
    weak_fires_d1: float
    success: float


def predicted_rates(
    problem: Problem, *, width: int, strong: Unit = SOFTMAX, weak: Unit = IDENTITY_LINEAR
) -> DetectionRates:
    r"""The law of :func:`detection_counts`: neurons are independent, so every rate is a power of one neuron's.

    With s(.) the probability that one neuron is silent on a set of cases, P(silent) = s^m, and the conjunction is
    :math:`s(\text{bad})^m - s(\text{bad and good})^m`, bad being the three cases on which it must not fire.

    Exact for :class:`SelfAttentionProblem`, a normal approximation for :class:`RegressionProblem`. O(1) in n and m.

    Example:
        >>> from maclaurin.theory import SelfAttentionProblem
        >>> round(predicted_rates(SelfAttentionProblem(1000, 102), width=30).success, 3)
        0.672
    """
    if width < 1:
        raise ConfigError(f"predicted_rates: width >= 1 fails for {width}.")

    def silent(*cases: tuple[Unit, int]) -> float:
        return problem.silent_probability(cases) ** width

    bad = ((strong, 0), (weak, 0), (weak, 1))
    return DetectionRates(
        strong_silent_d0=silent((strong, 0)),
        strong_fires_d1=1.0 - silent((strong, 1)),
        weak_silent_d0=silent((weak, 0)),
        weak_fires_d1=1.0 - silent((weak, 1)),
        success=silent(*bad) - silent(*bad, (strong, 1)),
    )


def spike_share(n: int, spike: float, *, unit: Unit = SOFTMAX, ground: float = 1.0) -> float:
    r"""The share that the spike's row gives the spike; for softmax :math:`1 / (1 + (n-1) n^{-a(a+g)})`.

    Example:
        >>> round(spike_share(1000, 0.7), 3)
        0.788
    """
    return float(spike_shares(unit, n, spike, ground=ground)[0, 0])


def threshold_spike(ground: float = 1.0) -> float:
    r"""The spike at which softmax's share passes one half for every n: :math:`a^* = (-g + \sqrt{g^2 + 4}) / 2`.

    It solves a (a + g) = 1. An identity-linear row needs a of the order of n for the same share.

    Example:
        >>> [round(threshold_spike(g), 3) for g in (0.5, 1.0, 2.0)]
        [0.781, 0.618, 0.414]
    """
    if not ground > 0:
        raise ConfigError(f"threshold_spike({ground}): g > 0 fails; an ordinary row's sum must be positive.")
    return (sqrt(ground * ground + 4.0) - ground) / 2.0


def detection_spike(n: int, *, unit: Unit = SOFTMAX, b: float = 0.0, margin: float = 0.1) -> float:
    r"""The spike at which the network starts to see it: the least a with :math:`f(a) (a + b) = ` margin.

    f is the spike row's share of itself. With b = 0 and the identity-linear unit this is a (1+a) / (n+a) = margin,
    a of the order of sqrt(margin n); softmax stays below .618 for every n.

    Args:
        n: number of tokens, n >= 2.
        unit: the unit whose threshold is asked for.
        b: block weight; the spike's own block column helps a row that attends nothing else.
        margin: height of the threshold above the constant column.

    Raises:
        ConfigError: if n < 2, b < 0 or margin <= 0.

    Example:
        >>> [round(detection_spike(n, b=0.3), 3) for n in (100, 10_000, 10**9)]
        [0.422, 0.518, 0.573]
        >>> [round(detection_spike(n, unit=IDENTITY_LINEAR), 1) for n in (100, 10_000)]
        [2.7, 31.2]
    """
    if n < 2 or b < 0 or not margin > 0:
        raise ConfigError(f"detection_spike(n={n}, b={b}, margin={margin}): n >= 2, b >= 0 and margin > 0 must hold.")

    def excess(spike: float) -> float:
        return spike_share(n, spike, unit=unit) * (spike + b) - margin

    if excess(0.0) >= 0.0:
        return 0.0
    high = 1.0
    while excess(high) < 0.0:
        high *= 2.0
    return float(brentq(excess, 0.0, high, xtol=1e-14, rtol=1e-13))


def threshold_degree(n: int, spike: float) -> float:
    r"""The degree at which the unit :math:`z^\beta` gives the spike half its row: :math:`\log(n-1) / \log(1+a)`.

    It grows like log n, which is what the exponential supplies by itself. Detection starts at about .7 of it.

    Example:
        >>> round(threshold_degree(4000, 0.7), 1)
        15.6
    """
    if n < 3 or not spike > 0:
        raise ConfigError(f"threshold_degree(n={n}, spike={spike}): n >= 3 and spike > 0 must hold.")
    return log(n - 1) / log1p(spike)


def firing_pattern_rate(share: float, spike: float, b: float, *, margin: float = 0.1) -> float:
    r"""p1, the probability that one neuron fires on the spike's row, everything but its three large terms dropped.

    .. math:: p_1 = \tfrac18 \#\{s \in \{\pm1\}^3 : f (s_1 a + s_2 b) + s_3 c > c + \text{margin}\}

    Then the network fires with probability 1 - (1 - p1)^m. ``SelfAttentionProblem.silent_probability`` drops nothing.

    Example:
        >>> firing_pattern_rate(spike_share(4000, 0.7), 0.7, 0.3), firing_pattern_rate(1.0, 3.0, 0.3)
        (0.25, 0.5)
    """
    c = 1.0 - b
    patterns = product((-1.0, 1.0), repeat=3)
    return sum(share * (one * spike + two * b) + three * c > c + margin for one, two, three in patterns) / 8


def flat_silent_rate(d: int, b: float, width: int, *, margin: float = 0.1) -> float:
    r"""Probability that ``width`` neurons stay silent on a row without any spike, by exact binomial counts.

    (1 - q)^m with q = P(b S / (d-2) > margin) / 2, S a sum of d - 2 signs: the false alarms of every unit alike.

    Example:
        >>> round(flat_silent_rate(102, 0.5, 30), 3), round(flat_silent_rate(402, 0.5, 30), 4)
        (0.767, 0.9996)
    """
    if d < 3 or not 0 < b < 1 or width < 1:
        raise ConfigError(f"flat_silent_rate(d={d}, b={b}, width={width}): d >= 3, 0 < b < 1, width >= 1 must hold.")
    signs = d - 2
    above = sum(comb(signs, k) for k in range(signs + 1) if b * (2 * k - signs) > margin * signs * (1 + 1e-12))
    return float((1.0 - above / 2 ** (signs + 1)) ** width)


def least_features(b: float, width: int, delta: float, *, margin: float = 0.1) -> int:
    r"""The least d with false alarms below ``delta``: :math:`d - 2 \ge 2 (b / \text{margin})^2 \log(m / 2\delta)`.

    From Hoeffding's inequality and a union over m neurons; at margin .1 the factor is 200 b^2. Sufficient, not
    necessary. n must then be a multiple of d - 2.

    Example:
        >>> least_features(0.5, 30, 0.01)
        368
    """
    if not 0 < b < 1 or width < 1 or not 0 < delta < 1 or not margin > 0:
        raise ConfigError(
            f"least_features(b={b}, width={width}, delta={delta}, margin={margin}): "
            "0 < b < 1, width >= 1, 0 < delta < 1 and margin > 0 must hold."
        )
    return 2 + max(1, ceil(2.0 * (b / margin) ** 2 * log(width / (2.0 * delta))))


def least_width(rate: float, delta: float) -> int:
    r"""The least width m whose network misses with probability at most ``delta``: :math:`(1 - p_1)^m \le \delta`.

    Example:
        >>> least_width(0.125, 0.01)
        35
    """
    if not 0 < rate <= 1 or not 0 < delta < 1:
        raise ConfigError(f"least_width(rate={rate}, delta={delta}): 0 < rate <= 1 and 0 < delta < 1 must hold.")
    return max(1, ceil(log(delta) / (log1p(-rate) if rate < 1 else -inf)))
