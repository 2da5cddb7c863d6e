"""Which part of a call is worked on at a time: some batch rows and heads, and a span of time.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T time, C chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor


class Tile(NamedTuple):
    """Batch rows and key/value heads whose times do not depend on each other's."""

    batch: slice
    head: slice


class Span(NamedTuple):
    """A stretch of time made of chunks of one length."""

    start: int
    stop: int
    chunk: int

    @property
    def time(self) -> slice:
        return slice(self.start, self.stop)

    @property
    def num_chunks(self) -> int:
        return (self.stop - self.start) // self.chunk


@dataclass(frozen=True)
class Cut:
    """How a call is cut.

    Args:
        chunk: tokens that meet pair by pair, C.
        span: tokens at a time, about, a multiple of the chunk; over all heads of a tile where one head has fewer.
    """

    chunk: int
    span: int

    def tiles(self, batch: int, heads: int, length: int) -> Iterator[Tile]:
        """Batch rows and heads that fill one span between them, or one head at a time."""
        num_heads = max(1, min(heads, self.span // length))
        num_rows = max(1, min(batch, self.span // (length * heads))) if num_heads == heads else 1
        for b in range(0, batch, num_rows):
            for h in range(0, heads, num_heads):
                yield Tile(slice(b, min(b + num_rows, batch)), slice(h, min(h + num_heads, heads)))

    def spans(self, length: int) -> list[Span]:
        """Consecutive spans of like length, near the one wanted; what is left of a chunk is a shorter one by itself."""
        whole = length - length % self.chunk
        count = max(1, round(whole / self.span))
        size = -(-whole // (count * self.chunk)) * self.chunk
        bounds = [*range(0, whole, size or 1), whole]
        found = [Span(start, stop, self.chunk) for start, stop in pairwise(bounds)]
        return [*found, Span(whole, length, length - whole)] if whole < length else found


def to_chunks(x: Tensor, span: Span) -> Tensor:
    """``[A, G, T, *]`` of a span to ``[A chunks, G C, *]``: a chunk's rows of every group together."""
    groups, width = x.shape[1], x.shape[-1]
    if groups == 1:
        return x.reshape(-1, span.chunk, width)
    x = x.reshape(len(x), groups, span.num_chunks, span.chunk, width).transpose(1, 2)
    return x.reshape(-1, groups * span.chunk, width)


def from_chunks(x: Tensor, span: Span, shape: Sequence[int]) -> Tensor:
    """The inverse of :func:`to_chunks`, as ``shape`` says: ``[*, G, T, *]``."""
    groups = shape[-3]
    if groups == 1:
        return x.reshape(shape)
    x = x.reshape(-1, span.num_chunks, groups, span.chunk, x.shape[-1]).transpose(1, 2)
    return x.reshape(shape)
