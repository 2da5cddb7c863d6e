"""One call of ``attend``, checked and brought to one form: the only place where inputs are validated.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K features of the
mapped key, V value dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra import Mechanism, NormalizerInputs
from maclaurin.errors import ConfigError, DtypeError, MaskError, MechanismError, ShapeError, StateError
from maclaurin.evaluate.state import State


@dataclass(frozen=True, eq=False)
class Problem:
    """What every evaluation works on. Keys and queries are mapped; hidden keys and values are zeros.

    Args:
        mechanism: the composition to evaluate.
        query: mapped, ``[B, H, G, T, K]``.
        key: mapped, ``[B, H, S, K]``.
        value: ``[B, H, S, V]``.
        key_mask: bool ``[B, S]`` or None.
        pair_mask: bool, broadcastable to ``[B, H, G, T, S]``, or None.
        is_causal: query t sees key s only if s <= t + S - T.
        scale: of the logits.
        state: keys seen before, or None.
        inputs: learned tensors of the normalizer.
        key_dim: width of the keys before the map.
        dtype: of the output.
    """

    mechanism: Mechanism
    query: Tensor
    key: Tensor
    value: Tensor
    key_mask: Tensor | None
    pair_mask: Tensor | None
    is_causal: bool
    scale: float
    state: State | None
    inputs: NormalizerInputs
    key_dim: int
    dtype: torch.dtype

    @property
    def num_queries(self) -> int:
        return self.query.shape[3]

    @property
    def num_keys(self) -> int:
        return self.key.shape[2]

    @property
    def visible(self) -> Tensor:
        """Which query sees which new key: bool, broadcastable to ``[B, H, G, T, S]``."""
        rows, columns = self.num_queries, self.num_keys
        visible = torch.ones(rows, columns, dtype=torch.bool, device=self.query.device)
        if self.is_causal:
            visible = visible.tril(columns - rows)
        visible = visible[None, None, None]
        if self.key_mask is not None:
            visible = visible & self.key_mask[:, None, None, None]
        return visible if self.pair_mask is None else visible & self.pair_mask

    def initial_state(self) -> State:
        """The state given, or an empty one."""
        if self.state is not None:
            return self.state
        return State.empty(
            self.mechanism,
            batch_size=self.key.shape[0],
            num_kv_heads=self.key.shape[1],
            key_dim=self.key_dim,
            value_dim=self.value.shape[-1],
            dtype=self.key.dtype,
            device=self.key.device,
        )


@dataclass(frozen=True, eq=False)
class Options:
    """The keywords of ``attend`` that shape the problem, as given."""

    is_causal: bool
    scale: float | None
    mask: Tensor | None
    length_exponent: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    state: State | None


def pose(mechanism: Mechanism, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Problem:
    """Check a call and bring it to one form.

    Raises:
        ShapeError, DtypeError, MaskError, StateError, ConfigError, MechanismError: see :func:`maclaurin.attend`.
    """
    _check_shapes(query, key, value)
    _check_dtypes(query, key, value)
    scale = _scale(mechanism, options.scale, key.shape[-1])
    given_dtype = query.dtype
    dtype = torch.float64 if given_dtype == torch.float64 else torch.float32
    kv_heads, groups = key.shape[1], query.shape[1] // max(key.shape[1], 1)
    key_mask, pair_mask = _masks(options.mask, query, key)
    query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if key_mask is not None:
        query = _without_padding(query, key_mask, is_causal=options.is_causal)
    if pair_mask is not None:
        pair_mask = _grouped(pair_mask, 1, (kv_heads, groups) if pair_mask.shape[1] > 1 else (1, 1))
    feature_map = mechanism.similarity.map
    hidden = _hidden_keys(key_mask, pair_mask, is_causal=options.is_causal)
    if hidden is None:
        mapped_key = feature_map(key)
    else:  # the map sees ones instead: zeros are where x / |x| or log x are not finite
        mapped_key = feature_map(key.masked_fill(hidden, 1.0)).masked_fill(hidden, 0.0)
        value = value.masked_fill(hidden, 0.0)
    problem = Problem(
        mechanism,
        _grouped(feature_map(query), 1, (kv_heads, groups)),
        mapped_key,
        value,
        key_mask,
        pair_mask,
        options.is_causal,
        scale,
        options.state,
        _normalizer_inputs(mechanism, options, (kv_heads, groups, value.shape[-1]), value),
        key.shape[-1],
        given_dtype,
    )
    if options.state is not None:
        _check_state(problem, options.state)
    return problem


def _grouped(x: Tensor, dim: int, sizes: tuple[int, int]) -> Tensor:
    """``x`` with dimension ``dim`` (heads) split into key/value heads and groups."""
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


def _check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = f"  query {tuple(query.shape)} - key {tuple(key.shape)} - value {tuple(value.shape)}"
    layout = "  The layout is query [B, H, T, K], key [B, Hkv, S, K], value [B, Hkv, S, V]."
    if not query.ndim == key.ndim == value.ndim == 4:
        raise ShapeError(f"attend: query, key and value must have four dimensions each.\n{shapes}\n{layout}")
    wrong = ""
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        wrong = "disagree on the batch (dimension 0)"
    elif key.shape[1] != value.shape[1]:
        wrong = "disagree on key/value heads (dimension 1 of key and value)"
    elif key.shape[2] != value.shape[2]:
        wrong = "disagree on time (dimension 2 of key and value)"
    elif query.shape[3] != key.shape[3]:
        wrong = "disagree on the key dim (dimension 3 of query and key)"
    elif key.shape[1] == 0 or query.shape[1] % key.shape[1] != 0:
        wrong = "do not group: query heads must be a multiple of key/value heads"
    if wrong:
        raise ShapeError(f"attend: query, key and value {wrong}.\n{shapes}\n{layout}")


def _check_dtypes(query: Tensor, key: Tensor, value: Tensor) -> None:
    dtypes, devices = (query.dtype, key.dtype, value.dtype), (query.device, key.device, value.device)
    if len(set(dtypes)) > 1 or not query.dtype.is_floating_point:
        raise DtypeError(
            f"attend: query is {query.dtype}, key is {key.dtype}, value is {value.dtype}.\n"
            "  Give all three in one floating-point dtype; sums and states are kept in float32 or wider by themselves."
        )
    if len(set(devices)) > 1:
        raise DtypeError(
            f"attend: query, key and value are on {', '.join(map(str, devices))}.\n  Move them to one device."
        )


def _scale(mechanism: Mechanism, scale: float | None, key_dim: int) -> float:
    similarity = mechanism.similarity
    if scale is None:
        return similarity.map.default_scale(key_dim)
    scale = float(scale)
    if not math.isfinite(scale):
        raise ConfigError(
            f"attend: scale={scale} is not a finite number.\n  Leave it out for the default, or give one."
        )
    normalizer = mechanism.normalizer
    if normalizer.needs_nonnegative and not similarity.sign_survives(scale, cancels_sign=normalizer.cancels_sign):
        raise MechanismError(
            f"attend: scale={scale:g} was asked of {mechanism.describe()}, whose weights are non-negative only at a "
            "scale >= 0.\n  Use a scale >= 0, sum:signed, or a normalizer without denominator."
        )
    return scale


def _masks(mask: Tensor | None, query: Tensor, key: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """(key mask [B, S], pair mask [B, 1 or H, T, S]); at most one is given."""
    if mask is None:
        return None, None
    batch, heads, rows, columns = query.shape[0], query.shape[1], query.shape[2], key.shape[2]
    legal = f"bool [B, S] = {(batch, columns)} over keys, or bool [B, 1 or H, T, S] = {(batch, heads, rows, columns)}"
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = f"dtype {mask.dtype}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        raise MaskError(
            f"attend: the mask has {kind}; additive and integer masks are refused.\n"
            f"  Give {legal}, True where a key may be seen (for an additive mask: mask == 0)."
        )
    if tuple(mask.shape) == (batch, columns):
        return mask.to(key.device), None
    if mask.ndim == 4 and mask.shape[0] == batch and mask.shape[1] in (1, heads) and mask.shape[2:] == (rows, columns):
        return None, mask.to(key.device)
    raise MaskError(f"attend: the mask has shape {tuple(mask.shape)}.\n  Give {legal}.")


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


def _normalizer_inputs(
    mechanism: Mechanism, options: Options, shape: tuple[int, int, int], like: Tensor
) -> NormalizerInputs:
    """Learned tensors, broadcastable to ``[B, H, G, T, V]`` and ``[B, H, G, T]``.

    Args:
        mechanism: says which are read.
        options: holds them as given.
        shape: (H, G, V).
        like: a tensor of the dtype and device to compute in.
    """
    kv_heads, groups, value_dim = shape
    heads = kv_heads * groups
    legal: dict[str, list[tuple[int, ...]]] = {
        "length_exponent": [(heads,)],
        "norm_weight": [(value_dim,), (heads, value_dim)],
    }
    legal["norm_bias"] = legal["norm_weight"]
    found: dict[str, Tensor | None] = {}
    for name, shapes in legal.items():
        tensor: Tensor | None = getattr(options, name)
        found[name] = None
        if tensor is None:
            continue
        if name not in mechanism.normalizer.learned:
            raise ConfigError(
                f"attend: {name} was given to {mechanism.describe()}, whose normalizer does not read it.\n"
                "  Leave it out, or use a normalizer that learns it: length:learned, rms:weight, layer:weight:bias."
            )
        if tuple(tensor.shape) not in shapes:
            raise ShapeError(
                f"attend: {name} has shape {tuple(tensor.shape)}; it must be {' or '.join(map(str, shapes))}."
            )
        tensor = tensor.to(dtype=like.dtype, device=like.device)
        is_per_head = len(tensor.shape) > 1 or name == "length_exponent"
        found[name] = _grouped(tensor, 0, (kv_heads, groups))[:, :, None] if is_per_head else tensor
    if "length_exponent" in mechanism.normalizer.learned and found["length_exponent"] is None:
        raise ConfigError(
            f"attend: {mechanism.describe()} divides by a learned power of the length; length_exponent is missing.\n"
            f"  Give a tensor of shape ({heads},), one exponent per head, or use length without learned."
        )
    return NormalizerInputs(found["length_exponent"], found["norm_weight"], found["norm_bias"])


def _check_state(problem: Problem, state: State) -> None:
    mechanism = problem.mechanism
    if not isinstance(state, State):
        raise StateError(
            f"attend: state is a {type(state).__name__}.\n  Give what an earlier call returned, or State.empty."
        )
    if state.mechanism != mechanism:
        raise StateError(
            f"attend: the state belongs to {state.mechanism.describe()}, the call is for {mechanism.describe()}.\n"
            "  A state holds what its own mechanism needs; absorb the keys again for another one."
        )
    found, key, value = state.layout, problem.key, problem.value
    wanted = (*key.shape[:2], None if found[2] is None else key.shape[-1], value.shape[-1])
    if found != wanted:
        raise StateError(
            f"attend: the state is for [B, Hkv, K, V] = {found}, the call for {wanted}.\n"
            "  Use a state of the same batch, heads and widths."
        )
    if state.dtype != value.dtype or state.device != value.device:
        raise StateError(
            f"attend: the state is {state.dtype} on {state.device}, the call computes in {value.dtype} on "
            f"{value.device}.\n  Make the state in that dtype (float32 for half-precision inputs) and device."
        )
