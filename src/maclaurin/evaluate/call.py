"""One call of ``attend``, checked: tensors as they were given, not yet mapped or widened.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra import Mechanism
from maclaurin.evaluate import checks
from maclaurin.evaluate.checks import Sizes
from maclaurin.evaluate.finish import Finish, grouped
from maclaurin.evaluate.shape import Shape, dtype_of_sums
from maclaurin.evaluate.state import State

#: Beyond this, logits of padding are not even formed.
_HUGE = 1e6


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


@dataclass(frozen=True, eq=False)
class Call:
    """What was asked.

    Args:
        mechanism: the composition to evaluate.
        query: ``[B, H G, T, K]``.
        key: ``[B, H, S, K]``.
        value: ``[B, H, S, V]``.
        key_mask: bool ``[B, S]``, or None.
        pair_mask: bool ``[B, 1 or H G, T, S]``, or None.
        is_causal: query t sees key s only if s <= t + S - T.
        state: keys seen before, or None.
        scale: of the logits of the keys that are kept, and of those that the moments hold.
        operands: tensors that parts of the mechanism read, by keyword, in the dtype of the sums; those given.
        hidden: the new keys that no query may see, bool ``[B, 1 or H, S, 1]``; None without a mask.
    """

    mechanism: Mechanism
    query: Tensor
    key: Tensor
    value: Tensor
    key_mask: Tensor | None
    pair_mask: Tensor | None
    is_causal: bool
    state: State | None
    scale: tuple[float, float]
    operands: Mapping[str, Tensor]
    hidden: Tensor | None = None

    @classmethod
    def of(cls, mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Call:
        """Check what was given.

        Raises:
            ShapeError, DtypeError, MaskError, StateError, ConfigError, MechanismError: see :func:`maclaurin.attend`.
        """
        checks.check_shapes(query, key, value)
        checks.check_dtypes(query, key, value)
        checks.check_direction(mechanism, is_causal=options.is_causal)
        scale = checks.scales(mechanism, options.scale, key.shape[-1])
        checks.check_operands(mechanism, options.operands, Sizes.of(query, key, value), value)
        key_mask, pair_mask = checks.check_mask(options.mask, query, key)
        dtype = dtype_of_sums(query.dtype)
        operands = {name: each.to(dtype) for name, each in options.operands.items() if each is not None}
        call = cls(mechanism, query, key, value, key_mask, pair_mask, options.is_causal, options.state, scale, operands)
        call = replace(call, hidden=_hidden_keys(call))
        log_decay = call.shown(operands.get("log_decay"))
        if log_decay is not None:
            checks.check_log_decay(log_decay)
        if options.state is not None:
            kept = mechanism.near or mechanism.far
            assert kept is not None
            width = kept.map.num_features(key.shape[-1], dtype=dtype, device=key.device)
            shape = (*key.shape[:2], 0)
            like_key, like_value = (
                each.new_empty(*shape, size, dtype=dtype) for each, size in ((key, width), (value, value.shape[-1]))
            )
            checks.check_state(mechanism, options.state, like_key, like_value)
        return call

    @property
    def sizes(self) -> Sizes:
        return Sizes.of(self.query, self.key, self.value)

    @property
    def groups(self) -> tuple[int, int]:
        """(H, G)."""
        sizes = self.sizes
        return sizes.kv_heads, sizes.heads // sizes.kv_heads

    @property
    def sum_dtype(self) -> torch.dtype:
        """Of sums and states: float32 for half-precision inputs."""
        return dtype_of_sums(self.query.dtype)

    def shape(self, *, return_state: bool = False) -> Shape:
        """What does not depend on the tensors' values."""
        sizes, state = self.sizes, self.state
        tensors = (self.query, self.key, self.value, *self.operands.values())
        wants = torch.is_grad_enabled() and any(each.requires_grad for each in tensors)
        return Shape(
            queries=sizes.queries,
            key_dim=self.key.shape[-1],
            batch=sizes.batch,
            heads=sizes.heads,
            kv_heads=sizes.kv_heads,
            keys=sizes.keys,
            value_dim=sizes.value_dim,
            dtype=self.query.dtype,
            device=self.query.device.type,
            is_causal=self.is_causal,
            has_key_mask=self.key_mask is not None,
            has_pair_mask=self.pair_mask is not None,
            has_state=state is not None,
            cached=0 if state is None or state.cache is None else state.cache.key.shape[2],
            returns_state=return_state,
            wants_gradient=wants,
        )

    @property
    def visible_count(self) -> Tensor:
        """New keys up to each, hidden ones left out, ``[B, 1, S]``."""
        batch, length = self.key.shape[0], self.key.shape[2]
        if self.key_mask is not None:
            return self.key_mask.to(self.sum_dtype).cumsum(-1)[:, None]
        count = torch.arange(1, length + 1, device=self.key.device, dtype=self.sum_dtype)
        return count.expand(batch, 1, length)

    @property
    def every_query_sees(self) -> bool:
        """Whether no query can be without a visible key."""
        sizes = self.sizes
        enough = sizes.keys >= sizes.queries if self.is_causal else sizes.keys > 0
        return enough and self.key_mask is None and self.pair_mask is None

    @property
    def grouped_mask(self) -> Tensor | None:
        """The pair mask, broadcastable to ``[B, H, G, T, S]``; None without one."""
        mask = self.pair_mask
        return mask if mask is None else grouped(mask, 1, self.groups if mask.shape[1] > 1 else (1, 1))

    @property
    def finish(self) -> Finish:
        """What becomes of the sums."""
        operands = dict(self.operands)
        gate = operands.get("output_gate")
        if gate is not None and self.key_mask is not None:
            operands["output_gate"] = self.without_padding(gate[..., None] if gate.ndim == 3 else gate)
        return Finish.of(self.mechanism, operands, self.groups, every_query_sees=self.every_query_sees)

    def shown(self, x: Tensor | None, fill: float = 0.0) -> Tensor | None:
        """What stands on the keys' time, ``[B, H, S]`` or ``[B, H, S, *]``, with hidden places filled."""
        hidden = self.hidden
        return x if x is None or hidden is None else x.masked_fill(hidden if x.ndim == 4 else hidden[..., 0], fill)

    def without_padding(self, x: Tensor) -> Tensor:
        """Queries (or what has their time) at hidden positions, with what is not finite or huge in them set to one.

        Such a query stands on padding: its row is nobody's, but a NaN in it would reach every gradient, and so does a
        weight that is infinite because a kernel's backward finds a huge logit with another last digit than its forward.
        Query t stands on key t + S - T when causal, and on key t when there are as many queries as keys.
        """
        if self.key_mask is None:
            return x
        rows, columns = x.shape[2], self.key_mask.shape[1]
        if not (self.is_causal or rows == columns):
            return x
        hidden = F.pad(~self.key_mask, (rows - columns, 0))[:, None, :, None]  # a negative width crops
        return x.masked_fill(hidden & ~(x.abs() < _HUGE), 1.0)


def _hidden_keys(call: Call) -> Tensor | None:
    if call.key_mask is not None:
        return ~call.key_mask[:, None, :, None]
    mask = call.grouped_mask
    if mask is None:
        return None
    rows, columns = mask.shape[-2:]
    seen = mask.tril(columns - rows) if call.is_causal else mask
    return ~seen.any(-2).any(2)[..., None]
