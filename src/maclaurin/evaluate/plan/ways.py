"""Every way to compute a call: the kernel or the loop behind each method, whom it serves, and what it has to do.

What it has to do are numbers of things whose cost does not depend on the mechanism: pairs, products, passes through
a loop. A machine's constants (:mod:`costs`) turn them into seconds.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K width of a mapped key, V value dim, F
features, W = V + 1, C chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from maclaurin.algebra import Mechanism, Series
from maclaurin.evaluate import finite_state, quadratic, softmax
from maclaurin.evaluate.chunked import CACHE_CHUNK
from maclaurin.evaluate.scan import chunk_of
from maclaurin.evaluate.shape import Shape

#: Numbers beyond which an allocator asks the system for fresh pages every time: 32 MiB in float32.
_FRESH = 1 << 23

#: What some work has to do, by what is done.
Work = dict[str, float]


@dataclass(frozen=True)
class Counted:
    """What is counted of a call, for all ways."""

    mechanism: Mechanism
    shape: Shape

    @property
    def heads(self) -> int:
        """B H."""
        return self.shape.batch * self.shape.heads

    @property
    def kv_heads(self) -> int:
        """B Hkv."""
        return self.shape.batch * self.shape.kv_heads

    @cached_property
    def width(self) -> int:
        """K."""
        return self.shape.width(self.mechanism)

    @cached_property
    def features(self) -> int:
        """F of the moments, 0 without."""
        return self.mechanism.num_moments(self.shape.key_dim)

    @property
    def num_keys(self) -> int:
        """Those that the state holds one by one among them."""
        return self.shape.num_keys + self.shape.cached

    @property
    def visible_pairs(self) -> float:
        """B H T S, half of them where the future is hidden."""
        pairs = float(self.heads * self.shape.queries * self.num_keys)
        return pairs / 2 if self.shape.is_causal and self.shape.queries > 1 else pairs

    def rows(self) -> Work:
        """A call, and what is done once for every token."""
        return {"calls": 1.0, "rows": float(self.heads * self.shape.queries * (self.width + self.shape.num_values))}

    def weighing(self, pairs: float, columns: int = 0) -> Work:
        """Logits of so many pairs, their weights by every similarity that there is, products with values."""
        columns = columns or self.shape.num_values
        found = {"pairs": 0.0, "powers": 0.0, "products": 0.0}
        for each in (self.mechanism.near, self.mechanism.far):
            if each is None:
                continue
            found["pairs"] += pairs * (2 if each.is_centered else 1)
            found["powers"] += pairs * each.function.degree if isinstance(each.function, Series) else 0.0
            found["products"] += pairs * (self.width + columns)
        return found

    def moments(self, chunk: int) -> Work:
        """Features made, absorbed and read, and a state for every chunk."""
        tokens, state = (self.heads + self.kv_heads) * self.shape.queries, self.features * (self.shape.num_values + 1)
        return {
            "features": float(tokens * self.features),
            "moments": float(tokens * state),
            "states": self.kv_heads * self.shape.queries / chunk * state,
        }


@dataclass(frozen=True)
class Way:
    """One way.

    Args:
        name: in explanations and tables of costs.
        method: of ``attend``.
        serves: whether it computes calls of a mechanism and a shape, which the method serves.
        work: what it has to do.
        direct: from ``(call, shape, chunk_size)`` to output ``[B, H, T, V]`` and state, or None where values forbid
            it; None: the method goes through its accumulator.
        product_dtype: of the large products.
        numbers: that it holds at once, at most, beside what grows with T alone.
        takes_chunk_size: whether a given one means what the method says it means.
    """

    name: str
    method: str
    serves: Callable[[Mechanism, Shape], bool]
    work: Callable[[Counted], Work]
    direct: Callable[..., tuple[Any, Any] | None] | None = None
    product_dtype: Callable[[Mechanism, Shape], torch.dtype] = field(default=lambda _, shape: shape.sum_dtype)
    numbers: Callable[[Counted], float] = field(default=lambda _: 0.0)
    takes_chunk_size: bool = True


def _all_pairs(counted: Counted) -> float:
    return float(counted.heads * counted.shape.queries * counted.num_keys)


def _parallel(counted: Counted) -> Work:
    pairs = _all_pairs(counted)
    work = counted.rows() | counted.weighing(pairs)
    return work | {"fresh": work["pairs"] + work["powers"] if pairs > _FRESH else 0.0}


def _recurrent(counted: Counted) -> Work:
    steps, shape = float(counted.shape.queries), counted.shape
    held = counted.features * (shape.num_values + 1)
    if counted.mechanism.near is not None:
        window = counted.mechanism.window
        slots = counted.num_keys - shape.num_keys / 2 if window is None else window.num_slots
        held += int(slots * (counted.width + shape.num_values))
    orders = len(counted.mechanism.moment_orders) + (counted.mechanism.near is not None)
    return {"calls": 1.0, "steps": steps, "orders": steps * orders, "held": steps * counted.kv_heads * held}


def _scan(counted: Counted) -> Work:
    shape, mechanism = counted.shape, counted.mechanism
    if mechanism.is_finite_state:
        chunk = min(chunk_of(mechanism, shape.key_dim), max(shape.queries, 1))
        window = mechanism.window
        reach = chunk + (0 if window is None else window.num_slots)
        pairs = float(counted.heads * shape.queries * reach)
        stretches = -(-max(shape.queries, shape.num_keys) // chunk)
        parts = float(stretches * (1 + len(mechanism.moment_orders)))
        return counted.rows() | counted.weighing(pairs) | counted.moments(chunk) | {"parts": parts}
    return _stretches(counted)


def _stretches(counted: Counted) -> Work:
    """Stretches of queries, each against every key before it."""
    chunks = -(-counted.shape.queries // CACHE_CHUNK)
    return counted.rows() | counted.weighing(counted.visible_pairs) | {"parts": float(chunks)}


def _spans(counted: Counted) -> Work:
    mechanism, shape = counted.mechanism, counted.shape
    cut = finite_state.cut_of(mechanism, shape)
    tiles = sum(1 for _ in cut.tiles(shape.batch, shape.kv_heads, shape.queries))
    pairs = float(counted.heads * shape.queries * cut.chunk)
    parts = float(tiles * len(cut.spans(shape.queries)))
    orders = parts * len(mechanism.moment_orders)
    work = counted.rows() | counted.weighing(pairs, shape.num_values + 1) | counted.moments(cut.chunk)
    return work | {"parts": parts, "orders": orders}


def _blocks(counted: Counted) -> Work:
    shape = counted.shape
    cut = quadratic.cut_of(shape)
    tiles = sum(1 for _ in cut.tiles(shape.batch, shape.kv_heads, shape.queries))
    pairs = counted.heads * shape.queries * (shape.queries + cut.chunk) / 2
    parts = float(tiles * -(-shape.queries // cut.chunk))
    return counted.rows() | counted.weighing(pairs, shape.num_values + 1) | {"parts": parts}


def _kernel(counted: Counted) -> Work:
    return counted.rows() | counted.weighing(counted.visible_pairs)


def _is_anything(mechanism: Mechanism, shape: Shape) -> bool:
    return True


def _is_polynomial(mechanism: Mechanism, shape: Shape) -> bool:
    is_polynomial = isinstance(mechanism.similarity.function, Series)
    return is_polynomial and mechanism.is_finite_state and quadratic.is_served(mechanism, shape)


def _is_narrow(mechanism: Mechanism, shape: Shape) -> bool:
    is_narrow = shape.product_dtype(mechanism) == torch.bfloat16 and shape.device == "cpu"
    return is_narrow and quadratic.is_served(mechanism, shape)


def _of_products(mechanism: Mechanism, shape: Shape) -> torch.dtype:
    return shape.product_dtype(mechanism)


def _of_inputs(mechanism: Mechanism, shape: Shape) -> torch.dtype:
    return shape.dtype


#: In every method the last one serves whatever the method serves.
WAYS = (
    Way("all pairs", "parallel", _is_anything, _parallel, numbers=_all_pairs),
    Way("token by token", "recurrent", _is_anything, _recurrent),
    Way("spans", "chunked", finite_state.is_served, _spans, finite_state.attend_finite_state, _of_products),
    Way(
        "blocks",
        "chunked",
        _is_polynomial,
        _blocks,
        quadratic.attend_quadratically,
        _of_products,
        takes_chunk_size=False,  # there is no state between its blocks
    ),
    Way("chunk by chunk", "chunked", _is_anything, _scan),
    Way("blocks of exp", "fused", _is_narrow, _blocks, quadratic.attend_quadratically, _of_products),
    Way("kernel as given", "fused", softmax.is_served, _kernel, softmax.attend_as_given, _of_inputs),
    Way("kernel", "fused", _is_anything, _stretches),
)
