r"""One span of a finite-state mechanism, forward and backward, many chunks at a time.

In a chunk the weights are kappa of every pair's logit; what came before is read from prefix states,

.. math:: P_0 = S, \qquad P_{c+1} = m_c P_c + \Phi(K_c)^T (D_c \odot V_c), \qquad
          O_c = (\kappa(Q_c K_c^T) \odot L_c) V_c + d_c \odot \Phi(Q_c) \rho P_c

with S the state before the span, rho the polynomial's readout factors, and, with decay, L, D, d and m the decay between
pairs, to the chunk's end, from its start, and over all of it; without decay L is a triangle of ones and the others are
ones. V has a column of ones (zeros for hidden keys) behind the values, so that the denominator is one more column of
everything.

Centered around c = <q, mean key>, kappa(x - c) is a polynomial in x whose coefficients are polynomials in c.

Dimension key: N chunks of every head in the tile, C tokens of a chunk, R = G C query rows of it, K width, F features,
W columns of V; A heads in the tile, m chunks in the span.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from maclaurin.algebra import Series, Similarity, log_decay_after, pairwise_log_decay
from maclaurin.evaluate.kernels.features import Features
from maclaurin.evaluate.tensor_tree import TensorTree


@dataclass(frozen=True, eq=False)
class Decays(TensorTree):
    """Factors of a span with decay.

    Args:
        pair: L, ``[N, C, C]``; of no meaning above the diagonal.
        since: d, ``[N, C, 1]``.
        after: D, ``[N, C, 1]``.
        total: m, ``[A, m, 1]``.
    """

    pair: Tensor
    since: Tensor
    after: Tensor
    total: Tensor

    @classmethod
    def of(cls, log_decay_AmC: Tensor) -> Decays:
        """From the log decays, autograd following."""
        flat_NC = log_decay_AmC.flatten(0, 1)
        return cls(
            torch.exp(pairwise_log_decay(flat_NC, flat_NC.shape[-1])),
            torch.exp(flat_NC.cumsum(-1))[..., None],
            torch.exp(log_decay_after(flat_NC))[..., None],
            torch.exp(log_decay_AmC.sum(-1))[..., None],
        )


@dataclass(frozen=True, eq=False)
class Inputs:
    """What a span works on.

    Args:
        key: mapped, ``[N, C, K]``.
        value: V, ``[N, C, W]``.
        visible: ``[N, C, 1]`` of ones and zeros, or None for all; read by centering.
        count: keys that each query sees, ``[N, R, 1]``; None unless centered.
        state: S, ``[A, F, W]`` in the dtype of the sums.
        decays: None without decay.
    """

    key: Tensor
    value: Tensor
    visible: Tensor | None
    count: Tensor | None
    state: Tensor
    decays: Decays | None


@dataclass(frozen=True, eq=False)
class Cotangents:
    """Gradients of queries and :class:`Inputs`, None where there is none; ``decays`` in the order of its fields."""

    query: Tensor
    key: Tensor
    value: Tensor
    count: Tensor | None
    state: Tensor
    decays: tuple[Tensor, ...] | None


class SpanSums:
    """The sums of a span's queries, and the state after its keys.

    Args:
        similarity: has the polynomial.
        features: of its finite state.
        given: what to work on.
    """

    def __init__(self, similarity: Similarity, features: Features, given: Inputs) -> None:
        assert isinstance(similarity.function, Series)
        self.series, self.is_centered = similarity.function, similarity.is_centered
        self.features, self.given = features, given
        decays, state = given.decays, given.state
        self.key_features = features.of(given.key)
        self.late_value = given.value if decays is None else given.value * decays.after.to(given.value.dtype)
        self.num_chunks = given.key.shape[0] // state.shape[0]
        update_NFW = torch.bmm(self.key_features.transpose(1, 2), self.late_value)
        self.states = self._follow(update_NFW.view(state.shape[0], self.num_chunks, *state.shape[1:]))
        self.prefix, self.state = self.states[:, :-1].reshape(update_NFW.shape), self.states[:, -1]
        self.center: Tensor | None = None

    def _follow(self, update_AmFW: Tensor) -> Tensor:
        """The state before every chunk and after the last, ``[A, m + 1, F, W]``, in the dtype of the sums."""
        state, decays = self.given.state, self.given.decays
        found = state.new_empty(state.shape[0], self.num_chunks + 1, *state.shape[1:])
        found[:, 0] = state
        for c, (held, later, update) in enumerate(
            zip(found.unbind(1)[:-1], found.unbind(1)[1:], update_AmFW.unbind(1), strict=True)
        ):
            if decays is None:
                torch.add(held, update, out=later)
            else:
                torch.addcmul(update.to(held.dtype), held, decays.total[:, c, :, None], out=later)
        return found

    def _pull_states(self, grad_prefix_NFW: Tensor, grad_state_AFW: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Gradients of every chunk's update ``[N, F, W]``, of the state before the span, and of the total decays."""
        decays, grad = self.given.decays, grad_state_AFW
        grad_prefix = grad_prefix_NFW.view(len(grad), self.num_chunks, *grad.shape[1:])
        updates = torch.empty_like(grad_prefix)
        totals = None if decays is None else torch.empty_like(decays.total)
        for c in range(self.num_chunks - 1, -1, -1):
            updates[:, c] = grad
            if decays is None or totals is None:
                grad = grad + grad_prefix[:, c]
            else:
                totals[:, c, 0] = (grad * self.states[:, c]).sum((-1, -2))
                grad = torch.addcmul(grad_prefix[:, c], grad, decays.total[:, c, :, None])
        return updates.view(grad_prefix_NFW.shape), grad, totals

    def sums(self, query_NRK: Tensor) -> Tensor:
        """``[N, R, W]`` in the dtype of the keys; finds :attr:`center`, ``[N, R, 1]``, on the way.

        Args:
            query_NRK: mapped and scaled.
        """
        self.look(query_NRK)
        weights = self._visible(self.series.values(self.logits))
        return self._late(self._read()).baddbmm_(weights, self.given.value)

    def look(self, query_NRK: Tensor) -> None:
        """What :meth:`pull` needs, without the sums themselves."""
        self.query = query_NRK
        self.logits = query_NRK @ self.given.key.transpose(1, 2)
        if self.is_centered:
            self.center = self._mean_logit()
            self.logits -= self.center.to(query_NRK.dtype)
        self.query_features = self.features.of(query_NRK, self._powers())
        self.readable = self._weighed(self.prefix).to(query_NRK.dtype)

    def pull(self, grad_NRW: Tensor, grad_center: Tensor | None, grad_state_AFW: Tensor) -> Cotangents:
        """Gradients of what was given, from those of the sums, of the center and of the state after the span."""
        given, features = self.given, self.features
        grad = grad_NRW.to(self.query.dtype)
        weights = self._visible(values := self.series.values(self.logits))
        grad_value = weights.transpose(1, 2) @ grad
        grad_weights = grad @ given.value.transpose(1, 2)
        decays = None if given.decays is None else [self._summed(grad_weights * values).tril_()]
        grad_logits = self._visible(grad_weights * self.series.slope(self.logits, values))
        grad_query = grad_logits @ given.key
        grad_key = grad_logits.transpose(1, 2) @ self.query
        late = self._late(grad)
        if decays is not None:
            decays.append(self._summed((grad * self._read()).sum(-1, keepdim=True)))
        powers = self._powers()
        rows = [late * powers[n] if n in powers else late for n in features.orders]
        grad_query += features.pull(self.query, rows, self.readable)
        grad_prefix = self._weighed(torch.bmm(self.query_features.transpose(1, 2), late).to(given.state.dtype))
        grad_count = None
        if self.is_centered:
            through = self._slope_of_read(late) - grad_logits.sum(-1, keepdim=True)
            grad_center = through if grad_center is None else grad_center + through
            more_query, more_key, grad_count = self._pull_center(grad_center, grad_prefix)
            grad_query += more_query
            grad_key += more_key
        grad_update, grad_state, of_total = self._pull_states(grad_prefix, grad_state_AFW)
        grad_update = grad_update.to(self.query.dtype)
        grad_late_value = torch.bmm(self.key_features, grad_update)
        grad_key += features.pull(given.key, [self.late_value] * len(features.orders), grad_update)
        if given.decays is None or decays is None or of_total is None:
            return Cotangents(grad_query, grad_key, grad_value + grad_late_value, grad_count, grad_state, None)
        decays += [(given.value * grad_late_value).sum(-1, keepdim=True), of_total]
        grad_value = grad_value + grad_late_value * given.decays.after.to(grad_value.dtype)
        return Cotangents(grad_query, grad_key, grad_value, grad_count, grad_state, tuple(decays))

    def _grouped(self, x_NR: Tensor) -> Tensor:
        """Rows by group, ``[N, G, C, *]``."""
        length = self.given.key.shape[1]
        return x_NR.view(len(x_NR), x_NR.shape[1] // length, length, *x_NR.shape[2:])

    def _summed(self, x_NR: Tensor) -> Tensor:
        """Over the groups, ``[N, C, *]``, in the dtype of the sums."""
        return self._grouped(x_NR).sum(1, dtype=self.given.state.dtype)

    def _visible(self, pairs_NRC: Tensor) -> Tensor:
        """Pairs with their decay, zero above the diagonal; in place without decay."""
        pairs = self._grouped(pairs_NRC)
        decays = self.given.decays
        seen = pairs if decays is None else pairs * decays.pair[:, None].to(pairs.dtype)
        return seen.tril_().view(pairs_NRC.shape)

    def _late(self, rows_NRW: Tensor) -> Tensor:
        """Rows times the decay since the chunk's start."""
        decays = self.given.decays
        if decays is None:
            return rows_NRW
        return (self._grouped(rows_NRW) * decays.since[:, None].to(rows_NRW.dtype)).view(rows_NRW.shape)

    def _weighed(self, states_NFW: Tensor) -> Tensor:
        """Times rho: the polynomial's coefficients, those of :meth:`_powers` left out."""
        coefficients = [self.series.series[n] for n in self.features.orders]
        if self.is_centered:
            coefficients[:-1] = [1.0] * (len(coefficients) - 1)
        factors = self.features.readout(coefficients, self.given.state)
        return states_NFW if factors is None else states_NFW * factors

    def _powers(self) -> dict[int, Tensor]:
        """The coefficients of x**n in kappa(x - c) that depend on c: all but the highest, ``[N, R, 1]``."""
        if self.center is None:
            return {}
        center, dtype = self.center, self.query.dtype
        return {n: self.series.shifted(center, n).to(dtype) for n in self.features.orders[:-1]}

    def _read(self) -> Tensor:
        """What the queries read from the prefix states, ``[N, R, W]``."""
        return torch.bmm(self.query_features, self.readable)

    def _mean_logit(self) -> Tensor:
        """Over the keys that each query sees, ``[N, R, 1]``; leaves zeros above the diagonal of the logits."""
        seen, sum_dtype = self._grouped(self.logits).tril_().view(self.logits.shape), self.given.state.dtype
        if self.given.visible is not None:
            seen = seen * self.given.visible.transpose(1, 2)
        before = torch.bmm(self.query.to(sum_dtype), self._key_sum(self.prefix)[..., None])
        return before.add_(seen.sum(-1, keepdim=True, dtype=sum_dtype)).div_(self._count())

    def _mean_key(self) -> Tensor:
        """Over the same keys, ``[N, R, K]``."""
        given = self.given
        keys = given.key if given.visible is None else given.key * given.visible
        so_far = (_triangle(keys) @ keys).to(given.state.dtype) + self._key_sum(self.prefix)[:, None]
        groups = self.query.shape[1] // given.key.shape[1]
        return so_far.repeat(1, groups, 1) / self._count()

    def _count(self) -> Tensor:
        """Of the keys that each query sees, one where there is none."""
        assert self.given.count is not None
        return self.given.count.masked_fill(self.given.count <= 0, 1.0)

    def _key_sum(self, states_NFW: Tensor) -> Tensor:
        """A view of where states hold the sum of the keys, ``[N, K]``."""
        return states_NFW[:, self.features.parts[self.features.orders.index(1)], -1]

    def _slope_of_read(self, late_NRW: Tensor) -> Tensor:
        """Gradient of the center through what the queries read: d/dc of x**n's coefficient is -(n + 1) the next."""
        assert self.center is not None
        slopes = {n: -(n + 1) * self.series.shifted(self.center, n + 1) for n in self.features.orders[:-1]}
        slopes[self.features.orders[-1]] = torch.zeros_like(self.center)
        features = self.features.of(self.query, {n: each.to(self.query.dtype) for n, each in slopes.items()})
        return (late_NRW * torch.bmm(features, self.readable)).sum(-1, keepdim=True, dtype=self.given.state.dtype)

    def _pull_center(self, grad_NR1: Tensor, grad_prefix_NFW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and count through the center; those of the prefix are added where they belong."""
        given, seen, mean_key = self.given, self._count(), self._mean_key()
        grad_mean = grad_NR1 * self.query
        grad_count = -(grad_mean * mean_key).sum(-1, keepdim=True) / seen
        grad_sum = self._summed(grad_mean / seen)
        self._key_sum(grad_prefix_NFW).add_(grad_sum.sum(1))
        grad_key = _triangle(given.key).T @ grad_sum.to(given.key.dtype)
        grad_key = grad_key if given.visible is None else grad_key * given.visible
        return grad_NR1 * mean_key, grad_key, grad_count


def _triangle(key_NCK: Tensor) -> Tensor:
    """Ones on and below the diagonal, ``[C, C]``."""
    return key_NCK.new_ones(key_NCK.shape[1], key_NCK.shape[1]).tril_()
