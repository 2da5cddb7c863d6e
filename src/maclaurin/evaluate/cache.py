"""Keys and values kept as they are: all of them, or those that a window weighs exactly.

Dimension key: B batch, H key/value heads, S keys, K features of the mapped key, V value dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maclaurin.algebra import Window
from maclaurin.evaluate.tensor_tree import TensorTree


@dataclass(frozen=True, eq=False)
class Cache(TensorTree):
    """Every key so far.

    Args:
        key: mapped keys, ``[B, H, S, K]``.
        value: ``[B, H, S, V]``.
        visible: bool ``[B, S]``.
        log_weight: log decay of each key so far, ``[B, H, S]``; None without decay.
    """

    key: Tensor
    value: Tensor
    visible: Tensor
    log_weight: Tensor | None

    @property
    def entries(self) -> Cache:
        """Itself: what a query may see."""
        return self

    def later(self, log_decay_BH: Tensor | None) -> Cache:
        """The cache after some more decay."""
        if log_decay_BH is None or self.log_weight is None:
            return self
        return replace(self, log_weight=self.log_weight + log_decay_BH[..., None])

    def followed_by(self, other: Cache) -> Cache:
        """Both caches' keys in order."""
        mine, theirs = self.log_weight, other.log_weight
        return Cache(
            torch.cat([self.key, other.key], dim=2),
            torch.cat([self.value, other.value], dim=2),
            torch.cat([self.visible, other.visible], dim=1),
            torch.cat([mine, theirs], dim=2) if mine is not None and theirs is not None else None,
        )

    def take(self, other: Cache, log_decay_BH: Tensor | None) -> tuple[Cache, Cache, Tensor | None]:
        """``(cache with other's keys too, all entries, which of them it holds no more)``.

        Args:
            other: the keys that come next.
            log_decay_BH: how much this cache's own keys decay by theirs; None without decay.
        """
        whole = self.later(log_decay_BH).followed_by(other)
        return whole, whole, None


@dataclass(frozen=True, eq=False)
class Slots(TensorTree):
    """The keys in a window, in a constant number of slots: first the sinks, then the last keys aligned to the end.

    Args:
        window: how many.
        key: ``[B, H, S, K]`` with S = ``window.num_slots``, zeros where empty.
        value: ``[B, H, S, V]``.
        log_weight: ``[B, H, S]``, or None without decay.
        filled: number of filled slots, ``[B, H]``, equal in all heads.
    """

    window: Window
    key: Tensor
    value: Tensor
    log_weight: Tensor | None
    filled: Tensor

    @property
    def entries(self) -> Cache:
        """The slots with a mask of those that are filled."""
        slot = torch.arange(self.window.num_slots, device=self.key.device)
        filled = self.filled.detach()[:, :1]
        last = (filled - self.window.sinks).clamp(min=0)
        is_filled = torch.where(slot < self.window.sinks, slot < filled, slot >= self.window.num_slots - last)
        return Cache(self.key, self.value, is_filled, self.log_weight)

    def take(self, other: Cache, log_decay_BH: Tensor | None) -> tuple[Slots, Cache, Tensor | None]:
        """As :meth:`Cache.take`."""
        whole = self.entries.later(log_decay_BH).followed_by(other)
        window, shown = self.window, whole.visible
        rank = shown.long().cumsum(-1)
        total = rank[:, -1:]
        slot = torch.arange(window.num_slots, device=shown.device)
        wanted = torch.where(slot < window.sinks, slot + 1, total - window.num_slots + slot + 1)
        is_filled = torch.where(slot < window.sinks, wanted <= total, wanted > window.sinks)
        index = torch.searchsorted(rank, wanted.clamp(min=1)).clamp(max=shown.shape[1] - 1)

        def gathered(x: Tensor) -> Tensor:
            shape = (-1, x.shape[1], -1, *x.shape[3:])
            here, empty = (each[:, None].reshape(len(each), 1, -1, *[1] * (x.ndim - 3)) for each in (index, ~is_filled))
            return x.gather(2, here.expand(shape)).masked_fill(empty, 0.0)

        filled = total.clamp(max=window.num_slots).to(self.filled.dtype).expand_as(self.filled)
        slots = Slots(
            window,
            gathered(whole.key),
            gathered(whole.value),
            None if whole.log_weight is None else gathered(whole.log_weight),
            filled,
        )
        return slots, whole, shown & ~window.near(shown[:, None])[:, 0]
