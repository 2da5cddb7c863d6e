r"""Moments: sums of monomials of the keys, from which the weights of a polynomial are read.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K features of the
mapped key, V value dim, F_n monomials of order n.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Mechanism, Similarity, monomials, num_monomials, shifted_moments
from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE
from maclaurin.evaluate.tensor_tree import TensorTree


@dataclass(frozen=True, eq=False)
class Moments(TensorTree):
    r"""M_n = sum_s d_s phi_n(k_s) v_s and D_n = sum_s d_s phi_n(k_s), k relative to the key reference, d the decay.

    Args:
        mechanism: says which orders there are.
        numerators: M_n ``[B, H, F_n, V]`` for the mechanism's ``moment_orders``.
        denominators: D_n ``[B, H, F_n]`` for its ``denominator_orders``.
        separate_count: ``[B, H]``, only where no D_0 holds the count.
        key_reference: r ``[B, H, K]`` of a centered mechanism, otherwise None; a constant for gradients.
            Zeros on a row that has seen no key mean: take the first visible key.
    """

    mechanism: Mechanism
    numerators: tuple[Tensor, ...]
    denominators: tuple[Tensor, ...]
    separate_count: Tensor | None
    key_reference: Tensor | None

    @classmethod
    def empty(cls, mechanism: Mechanism, like: Tensor, width: int, value_dim: int, reference: Tensor | None) -> Moments:
        """Moments of no key.

        Args:
            mechanism: what they are for.
            like: ``[B, H]``, of the dtype and device to hold.
            width: K.
            value_dim: V.
            reference: ``[B, H, K]``; None: zeros where the mechanism is centered.
        """
        assert mechanism.far is not None

        def zeros(*shape: int) -> Tensor:
            return like.new_zeros(*like.shape, *shape)

        if mechanism.far.is_centered and reference is None:
            reference = zeros(width)
        return cls(
            mechanism,
            tuple(zeros(num_monomials(width, n), value_dim) for n in mechanism.moment_orders),
            tuple(zeros(num_monomials(width, n)) for n in mechanism.denominator_orders),
            None if 0 in mechanism.denominator_orders else zeros(),
            reference,
        )

    @property
    def similarity(self) -> Similarity:
        """The mechanism's ``far``."""
        assert self.mechanism.far is not None
        return self.mechanism.far

    @property
    def count(self) -> Tensor:
        """Number of keys, each as far as it has not decayed, ``[B, H]``."""
        return self.denominator(0)[..., 0] if self.separate_count is None else self.separate_count

    @property
    def key_sum(self) -> Tensor:
        """Sum of the mapped keys, ``[B, H, K]``; for a centered mechanism."""
        assert self.key_reference is not None
        return self.denominator(1) + self.count[..., None] * self.key_reference

    @property
    def width(self) -> int | None:
        """K; None where moments of order 0 alone do not tell it."""
        if self.key_reference is not None:
            return self.key_reference.shape[-1]
        for order, moment in zip(self.mechanism.moment_orders, self.numerators, strict=True):
            if order >= 1:
                return next(k for k in range(moment.shape[2] + 1) if num_monomials(k, order) == moment.shape[2])
        return None

    def denominator(self, order: int) -> Tensor:
        """D_n."""
        return self.denominators[self.mechanism.denominator_orders.index(order)]

    def decayed(self, log_decay_BH: Tensor | None) -> Moments:
        """Every sum times exp(log_decay); None is no decay."""
        if log_decay_BH is None:
            return self
        factor = torch.exp(log_decay_BH)
        return replace(
            self,
            numerators=tuple(each * factor[..., None, None] for each in self.numerators),
            denominators=tuple(each * factor[..., None] for each in self.denominators),
            separate_count=None if self.separate_count is None else self.separate_count * factor,
        )

    def absorb(
        self, key_BHSK: Tensor, value_BHSV: Tensor, visible_BS: Tensor | None, log_weight: Tensor | None = None
    ) -> Moments:
        """The moments with S more mapped keys and values; those not visible change nothing.

        Args:
            key_BHSK: mapped keys.
            value_BHSV: their values.
            visible_BS: bool; None for all.
            log_weight: log of a factor of each, ``[B, H, S]``; None for none.
        """
        moments = self if self.key_reference is None else self.adopt(_first_visible(key_BHSK, visible_BS))
        powers, weight = moments._summands(key_BHSK, visible_BS, log_weight)
        weighted_value, mechanism = value_BHSV * weight, self.mechanism
        block = Moments(
            mechanism,
            tuple(powers[n].transpose(-1, -2) @ weighted_value for n in mechanism.moment_orders),
            tuple((powers[n] * weight).sum(-2) for n in mechanism.denominator_orders),
            None if 0 in mechanism.denominator_orders else weight.sum((-1, -2)),
            moments.key_reference,
        )
        return moments.merge(block)

    def absorb_in_place(
        self,
        key_BHSK: Tensor,
        value_BHSV: Tensor,
        visible_BS: Tensor | None,
        log_weight: Tensor | None = None,
        log_decay_BH: Tensor | None = None,
    ) -> None:
        """What :meth:`decayed` and then :meth:`absorb` return, written over these moments, which must be contiguous.

        Args:
            key_BHSK: mapped keys.
            value_BHSV: their values.
            visible_BS: bool; None for all.
            log_weight: log of a factor of each, ``[B, H, S]``; None for none.
            log_decay_BH: log of a factor of what is held already; None for none.
        """
        if log_decay_BH is not None:
            factor = torch.exp(log_decay_BH)
            for held in self._sums:
                held.mul_(factor.reshape(*factor.shape, *[1] * (held.ndim - 2)))
        if self.key_reference is not None:
            adopted = self.adopt(_first_visible(key_BHSK, visible_BS)).key_reference
            assert adopted is not None
            self.key_reference.copy_(adopted)
        powers, weight = self._summands(key_BHSK, visible_BS, log_weight)
        weighted_value = (value_BHSV * weight).flatten(0, 1)
        for n, moment in zip(self.mechanism.moment_orders, self.numerators, strict=True):
            flat = moment.view(len(weighted_value), *moment.shape[2:])
            flat.baddbmm_(powers[n].flatten(0, 1).transpose(-1, -2), weighted_value)
        for n, total in zip(self.mechanism.denominator_orders, self.denominators, strict=True):
            total.add_((powers[n] * weight).sum(-2))
        if self.separate_count is not None:
            self.separate_count.add_(weight.sum((-1, -2)))

    @property
    def _sums(self) -> tuple[Tensor, ...]:
        """Everything that decays."""
        return (*self.numerators, *self.denominators, *([] if self.separate_count is None else [self.separate_count]))

    def _summands(
        self, key_BHSK: Tensor, visible_BS: Tensor | None, log_weight: Tensor | None
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Monomials of keys about the reference, ``[B, H, S, F_n]`` for every n, and their weights ``[B, H, S, 1]``."""
        if self.key_reference is not None:
            key_BHSK = key_BHSK - self.key_reference[:, :, None]
        weight = key_BHSK.new_ones(*key_BHSK.shape[:3], 1)
        if visible_BS is not None:
            weight = weight * visible_BS[:, None, :, None].to(weight.dtype)
        if log_weight is not None:
            weight = weight * torch.exp(log_weight)[..., None]
        highest = max(*self.mechanism.moment_orders, *self.mechanism.denominator_orders, 0)
        return monomials(key_BHSK, highest), weight

    def merge(self, other: Moments) -> Moments:
        """The moments of the union of two disjoint key sets; associative."""
        mine, theirs = self, other
        if mine.key_reference is not theirs.key_reference:
            assert mine.key_reference is not None and theirs.key_reference is not None
            mine = mine.adopt(theirs.key_reference)
            assert mine.key_reference is not None
            theirs = theirs.rebase(mine.key_reference)
        return Moments(
            self.mechanism,
            tuple(a + b for a, b in zip(mine.numerators, theirs.numerators, strict=True)),
            tuple(a + b for a, b in zip(mine.denominators, theirs.denominators, strict=True)),
            None if mine.separate_count is None else mine.separate_count + theirs.count,
            mine.key_reference,
        )

    def rebase(self, key_reference: Tensor) -> Moments:
        """The same moments about another reference, ``[B, H, K]``."""
        assert self.key_reference is not None
        shift = self.key_reference - key_reference.detach()
        totals = shifted_moments(tuple(each[..., None] for each in self.denominators), shift)
        return replace(
            self,
            numerators=shifted_moments(self.numerators, shift),
            denominators=tuple(each[..., 0] for each in totals),
            key_reference=key_reference.detach(),
        )

    def read(self, query_BHGTK: Tensor, scale: float, center_BHGT: Tensor | None = None) -> Accumulator:
        """The accumulator of mapped queries over every key in the moments.

        Args:
            query_BHGTK: mapped queries.
            scale: of the logits.
            center_BHGT: c where other keys share it; None: the mean over these keys.
        """
        similarity = self.similarity
        count = self.count[..., None, None].expand(query_BHGTK.shape[:-1])
        log_scale = torch.zeros_like(count)
        gauge: Tensor | None = None
        inner: Tensor | None = None  # the center relative to the reference
        if similarity.is_centered:
            inner, center = self.centers(query_BHGTK, scale, center_BHGT)
            log_scale = center.detach()
            gauge = torch.exp(center - log_scale)[..., None]
        powers = monomials(query_BHGTK, max(self.mechanism.moment_orders))
        numerator: Tensor | None = None
        denominator: Tensor | None = None
        uses_denominator = self.mechanism.normalizer.uses_denominator
        for n, moment in zip(self.mechanism.moment_orders, self.numerators, strict=True):
            factor = similarity.readout(n, scale, inner)
            weighted = powers[n] * (factor[..., None] if isinstance(factor, Tensor) else factor)
            weighted = weighted if gauge is None else weighted * gauge
            term = weighted @ moment[:, :, None]
            numerator = term if numerator is None else numerator + term
            if uses_denominator:
                total = (weighted @ self.denominator(n)[:, :, None, :, None])[..., 0]
                denominator = total if denominator is None else denominator + total
        assert numerator is not None
        return Accumulator(numerator, denominator, count, torch.where(count > 0, log_scale, EMPTY_LOG_SCALE))

    def centers(self, query_BHGTK: Tensor, scale: float, center: Tensor | None) -> tuple[Tensor, Tensor]:
        """(c about the key reference, c), ``[B, H, G, T]`` each; see :meth:`read`."""
        assert self.key_reference is not None
        scaled = query_BHGTK * scale
        offset = (scaled @ self.key_reference[:, :, None, :, None])[..., 0]
        if center is not None:
            return center - offset, center
        mean = self.denominator(1) / self.count.masked_fill(self.count <= 0, 1.0)[..., None]
        inner = (scaled @ mean[:, :, None, :, None])[..., 0]
        return inner, inner + offset

    def adopt(self, reference: Tensor) -> Moments:
        """Rows that have seen no key and have no reference take this one; their moments are zero about any."""
        assert self.key_reference is not None
        is_unset = (self.count == 0)[..., None] & (self.key_reference == 0).all(-1, keepdim=True)
        return replace(self, key_reference=torch.where(is_unset, reference.detach(), self.key_reference))


def _first_visible(key_BHSK: Tensor, visible_BS: Tensor | None) -> Tensor:
    """The first visible key of each row, ``[B, H, K]``; zeros where there is none."""
    if key_BHSK.shape[2] == 0:
        return key_BHSK.new_zeros(*key_BHSK.shape[:2], key_BHSK.shape[-1])
    if visible_BS is None:
        return key_BHSK[:, :, 0].detach()
    first_B = visible_BS.to(torch.int64).argmax(-1)
    chosen = key_BHSK.detach()[torch.arange(key_BHSK.shape[0], device=key_BHSK.device), :, first_B]
    return chosen * visible_BS.any(-1)[:, None, None].to(key_BHSK.dtype)
