"""Sizes and seeded inputs of the laws; every tensor is handled by the letters of its axes.

Dimension key: B batch, H query heads, h key/value heads, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from maclaurin.algebra import Features, Mechanism

#: Keyword of ``attend`` -> its axes. What is not query, key or value is an operand.
AXES: dict[str, str] = {
    "query": "BHTK",
    "key": "BhSK",
    "value": "BhSV",
    "log_decay": "BhS",
    "value_gate": "BhS",
    "output_gate": "BHT",
    "denominator_logit": "BhS",
    "length_exponent": "H",
    "far_log_weight": "H",
    "norm_weight": "HV",
    "norm_bias": "V",
}
OPERANDS = tuple(name for name in AXES if name not in ("query", "key", "value"))
#: Operands that a call may go without; what they do is a law of its own.
GATES = ("log_decay", "value_gate", "output_gate")

_DISTRIBUTIONS: dict[str, Callable[[Tensor], Tensor]] = {  # of a standard normal; the identity where not named
    "log_decay": lambda x: torch.log(0.5 + 0.5 * x.sigmoid()),
    "value_gate": torch.sigmoid,
    "output_gate": torch.sigmoid,
    "length_exponent": torch.sigmoid,
    "norm_weight": lambda x: 1.0 + 0.5 * x,
}


@dataclass(frozen=True)
class Sizes:
    """The sizes of one call; ``keys`` and ``kv_heads`` None: as many as queries and heads.

    Args:
        batch: B.
        heads: H.
        queries: T.
        key_dim: K.
        value_dim: V.
        kv_heads: h.
        keys: S.
    """

    batch: int = 2
    heads: int = 3
    queries: int = 37
    key_dim: int = 5
    value_dim: int = 7
    kv_heads: int | None = None
    keys: int | None = None

    def of(self, letter: str) -> int:
        """The size of an axis."""
        keys = self.queries if self.keys is None else self.keys
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        sizes = (self.batch, self.heads, kv_heads, self.queries, keys, self.key_dim, self.value_dim)
        return dict(zip("BHhTSKV", sizes, strict=True))[letter]

    @property
    def volume(self) -> int:
        """What the sizes are ordered by when a failing input is made smaller."""
        return self.batch * self.heads * (self.queries + self.of("S")) * (self.key_dim + self.value_dim)

    def __str__(self) -> str:
        text = f"B={self.batch} H={self.heads}"
        text += "" if self.kv_heads in (None, self.heads) else f" Hkv={self.kv_heads}"
        text += f" T={self.queries}"
        text += "" if self.keys in (None, self.queries) else f" S={self.keys}"
        return f"{text} K={self.key_dim} V={self.value_dim}"


@dataclass(frozen=True, eq=False)
class Inputs:
    """The tensors of one call by keyword, in the layout of :data:`AXES`."""

    tensors: Mapping[str, Tensor]

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    @property
    def operands(self) -> dict[str, Tensor]:
        """What is not query, key or value."""
        return {name: self.tensors[name] for name in OPERANDS if name in self.tensors}

    @property
    def length(self) -> int:
        """Number of keys."""
        return self["key"].shape[2]

    def take(self, **index: slice | Tensor) -> Inputs:
        """The call on a part of some axes, by their letters: ``take(B=slice(0, 1), T=slice(0, 5), S=slice(0, 5))``."""

        def part(name: str, tensor: Tensor) -> Tensor:
            axes = AXES[name]
            for letter, chosen in index.items():
                if letter in axes:
                    at = (slice(None),) * axes.index(letter)
                    tensor = tensor[(*at, chosen)]
            return tensor

        return Inputs({name: part(name, each) for name, each in self.tensors.items()})

    def times(self, start: int, stop: int | None = None) -> Inputs:
        """The call on a stretch of queries and keys."""
        return self.take(T=slice(start, stop), S=slice(start, stop))

    def row(self, index: int) -> Inputs:
        """The call on one batch row."""
        return self.take(B=slice(index, index + 1))

    def map(self, change: Callable[[Tensor], Tensor], names: Iterable[str] | None = None) -> Inputs:
        """The same call with every tensor changed, or those named."""
        chosen = set(self.tensors if names is None else names)
        return Inputs({name: change(each) if name in chosen else each for name, each in self.tensors.items()})

    def to(self, dtype: torch.dtype) -> Inputs:
        """The same call in another dtype."""
        return self.map(lambda each: each.to(dtype))

    def scaled(self, factor: float, name: str) -> Inputs:
        """The same call with one tensor multiplied."""
        return self.having(**{name: factor * self[name]})

    def having(self, **tensors: Tensor) -> Inputs:
        """The same call with some tensors put in."""
        return Inputs({**self.tensors, **tensors})

    def without(self, *names: str) -> Inputs:
        """The same call without some operands."""
        return Inputs({name: each for name, each in self.tensors.items() if name not in names})

    def leaves(self) -> Inputs:
        """The same call on fresh leaves that require gradients."""
        return self.map(lambda each: each.detach().clone().requires_grad_())

    def joined(self, other: Inputs) -> Inputs:
        """This call followed in time by another; tensors without time stay this one's."""

        def join(name: str) -> Tensor:
            time = next((AXES[name].index(letter) for letter in "TS" if letter in AXES[name]), None)
            return self[name] if time is None else torch.cat([self[name], other[name]], dim=time)

        return Inputs({name: join(name) for name in self.tensors})


def normal(shape: Iterable[int], seed: int) -> Tensor:
    """Standard normal numbers in float64 from a seed of their own."""
    return torch.randn(tuple(shape), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def like(tensor: Tensor, seed: int) -> Tensor:
    """Standard normal numbers of the same shape and dtype: a cotangent, or content of padding."""
    return normal(tensor.shape, seed).to(tensor.dtype)


def draw(sizes: Sizes, names: Iterable[str], seed: int, *, is_nonnegative: bool = False) -> Inputs:
    """Query, key, value and the operands named, in float64.

    Args:
        sizes: of the axes.
        names: operands.
        seed: each tensor has its own stream, so that one operand more changes no other tensor.
        is_nonnegative: query and key are features that must not be negative.
    """

    def tensor(name: str) -> Tensor:
        own_seed = seed * 1009 + zlib.crc32(name.encode()) % 10**6
        x: Tensor = normal((sizes.of(letter) for letter in AXES[name]), own_seed)
        x = _DISTRIBUTIONS[name](x) if name in _DISTRIBUTIONS else x
        return x.abs() if is_nonnegative and name in ("query", "key") else x

    return Inputs({name: tensor(name) for name in ("query", "key", "value", *names)})


def operand_names(mechanism: Mechanism) -> tuple[str, ...]:
    """The keywords of ``attend`` that a mechanism must be given: its gates, and what its normalizer learns."""
    return tuple(name for name in OPERANDS if name in mechanism.operands)


def takes_features(mechanism: Mechanism | None) -> bool:
    """Whether query and key must be non-negative features."""
    return mechanism is not None and isinstance(mechanism.similarity.map, Features)


def smaller(sizes: Sizes) -> list[Sizes]:
    """Sizes to try when a law fails at ``sizes``, smallest first."""
    ladder = [
        Sizes(batch, heads, queries, key_dim, value_dim)
        for queries in (1, 2, 3, 5, 9, 17, 33, 65, 130)
        for batch, heads, key_dim, value_dim in ((1, 1, 1, 1), (1, 1, 2, 2), (2, 1, 2, 1), (1, 2, 1, 2), (2, 4, 2, 3))
    ]
    grouped = sizes.of("h") < sizes.heads
    other_length = sizes.of("S") - sizes.queries
    found = []
    for each in ladder:
        each = replace(each, kv_heads=max(1, each.heads // 2)) if grouped else each
        each = replace(each, keys=max(1, each.queries + other_length)) if other_length else each
        if each.volume < sizes.volume:
            found.append(each)
    return sorted(found, key=lambda each: each.volume)
