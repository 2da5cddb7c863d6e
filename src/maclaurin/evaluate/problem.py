"""One call of ``attend``, brought to one form.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K features of the
mapped key, V value dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra import Mechanism, pairwise_log_decay
from maclaurin.evaluate.call import Call
from maclaurin.evaluate.call import Options as Options
from maclaurin.evaluate.finish import Finish, grouped
from maclaurin.evaluate.operands import Keys, Queries, map_visible
from maclaurin.evaluate.state import State


@dataclass(frozen=True, eq=False)
class Problem:
    """What every evaluation works on. Keys and queries are mapped; hidden keys and values are zeros.

    Args:
        mechanism: the composition to evaluate.
        queries: mapped.
        keys: mapped, with values and what else has their time.
        pair_mask: bool, broadcastable to ``[B, H, G, T, S]``, or None.
        is_causal: query t sees key s only if s <= t + S - T.
        state: keys seen before, or None.
        finish: what becomes of the sums.
        key_dim: width of the keys before the map.
        dtype: of the output.
    """

    mechanism: Mechanism
    queries: Queries
    keys: Keys
    pair_mask: Tensor | None
    is_causal: bool
    state: State | None
    finish: Finish
    key_dim: int
    dtype: torch.dtype

    @property
    def num_queries(self) -> int:
        return self.queries.any.shape[3]

    @property
    def num_keys(self) -> int:
        return self.keys.key.shape[2]

    @property
    def visible(self) -> Tensor:
        """Which query sees which new key: bool, broadcastable to ``[B, H, G, T, S]``."""
        rows, columns = self.num_queries, self.num_keys
        visible = torch.ones(rows, columns, dtype=torch.bool, device=self.keys.key.device)
        if self.is_causal:
            visible = visible.tril(columns - rows)
        visible = visible[None, None, None]
        if self.keys.visible is not None:
            visible = visible & self.keys.visible[:, None, None, None]
        return visible if self.pair_mask is None else visible & self.pair_mask

    @property
    def pairwise_log_decay(self) -> Tensor | None:
        """Log decay from every new key to every query, ``[B, H, 1, T, S]``; None without decay."""
        if self.keys.log_decay is None:
            return None
        return pairwise_log_decay(self.keys.log_decay, self.num_queries)[:, :, None]

    @property
    def log_decay_of_state(self) -> Tensor | None:
        """Log decay of the carried state at every query, ``[B, H, 1, T]``; None without decay."""
        if self.keys.log_decay is None:
            return None
        so_far = self.keys.log_decay.cumsum(-1)
        return F.pad(so_far, (self.num_queries - self.num_keys, 0))[:, :, None]  # a negative width crops

    def initial_state(self) -> State:
        """The state given, or an empty one."""
        if self.state is not None:
            return self.state
        key, value = self.keys.key, self.keys.value
        return State.empty(
            self.mechanism,
            batch_size=key.shape[0],
            num_kv_heads=key.shape[1],
            key_dim=self.key_dim,
            value_dim=value.shape[-1],
            dtype=key.dtype,
            device=key.device,
        )

    def of(self, queries: Queries, keys: Keys, state: State | None) -> Problem:
        """The same call on some of the queries and keys, aligned to their ends, after ``state``."""
        assert self.pair_mask is None
        return replace(self, queries=queries, keys=keys, state=state)

    @classmethod
    def of_call(cls, call: Call) -> Problem:
        """Map and widen what was given."""
        dtype = call.sum_dtype
        return cls(
            call.mechanism,
            _queries(call, call.without_padding(call.query.to(dtype))),
            _keys(call, call.key.to(dtype), call.value.to(dtype)),
            call.grouped_mask,
            call.is_causal,
            call.state,
            call.finish,
            call.key.shape[-1],
            call.query.dtype,
        )


def pose(mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Problem:
    """Check a call and bring it to one form.

    Raises:
        ShapeError, DtypeError, MaskError, StateError, ConfigError, MechanismError: see :func:`maclaurin.attend`.
    """
    return Problem.of_call(Call.of(mechanism, query, key, value, options))


def _queries(call: Call, query: Tensor) -> Queries:
    mechanism, groups = call.mechanism, call.groups
    near, far = (
        None if each is None else grouped(each.map(query), 1, groups) for each in (mechanism.near, mechanism.far)
    )
    weight = call.operands.get("far_log_weight")
    return Queries(near, far, *call.scale, None if weight is None else grouped(weight, 0, groups)[..., None])


def _keys(call: Call, key: Tensor, value: Tensor) -> Keys:
    """Mapped keys and gated values, with what is hidden put out of the way."""
    kept = call.mechanism.near or call.mechanism.far
    assert kept is not None
    shown = call.shown(value)
    assert shown is not None
    gate = call.shown(call.operands.get("value_gate"))
    if gate is not None:
        shown = shown * gate[..., None]
    return Keys(
        map_visible(kept.map, key, call.hidden),
        shown,
        call.key_mask,
        call.shown(call.operands.get("log_decay")),
        call.shown(call.operands.get("denominator_logit")),
    )
