"""State: what is kept of the keys and values seen so far, before any query.

A mechanism with a finite state keeps moments (:class:`MomentState`), whose size does not depend on how many keys
went in; any other keeps the mapped keys and the values (:class:`CacheState`). Both absorb keys, merge, and answer
queries with an accumulator; evaluations use nothing else of them. Values in, values out: nothing is updated in place.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K features of the
mapped key, V value dim, F_n monomials of order n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Mechanism, monomials, num_monomials, shifted_moments
from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE
from maclaurin.errors import MethodError, StateError
from maclaurin.evaluate.block import accumulate_block, logits, mean_logit
from maclaurin.evaluate.legality import moment_refusal


@dataclass(frozen=True, eq=False)
class State:
    """Base of the two kinds of state. Make one with :meth:`empty`.

    Args:
        mechanism: what the state belongs to; another mechanism refuses it.
    """

    mechanism: Mechanism

    @staticmethod
    def empty(
        mechanism: Mechanism,
        *,
        batch_size: int,
        num_kv_heads: int,
        key_dim: int,
        value_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        key_reference: Tensor | None = None,
    ) -> State:
        """A state that has seen no key.

        Args:
            mechanism: what it is for.
            batch_size: B.
            num_kv_heads: H.
            key_dim: width of the keys before the feature map.
            value_dim: V.
            dtype: float32 or float64; half-precision inputs keep float32 states.
            device: where.
            key_reference: ``[B, H, K]``, taken from every mapped key of a centered mechanism before moments are
                formed; None or zeros: the first visible key. Changes no value, only its float32 accuracy.

        Raises:
            StateError: a key reference for a mechanism that is not centered, or of the wrong shape.
            MethodError: a finite state of an order whose moments lose too many digits.
        """
        refusal = moment_refusal(mechanism)
        if refusal:
            raise MethodError(
                f"A state of {mechanism.describe()} was asked for, but {refusal}.\n"
                "  Use method='parallel' without a state."
            )
        width = mechanism.similarity.map.num_features(key_dim, dtype=dtype, device=device)
        lead = (batch_size, num_kv_heads)
        has_reference = mechanism.is_finite_state and mechanism.similarity.is_centered
        if key_reference is not None and (not has_reference or tuple(key_reference.shape) != (*lead, width)):
            raise StateError(
                f"key_reference {tuple(key_reference.shape)} was given to {mechanism.describe()}.\n"
                f"  Only a centered finite state (taylor:N@mean) has one, of shape [B, H, K] = {(*lead, width)} here."
            )

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*lead, *shape, dtype=dtype, device=device)

        if not mechanism.is_finite_state:
            mask = torch.ones(batch_size, 0, dtype=torch.bool, device=device)
            return CacheState(mechanism, zeros(0, width), zeros(0, value_dim), mask)
        reference = None
        if has_reference:
            reference = zeros(width) if key_reference is None else key_reference.detach().to(dtype=dtype, device=device)
        return MomentState(
            mechanism,
            tuple(zeros(num_monomials(width, n), value_dim) for n in mechanism.moment_orders),
            tuple(zeros(num_monomials(width, n)) for n in mechanism.denominator_orders),
            None if 0 in mechanism.denominator_orders else zeros(),
            reference,
        )

    @property
    def count(self) -> Tensor:
        """Number of visible keys absorbed, ``[B, H]``."""
        raise AssertionError("a state defines its count")

    @property
    def key_sum(self) -> Tensor:
        """Sum of the visible mapped keys, ``[B, H, K]``; for centered similarities."""
        raise AssertionError("a state defines its key sum")

    @property
    def layout(self) -> tuple[int, int, int | None, int]:
        """``(B, H, K, V)``; K is None where moments of order 0 alone do not tell it."""
        raise AssertionError("a state defines its layout")

    @property
    def dtype(self) -> torch.dtype:
        """Of its sums."""
        return self.count.dtype

    @property
    def device(self) -> torch.device:
        """Where its tensors are."""
        return self.count.device

    def absorb(self, key_BHSK: Tensor, value_BHSV: Tensor, visible_BS: Tensor | None) -> State:
        """The state after S more mapped keys and values; those not visible change nothing."""
        raise AssertionError("a state defines absorb")

    def merge(self, other: State) -> State:
        """The state of the union of two disjoint key sets; associative."""
        raise AssertionError("a state defines merge")

    def read(self, query_BHGTK: Tensor, scale: float, center_BHGT: Tensor | None = None) -> Accumulator:
        """The accumulator of mapped queries over every key in the state.

        Args:
            query_BHGTK: mapped queries.
            scale: of the logits.
            center_BHGT: c where keys outside the state share it; None: the mean over this state's keys.
        """
        raise AssertionError("a state defines read")

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> State:
        """The same state with ``change`` applied to every tensor."""

        def through(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(change(each) for each in value)
            return change(value) if isinstance(value, Tensor) else value

        return replace(self, **{each.name: through(getattr(self, each.name)) for each in fields(self)})

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor of the state, in a fixed order."""
        collected: list[Tensor] = []
        self.map_tensors(lambda each: collected.append(each) or each)  # type: ignore[func-returns-value]
        return tuple(collected)

    def detach(self) -> State:
        """Cut the gradient."""
        return self.map_tensors(Tensor.detach)

    def to(self, device: torch.device | str) -> State:
        """The state on another device."""
        return self.map_tensors(lambda each: each.to(device))

    @property
    def nbytes(self) -> int:
        """Bytes of every tensor; for moments ``mechanism.state_size(K, V) * B * H * item size``, exactly."""
        return sum(each.numel() * each.element_size() for each in self.tensors())

    def _require_same(self, other: State) -> None:
        if not isinstance(other, State):
            raise StateError(f"merge: a state and a {type(other).__name__}.\n  Only states can be merged.")
        if self.mechanism != other.mechanism:
            raise StateError(
                f"merge: a state of {self.mechanism.describe()} and one of {other.mechanism.describe()}.\n"
                "  States hold different moments for different mechanisms; only those of one can be merged."
            )
        mine, theirs = (self.layout, self.dtype, self.device), (other.layout, other.dtype, other.device)
        if mine != theirs:
            raise StateError(
                f"merge: a state of [B, Hkv, K, V] = {mine[0]} in {mine[1]} on {mine[2]}, and one of {theirs[0]} in "
                f"{theirs[1]} on {theirs[2]}.\n  Merge states of one batch, heads, widths, dtype and device."
            )


@dataclass(frozen=True, eq=False)
class CacheState(State):
    """Keys and values as they are, for similarities without a finite state.

    Args:
        key: mapped keys, ``[B, H, S, K]``.
        value: ``[B, H, S, V]``.
        visible: bool ``[B, S]``.
    """

    key: Tensor
    value: Tensor
    visible: Tensor

    @property
    def count(self) -> Tensor:
        return self.visible.to(self.key.dtype).sum(-1)[:, None].expand(self.key.shape[:2])

    @property
    def layout(self) -> tuple[int, int, int | None, int]:
        return (*self.key.shape[:2], self.key.shape[-1], self.value.shape[-1])

    @property
    def key_sum(self) -> Tensor:
        return self.key.masked_fill(~self.visible[:, None, :, None], 0.0).sum(-2)

    def absorb(self, key_BHSK: Tensor, value_BHSV: Tensor, visible_BS: Tensor | None) -> State:
        if visible_BS is None:
            visible_BS = key_BHSK.new_ones(key_BHSK.shape[0], key_BHSK.shape[2], dtype=torch.bool)
        return self.merge(CacheState(self.mechanism, key_BHSK, value_BHSV, visible_BS))

    def merge(self, other: State) -> State:
        self._require_same(other)
        assert isinstance(other, CacheState)
        return CacheState(
            self.mechanism,
            torch.cat([self.key, other.key], dim=2),
            torch.cat([self.value, other.value], dim=2),
            torch.cat([self.visible, other.visible], dim=1),
        )

    def read(self, query_BHGTK: Tensor, scale: float, center_BHGT: Tensor | None = None) -> Accumulator:
        x = logits(query_BHGTK, self.key, scale)
        visible = self.visible[:, None, None, None]
        if self.mechanism.similarity.is_centered and center_BHGT is None:
            center_BHGT = mean_logit(x, visible)
        return accumulate_block(self.mechanism.similarity, x, self.value, visible, center_BHGT)


@dataclass(frozen=True, eq=False)
class MomentState(State):
    r"""Sums of monomials: M_n = sum_s phi_n(k_s) v_s and D_n = sum_s phi_n(k_s), k relative to the key reference.

    Args:
        numerators: M_n ``[B, H, F_n, V]`` for the mechanism's ``moment_orders``.
        denominators: D_n ``[B, H, F_n]`` for its ``denominator_orders``.
        separate_count: ``[B, H]``, only where no D_0 holds the count.
        key_reference: r ``[B, H, K]`` of a centered mechanism, otherwise None; a constant for gradients.
            Zeros on a row that has seen no key mean: take the first visible key.
    """

    numerators: tuple[Tensor, ...]
    denominators: tuple[Tensor, ...]
    separate_count: Tensor | None
    key_reference: Tensor | None

    @property
    def count(self) -> Tensor:
        return self._denominator(0)[..., 0] if self.separate_count is None else self.separate_count

    @property
    def layout(self) -> tuple[int, int, int | None, int]:
        batch, heads, _, value_dim = self.numerators[0].shape
        width = None if self.key_reference is None else self.key_reference.shape[-1]
        for order, moment in zip(self.mechanism.moment_orders, self.numerators, strict=True):
            if order >= 1 and width is None:
                width = next(k for k in range(moment.shape[2] + 1) if num_monomials(k, order) == moment.shape[2])
        return batch, heads, width, value_dim

    @property
    def key_sum(self) -> Tensor:
        assert self.key_reference is not None
        return self._denominator(1) + self.count[..., None] * self.key_reference

    def absorb(self, key_BHSK: Tensor, value_BHSV: Tensor, visible_BS: Tensor | None) -> State:
        state = self if self.key_reference is None else self._adopt(_first_visible(key_BHSK, visible_BS))
        block = MomentState._of(self.mechanism, key_BHSK, value_BHSV, visible_BS, state.key_reference)
        return state.merge(block)

    def merge(self, other: State) -> State:
        self._require_same(other)
        assert isinstance(other, MomentState)
        mine, theirs = self, other
        if mine.key_reference is not theirs.key_reference:
            assert mine.key_reference is not None and theirs.key_reference is not None
            mine = mine._adopt(theirs.key_reference)
            assert mine.key_reference is not None
            theirs = theirs.rebase(mine.key_reference)
        return MomentState(
            self.mechanism,
            tuple(a + b for a, b in zip(mine.numerators, theirs.numerators, strict=True)),
            tuple(a + b for a, b in zip(mine.denominators, theirs.denominators, strict=True)),
            None if mine.separate_count is None else mine.separate_count + theirs.count,
            mine.key_reference,
        )

    def rebase(self, key_reference: Tensor) -> MomentState:
        """The same state with its moments about another reference.

        States compare, and merge, after this. ``key_reference`` is ``[B, H, K]``.

        Raises:
            StateError: the mechanism is not centered and has no reference, or one of another shape.
        """
        mine, asked = self.key_reference, tuple(key_reference.shape)
        if mine is None or tuple(mine.shape) != asked:
            has = "no key reference" if mine is None else f"a key reference {tuple(mine.shape)}, not {asked}"
            raise StateError(
                f"rebase: a state of {self.mechanism.describe()} has {has}.\n"
                "  Only centered mechanisms (taylor:N@mean) have one, of shape [B, Hkv, K]."
            )
        shift = mine - key_reference.detach()
        totals = shifted_moments(tuple(each[..., None] for each in self.denominators), shift)
        return replace(
            self,
            numerators=shifted_moments(self.numerators, shift),
            denominators=tuple(each[..., 0] for each in totals),
            key_reference=key_reference.detach(),
        )

    def read(self, query_BHGTK: Tensor, scale: float, center_BHGT: Tensor | None = None) -> Accumulator:
        similarity = self.mechanism.similarity
        count = self.count[..., None, None].expand(query_BHGTK.shape[:-1])
        log_scale = torch.zeros_like(count)
        gauge: Tensor | None = None
        inner: Tensor | None = None  # the center relative to the reference
        if similarity.is_centered:
            inner, center = self._centers(query_BHGTK, scale, center_BHGT)
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
                total = (weighted @ self._denominator(n)[:, :, None, :, None])[..., 0]
                denominator = total if denominator is None else denominator + total
        assert numerator is not None
        return Accumulator(numerator, denominator, count, torch.where(count > 0, log_scale, EMPTY_LOG_SCALE))

    def _centers(self, query_BHGTK: Tensor, scale: float, center: Tensor | None) -> tuple[Tensor, Tensor]:
        """(c about the key reference, c)."""
        assert self.key_reference is not None
        scaled = query_BHGTK * scale
        offset = (scaled @ self.key_reference[:, :, None, :, None])[..., 0]
        if center is not None:
            return center - offset, center
        mean = self._denominator(1) / self.count.clamp(min=1.0)[..., None]
        inner = (scaled @ mean[:, :, None, :, None])[..., 0]
        return inner, inner + offset

    def _denominator(self, order: int) -> Tensor:
        return self.denominators[self.mechanism.denominator_orders.index(order)]

    def _adopt(self, reference: Tensor) -> MomentState:
        """Rows that have seen no key and have no reference take this one; their moments are zero about any."""
        assert self.key_reference is not None
        is_unset = (self.count == 0)[..., None] & (self.key_reference == 0).all(-1, keepdim=True)
        return replace(self, key_reference=torch.where(is_unset, reference.detach(), self.key_reference))

    @staticmethod
    def _of(
        mechanism: Mechanism, key: Tensor, value: Tensor, visible_BS: Tensor | None, reference: Tensor | None
    ) -> MomentState:
        """The state of one block of keys alone."""
        if reference is not None:
            key = key - reference[:, :, None]
        ones = key.new_ones(*key.shape[:3], 1)
        if visible_BS is not None:
            ones = ones * visible_BS[:, None, :, None].to(key.dtype)
        powers = monomials(key, max(*mechanism.moment_orders, *mechanism.denominator_orders, 0))
        masked_value = value * ones
        return MomentState(
            mechanism,
            tuple(powers[n].transpose(-1, -2) @ masked_value for n in mechanism.moment_orders),
            tuple((powers[n] * ones).sum(-2) for n in mechanism.denominator_orders),
            None if 0 in mechanism.denominator_orders else ones.sum((-1, -2)),
            reference,
        )


def _first_visible(key_BHSK: Tensor, visible_BS: Tensor | None) -> Tensor:
    """The first visible key of each row, ``[B, H, K]``; zeros where there is none."""
    if key_BHSK.shape[2] == 0:
        return key_BHSK.new_zeros(*key_BHSK.shape[:2], key_BHSK.shape[-1])
    if visible_BS is None:
        return key_BHSK[:, :, 0].detach()
    first_B = visible_BS.to(torch.int64).argmax(-1)
    chosen = key_BHSK.detach()[torch.arange(key_BHSK.shape[0], device=key_BHSK.device), :, first_B]
    return chosen * visible_BS.any(-1)[:, None, None].to(key_BHSK.dtype)
