"""What the laws run on: every member of the catalogue, texts beyond it, and seeded inputs.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from maclaurin.algebra import CATALOGUE, Features, Mechanism, parse
from maclaurin.evaluate import methods

#: Compositions that no name stands for: clamps, options, maps and learned parts.
TEXTS = (
    "exp:clamp=1/sum",
    "exp:clamp=1/length:learned",
    "exp/none",
    "taylor:3:clamp=0.5/l2",
    "taylor:4:clamp=0.5@mean/sum",
    "taylor:3@mean/sum:signed",
    "taylor:2@mean/length",
    "taylor:0@mean/none",
    "taylor:0/sum",
    "poly:1,1,0.5/sum",
    "poly:0.25,0,0,-2/rms",
    "power:3/sum:signed",
    "power:3/layer",
    "power:2/none",
    "taylor:1/sum:signed:eps=0.01:clamp=0.5:detach",
    "taylor:2/sum:eps=0.5",
    "power:2/sum:clamp=3",
    "elu1>taylor:3/sum:detach",
    "elu1>exp:clamp=5/sum",
    "relu>power:3/sum",
    "cosine>exp/sum",
    "cosine>taylor:3@mean/l2",
    "cosine/layer:weight:bias",
    "features/sum",
    "features>taylor:2/length:learned",
    "expmap/sum",
    "taylor:2/l2:gain=64",
    "taylor:1/rms:weight",
    "taylor:2@mean/layer:bias",
)


def named(mechanisms: Iterable[tuple[str, Mechanism]]) -> list[object]:
    """Parameters whose ids are the names."""
    return [pytest.param(mechanism, id=name) for name, mechanism in mechanisms]


#: A new member is under the laws by standing in the catalogue.
MEMBERS = [(name, recipe.mechanism) for name, recipe in CATALOGUE.items()]
BEYOND = [(text, parse(text)) for text in TEXTS]
EVERY = MEMBERS + BEYOND


def members(only: Callable[[Mechanism], bool] = lambda mechanism: True) -> list[object]:
    """The catalogue's members that satisfy ``only``."""
    return named((name, mechanism) for name, mechanism in MEMBERS if only(mechanism))


def every(only: Callable[[Mechanism], bool] = lambda mechanism: True) -> list[object]:
    """The catalogue and the texts beyond it that satisfy ``only``."""
    return named((name, mechanism) for name, mechanism in EVERY if only(mechanism))


def serving(mechanism: Mechanism) -> list[str]:
    """The methods that serve a mechanism."""
    return [name for name, refusal in methods(mechanism).items() if refusal is None]


def is_signed_sum(mechanism: Mechanism) -> bool:
    """Whether the output divides by a denominator that may vanish."""
    return mechanism.normalizer.uses_denominator and not mechanism.normalizer.needs_nonnegative


@dataclass(frozen=True)
class Inputs:
    """One call's tensors.

    Args:
        query: ``[B, H, T, K]``.
        key: ``[B, Hkv, S, K]``.
        value: ``[B, Hkv, S, V]``.
        learned: the tensors that a normalizer learns, by their keyword.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    learned: dict[str, Tensor]

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.qkv, *self.learned.values())

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same call with every tensor changed."""
        q, k, v = (change(each) for each in self.qkv)
        return Inputs(q, k, v, {name: change(each) for name, each in self.learned.items()})

    def leaves(self) -> Inputs:
        """The same call on fresh leaves that require gradients."""
        return self.map(lambda each: each.detach().clone().requires_grad_())

    def part(self, queries: slice, keys: slice) -> Inputs:
        """The call on a stretch of queries and one of keys."""
        return replace(self, query=self.query[:, :, queries], key=self.key[:, :, keys], value=self.value[:, :, keys])

    def of(self, mechanism: Mechanism) -> Inputs:
        """The call as ``mechanism`` takes it: only what it learns, and features that are not negative."""
        learned = {name: self.learned[name] for name in mechanism.normalizer.learned}
        if isinstance(mechanism.similarity.map, Features):
            return replace(self, query=self.query.abs(), key=self.key.abs(), learned=learned)
        return replace(self, learned=learned)


def draw(
    seed: int,
    *,
    batch: int = 2,
    heads: int = 6,
    kv_heads: int = 3,
    queries: int = 37,
    keys: int | None = None,
    key_dim: int = 5,
    value_dim: int = 7,
    dtype: torch.dtype = torch.float64,
) -> Inputs:
    """Standard normal query, key and value, and every tensor that any normalizer learns. T is prime."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    keys = queries if keys is None else keys
    return Inputs(
        normal(batch, heads, queries, key_dim),
        normal(batch, kv_heads, keys, key_dim),
        normal(batch, kv_heads, keys, value_dim),
        {
            "length_exponent": normal(heads).sigmoid(),
            "norm_weight": 1.0 + 0.5 * normal(heads, value_dim),
            "norm_bias": normal(value_dim),
        },
    )


def like(tensor: Tensor, seed: int) -> Tensor:
    """A standard normal tensor of the same shape and dtype, for instance a cotangent."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
