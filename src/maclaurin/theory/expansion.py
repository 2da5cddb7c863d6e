r"""Which orders of exp's series carry the weight: the size of each term, in log space.

exp(x) = sum over n of x^n / n!. Term n is largest at n near |x|: logits of size 40 live in orders around 40, which is
why a low order cannot follow them. Derived here.
"""

from __future__ import annotations

from math import ceil

import numpy as np
from scipy.special import gammaln, logsumexp  # type: ignore[import-untyped]

from maclaurin.errors import ConfigError
from maclaurin.theory.unit import Array


def log_term(x: Array, order: int) -> Array:
    r"""Natural log of :math:`|x|^n / n!`, elementwise; -inf at x = 0 for n >= 1, finite for any other finite x.

    Example:
        >>> log_term(np.array([-3.0, 1e300]), 200).round(1).tolist()
        [-643.5, 137291.9]
    """
    x = np.asarray(x, dtype=np.float64)
    if order == 0:
        return np.zeros_like(x)
    with np.errstate(divide="ignore"):
        return np.asarray(order * np.log(np.abs(x)) - gammaln(order + 1))


def taylor_terms(logits: Array, max_order: int) -> Array:
    r"""Natural log of the mean size of each term, :math:`\log \mathrm{mean}_s\, |x_s|^n / n!` for n = 0..max_order.

    Args:
        logits: finite logits of any shape, at least one; the mean runs over all of them.
        max_order: the highest order, >= 0.

    Returns:
        ``[max_order + 1]``, -inf where every logit is zero; exp of it overflows only beyond |x| of about 710.

    Raises:
        ConfigError: if ``max_order`` < 0, or the logits are empty or not finite.

    Cost: O(size * max_order) time, O(size) memory.

    Example:
        >>> np.exp(taylor_terms(np.array([-2.0, 2.0]), 4)).round(3).tolist()
        [1.0, 2.0, 2.0, 1.333, 0.667]
    """
    x = np.asarray(logits, dtype=np.float64).ravel()
    if max_order < 0:
        raise ConfigError(f"taylor_terms: max_order >= 0 fails for {max_order}.")
    if x.size == 0 or not np.all(np.isfinite(x)):
        raise ConfigError(
            f"taylor_terms: {x.size} logits, {np.sum(~np.isfinite(x))} of them not finite; mask them first."
        )
    return np.array([logsumexp(log_term(x, n)) - np.log(x.size) for n in range(max_order + 1)])


def dominant_order(logits: Array) -> int:
    r"""The order whose mean term is largest (the lowest, if two tie); near max |x| once a logit is large.

    Example:
        >>> dominant_order(np.array([0.1, -0.3])), dominant_order(np.array([0.0, 41.5]))
        (0, 41)
    """
    x = np.asarray(logits, dtype=np.float64)
    largest = float(np.max(np.abs(x), initial=0.0, where=np.isfinite(x)))
    return int(np.argmax(taylor_terms(x, ceil(largest) + 1)))
