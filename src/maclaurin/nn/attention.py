"""One attention layer for every mechanism of the family."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from maclaurin.algebra import Features, Mechanism, Recipe, recipe
from maclaurin.errors import ConfigError, DtypeError, MaskError, ShapeError, StateError
from maclaurin.evaluate import State, attend
from maclaurin.nn.convolution import ShortConvolution
from maclaurin.nn.gates import GATES, HeadShape
from maclaurin.nn.rotary import rotate


@dataclass(frozen=True, eq=False)
class LayerState:
    """What a layer needs to go on after the tokens it has seen.

    Args:
        attention: the mechanism's state.
        convolution: last inputs of the short convolution, or None without one.
        position: int64 ``[B]``, number of tokens seen that were not padding, for rotary positions.
    """

    attention: State
    convolution: Tensor | None
    position: Tensor


class AttentionLayer(nn.Module):
    """Projections, optional short convolution, positions, mechanism with what it learns, output projection.

    Args:
        recipe: a :class:`Recipe`, a catalogue name or the text of a mechanism.
        model_dim: width D of the input and output.
        num_heads: query heads H.
        num_kv_heads: key/value heads, a divisor of H; None: H.
        key_dim: query and key width per head K; None: D / H.
        value_dim: value width per head V; None: D / H.
        method: evaluation method, see :func:`maclaurin.attend`.

    Raises:
        ConfigError: head counts that do not divide, an odd ``key_dim`` with rotary positions, rotary positions in
            front of a map that promises non-negative inputs, or a decay that has no such name.

    Shape: ``[B, T, D] -> [B, T, D]``.

    Example:
        >>> layer = AttentionLayer("taylor-2", model_dim=32, num_heads=2, key_dim=8)
        >>> layer(torch.zeros(1, 5, 32))[0].shape
        torch.Size([1, 5, 32])
    """

    def __init__(
        self,
        recipe: Recipe | str,
        *,
        model_dim: int,
        num_heads: int,
        num_kv_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        method: str = "auto",
    ) -> None:
        super().__init__()
        self.recipe = as_recipe(recipe)
        self.num_heads, self.num_kv_heads = num_heads, num_heads if num_kv_heads is None else num_kv_heads
        _check_heads(model_dim, num_heads, self.num_kv_heads, divide=key_dim is None or value_dim is None)
        self.key_dim = model_dim // num_heads if key_dim is None else key_dim
        self.value_dim = model_dim // num_heads if value_dim is None else value_dim
        self.method = method
        for name in ("key_dim", "value_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"AttentionLayer: {name}={getattr(self, name)} must be at least 1.")
        _check_rotary(self.recipe, self.key_dim)
        self.widths = (num_heads * self.key_dim, self.num_kv_heads * self.key_dim, self.num_kv_heads * self.value_dim)
        self.projection = nn.Linear(model_dim, sum(self.widths), bias=False)  # query, key and value in one product
        self.output = nn.Linear(num_heads * self.value_dim, model_dim, bias=False)
        taps = self.recipe.layer.convolution
        self.convolution = ShortConvolution(sum(self.widths), taps) if taps else None
        shape = HeadShape(model_dim, num_heads, self.num_kv_heads, self.value_dim)
        read = self.mechanism.operands
        # after the projections: a layer without gates draws the same weights as if there were none to have
        self.gates = nn.ModuleDict({name: GATES[name](shape, self.recipe.layer) for name in read if name in GATES})
        # sigmoid(0.5) = 0.622 is where cosine attention's exponent starts (Mongaras et al., arXiv 2409.18747)
        self.length_logit = nn.Parameter(torch.full((num_heads,), 0.5)) if "length_exponent" in read else None
        self.norm_weight = nn.Parameter(torch.ones(self.value_dim)) if "norm_weight" in read else None
        self.norm_bias = nn.Parameter(torch.zeros(self.value_dim)) if "norm_bias" in read else None
        self.far_log_weight = nn.Parameter(torch.zeros(num_heads)) if "far_log_weight" in read else None

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the recipe."""
        return self.recipe.mechanism

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask: Tensor | None = None,
        state: LayerState | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, LayerState | None]:
        """Causal attention over ``x_BTD``, after what ``state`` has seen.

        Args:
            x_BTD: ``[B, T, D]``.
            mask: bool ``[B, T]``, False on padding, which then reaches no other position.
            state: what an earlier call returned.
            return_state: also return the state after these tokens.

        Raises:
            ShapeError: another width than ``model_dim``.
            DtypeError: another dtype than the weights'.
            MaskError: a mask that is not bool ``[B, T]``.
            StateError: a state of another batch, or of a layer with another convolution.
        """
        self._check_inputs(x_BTD, mask, state)
        if mask is not None:
            x_BTD = x_BTD.masked_fill(~mask[..., None], 0.0)
        flat = self.projection(x_BTD)
        past = None
        if self.convolution is not None:
            flat, past = self.convolution(flat, None if state is None else state.convolution, mask)
        query, key, value = (
            each.unflatten(-1, (heads, -1)).transpose(1, 2)
            for each, heads in zip(
                flat.split(self.widths, dim=-1), (self.num_heads, self.num_kv_heads, self.num_kv_heads), strict=True
            )
        )
        position, seen = _positions(x_BTD, mask, state)
        if self.recipe.layer.rotary:
            query, key = (rotate(each, position=position) for each in (query, key))
        result = attend(
            self.mechanism,
            query,
            key,
            value,
            method=self.method,
            mask=mask,
            length_exponent=None if self.length_logit is None else torch.sigmoid(self.length_logit),
            norm_weight=self.norm_weight,
            norm_bias=self.norm_bias,
            far_log_weight=self.far_log_weight,
            **{name: gate(x_BTD) for name, gate in self.gates.items()},
            state=None if state is None else state.attention,
            return_state=return_state,
        )
        out = self.output(result.output.transpose(1, 2).flatten(2))
        if result.state is None:
            return out, None
        return out, LayerState(result.state, past, seen)

    def _check_inputs(self, x_BTD: Tensor, mask: Tensor | None, state: LayerState | None) -> None:
        width, dtype = self.projection.in_features, self.projection.weight.dtype
        if x_BTD.ndim != 3 or x_BTD.shape[-1] != width:
            raise ShapeError(f"AttentionLayer: the input has shape {tuple(x_BTD.shape)}, not [B, T, {width}].")
        if x_BTD.dtype != dtype and not torch.is_autocast_enabled(x_BTD.device.type):
            raise DtypeError(
                f"AttentionLayer: the input is {x_BTD.dtype}, the weights are {dtype}. Convert one of them."
            )
        batch, length = x_BTD.shape[:2]
        if mask is not None and (mask.dtype != torch.bool or tuple(mask.shape) != (batch, length)):
            raise MaskError(
                f"AttentionLayer: the mask is {mask.dtype} {tuple(mask.shape)}.\n"
                f"  Give bool [B, T] = {(batch, length)}, False on padding."
            )
        if state is None:
            return
        taps = None if self.convolution is None else (batch, self.convolution.width - 1, sum(self.widths))
        found = None if state.convolution is None else tuple(state.convolution.shape)
        if len(state.position) != batch or found != taps:
            raise StateError(
                f"AttentionLayer: the state is of {len(state.position)} sequences with convolution inputs {found}, the "
                f"call of {batch} with {taps}.\n  Continue with what this layer returned for the same sequences."
            )


def _positions(x_BTD: Tensor, mask: Tensor | None, state: LayerState | None) -> tuple[Tensor, Tensor]:
    """(position of every token ``[B, T]``, number of tokens seen after them ``[B]``); padding does not count."""
    counted = x_BTD.new_ones(x_BTD.shape[:2], dtype=torch.int64) if mask is None else mask.to(torch.int64)
    before = counted.new_zeros(len(counted)) if state is None else state.position
    return (before[:, None] + counted.cumsum(-1) - 1).clamp(min=0), before + counted.sum(-1)


def as_recipe(value: Recipe | str) -> Recipe:
    """A recipe given as itself, or as a catalogue name or text."""
    if isinstance(value, Recipe):
        return value
    if isinstance(value, str):
        return recipe(value)
    raise ConfigError(
        f"{value!r} was given as a recipe.\n  Give a Recipe, a catalogue name, or a mechanism's text such as exp/sum."
    )


def _check_heads(model_dim: int, num_heads: int, num_kv_heads: int, *, divide: bool) -> None:
    if min(model_dim, num_heads, num_kv_heads) < 1 or num_heads % num_kv_heads or (divide and model_dim % num_heads):
        raise ConfigError(
            f"AttentionLayer: model_dim={model_dim}, num_heads={num_heads}, num_kv_heads={num_kv_heads}.\n"
            "  num_kv_heads must divide num_heads, and num_heads must divide model_dim unless key_dim and value_dim "
            "are both given."
        )


def _check_rotary(recipe: Recipe, key_dim: int) -> None:
    if not recipe.layer.rotary:
        return
    if key_dim % 2:
        raise ConfigError(
            f"AttentionLayer: rotary positions rotate pairs, and key_dim={key_dim} is odd.\n"
            "  Use an even key_dim, or a recipe without positions: recipe.with_layer(rotary=False)."
        )
    if isinstance(recipe.mechanism.similarity.map, Features):
        raise ConfigError(
            "AttentionLayer: rotary positions make features negative, and the map 'features' promises they are not.\n"
            "  Use recipe.with_layer(rotary=False)."
        )


def initialize(module: nn.Module, *, generator: torch.Generator, init_std: float | None = None) -> None:
    """Draw every weight of ``module`` from ``generator``.

    Linear and convolution weights are uniform in +-1/sqrt(fan_in) (biases too), embeddings normal(0, 0.02). With
    ``init_std`` all of them are normal(0, init_std) and biases zero, as the papers' configurations have it. What has a
    start of its own keeps it: norms, the exponent of a length, the weight beyond a window, the bias of a decay.
    """
    for each in module.modules():
        if isinstance(each, nn.Embedding):
            nn.init.normal_(each.weight, std=0.02 if init_std is None else init_std, generator=generator)
        elif isinstance(each, (nn.Linear, ShortConvolution)):
            fan_in = each.width if isinstance(each, ShortConvolution) else each.in_features
            bound = 1.0 / math.sqrt(fan_in)
            for parameter in (each.weight, each.bias):
                if parameter is None:
                    continue
                if init_std is None:
                    nn.init.uniform_(parameter, -bound, bound, generator=generator)
                elif parameter is each.bias:
                    nn.init.zeros_(parameter)
                else:
                    nn.init.normal_(parameter, std=init_std, generator=generator)
