"""The keystone: one query's partial sum over any set of keys, and the merge that makes sets larger.

Parallel, chunked and recurrent evaluation are bracketings of one sum of accumulators. A normalizer sees an
accumulator and nothing else, so it cannot know which algorithm made it.

Dimension key: ... leading dims (batch, heads, queries), V value dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

#: Log scale of an accumulator without keys: below every real one, and finite so that two of them merge.
EMPTY_LOG_SCALE = -1e30


@dataclass(frozen=True)
class Accumulator:
    r"""Sums over a set of keys for each query, relative to a log scale.

    .. math:: e^{\ell} N = \sum_s w_s v_s, \qquad e^{\ell} Z = \sum_s w_s, \qquad n = \sum_s d_s, \qquad
              L = \log \sum_s d_s e^{u_s}

    where d is the decay factor of a key, 1 without decay.

    Args:
        numerator: N, ``[..., V]``.
        denominator: Z, ``[...]``; None when the normalizer never reads it.
        count: n, number of visible keys, each as far as it has not decayed, ``[...]``.
        log_scale: the gauge l, ``[...]``; a constant for gradients. Its value never changes what the
            accumulator means, only how its sums are represented.
        log_denominator: L, ``[...]``, of the normalizer whose denominator does not depend on the query; else None.
    """

    numerator: Tensor
    denominator: Tensor | None
    count: Tensor
    log_scale: Tensor
    log_denominator: Tensor | None = None

    @classmethod
    def from_weights(
        cls, weights: Tensor, value: Tensor, visible: Tensor, log_scale: Tensor, log_decay: Tensor | None = None
    ) -> Accumulator:
        """Sum one block of keys at once.

        Args:
            weights: ``[..., T, S]`` relative to ``log_scale``, decay included, zero where not visible.
            value: ``[..., S, V]``.
            visible: bool, broadcastable to ``[..., T, S]``.
            log_scale: ``[..., T]``.
            log_decay: log of every key's decay factor, broadcastable to ``[..., T, S]``; it only counts keys here.
        """
        counted = visible.to(weights.dtype)
        if log_decay is not None:
            counted = counted * torch.exp(log_decay)
        count = counted.sum(-1).expand(log_scale.shape)
        return cls(
            weights @ value,
            weights.sum(-1),
            count,
            torch.where(visible.any(-1), log_scale, EMPTY_LOG_SCALE),
        )

    def decayed(self, log_decay: Tensor) -> Accumulator:
        """The accumulator some time later: every weight times exp(log_decay).

        Args:
            log_decay: ``[...]``, <= 0; -inf leaves nothing. Its value goes into the log scale, so that a weight that
                is tiny in true scale keeps its digits.
        """
        is_reset = log_decay == -math.inf
        kept = log_decay.masked_fill(is_reset, 0.0)
        scaled = self.scaled(kept)
        gone = (~is_reset).to(log_decay.dtype)  # 1 where something is left
        log_denominator = self.log_denominator
        return Accumulator(
            scaled.numerator * gone[..., None],
            None if scaled.denominator is None else scaled.denominator * gone,
            self.count * torch.exp(log_decay),
            torch.where(is_reset, EMPTY_LOG_SCALE, scaled.log_scale),
            None if log_denominator is None else (log_denominator + log_decay).clamp(min=EMPTY_LOG_SCALE),
        )

    def scaled(self, log_factor: Tensor) -> Accumulator:
        """Every weight times exp(log_factor), ``[...]`` and finite; the count is left as it is."""
        gauge = log_factor.detach()
        factor = torch.exp(log_factor - gauge)  # 1, with the gradient of the factor
        return replace(
            self,
            numerator=self.numerator * factor[..., None],
            denominator=None if self.denominator is None else self.denominator * factor,
            log_scale=torch.where(self.log_scale > EMPTY_LOG_SCALE, self.log_scale + gauge, EMPTY_LOG_SCALE),
        )

    def gated(self, gate: Tensor) -> Accumulator:
        """The numerator times ``gate``, broadcastable to it; an output gate before the normalizer."""
        return replace(self, numerator=self.numerator * gate)

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
            merged_log_denominator(self.log_denominator, other.log_denominator),
        )

    @staticmethod
    def join(accumulators: Sequence[Accumulator]) -> Accumulator:
        """One accumulator of all queries, from those of consecutive stretches of them."""

        def along_time(tensors: list[Tensor | None], dim: int) -> Tensor | None:
            present = [each for each in tensors if each is not None]
            return torch.cat(present, dim=dim) if present else None

        return Accumulator(
            torch.cat([each.numerator for each in accumulators], dim=-2),
            along_time([each.denominator for each in accumulators], -1),
            torch.cat([each.count for each in accumulators], dim=-1),
            torch.cat([each.log_scale for each in accumulators], dim=-1),
            along_time([each.log_denominator for each in accumulators], -1),
        )

    @property
    def true_denominator(self) -> Tensor:
        """The denominator in true scale, e^l Z; infinite where that exceeds the dtype, never NaN."""
        assert self.denominator is not None
        return unscale(self.denominator, self.log_scale)


def merged_log_denominator(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """log(e^one + e^other); None where there is none. No keys stand at ``EMPTY_LOG_SCALE``."""
    return None if one is None or other is None else torch.logaddexp(one, other)


def unscale(x: Tensor, log_scale: Tensor) -> Tensor:
    """``x * exp(log_scale)`` without an intermediate overflow: infinite only where the product is, never NaN.

    The factor is applied in two halves, each finite: a zero stays zero and keeps its gradient.
    """
    limit = 2.0 * math.floor(math.log(torch.finfo(x.dtype).max))
    half = torch.exp(0.5 * log_scale.clamp(-limit, limit))
    return x * half * half
