r"""One entry apart: constructed inputs that a softmax network tells apart and its linear twin does not.

Construction after Deng et al. 2023 (arXiv:2310.11685), reconstructed from memory; no constant here is quoted as
the paper's, and every statement below is derived and checked here.

Two data sets of n rows and d columns differ in the size a of one entry, the spike (all times L = sqrt(log n)):
column 1 holds a in the spike's row, columns 2..d-1 stacked copies of b I, column d the constant c = 1 - b. With an
all-ones key-query matrix the logits are the outer product of the row sums: (1+a)^2 log n at the spike, (1+a) log n
in its row and column, log n elsewhere. Only two rows of the output differ, so all is known in O(d). A layer of m
random sign neurons with threshold tau reads the output; it *fires* if any neuron does.

Dimension key: N tokens (n), D features (d), M neurons, R output rows, Q draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from math import log, sqrt
from typing import Protocol

import numpy as np
from scipy.special import bdtr  # type: ignore[import-untyped]

from maclaurin.errors import ConfigError
from maclaurin.theory.unit import IDENTITY_LINEAR, SOFTMAX, Array, Unit

Case = tuple[Unit, int]
"""A unit applied to data set 0 (small spike) or 1 (large spike)."""


class Problem(Protocol):
    """What a level of the separation offers: the rows the network reads, its threshold, and the law of a neuron."""

    @property
    def num_features(self) -> int:
        """Length of a row, and of a neuron's sign vector."""

    @property
    def tau(self) -> float:
        """Threshold of every neuron."""

    def features(self, unit: Unit, dataset: int) -> Array:
        """The distinct rows that the network reads, ``[R, num_features]``."""

    def silent_probability(self, cases: Sequence[Case]) -> float:
        """The probability that one random neuron stays silent on all ``cases`` at once."""


def spike_shares(unit: Unit, n: int, spike: float, *, ground: float = 1.0) -> Array:
    r"""The four distinct entries of the attention matrix, in closed form.

    For softmax and ground g, with :math:`a` the spike:

    .. math:: f_{jj} = \frac{1}{1 + (n-1) n^{-a(a+g)}}, \qquad f_{ij} = \frac{1}{1 + (n-1) n^{-ag}}

    Args:
        unit: the row's unit.
        n: number of tokens, n >= 2.
        spike: a, the spike's size in units of L.
        ground: g = b + c, an ordinary row's sum in units of L.

    Returns:
        ``[2, 2]``: query (spike row, ordinary row) by key (the spike, any one of the n - 1 others).

    Cost: O(1) for any n. Source: derived here.

    Example:
        >>> spike_shares(SOFTMAX, 1000, 0.7)[0, 0].round(3).item()
        0.788
        >>> spike_shares(IDENTITY_LINEAR, 1000, 0.7)[:, 0].round(5).tolist()
        [0.0017, 0.0017]
    """
    sums_2 = np.array([spike + ground, ground])
    return unit.shares(np.outer(sums_2, sums_2) * log(n), counts=np.array([1.0, n - 1.0]))


@dataclass(frozen=True)
class SelfAttentionProblem:
    r"""Self-attention's pair of data sets: spike a0 against spike a1, everything else equal.

    With f the share that a row gives the spike, f' the share of any other key and t = n / (d-2) copies of the
    block, a row of the output is, in units of L (k is the spike's own block column),

    .. math:: (f a,\; b t f' \text{ in each block column},\; + b (f - f') \text{ in column } k,\; c)

    Args:
        n: number of tokens, a multiple of d - 2, n >= 2.
        d: number of features, d >= 3.
        b: weight of the block columns, 0 < b < 1; the constant column has c = 1 - b.
        a0: spike of data set 0, a0 > 0.
        a1: spike of data set 1, a1 > a0.
        margin: the threshold is tau = (c + margin) L, margin > 0.

    Raises:
        ConfigError: with the inequality that fails.

    Cost: ``features`` O(d), ``silent_probability`` O(1); neither depends on n.
    Source: construction after Deng et al. 2023 (reconstructed); closed form and laws derived here.

    Example:
        >>> problem = SelfAttentionProblem(4000, 402)
        >>> problem.features(SOFTMAX, 1).shape, round(problem.tau / problem.scale, 3)
        ((2, 402), 0.6)
    """

    n: int
    d: int
    b: float = field(default=0.5, kw_only=True)
    a0: float = field(default=0.05, kw_only=True)
    a1: float = field(default=0.7, kw_only=True)
    margin: float = field(default=0.1, kw_only=True)

    def __post_init__(self) -> None:
        asked = f"SelfAttentionProblem(n={self.n}, d={self.d}, b={self.b}, a0={self.a0}, a1={self.a1})"
        if self.d < 3:
            raise ConfigError(f"{asked}: d >= 3 fails; a block column is needed beside the spike's and the constant.")
        if self.n < 2 or self.n % (self.d - 2):
            legal = max(1, round(self.n / (self.d - 2)), -(-2 // (self.d - 2))) * (self.d - 2)
            raise ConfigError(
                f"{asked}: n must be >= 2 and a multiple of d - 2 = {self.d - 2}; the nearest legal n is {legal}."
            )
        if not 0 < self.b < 1:
            raise ConfigError(f"{asked}: 0 < b < 1 fails; b + c = 1 must leave the constant column c = 1 - b > 0.")
        if not 0 < self.a0 < self.a1 < float("inf"):
            raise ConfigError(f"{asked}: 0 < a0 < a1 fails; data set 1 is the one with the larger spike.")
        if not 0 < self.margin < float("inf"):
            raise ConfigError(f"{asked}: margin > 0 fails for {self.margin}; tau = (c + margin) L must exceed c L.")

    @property
    def c(self) -> float:
        """Weight of the constant column, 1 - b."""
        return 1.0 - self.b

    @property
    def scale(self) -> float:
        """L = sqrt(log n), the factor of every entry."""
        return sqrt(log(self.n))

    @property
    def tau(self) -> float:
        """Threshold (c + margin) L of every neuron; a neuron fires above it, not at it."""
        return (self.c + self.margin) * self.scale

    @property
    def num_features(self) -> int:
        """d: neurons carry one sign per feature."""
        return self.d

    def spike(self, dataset: int) -> float:
        """The spike a0 or a1 of data set 0 or 1."""
        return (self.a0, self.a1)[dataset]

    def columns(self, unit: Unit, dataset: int) -> Array:
        """A row's distinct entries in units of L, ``[2, 4]``: query (spike row, ordinary row) by column
        (spike, own block column, every other block column, constant).
        """
        f_2, other_2 = spike_shares(unit, self.n, self.spike(dataset)).T
        block_2 = self.b * other_2 * (self.n // (self.d - 2))
        own_2 = block_2 + self.b * (f_2 - other_2)
        return np.stack([f_2 * self.spike(dataset), own_2, block_2, np.full(2, self.c)], axis=-1)

    def features(self, unit: Unit, dataset: int, *, position: int = 0) -> Array:
        """The spike row and any ordinary row of the output, ``[2, d]``, for a spike in row ``position``."""
        columns_24 = self.columns(unit, dataset) * self.scale
        rows_2D = np.repeat(columns_24[:, 2:3], self.d, axis=1)
        rows_2D[:, 0] = columns_24[:, 0]
        rows_2D[:, 1 + position % (self.d - 2)] = columns_24[:, 1]
        rows_2D[:, -1] = columns_24[:, 3]
        return rows_2D

    def silent_probability(self, cases: Sequence[Case]) -> float:
        r"""Exact probability that one random neuron fires on none of ``cases``.

        A neuron sees the signs only through :math:`y_1, y_k, y_d` and the sum S' of the other d - 3 block signs:
        its score is affine and increasing in S'. So for each of the eight patterns the least threshold on S' over
        all rows decides, and S' is binomial. A score equal to tau is silent.
        """
        rows_R4 = np.concatenate([self.columns(unit, dataset) for unit, dataset in cases])
        patterns_83 = np.array(list(product((-1.0, 1.0), repeat=3)))
        room_R8 = self.c + self.margin - rows_R4[:, [0, 1, 3]] @ patterns_83.T
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            limit_R8 = room_R8 / rows_R4[:, 2:3]
        limit_8 = np.where(np.isnan(limit_R8), np.inf, limit_R8).min(axis=0)
        num_signs = self.d - 3
        # 1e-10 counts a tie as a tie: rounding is about 1e-12 here, the spike's own terms above 1e-8 for n <= 1e7
        successes_8 = np.floor(np.clip((limit_8 + num_signs) / 2 + 1e-10, -1, num_signs))
        return float(np.where(successes_8 < 0, 0.0, bdtr(np.maximum(successes_8, 0), num_signs, 0.5)).mean())


def build(problem: SelfAttentionProblem, dataset: int, *, position: int = 0) -> Array:
    """The whole data matrix ``[n, d]`` with its spike in row ``position``; O(n d).

    Example:
        >>> build(SelfAttentionProblem(4, 4), 1).astype(bool).astype(int).tolist()
        [[1, 1, 0, 1], [0, 0, 1, 1], [0, 1, 0, 1], [0, 0, 1, 1]]
    """
    data_ND = np.zeros((problem.n, problem.d))
    data_ND[position, 0] = problem.spike(dataset)
    data_ND[:, 1:-1] = problem.b * np.tile(np.eye(problem.d - 2), (problem.n // (problem.d - 2), 1))
    data_ND[:, -1] = problem.c
    return data_ND * problem.scale


def attention_full(query: Array, key: Array, unit: Unit) -> Array:
    """The attention matrix under the all-ones key-query matrix, from inputs ``[T, d]`` and ``[S, d]``: ``[T, S]``."""
    return unit.shares(np.outer(query.sum(axis=1), key.sum(axis=1)))


def features_full(query: Array, key: Array, unit: Unit) -> Array:
    """The output rows ``[T, d]`` with the keys as values, by the whole attention matrix: the reference, O(T S d).

    Self-attention passes one matrix twice. Example:
        >>> problem = SelfAttentionProblem(40, 12)
        >>> data = build(problem, 1)
        >>> whole = features_full(data, data, SOFTMAX)
        >>> bool(np.allclose(whole[:2], problem.features(SOFTMAX, 1), rtol=1e-13))
        True
    """
    return attention_full(query, key, unit) @ key


def network(features: Array, signs: Array, tau: float) -> Array:
    r"""The random sign readout :math:`F = \sum_r \sum_j \max(\langle c_r, y_j \rangle - \tau, 0)`.

    Args:
        features: rows c, ``[R, D]``.
        signs: neurons y with entries +-1, ``[..., M, D]``.
        tau: threshold; a score equal to tau gives 0.

    Returns:
        F >= 0, ``[...]``; positive exactly when a neuron fires on a row. (The construction's outer ReLU changes
        nothing: no term is negative. Repeated rows change the size of F, never its sign.)

    Example:
        >>> network(np.array([[1.0, 0.5]]), np.array([[1.0, 1.0], [1.0, -1.0]]), 1.5).item()
        0.0
    """
    return np.asarray(np.maximum(signs @ features.T - tau, 0.0).sum(axis=(-2, -1)))


@dataclass(frozen=True)
class DetectionCounts:
    """In how many of ``trials`` draws each part of the separation held, and all of them at once.

    ``success`` counts draws in which the strong unit is silent on data set 0 and fires on data set 1 while the
    weak unit is silent on both. Note that ``weak_fires_d1`` counts the opposite of the part it belongs to.
    """

    trials: int
    strong_silent_d0: int
    strong_fires_d1: int
    weak_silent_d0: int
    weak_fires_d1: int
    success: int


def detection_counts(
    problem: Problem, *, width: int, num_draws: int, seed: int, strong: Unit = SOFTMAX, weak: Unit = IDENTITY_LINEAR
) -> DetectionCounts:
    """Draw ``num_draws`` sign networks and count what they tell apart; one draw serves both units and data sets.

    Args:
        problem: a level of the separation.
        width: number of neurons m >= 1.
        num_draws: networks drawn, >= 1.
        seed: seed of a generator of its own; the counts depend on nothing else.
        strong: the unit that should detect the spike.
        weak: the unit that should not.

    Raises:
        ConfigError: if ``width`` or ``num_draws`` < 1.

    Cost: O(num_draws * width * num_features) signs, 16 MiB at a time; 200 draws at m=30, d=402 take about 20 ms.
    Source: construction after Deng et al. 2023 (reconstructed).

    Example:
        >>> detection_counts(SelfAttentionProblem(4000, 402), width=30, num_draws=50, seed=0).success
        50
    """
    if width < 1 or num_draws < 1:
        raise ConfigError(f"detection_counts: width >= 1 and num_draws >= 1 fail for {width} and {num_draws}.")
    rng = np.random.default_rng(seed)
    cases = [(strong, 0), (strong, 1), (weak, 0), (weak, 1)]
    features = [problem.features(unit, dataset) for unit, dataset in cases]
    block = max(1, 2**21 // (width * problem.num_features))
    fires = []
    for start in range(0, num_draws, block):
        shape = (min(block, num_draws - start), width, problem.num_features)
        signs_QMD = 2.0 * rng.integers(0, 2, shape, dtype=np.int8).astype(np.float64) - 1.0
        fires.append(np.stack([network(rows, signs_QMD, problem.tau) > 0 for rows in features]))
    strong_0, strong_1, weak_0, weak_1 = np.concatenate(fires, axis=1)
    parts = (~strong_0, strong_1, ~weak_0, weak_1, ~strong_0 & strong_1 & ~weak_0 & ~weak_1)
    return DetectionCounts(num_draws, *(int(part.sum()) for part in parts))
