r"""The vector level of the separation: one row of logits, the attention itself as the feature.

Construction after Deng et al. 2023 (reconstructed); what is stated about it is derived here. The n logits of data
set 0 are uniform in [log 1.4, log 1.5]; data set 1 replaces one by 4 log n. Softmax gives that one nearly all the
attention, the identity-linear unit about 4 log n / (4 log n + .37 n) of it. The network reads the n shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np
from scipy.special import ndtr  # type: ignore[import-untyped]

from maclaurin.errors import ConfigError
from maclaurin.theory.separation import Case
from maclaurin.theory.unit import Array, Unit


@dataclass(frozen=True)
class RegressionProblem:
    r"""The vector level's pair of data sets; ``detection_counts`` and ``predicted_rates`` take it as they are.

    Args:
        n: number of logits, n >= 2.
        tau: threshold of every neuron, 0 < tau < 1: a share of attention.
        data_seed: seed of the logits (one draw serves both data sets; the rates hardly depend on it).

    Raises:
        ConfigError: with the inequality that fails.

    Cost: O(n) per evaluation. Below about n = 500 at tau = .25 the identity-linear unit fires on data set 1 too.

    Example:
        >>> from maclaurin.theory import SOFTMAX, IDENTITY_LINEAR
        >>> problem = RegressionProblem(1000, 0.25)
        >>> [round(float(problem.features(unit, 1).max()), 3) for unit in (SOFTMAX, IDENTITY_LINEAR)]
        [1.0, 0.069]
    """

    n: int
    tau: float = 0.25
    data_seed: int = 0

    def __post_init__(self) -> None:
        if self.n < 2:
            raise ConfigError(f"RegressionProblem(n={self.n}): n >= 2 fails.")
        if not 0 < self.tau < 1:
            raise ConfigError(f"RegressionProblem(tau={self.tau}): 0 < tau < 1 fails; no share of attention exceeds 1.")

    @property
    def num_features(self) -> int:
        """n: neurons carry one sign per logit."""
        return self.n

    def logits(self, dataset: int) -> Array:
        """The logits ``[n]`` of data set 0 or 1; the large one stands first (the neurons' signs are exchangeable)."""
        flat_N = np.random.default_rng(self.data_seed).uniform(log(1.4), log(1.5), self.n)
        flat_N[0] = (flat_N[0], 4 * log(self.n))[dataset]
        return flat_N

    def features(self, unit: Unit, dataset: int) -> Array:
        """The attention row, ``[1, n]``."""
        return unit.shares(self.logits(dataset))[None]

    def silent_probability(self, cases: Sequence[Case]) -> float:
        r"""Probability that one random neuron fires on none of ``cases``, for large n.

        The first share f meets its sign exactly, the sum of the others is taken as normal with their root sum of
        squares s: a neuron fires with probability :math:`\frac12 [Q((\tau - f)/s) + Q((\tau + f)/s)]`. Several
        cases are taken to fire together (their rows are nearly parallel): the most excitable one decides.
        """
        fires = []
        for unit, dataset in cases:
            shares_N = self.features(unit, dataset)[0]
            first, spread = shares_N[0], np.linalg.norm(shares_N[1:])
            fires.append(0.5 * float(ndtr((first - self.tau) / spread) + ndtr((-first - self.tau) / spread)))
        return 1.0 - max(fires)
