"""One call of ``attend``, checked and brought to one form.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K features of the
mapped key, V value dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra import Mechanism, NormalizerInputs, pairwise_log_decay
from maclaurin.evaluate import checks
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
        inputs: learned tensors of the normalizer.
        output_gate: broadcastable to ``[B, H, G, T, V]``, or None.
        key_dim: width of the keys before the map.
        dtype: of the output.
    """

    mechanism: Mechanism
    queries: Queries
    keys: Keys
    pair_mask: Tensor | None
    is_causal: bool
    state: State | None
    inputs: NormalizerInputs
    output_gate: Tensor | None
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


@dataclass(frozen=True, eq=False)
class Options:
    """The keywords of ``attend`` that shape the problem, as given.

    Args:
        is_causal: direction.
        scale: of the logits, None for the default.
        mask: over keys or pairs.
        state: keys seen before.
        operands: tensors that parts of the mechanism read, by keyword, None where not given.
    """

    is_causal: bool = True
    scale: float | None = None
    mask: Tensor | None = None
    state: State | None = None
    operands: Mapping[str, Tensor | None] = field(default_factory=dict)


def pose(mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Problem:
    """Check a call and bring it to one form.

    Raises:
        ShapeError, DtypeError, MaskError, StateError, ConfigError, MechanismError: see :func:`maclaurin.attend`.
    """
    checks.check_shapes(query, key, value)
    checks.check_dtypes(query, key, value)
    checks.check_direction(mechanism, is_causal=options.is_causal)
    scale = checks.scales(mechanism, options.scale, key.shape[-1])
    sizes = checks.Sizes.of(query, key, value)
    checks.check_operands(mechanism, options.operands, sizes, value)
    key_mask, pair_mask = checks.check_mask(options.mask, query, key)
    given_dtype = query.dtype
    dtype = torch.float64 if given_dtype == torch.float64 else torch.float32
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    operands = {name: None if each is None else each.to(dtype) for name, each in options.operands.items()}
    groups = (sizes.kv_heads, sizes.heads // sizes.kv_heads)
    gate = operands.get("output_gate")
    gate = gate[..., None] if gate is not None and gate.ndim == 3 else gate
    if key_mask is not None:
        query = _without_padding(query, key_mask, is_causal=options.is_causal)
        gate = None if gate is None else _without_padding(gate, key_mask, is_causal=options.is_causal)
    if pair_mask is not None:
        pair_mask = _grouped(pair_mask, 1, groups if pair_mask.shape[1] > 1 else (1, 1))
    hidden = _hidden_keys(key_mask, pair_mask, is_causal=options.is_causal)
    problem = Problem(
        mechanism,
        _queries(mechanism, query, scale, operands, groups),
        _keys(mechanism, key, value, operands, hidden, key_mask),
        pair_mask,
        options.is_causal,
        options.state,
        _normalizer_inputs(operands, groups),
        None if gate is None else _grouped(gate, 1, groups),
        key.shape[-1],
        given_dtype,
    )
    if options.state is not None:
        checks.check_state(mechanism, options.state, problem.keys.key, value)
    return problem


def _grouped(x: Tensor, dim: int, sizes: tuple[int, int]) -> Tensor:
    """``x`` with dimension ``dim`` (heads) split into key/value heads and groups."""
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _queries(
    mechanism: Mechanism,
    query: Tensor,
    scale: tuple[float, float],
    operands: Mapping[str, Tensor | None],
    groups: tuple[int, int],
) -> Queries:
    near, far = (
        None if each is None else _grouped(each.map(query), 1, groups) for each in (mechanism.near, mechanism.far)
    )
    weight = operands.get("far_log_weight")
    return Queries(near, far, *scale, None if weight is None else _grouped(weight, 0, groups)[..., None])


def _keys(
    mechanism: Mechanism,
    key: Tensor,
    value: Tensor,
    operands: Mapping[str, Tensor | None],
    hidden: Tensor | None,
    key_mask: Tensor | None,
) -> Keys:
    """Mapped keys and gated values, with what is hidden put out of the way."""
    kept = mechanism.near or mechanism.far
    assert kept is not None

    def shown(x: Tensor | None, fill: float = 0.0) -> Tensor | None:
        return x if x is None or hidden is None else x.masked_fill(hidden if x.ndim == 4 else hidden[..., 0], fill)

    gate, log_decay = shown(operands.get("value_gate")), shown(operands.get("log_decay"))
    value = shown(value)  # type: ignore[assignment]
    if gate is not None:
        value = value * gate[..., None]
    if log_decay is not None:
        checks.check_log_decay(log_decay)
    key = map_visible(kept.map, key, hidden)
    return Keys(key, value, key_mask, log_decay, shown(operands.get("denominator_logit")))


def _normalizer_inputs(operands: Mapping[str, Tensor | None], groups: tuple[int, int]) -> NormalizerInputs:
    """Learned tensors, broadcastable to ``[B, H, G, T, V]`` and ``[B, H, G, T]``."""

    def per_head(name: str, num_dims: int) -> Tensor | None:
        tensor = operands.get(name)
        return tensor if tensor is None or tensor.ndim < num_dims else _grouped(tensor, 0, groups)[:, :, None]

    return NormalizerInputs(per_head("length_exponent", 1), per_head("norm_weight", 2), per_head("norm_bias", 2))


def _hidden_keys(key_mask: Tensor | None, pair_mask: Tensor | None, *, is_causal: bool) -> Tensor | None:
    """The new keys that no query may see, bool ``[B, 1 or H, S, 1]``; None without a mask."""
    if key_mask is not None:
        return ~key_mask[:, None, :, None]
    if pair_mask is None:
        return None
    rows, columns = pair_mask.shape[-2:]
    seen = pair_mask.tril(columns - rows) if is_causal else pair_mask
    return ~seen.any(-2).any(2)[..., None]


def _without_padding(query: Tensor, key_mask: Tensor, *, is_causal: bool) -> Tensor:
    """Queries at hidden positions with what is not finite in them set to one.

    Such a query stands on padding: its row is nobody's, but a NaN in it would reach every gradient. Query t stands
    on key t + S - T when causal, and on key t when there are as many queries as keys.
    """
    rows, columns = query.shape[2], key_mask.shape[1]
    if not (is_causal or rows == columns):
        return query
    hidden = F.pad(~key_mask, (rows - columns, 0))[:, None, :, None]  # a negative width crops
    return query.masked_fill(hidden & ~query.isfinite(), 1.0)
