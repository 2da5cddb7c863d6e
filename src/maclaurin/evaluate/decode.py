r"""Decoding from moments alone: one token absorbed and answered by few operations, on buffers that lie ready.

.. math:: S \leftarrow d\, S + \varphi(k)\, (i v, 1)^T, \qquad (N, Z) = (a \odot \varphi(q))^T S

with the monomials of all orders one below the other in phi, a their readout, d the decay and i the value gate. A step
this small costs what it costs to start its operations; so shapes, views and constants are made once for all tokens
that look alike.

Dimension key: B batch, H key/value heads, G query heads per key/value head, R = B H (G + 1) rows, those of queries
before those of keys, K features of the mapped key, F monomials of all orders, V value dim.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Similarity, monomials
from maclaurin.algebra.monomials import multisets
from maclaurin.evaluate.call import Call
from maclaurin.evaluate.finish import Finish
from maclaurin.evaluate.log_denominator import followed_log_denominator, log_sum
from maclaurin.evaluate.moments import Moments


class Token(NamedTuple):
    """What a step is given; see :class:`maclaurin.evaluate.Stepper`."""

    query: Tensor
    key: Tensor
    value: Tensor
    log_decay: Tensor | None = None
    value_gate: Tensor | None = None
    output_gate: Tensor | None = None
    denominator_logit: Tensor | None = None

    @property
    def operands(self) -> dict[str, Tensor | None]:
        """The gates and what else has the token's time, by keyword."""
        return dict(zip(self._fields[3:], self[3:], strict=True))


@dataclass(frozen=True, eq=False)
class FusedMoments:
    """Moments that share one buffer.

    Args:
        moments: views of the buffer, and a count where no denominator holds it.
        buffer: ``[B H, F, V]``, orders one below the other; ``[B H, F, V + 1]`` where there are denominators.
    """

    moments: Moments
    buffer: Tensor

    @classmethod
    def of(cls, moments: Moments) -> FusedMoments:
        """A copy without gradient of moments that have no key reference."""
        assert moments.key_reference is None
        columns = [torch.cat(moments.numerators, dim=2).detach()]
        if moments.denominators:
            columns.append(torch.cat(moments.denominators, dim=2).detach()[..., None])
        buffer_BHFC = torch.cat(columns, dim=-1)
        value_dim, start = columns[0].shape[-1], 0
        parts = []
        for each in moments.numerators:
            parts.append(buffer_BHFC[:, :, start : start + each.shape[2]])
            start += each.shape[2]
        count = moments.separate_count
        views = Moments(
            moments.mechanism,
            tuple(part[..., :value_dim] for part in parts),
            tuple(part[..., value_dim] for part in parts) if moments.denominators else (),
            None if count is None else count.detach().clone(),
            None,
        )
        return cls(views, buffer_BHFC.flatten(0, 1))


class Decoder:
    """One step after another on fused moments, for tokens that look like the one of ``call``.

    Args:
        sums: what the steps read and write over.
        log_denominator: ``[B, H]``, written over too; None without.
        call: a token that was checked.
        learned: tensors without a time, by keyword.
    """

    def __init__(
        self, sums: FusedMoments, log_denominator: Tensor | None, call: Call, learned: Mapping[str, Tensor]
    ) -> None:
        similarity, buffer = sums.moments.similarity, sums.buffer
        batch, (heads, groups) = call.sizes.batch, call.groups
        num_keys, num_queries = batch * heads, batch * heads * groups
        self._buffer, self._moments, self._log_denominator = sums.buffer, sums.moments, log_denominator
        self._mechanism, self._groups, self._dtype = call.mechanism, call.groups, call.query.dtype
        self._learned = learned

        features = _Features(similarity, call, buffer, num_queries)
        self._features = features
        self._query = features.given[:num_queries].view(call.query.shape)
        self._key = features.given[num_queries:].view(call.key.shape)
        self._query_features = features.found[:num_queries].view(num_keys, groups, buffer.shape[1])
        self._key_features = features.found[num_queries:, :, None]

        self._value_dim = call.value.shape[-1]
        self._row = buffer.new_ones(num_keys, 1, buffer.shape[-1])  # of a key: its value, and 1 for the denominator
        self._value = self._row[..., : self._value_dim].view(call.value.shape)

        is_constant = not learned and call.mechanism.gates.output is None
        self._finish = Finish.of(call.mechanism, {}, call.groups, every_query_sees=True) if is_constant else None
        per_head = (1,) if is_constant and groups == 1 else (groups, 1)  # what is learned or gated has its groups apart
        self._read = buffer.new_empty(num_keys, groups, buffer.shape[-1])
        self._sums = _accumulator(
            sums.moments, self._read.view(batch, heads, *per_head, buffer.shape[-1]), log_denominator
        )
        self._visible = torch.ones(1, 1, 1, 1, 1, dtype=torch.bool, device=buffer.device)

    def __call__(self, token: Token) -> Tensor:
        """The output of the query, its key absorbed before: ``[B, H G, 1, V]``."""
        self._query.copy_(token.query)
        self._key.copy_(token.key)
        self._features()
        self._absorb(token)
        torch.bmm(self._query_features, self._buffer, out=self._read)
        finish = self._finish_of(token) if self._finish is None else self._finish
        out = finish(self._sums)
        return (out if out.ndim == 4 else out.flatten(1, 2)).to(self._dtype)

    def _absorb(self, token: Token) -> None:
        """The key whose features are found, with its value and gates."""
        buffer, count, dtype = self._buffer, self._moments.separate_count, self._buffer.dtype
        self._value.copy_(token.value)
        if token.value_gate is not None:
            self._value.mul_(token.value_gate.to(dtype).unsqueeze(-1))
        log_decay = None
        if token.log_decay is not None:
            log_decay = token.log_decay.to(dtype).squeeze(-1)
            factor = torch.exp(log_decay)
            buffer.mul_(factor.reshape(-1, 1, 1))
            if count is not None:
                count.mul_(factor)
        buffer.addcmul_(self._key_features, self._row)
        if count is not None:
            count.add_(1.0)
        if self._log_denominator is not None:
            assert token.denominator_logit is not None
            new = log_sum(token.denominator_logit.to(dtype), self._visible)[:, :, 0, 0]
            later = followed_log_denominator(self._log_denominator, new, log_decay)
            assert later is not None
            self._log_denominator.copy_(later)

    def _finish_of(self, token: Token) -> Finish:
        """That of this token, with learned tensors as they are now."""
        dtype = self._buffer.dtype
        operands = {name: each.to(dtype) for name, each in self._learned.items()}
        if token.output_gate is not None:
            operands["output_gate"] = token.output_gate.to(dtype)
        return Finish.of(self._mechanism, operands, self._groups, every_query_sees=True)


def _accumulator(moments: Moments, read: Tensor, log_denominator_BH: Tensor | None) -> Accumulator:
    """The sums that were read, as views of what steps write over; the token itself is seen, so no row is empty.

    Args:
        moments: what they were read from, for the count.
        read: ``[B, H, G, 1, *]``, or ``[B, H, 1, *]`` where G is 1; the denominator after the numerators.
        log_denominator_BH: L, or None.
    """
    value_dim, shape = moments.numerators[0].shape[-1], read.shape[:-1]

    def of_queries(x_BH: Tensor) -> Tensor:
        return x_BH.view(*x_BH.shape, *[1] * (len(shape) - 2)).expand(shape)

    return Accumulator(
        read[..., :value_dim],
        read[..., value_dim] if moments.denominators else None,
        of_queries(moments.count),
        read.new_zeros(shape),
        None if log_denominator_BH is None else of_queries(log_denominator_BH),
    )


class _Features:
    """Monomials of all orders, those of queries times their readout, from rows that are written into :attr:`given`.

    A monomial of order n is a product of n coordinates of (1, x), filled up with the leading 1 to as many factors as
    the highest order has, and of its weight in phi: the value of phi at a vector of ones.

    Args:
        similarity: map, orders and readout.
        call: for the scale and the width of keys.
        like: of the dtype and device to have, ``[B H, F, *]``.
        num_queries: rows that are queries.
    """

    def __init__(self, similarity: Similarity, call: Call, like: Tensor, num_queries: int) -> None:
        key_dim, num_rows, num_found = call.key.shape[-1], num_queries + len(like), like.shape[1]
        width = similarity.map.num_features(key_dim, dtype=like.dtype, device=like.device)
        self._map = similarity.map
        self._point = like.new_ones(num_rows, 1 + width)  # (1, x)
        self._mapped = self._point[:, 1:]
        #: ``[R, *]`` before the map, which may return it as it is.
        self.given = self._mapped if width == key_dim else like.new_ones(num_rows, key_dim)

        weight, readout = _weights(similarity, call.scale[1], width)
        factor = torch.cat([readout.expand(num_queries, -1), weight.expand(len(like), -1)])
        self._factor = None if bool((factor == 1.0).all()) else factor.to(like)

        places = _places(similarity.moment_orders, width)
        self._places = [torch.tensor(each, dtype=torch.int64, device=like.device) for each in places]
        found: Tensor | None = None
        if len(self._places) == 1:  # of order 1 at most: a stretch of (1, x) needs no copy
            first = min(similarity.moment_orders)
            self._places, found = [], self._point[:, first : first + num_found]
        self._plain = found
        is_ready = found is not None and self._factor is None
        #: ``[R, F]``, where a call leaves its answer.
        self.found = found if found is not None and is_ready else like.new_empty(num_rows, num_found)

    def __call__(self) -> None:
        """Read what was given, write what is found."""
        mapped = self._map(self.given)
        if mapped is not self._mapped:
            self._mapped.copy_(mapped)
        if self._plain is None:
            first, *others = self._places
            torch.index_select(self._point, 1, first, out=self.found)
            for each in others:
                self.found.mul_(self._point.index_select(1, each))
            if self._factor is not None:
                self.found.mul_(self._factor)
        elif self._factor is not None:
            torch.mul(self._plain, self._factor, out=self.found)


def _places(orders: Sequence[int], width: int) -> list[list[int]]:
    """For each factor of a monomial of these orders its place in (1, x), ``[factors][F]``."""
    length = max(*orders, 1)
    filled = [(0,) * (length - n) + tuple(i + 1 for i in each) for n in orders for each in multisets(width, n)]
    return [[each[factor] for each in filled] for factor in range(length)]


def _weights(similarity: Similarity, scale: float, width: int) -> tuple[Tensor, Tensor]:
    """(weights of the monomials in phi, those times their readout), ``[F]`` in float64."""
    orders = similarity.moment_orders
    at_ones = monomials(torch.ones(width, dtype=torch.float64), max(orders))
    readout = torch.cat([at_ones[n] * similarity.readout(n, scale) for n in orders])
    return torch.cat([at_ones[n] for n in orders]), readout
