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
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Mechanism, Similarity, monomials
from maclaurin.algebra.monomials import multisets
from maclaurin.evaluate.cache import owned
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

    @staticmethod
    def serves(mechanism: Mechanism) -> bool:
        """Whether moments are the whole state, and each denominator has a numerator of its order."""
        is_whole = mechanism.far is not None and mechanism.window is None
        return is_whole and {*mechanism.denominator_orders} <= {*mechanism.moment_orders}

    @classmethod
    def of(cls, moments: Moments) -> FusedMoments:
        """A copy without gradient."""
        mechanism, numerators = moments.mechanism, moments.numerators
        value_dim, held = numerators[0].shape[-1], mechanism.denominator_orders
        columns = [torch.cat(numerators, dim=2).detach()]
        if held:
            nothing = [each.new_zeros(each.shape[:3]) for each in numerators]  # where only the center reads some
            totals = dict(zip(mechanism.moment_orders, nothing, strict=True))
            totals.update(zip(held, moments.denominators, strict=True))
            columns.append(torch.cat(list(totals.values()), dim=2).detach()[..., None])
        buffer_BHFC = torch.cat(columns, dim=-1)
        parts = torch.split(buffer_BHFC, [each.shape[2] for each in numerators], dim=2)
        by_order = dict(zip(mechanism.moment_orders, parts, strict=True))
        count, reference = moments.separate_count, moments.key_reference
        views = Moments(
            mechanism,
            tuple(part[..., :value_dim] for part in parts),
            tuple(by_order[n][..., value_dim] for n in held),
            None if count is None else owned(count),
            None if reference is None else owned(reference),
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
        self._center = None
        if similarity.is_centered:
            self._center = _Center(sums.moments, features.mapped, self._query_features, call.scale[1])
            self._query_features = self._center.weighted

        self._row = buffer.new_ones(num_keys, 1, buffer.shape[-1])  # of a key: its value, and 1 for the denominator
        self._value = self._row[..., : call.value.shape[-1]].view(call.value.shape)

        is_constant = not learned and call.mechanism.gates.output is None
        self._finish = Finish.of(call.mechanism, {}, call.groups, every_query_sees=True) if is_constant else None
        is_flat = is_constant and groups == 1 and self._center is None
        per_head = (1,) if is_flat else (groups, 1)
        self._read = buffer.new_empty(num_keys, groups, buffer.shape[-1])
        read = self._read.view(batch, heads, *per_head, buffer.shape[-1])
        self._sums = _accumulator(sums.moments, read, log_denominator)
        self._visible = torch.ones(1, 1, 1, 1, 1, dtype=torch.bool, device=buffer.device)

    def __call__(self, token: Token) -> Tensor:
        """The output of the query, its key absorbed before: ``[B, H G, 1, V]``."""
        self._query.copy_(token.query)
        self._key.copy_(token.key)
        self._features.map()  # the last that may fail: from here on the state changes
        log_decay = None if token.log_decay is None else self._decay(token.log_decay)
        if self._center is not None:
            self._center.shift_keys(may_be_empty=log_decay is not None)
        self._features.form()
        self._absorb(token, log_decay)
        sums = self._sums
        if self._center is not None:
            sums = replace(sums, log_scale=self._center.read_out())
        torch.bmm(self._query_features, self._buffer, out=self._read)
        finish = self._finish_of(token) if self._finish is None else self._finish
        out = finish(sums)
        return (out if out.ndim == 4 else out.flatten(1, 2)).to(self._dtype)

    def _decay(self, log_decay_BH1: Tensor) -> Tensor:
        """Multiply the sums; the log decay ``[B, H]`` in their dtype."""
        log_decay = log_decay_BH1.to(self._buffer.dtype).squeeze(-1)
        factor = torch.exp(log_decay)
        self._buffer.mul_(factor.reshape(-1, 1, 1))
        if self._moments.separate_count is not None:
            self._moments.separate_count.mul_(factor)
        return log_decay

    def _absorb(self, token: Token, log_decay_BH: Tensor | None) -> None:
        """The key whose features are formed, with its value."""
        dtype = self._buffer.dtype
        self._value.copy_(token.value)
        if token.value_gate is not None:
            self._value.mul_(token.value_gate.to(dtype).unsqueeze(-1))
        self._buffer.addcmul_(self._key_features, self._row)
        if self._moments.separate_count is not None:
            self._moments.separate_count.add_(1.0)
        if self._log_denominator is not None:
            assert token.denominator_logit is not None
            new = log_sum(token.denominator_logit.to(dtype), self._visible)[:, :, 0, 0]
            later = followed_log_denominator(self._log_denominator, new, log_decay_BH)
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
    has_denominator = moments.mechanism.normalizer.uses_denominator

    def of_queries(x_BH: Tensor) -> Tensor:
        return x_BH.view(*x_BH.shape, *[1] * (len(shape) - 2)).expand(shape)

    return Accumulator(
        read[..., :value_dim],
        read[..., value_dim] if has_denominator else None,
        of_queries(moments.count),
        read.new_zeros(shape),
        None if log_denominator_BH is None else of_queries(log_denominator_BH),
    )


class _Center:
    """What a step about the mean logit does besides: keys relative to their reference, a readout for every query.

    Args:
        moments: the sums, as views of what steps write over.
        mapped: rows ``[R, K]`` of queries and keys.
        query_features: ``[B H, G, F]`` without readout.
        scale: of the logits.
    """

    def __init__(self, moments: Moments, mapped: Tensor, query_features: Tensor, scale: float) -> None:
        (batch, heads), width = moments.count.shape, mapped.shape[-1]
        num_keys, groups = query_features.shape[:2]
        self._moments, self._query_features, self._scale = moments, query_features, scale
        self._queries = mapped[: num_keys * groups].view(batch, heads, groups, 1, width)
        self._keys = mapped[num_keys * groups :].view(batch, heads, width)
        self._orders = moments.mechanism.moment_orders
        places = [i for i, each in enumerate(moments.numerators) for _ in range(each.shape[2])]
        self._place_of_order = torch.tensor(places, dtype=torch.int64, device=mapped.device)
        self._is_settled = False
        #: ``[B H, G, F]``, where :meth:`read_out` leaves its answer.
        self.weighted = torch.empty_like(query_features)

    def shift_keys(self, *, may_be_empty: bool) -> None:
        """Subtract the reference, which is the key itself where there is none yet."""
        reference = self._moments.key_reference
        assert reference is not None
        if may_be_empty or not self._is_settled:
            adopted = self._moments.adopt(self._keys).key_reference
            assert adopted is not None
            reference.copy_(adopted)
            self._is_settled = True  # a sum that no decay empties has seen a key from now on
        self._keys.sub_(reference)

    def read_out(self) -> Tensor:
        """Features of queries times their readout about the center; the center, ``[B, H, G, 1]``."""
        inner, center = self._moments.centers(self._queries, self._scale, None)
        similarity = self._moments.similarity
        factors = [torch.as_tensor(similarity.readout(n, self._scale, inner)) for n in self._orders]
        factor = torch.cat(factors, dim=-1).flatten(0, 1).index_select(-1, self._place_of_order)
        torch.mul(self._query_features, factor, out=self.weighted)
        return center


class _Features:
    """Monomials of all orders from rows that are written into :attr:`given`; those of queries times their readout.

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
        #: ``[R, K]`` after the map.
        self.mapped = self._point[:, 1:]
        #: ``[R, *]`` before the map, which may return it as it is.
        self.given = self.mapped if width == key_dim else like.new_ones(num_rows, key_dim)

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
        #: ``[R, F]``, the features.
        self.found = found if found is not None and is_ready else like.new_empty(num_rows, num_found)

    def map(self) -> None:
        """From :attr:`given` to :attr:`mapped`."""
        mapped = self._map(self.given)
        if mapped is not self.mapped:
            self.mapped.copy_(mapped)

    def form(self) -> None:
        """From :attr:`mapped` to :attr:`found`."""
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
    """(weights of the monomials in phi, those times their readout where no center has a say), ``[F]`` in float64."""
    orders = similarity.moment_orders
    at_ones = monomials(torch.ones(width, dtype=torch.float64), max(orders))
    weight = torch.cat([at_ones[n] for n in orders])
    if similarity.is_centered:
        return weight, weight
    return weight, torch.cat([at_ones[n] * similarity.readout(n, scale) for n in orders])
