"""The keystone: one query's partial sum over any set of keys, and the merge that makes sets larger.

Parallel, chunked and recurrent evaluation are bracketings of one sum of accumulators. A normalizer sees an
accumulator and nothing else, so it cannot know which algorithm made it.

Dimension key: ... leading dims (batch, heads, queries), V value dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

#: Log scale of an accumulator without keys: below every real one, and finite so that two of them merge.
EMPTY_LOG_SCALE = -1e30


@dataclass(frozen=True)
class Accumulator:
    r"""Sums over a set of keys for each query, relative to a log scale.

    .. math:: e^{\ell} N = \sum_s w_s v_s, \qquad e^{\ell} Z = \sum_s w_s, \qquad n = \sum_s 1

    Args:
        numerator: N, ``[..., V]``.
        denominator: Z, ``[...]``; None when the normalizer never reads it.
        count: n, number of visible keys, ``[...]``.
        log_scale: the gauge l, ``[...]``; a constant for gradients. Its value never changes what the
            accumulator means, only how its sums are represented.
    """

    numerator: Tensor
    denominator: Tensor | None
    count: Tensor
    log_scale: Tensor

    @classmethod
    def from_weights(cls, weights: Tensor, value: Tensor, visible: Tensor, log_scale: Tensor) -> Accumulator:
        """Sum one block of keys at once.

        Args:
            weights: ``[..., T, S]`` relative to ``log_scale``, zero where not visible.
            value: ``[..., S, V]``.
            visible: bool, broadcastable to ``[..., T, S]``.
            log_scale: ``[..., T]``.
        """
        count = visible.to(weights.dtype).sum(-1).expand(log_scale.shape)
        return cls(
            weights @ value,
            weights.sum(-1),
            count,
            torch.where(count > 0, log_scale, EMPTY_LOG_SCALE),
        )

    def merge(self, other: Accumulator) -> Accumulator:
        """The accumulator of the union of two disjoint key sets; associative and commutative.

        Both sides must be of the same query; for a centered similarity also of the same center.
        """
        log_scale = torch.maximum(self.log_scale, other.log_scale)
        mine, theirs = torch.exp(self.log_scale - log_scale), torch.exp(other.log_scale - log_scale)
        denominator = None
        if self.denominator is not None and other.denominator is not None:
            denominator = mine * self.denominator + theirs * other.denominator
        return Accumulator(
            mine[..., None] * self.numerator + theirs[..., None] * other.numerator,
            denominator,
            self.count + other.count,
            log_scale,
        )

    @property
    def true_denominator(self) -> Tensor:
        """The denominator in true scale, e^l Z; infinite where that exceeds the dtype, never NaN."""
        assert self.denominator is not None
        return unscale(self.denominator, self.log_scale)


def unscale(x: Tensor, log_scale: Tensor) -> Tensor:
    """``x * exp(log_scale)`` without an intermediate overflow: infinite only where the product is, never NaN.

    The factor is applied in two halves, each finite: a zero stays zero and keeps its gradient.
    """
    limit = 2.0 * math.floor(math.log(torch.finfo(x.dtype).max))
    half = torch.exp(0.5 * log_scale.clamp(-limit, limit))
    return x * half * half
