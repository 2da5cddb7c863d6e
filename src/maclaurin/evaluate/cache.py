"""Keys and values kept as they are: all of them, or those that a window weighs exactly.

Dimension key: B batch, H key/value heads, S keys, K features of the mapped key, V value dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
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

    @property
    def num_entries(self) -> int:
        """S, hidden ones included."""
        return self.key.shape[2]

    def padded(self, num_entries: int) -> Cache:
        """The same cache with hidden zeros on its left, up to so many entries."""
        more = num_entries - self.num_entries
        return Cache(
            F.pad(self.key, (0, 0, more, 0)),
            F.pad(self.value, (0, 0, more, 0)),
            F.pad(self.visible, (more, 0)),
            None if self.log_weight is None else F.pad(self.log_weight, (more, 0)),
        )

    def buffer(self) -> CacheBuffer:
        """A copy that takes keys in place."""
        return CacheBuffer(self)

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
    def num_entries(self) -> int:
        """S, empty slots included."""
        return self.window.num_slots

    def padded(self, num_entries: int) -> Slots:
        """Itself: all caches of one window have as many slots."""
        return self

    def buffer(self) -> SlotsBuffer:
        """A copy that takes keys in place."""
        return SlotsBuffer(self)

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
            return _gathered(x, index).masked_fill(_along(x, ~is_filled), 0.0)

        filled = total.clamp(max=window.num_slots).to(self.filled.dtype).expand_as(self.filled)
        slots = Slots(
            window,
            gathered(whole.key),
            gathered(whole.value),
            None if whole.log_weight is None else gathered(whole.log_weight),
            filled,
        )
        return slots, whole, shown & ~window.near(shown[:, None])[:, 0]


class CacheBuffer:
    """A :class:`Cache` that takes keys in place, in buffers that double when they are full."""

    def __init__(self, cache: Cache) -> None:
        self._length = cache.num_entries
        self._whole = _with_room(cache, max(2 * self._length, 64))

    @property
    def entries(self) -> Cache:
        """What it holds, as views that the next key changes."""
        return self._part(slice(0, self._length))

    def push(self, entry: Cache, log_decay_BH: Tensor | None) -> Cache | None:
        """Take one more key; ``None``: nothing ever leaves.

        Args:
            entry: that key.
            log_decay_BH: how much the others decay by it; None without decay.
        """
        if self._length == self._whole.num_entries:
            self._whole = _with_room(self._whole, 2 * self._length)
        _decay_in_place(self.entries, log_decay_BH)
        self._length += 1
        for held, new in zip(self._part(slice(self._length - 1, self._length)).tensors(), entry.tensors(), strict=True):
            held.copy_(new)
        return None

    def freeze(self) -> Cache:
        """What it holds now, as a value of its own."""
        return self.entries.map_tensors(owned)

    def _part(self, time: slice) -> Cache:
        whole = self._whole
        log_weight = None if whole.log_weight is None else whole.log_weight[:, :, time]
        return Cache(whole.key[:, :, time], whole.value[:, :, time], whole.visible[:, time], log_weight)


class SlotsBuffer:
    """:class:`Slots` that take keys in place: behind the sinks the window is a ring, a row's oldest place is next.

    ``filled`` and ``oldest`` are numbers of a row: rows that saw hidden keys fill their sinks at different times.
    """

    def __init__(self, slots: Slots) -> None:
        own = slots.map_tensors(owned)
        self.window = own.window
        self._key, self._value, self._log_weight = own.key, own.value, own.log_weight
        self._filled_B = own.filled[:, 0].long()
        self._oldest_B = torch.zeros_like(self._filled_B)
        self._slot = torch.arange(self.window.num_slots, device=own.key.device)

    @property
    def entries(self) -> Cache:
        """What it holds, in the order of the ring, as views that the next key changes."""
        sinks, width, filled = self.window.sinks, self.window.width, self._filled_B[:, None]
        age = (self._slot - sinks - self._oldest_B[:, None]) % width  # 0 is the oldest, or the longest empty
        is_filled = torch.where(self._slot < sinks, self._slot < filled, age >= width - (filled - sinks).clamp(min=0))
        return Cache(self._key, self._value, is_filled, self._log_weight)

    def push(self, entry: Cache, log_decay_BH: Tensor | None) -> Cache | None:
        """Take one more visible key; returns the one that it replaces, not visible where the slot was empty.

        Args:
            entry: that key.
            log_decay_BH: how much the others decay by it; None without decay.
        """
        sinks, width, filled, oldest = self.window.sinks, self.window.width, self._filled_B, self._oldest_B
        _decay_in_place(Cache(self._key, self._value, entry.visible, self._log_weight), log_decay_BH)
        is_sink = filled < sinks
        slot = torch.where(is_sink, filled, sinks + oldest)[:, None]
        gone = Cache(
            _gathered(self._key, slot),
            _gathered(self._value, slot),
            (filled == self.window.num_slots)[:, None],
            None if self._log_weight is None else _gathered(self._log_weight, slot),
        )
        for held, new in ((self._key, entry.key), (self._value, entry.value), (self._log_weight, entry.log_weight)):
            if held is not None and new is not None:
                held.scatter_(2, _along(new, slot), new)
        oldest.copy_(torch.where(is_sink, oldest, (oldest + 1) % width))
        filled.add_(1).clamp_(max=self.window.num_slots)
        return gone

    def freeze(self) -> Slots:
        """What it holds now, as a value of its own, the window in order again."""
        sinks, width, entries = self.window.sinks, self.window.width, self.entries
        in_ring = sinks + (self._slot - sinks + self._oldest_B[:, None]) % width
        slot = torch.where(self._slot < sinks, self._slot, in_ring)
        is_empty = ~entries.visible.gather(1, slot)[:, None]

        def ordered(x: Tensor) -> Tensor:
            return _gathered(x, slot).masked_fill(is_empty if x.ndim == 3 else is_empty[..., None], 0.0)

        filled = self._filled_B[:, None].to(self._value.dtype).expand(self._value.shape[:2]).contiguous()
        log_weight = None if self._log_weight is None else ordered(self._log_weight)
        return Slots(self.window, ordered(self._key), ordered(self._value), log_weight, filled)


def owned(x: Tensor) -> Tensor:
    """A copy of its own, contiguous and without gradient."""
    return x.detach().clone(memory_format=torch.contiguous_format)


def _with_room(cache: Cache, capacity: int) -> Cache:
    """A copy with hidden zeros on its right."""
    more = capacity - cache.num_entries
    return Cache(
        F.pad(cache.key.detach(), (0, 0, 0, more)),
        F.pad(cache.value.detach(), (0, 0, 0, more)),
        F.pad(cache.visible, (0, more)),
        None if cache.log_weight is None else F.pad(cache.log_weight.detach(), (0, more)),
    )


def _decay_in_place(cache: Cache, log_decay_BH: Tensor | None) -> None:
    if cache.log_weight is not None and log_decay_BH is not None:
        cache.log_weight.add_(log_decay_BH[..., None])


def _along(x: Tensor, slot_BS: Tensor) -> Tensor:
    """Slots of every row as an index into time (dimension 2) of something like ``x``."""
    slot = slot_BS[:, None, :, None] if x.ndim == 4 else slot_BS[:, None]
    return slot.expand(-1, x.shape[1], -1, *x.shape[3:])


def _gathered(x: Tensor, slot_BS: Tensor) -> Tensor:
    return x.gather(2, _along(x, slot_BS))
