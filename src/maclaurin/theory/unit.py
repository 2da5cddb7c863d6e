"""Units: how one score row becomes one row of attention, each a single formula in log space.

A unit is a positive weight per logit, divided by the row's sum. Softmax weighs by exp, the identity-linear unit
by the logit itself, a polynomial unit by a power of it. Anything with a log weight is a unit: nothing below this
file asks which one it was given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp  # type: ignore[import-untyped]

from maclaurin.errors import ConfigError

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Unit:
    r"""A normalized unit: weights :math:`w_s = \exp(\ell(z_s))`, attention :math:`w_s / \sum_r w_r`.

    Args:
        name: what reports call it.
        log_weight: the map :math:`\ell` from logits to log weights, elementwise, float64.

    Cost: one evaluation of ``log_weight`` per logit; no overflow, whatever the logits.

    Example:
        >>> SOFTMAX.shares(np.log([1.0, 3.0])).round(2).tolist()
        [0.25, 0.75]
        >>> IDENTITY_LINEAR.shares(np.array([1.0, 3.0])).round(2).tolist()
        [0.25, 0.75]
        >>> power(2).shares(np.array([1.0, 3.0])).round(2).tolist()
        [0.1, 0.9]

    Source: the softmax and identity-linear units after Deng et al. 2023 (reconstructed); the log form is ours.
    """

    name: str
    log_weight: Callable[[Array], Array]

    def shares(self, logits: Array, *, counts: Array | None = None) -> Array:
        r"""The attention that each key of a row receives, for logits ``[..., S]``.

        Args:
            logits: the row's logits z, ``[..., S]``.
            counts: how many identical keys each entry stands for (default one each), broadcast to ``logits``.

        Returns:
            Shares in [0, 1] of the shape of ``logits``, with ``sum(counts * shares) == 1``.
        """
        log_w = self.log_weight(np.asarray(logits, dtype=np.float64))
        log_total = logsumexp(log_w, axis=-1, b=counts, keepdims=True)
        return np.asarray(np.exp(log_w - log_total))


def _log_exponential(logits: Array) -> Array:
    return logits


def _log_power(logits: Array, *, degree: float) -> Array:
    if not np.all(logits > 0):
        raise ConfigError(
            f"the unit z**{degree:g} needs positive logits, got a least logit of {np.min(logits):.3g}.\n"
            f"  {np.mean(logits <= 0):.1%} of the logits are <= 0: their weights have no sign to normalize by.\n"
            "  Make the logits positive (less noise on the row sums, a larger n) or use SOFTMAX."
        )
    return np.asarray(degree * np.log(logits))


def power(degree: float) -> Unit:
    r"""The polynomial unit :math:`w = z^\beta` for positive logits.

    Args:
        degree: the power beta > 0.

    Raises:
        ConfigError: if ``degree`` <= 0; on use, if a logit is not positive.

    Example:
        >>> power(8).name
        'power:8'

    Source: derived here; that high degrees separate and low ones do not is the claim of arXiv:2310.20051.
    """
    if not degree > 0:
        raise ConfigError(f"power({degree}): a unit's degree must be > 0; power(1) is the identity-linear unit.")
    return Unit(f"power:{degree:g}", partial(_log_power, degree=float(degree)))


SOFTMAX = Unit("softmax", _log_exponential)
"""exp weights: softmax attention."""

IDENTITY_LINEAR = Unit("identity-linear", partial(_log_power, degree=1.0))
"""The logit itself as weight: softmax with the exp left out and the row's sum kept. Not an elu+1 feature map."""
