"""What a call looks like without its tensors: all that decides which evaluation serves it, and which is fastest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch

from maclaurin.algebra import Mechanism, Series
from maclaurin.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes, dtype and device of one call of ``attend``.

    Args:
        queries: T, tokens that ask.
        key_dim: K.
        batch: B.
        heads: H, query heads.
        kv_heads: Hkv, key/value heads; 0 for as many as query heads.
        keys: S, new keys; None for as many as queries.
        value_dim: V; None for K.
        dtype: of query, key and value.
        device: ``cpu``, ``cuda``, ...
        is_causal: whether query t sees key s only if s <= t + S - T.
        has_key_mask: whether some keys are hidden from all.
        has_pair_mask: whether every query has its own mask.
        has_state: whether keys came before the call.
        cached: keys that the state holds one by one.
        returns_state: whether the state after every key is wanted.
        wants_gradient: whether a backward pass will follow.

    Raises:
        ConfigError: a size below 0, or query heads that are not a multiple of key/value heads.

    Example:
        >>> Shape(queries=1024, key_dim=64, heads=8).num_pairs
        8388608
    """

    queries: int
    key_dim: int
    batch: int = 1
    heads: int = 1
    kv_heads: int = 0
    keys: int | None = None
    value_dim: int | None = None
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    is_causal: bool = True
    has_key_mask: bool = False
    has_pair_mask: bool = False
    has_state: bool = False
    cached: int = 0
    returns_state: bool = False
    wants_gradient: bool = False

    def __post_init__(self) -> None:
        defaults = {"kv_heads": self.kv_heads or self.heads}
        defaults["keys"] = self.queries if self.keys is None else self.keys
        defaults["value_dim"] = self.key_dim if self.value_dim is None else self.value_dim
        for name, size in defaults.items():
            object.__setattr__(self, name, size)  # what was left out is told by the rest
        sizes = (self.queries, self.key_dim, self.batch, self.heads, *defaults.values(), self.cached)
        if min(sizes) < 0 or (self.heads and self.heads % self.kv_heads):
            raise ConfigError(
                f"Shape: batch={self.batch}, heads={self.heads}, kv_heads={self.kv_heads}, queries={self.queries}, "
                f"keys={self.keys}, key_dim={self.key_dim}, value_dim={self.value_dim} is no call.\n"
                "  Sizes are >= 0, and query heads a multiple of key/value heads."
            )

    @property
    def num_keys(self) -> int:
        """S."""
        return cast(int, self.keys)

    @property
    def num_values(self) -> int:
        """V."""
        return cast(int, self.value_dim)

    @property
    def num_pairs(self) -> int:
        """Logits of every query with every new key."""
        return self.batch * self.heads * self.queries * self.num_keys

    @property
    def is_empty(self) -> bool:
        """Whether some tensor has no number in it."""
        return 0 in (self.batch, self.heads, self.queries, self.num_keys, self.key_dim, self.num_values)

    @property
    def is_triangle(self) -> bool:
        """Whether query t sees keys 0 to t, but for those that are hidden from all."""
        return self.is_causal and self.queries == self.num_keys and not self.has_pair_mask

    @property
    def sum_dtype(self) -> torch.dtype:
        """Of sums and states."""
        return dtype_of_sums(self.dtype)

    def width(self, mechanism: Mechanism) -> int:
        """Numbers of a mapped key."""
        feature_map = (mechanism.far or mechanism.similarity).map
        return feature_map.num_features(self.key_dim, dtype=self.sum_dtype, device=torch.device(self.device))

    def product_dtype(self, mechanism: Mechanism) -> torch.dtype:
        """Of the factors of large products: bfloat16 for itself where nothing is lost but a few roundings of outputs.

        States are sums that go on, a denominator that changes sign is a small difference of large sums, products of
        three and more factors are rounded as often, and sums of products in float16 would overflow: all these have
        factors as wide as their sums.
        """
        function = mechanism.similarity.function
        can_vanish = mechanism.normalizer.uses_denominator and mechanism.positivity == "signed"
        is_low = not isinstance(function, Series) or function.degree <= 2
        is_narrow = self.dtype == torch.bfloat16 and not self.has_state and not self.returns_state
        return torch.bfloat16 if is_narrow and is_low and not can_vanish else self.sum_dtype


def dtype_of_sums(dtype: torch.dtype) -> torch.dtype:
    """float64 for itself, float32 for everything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32
