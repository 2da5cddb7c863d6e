"""What a layer learns for the gates of its mechanism: small modules, each from the layer's input to one tensor keyword.

Dimension key: B batch, T time, D model dim, H query heads, Hkv key/value heads, V value dim.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.algebra import LayerOptions
from maclaurin.errors import ConfigError, nearest

#: Tokens after which a key's weight has fallen to about 1/e when training starts: from the least to the most.
MEMORY_TOKENS = (10.0, 1000.0)


@dataclass(frozen=True)
class HeadShape:
    """The sizes of a layer that its gates need.

    Args:
        model_dim: D.
        num_heads: H.
        num_kv_heads: Hkv.
        value_dim: V.
    """

    model_dim: int
    num_heads: int
    num_kv_heads: int
    value_dim: int


class ValueGate(nn.Module):
    """i = sigmoid(x W + b), one number per key/value head: ``[B, T, D] -> [B, Hkv, T]``."""

    def __init__(self, shape: HeadShape, options: LayerOptions) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.model_dim, shape.num_kv_heads)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x_BTD)).transpose(1, 2)


class OutputGate(nn.Module):
    """g = sigmoid(x W + b), one number per head, or per channel with the option ``vector_gate``.

    ``[B, T, D] -> [B, H, T]`` or ``[B, H, T, V]``.
    """

    def __init__(self, shape: HeadShape, options: LayerOptions) -> None:
        super().__init__()
        self.widths = (shape.num_heads, shape.value_dim) if options.vector_gate else (shape.num_heads,)
        self.linear = nn.Linear(shape.model_dim, shape.num_heads * (shape.value_dim if options.vector_gate else 1))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.sigmoid(self.linear(x_BTD)).unflatten(-1, self.widths).transpose(1, 2)


class DenominatorLogit(nn.Module):
    """u = x W + b, the log of what a key adds to the denominator of ``cumgate``: ``[B, T, D] -> [B, Hkv, T]``."""

    def __init__(self, shape: HeadShape, options: LayerOptions) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.model_dim, shape.num_kv_heads)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.linear(x_BTD).transpose(1, 2)


class LogSigmoidDecay(nn.Module):
    r"""Learned log decay a = log sigmoid(x W + b) per key/value head: ``[B, T, D] -> [B, Hkv, T]``.

    The bias starts where heads forget slowly and differently, their memories spread geometrically over
    ``MEMORY_TOKENS``. A bias of zero would start every head at exp(a) = 1/2, which sees a handful of keys: the gradient
    of the rest, and with it the reason to keep them, is then too small to be learned from.

    Source: Lin et al., arXiv 2503.02130.
    """

    def __init__(self, shape: HeadShape, options: LayerOptions) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.model_dim, shape.num_kv_heads, bias=False)
        self.bias = nn.Parameter(slow_logit(shape.num_kv_heads))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.logsigmoid(self.linear(x_BTD) + self.bias).transpose(1, 2)


class MinusSoftplusDecay(nn.Module):
    r"""Learned log decay a = -softplus(x W + b): :class:`LogSigmoidDecay` with the signs of W and b turned.

    Source: 2Mamba, arXiv 2602.17363.
    """

    def __init__(self, shape: HeadShape, options: LayerOptions) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.model_dim, shape.num_kv_heads, bias=False)
        self.bias = nn.Parameter(-slow_logit(shape.num_kv_heads))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.logsigmoid(-(self.linear(x_BTD) + self.bias)).transpose(1, 2)  # -softplus(z) = log sigmoid(-z)


class FixedDecay(nn.Module):
    r"""Log decay a = log(1 - 2^(-5-h)) of key/value head h = 0, 1, ..., not learned: ``[B, T, D] -> [B, Hkv, T]``.

    Source: retention (Sun et al., arXiv 2307.08621).
    """

    log_decay: Tensor

    def __init__(self, shape: HeadShape, options: LayerOptions) -> None:
        super().__init__()
        head = torch.arange(shape.num_kv_heads, dtype=torch.float64)
        self.register_buffer("log_decay", torch.log1p(-torch.exp2(-5.0 - head)).to(torch.get_default_dtype()))

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.log_decay[:, None].expand(x_BTD.shape[0], -1, x_BTD.shape[1])


#: Ways to make log decays, by the layer option ``decay``.
DECAYS: dict[str, Callable[[HeadShape, LayerOptions], nn.Module]] = {
    "log_sigmoid": LogSigmoidDecay,
    "minus_softplus": MinusSoftplusDecay,
    "fixed": FixedDecay,
}


def make_decay(shape: HeadShape, options: LayerOptions) -> nn.Module:
    """The module that makes log decays as ``options.decay`` says.

    Raises:
        ConfigError: a name that is not in ``DECAYS``.

    Example:
        >>> shape = HeadShape(model_dim=8, num_heads=2, num_kv_heads=2, value_dim=4)
        >>> make_decay(shape, LayerOptions(decay="fixed"))(torch.zeros(1, 1, 8)).exp()
        tensor([[[0.9688],
                 [0.9844]]])
    """
    if options.decay not in DECAYS:
        raise ConfigError(f"decay={options.decay!r} is no way to make log decays: {nearest(options.decay, DECAYS)}")
    return DECAYS[options.decay](shape, options)


#: Keyword of the evaluation -> what makes its tensor from the layer's input.
GATES: dict[str, Callable[[HeadShape, LayerOptions], nn.Module]] = {
    "value_gate": ValueGate,
    "log_decay": make_decay,
    "output_gate": OutputGate,
    "denominator_logit": DenominatorLogit,
}


def slow_logit(num_heads: int) -> Tensor:
    """Logit of exp(a) = 1 - 1/m per head, ``[H]``, the memories m at the middles of equal ratios of ``MEMORY_TOKENS``.

    Example:
        >>> torch.sigmoid(slow_logit(2))  # 32 and 316 tokens
        tensor([0.9684, 0.9968])
    """
    least, most = MEMORY_TOKENS
    share = (torch.arange(num_heads, dtype=torch.float64) + 0.5) / num_heads
    memory = least * (most / least) ** share
    return torch.log(memory - 1.0).to(torch.get_default_dtype())
