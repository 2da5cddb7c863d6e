"""What a call may be: every check that ``attend`` makes of its arguments, before any work.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from maclaurin.algebra import Mechanism
from maclaurin.errors import ConfigError, DtypeError, MaskError, MechanismError, ShapeError, StateError
from maclaurin.evaluate.state import State


class Sizes(NamedTuple):
    """Of one call."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    value_dim: int

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor) -> Sizes:
        """From query ``[B, H, T, K]``, key ``[B, Hkv, S, K]`` and value ``[B, Hkv, S, V]``."""
        return cls(query.shape[0], query.shape[1], key.shape[1], query.shape[2], key.shape[2], value.shape[3])


def check_shapes(query: Tensor, key: Tensor, value: Tensor) -> None:
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


def check_dtypes(query: Tensor, key: Tensor, value: Tensor) -> None:
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


def check_direction(mechanism: Mechanism, *, is_causal: bool) -> None:
    """Decay and windows are defined by what came before."""
    if is_causal or not (mechanism.gates.decay or mechanism.window is not None):
        return
    part = "decays" if mechanism.gates.decay else "has a window"
    raise ConfigError(
        f"attend: is_causal=False was asked of {mechanism.describe()}, which {part}: it needs a direction of time.\n"
        "  Use is_causal=True, or a mechanism without decay and window."
    )


def scales(mechanism: Mechanism, scale: float | None, key_dim: int) -> tuple[float, float]:
    """Scale of the near and of the far logits; each map has its own default."""
    if scale is None:
        near, far = (each or mechanism.similarity for each in (mechanism.near, mechanism.far))
        return near.map.default_scale(key_dim), far.map.default_scale(key_dim)
    scale = float(scale)
    if not math.isfinite(scale):
        raise ConfigError(
            f"attend: scale={scale} is not a finite number.\n  Leave it out for the default, or give one."
        )
    similarity, normalizer = mechanism.similarity, mechanism.normalizer
    cancels_sign = normalizer.cancels_sign and mechanism.window is None  # a window adds weights that keep their sign
    if normalizer.needs_nonnegative and not similarity.sign_survives(scale, cancels_sign=cancels_sign):
        raise MechanismError(
            f"attend: scale={scale:g} was asked of {mechanism.describe()}, whose weights are non-negative only at a "
            "scale >= 0.\n  Use a scale >= 0, sum:signed, or a normalizer without denominator."
        )
    return scale, scale


class _Operand(NamedTuple):
    """What a tensor keyword must look like.

    Args:
        shapes: legal shapes as words of ``Sizes``.
        role: what it is.
        readers: parts of a mechanism that read it.
        is_optional: whether leaving it out means ones or zeros.
    """

    shapes: tuple[tuple[str, ...], ...]
    role: str
    readers: str
    is_optional: bool = False


_PER_KEY = (("batch", "kv_heads", "keys"),)
_PER_QUERY = (("batch", "heads", "queries"), ("batch", "heads", "queries", "value_dim"))
_PER_CHANNEL = (("value_dim",), ("heads", "value_dim"))

_OPERANDS = {
    "value_gate": _Operand(_PER_KEY, "a factor of every value", "+valuegate"),
    "log_decay": _Operand(_PER_KEY, "the log decay of every key's time, <= 0", "+decay"),
    "output_gate": _Operand(_PER_QUERY, "a factor of every output", "+outgate, +outgate:after"),
    "denominator_logit": _Operand(_PER_KEY, "the log of what every key adds to the denominator", "cumgate"),
    "length_exponent": _Operand((("heads",),), "the power of the length", "length:learned"),
    "far_log_weight": _Operand(
        (("heads",),),
        "the log weight of keys beyond the window, without which they share no denominator with those inside",
        "+window:W:S after a similarity other than taylor:N",
    ),
    "norm_weight": _Operand(_PER_CHANNEL, "a factor of every channel", "rms:weight, layer:weight", is_optional=True),
    "norm_bias": _Operand(_PER_CHANNEL, "what is added to every channel", "layer:bias", is_optional=True),
}


def check_operands(mechanism: Mechanism, operands: Mapping[str, Tensor | None], sizes: Sizes, like: Tensor) -> None:
    """Every tensor that the mechanism reads is there, none that it does not, and each fits.

    Args:
        mechanism: says which are read.
        operands: by keyword, None where not given.
        sizes: of the call.
        like: the value, for the device.
    """
    for name, tensor in operands.items():
        spec = _OPERANDS[name]
        legal = [tuple(getattr(sizes, word) for word in shape) for shape in spec.shapes]
        shapes = " or ".join(map(str, legal))
        is_read = name in mechanism.operands
        if tensor is None:
            if is_read and not spec.is_optional:
                raise ConfigError(
                    f"attend: {mechanism.describe()} needs {name}, {spec.role}; it is missing.\n"
                    f"  Give a tensor of shape {shapes}."
                )
            continue
        if not is_read:
            raise ConfigError(
                f"attend: {name} was given to {mechanism.describe()}, which does not read it.\n"
                f"  Leave it out, or use a mechanism that has it: {spec.readers}."
            )
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
            kind = tensor.dtype if isinstance(tensor, Tensor) else type(tensor).__name__
            raise DtypeError(f"attend: {name} is {kind}.\n  Give a floating-point tensor of shape {shapes}.")
        if tuple(tensor.shape) not in legal:
            raise ShapeError(
                f"attend: {name}, {spec.role}, has shape {tuple(tensor.shape)}; it must be {shapes} "
                f"({' or '.join(str(list(shape)) for shape in spec.shapes)})."
            )
        if tensor.device != like.device:
            raise DtypeError(f"attend: {name} is on {tensor.device}, value on {like.device}.\n  Move it there.")


def check_log_decay(log_decay: Tensor) -> None:
    """No log decay is positive. Skipped while a graph is being compiled, which cannot branch on values."""
    if torch.compiler.is_compiling() or not bool((log_decay > 0).any()):
        return
    raise ConfigError(
        f"attend: log_decay reaches {float(log_decay.detach().max()):g}; weights would grow with time.\n"
        "  Give log decays <= 0, such as logsigmoid of a number or minus its softplus; -inf is a reset."
    )


def check_mask(mask: Tensor | None, query: Tensor, key: Tensor) -> tuple[Tensor | None, Tensor | None]:
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


def check_state(mechanism: Mechanism, state: State, key: Tensor, value: Tensor) -> None:
    """The state belongs to the mechanism and fits mapped keys ``[B, Hkv, S, K]`` and values."""
    if not isinstance(state, State):
        raise StateError(
            f"attend: state is a {type(state).__name__}.\n  Give what an earlier call returned, or State.empty."
        )
    if state.mechanism != mechanism:
        raise StateError(
            f"attend: the state belongs to {state.mechanism.describe()}, the call is for {mechanism.describe()}.\n"
            "  A state holds what its own mechanism needs; absorb the keys again for another one."
        )
    found = state.layout
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
