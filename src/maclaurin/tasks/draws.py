"""Random draws that the tasks share, for all sequences of a batch at once."""

from __future__ import annotations

import numpy as np


def distinct(rng: np.random.Generator, shape: tuple[int, int], *, low: int, high: int) -> np.ndarray:
    """Integers of [low, high), distinct within each row, every such row equally likely.

    Repeats are drawn again until none is left. What is redrawn depends on which entries are equal, never on
    their values, so renaming the values changes nothing: that makes all rows of distinct values equally
    likely. With at most half of the values in a row, every round leaves at most half of the repeats, on
    average.

    Args:
        rng: the source of randomness.
        shape: rows and entries per row, (B, M); M <= high - low.
        low: the smallest value.
        high: one more than the largest value.

    Returns:
        int64 [B, M].

    Example:
        >>> sorted(distinct(np.random.default_rng(0), (1, 3), low=5, high=8)[0].tolist())
        [5, 6, 7]
    """
    drawn = rng.integers(low, high, size=shape)
    rows = np.arange(shape[0])
    while rows.size:
        block = drawn[rows]
        order = np.argsort(block, axis=1, kind="stable")
        in_order = np.take_along_axis(block, order, axis=1)
        repeated = np.zeros(block.shape, dtype=np.bool_)
        np.put_along_axis(repeated, order[:, 1:], in_order[:, 1:] == in_order[:, :-1], axis=1)
        block[repeated] = rng.integers(low, high, size=int(repeated.sum()))
        drawn[rows] = block
        rows = rows[repeated.any(axis=1)]
    return drawn


def successive(rng: np.random.Generator, log_weights: np.ndarray, *, num_rows: int, num_drawn: int) -> np.ndarray:
    """Indices drawn one after the other without replacement, each in proportion to its weight among those
    left.

    The order of log weight + Gumbel noise, largest first, has exactly this distribution.

    Args:
        rng: the source of randomness.
        log_weights: [N], finite; a constant added to all changes nothing.
        num_rows: B, independent rows.
        num_drawn: M <= N, indices per row.

    Returns:
        int64 [B, M] in [0, N), in the order of the draws.

    Example:
        >>> log_weights = np.array([0.0, 900.0, 400.0])
        >>> successive(np.random.default_rng(0), log_weights, num_rows=1, num_drawn=2).tolist()
        [[1, 2]]
    """
    noisy = log_weights + rng.gumbel(size=(num_rows, log_weights.size))
    return np.argsort(-noisy, axis=1)[:, :num_drawn]


def others(rng: np.random.Generator, excluded: np.ndarray, *, high: int, length: int) -> np.ndarray:
    """Integers of [0, high), uniform over those that are not excluded in their row.

    The r-th value that is not excluded is r plus the number of excluded ones below it. Counting them is one
    search for all rows: row b is moved by b * high, so that rows do not meet.

    Args:
        rng: the source of randomness.
        excluded: integers of [0, high) [B, M], distinct within each row; M < high.
        high: one more than the largest value.
        length: L, draws per row.

    Returns:
        int64 [B, L].

    Example:
        >>> others(np.random.default_rng(0), np.array([[3, 0, 1]]), high=4, length=5).tolist()
        [[2, 2, 2, 2, 2]]
    """
    num_rows, num_excluded = excluded.shape
    row_start = high * np.arange(num_rows)[:, None]
    ranks = rng.integers(0, high - num_excluded, size=(num_rows, length))
    thresholds = np.sort(excluded, axis=1) - np.arange(num_excluded) + row_start
    below = np.searchsorted(thresholds.ravel(), (ranks + row_start).ravel(), side="right")
    drawn: np.ndarray = ranks + below.reshape(ranks.shape) - num_excluded * np.arange(num_rows)[:, None]
    return drawn
