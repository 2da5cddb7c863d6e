"""What an evaluation works on: mapped queries, mapped keys with all that stands on their time, learned numbers.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K features of the
mapped key, V value dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maclaurin.algebra import FeatureMap
from maclaurin.evaluate.tensor_tree import TensorTree


@dataclass(frozen=True, eq=False)
class Queries(TensorTree):
    """Mapped queries under the similarity of the keys that are kept and of those that the moments hold.

    Args:
        near: ``[B, H, G, T, K]`` for ``mechanism.near``, or None.
        far: ``[B, H, G, T, K']`` for ``mechanism.far``, or None.
        near_scale: of the near logits.
        far_scale: of the far logits.
        far_log_weight: log of a factor of every far weight, ``[H, G, 1]``, or None.
    """

    near: Tensor | None
    far: Tensor | None
    near_scale: float
    far_scale: float
    far_log_weight: Tensor | None

    @property
    def any(self) -> Tensor:
        """Either of the two, for what they have in common: batch, heads, time."""
        found = self.far if self.near is None else self.near
        assert found is not None
        return found

    def part(self, time: slice) -> Queries:
        """A stretch of them."""
        near, far = (None if each is None else each[:, :, :, time] for each in (self.near, self.far))
        return replace(self, near=near, far=far)

    def split(self, sizes: Sequence[int]) -> list[Queries]:
        """Consecutive stretches; one step for autograd, where slices would cost a whole tensor each."""
        nothing = [None] * len(sizes)
        near = nothing if self.near is None else torch.split(self.near, list(sizes), dim=3)
        far = nothing if self.far is None else torch.split(self.far, list(sizes), dim=3)
        return [replace(self, near=a, far=b) for a, b in zip(near, far, strict=True)]


def chunk_sizes(length: int, chunk_size: int) -> list[int]:
    """Lengths of consecutive chunks; empty for nothing.

    >>> chunk_sizes(7, 3)
    [3, 3, 1]
    """
    whole, rest = divmod(length, chunk_size)
    return [chunk_size] * whole + ([rest] if rest else [])


@dataclass(frozen=True, eq=False)
class Keys(TensorTree):
    """New keys and everything that has their time.

    Args:
        key: mapped by ``mechanism.near`` where there is one, otherwise by ``mechanism.far``, ``[B, H, S, K]``.
        value: gated, ``[B, H, S, V]``.
        visible: bool ``[B, S]``, or None for all.
        log_decay: ``[B, H, S]``, 0 where not visible; None without decay.
        denominator_logit: ``[B, H, S]``, or None.
    """

    key: Tensor
    value: Tensor
    visible: Tensor | None = None
    log_decay: Tensor | None = None
    denominator_logit: Tensor | None = None

    def part(self, time: slice) -> Keys:
        """A stretch of them."""
        return Keys(
            self.key[:, :, time],
            self.value[:, :, time],
            None if self.visible is None else self.visible[:, time],
            None if self.log_decay is None else self.log_decay[:, :, time],
            None if self.denominator_logit is None else self.denominator_logit[:, :, time],
        )

    def split(self, sizes: Sequence[int]) -> list[Keys]:
        """Consecutive stretches; one step for autograd, where slices would cost a whole tensor each."""
        time = {"key": 2, "value": 2, "visible": 1, "log_decay": 2, "denominator_logit": 2}
        parts: list[dict[str, Tensor]] = [{} for _ in sizes]
        for name, dim in time.items():
            tensor: Tensor | None = getattr(self, name)
            if tensor is not None:
                for part, each in zip(parts, torch.split(tensor, list(sizes), dim=dim), strict=True):
                    part[name] = each
        return [Keys(**part) for part in parts]

    @property
    def shown(self) -> Tensor:
        """bool ``[B, S]``."""
        if self.visible is not None:
            return self.visible
        return self.key.new_ones(self.key.shape[0], self.key.shape[2]).bool()


def map_visible(feature_map: FeatureMap, key: Tensor, hidden: Tensor | None) -> Tensor:
    """``feature_map(key)``, zeros where hidden.

    Args:
        feature_map: phi.
        key: ``[B, H, S, K]``; hidden ones may hold anything.
        hidden: bool, broadcastable to ``[B, H, S, 1]``; None for none.
    """
    if hidden is None:
        return feature_map(key)
    # the map sees ones instead: zeros are where x / |x| or log x are not finite
    return feature_map(key.masked_fill(hidden, 1.0)).masked_fill(hidden, 0.0)
