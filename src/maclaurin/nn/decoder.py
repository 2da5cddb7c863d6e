"""One decoder language model for every mechanism: Llama-2's shape with the attention of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maclaurin.algebra import Recipe
from maclaurin.errors import ConfigError, DtypeError, ShapeError, StateError
from maclaurin.nn.attention import AttentionLayer, LayerState, as_recipe, initialize


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a :class:`DecoderLM`.

    Args:
        recipe: the attention of every layer, or one per layer; recipes, catalogue names or texts.
        vocab_size: number of tokens.
        model_dim: width D.
        num_layers: number of blocks.
        num_heads: query heads per layer.
        num_kv_heads: key/value heads; None: ``num_heads``.
        key_dim: query and key width per head; None: D / heads.
        value_dim: value width per head; None: D / heads.
        mlp_dim: inner width of the SwiGLU; None: 8/3 D, rounded up to a multiple of 8.
        init_std: None: uniform in +-1/sqrt(fan_in), embeddings normal(0, 0.02); otherwise normal(0, init_std) for all.

    Raises:
        ConfigError: a size below 1, or as many recipes as there are not layers.
    """

    recipe: Recipe | str | tuple[Recipe | str, ...]
    vocab_size: int
    model_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None
    key_dim: int | None = None
    value_dim: int | None = None
    mlp_dim: int | None = None
    init_std: float | None = None

    def __post_init__(self) -> None:
        for name in ("vocab_size", "model_dim", "num_layers", "num_heads"):
            if getattr(self, name) < 1:
                raise ConfigError(f"DecoderConfig: {name}={getattr(self, name)} must be at least 1.")
        if (self.mlp_dim is not None and self.mlp_dim < 1) or (self.init_std is not None and not self.init_std > 0):
            raise ConfigError(
                f"DecoderConfig: mlp_dim={self.mlp_dim}, init_std={self.init_std}.\n"
                "  mlp_dim must be at least 1 and init_std above 0; leave them out for the defaults."
            )
        if isinstance(self.recipe, list):
            object.__setattr__(self, "recipe", tuple(self.recipe))
        if isinstance(self.recipe, tuple) and len(self.recipe) != self.num_layers:
            raise ConfigError(
                f"DecoderConfig: {len(self.recipe)} recipes for {self.num_layers} layers.\n"
                "  Give one recipe for all layers, or a tuple with one for each."
            )

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipe of each layer."""
        given = self.recipe if isinstance(self.recipe, tuple) else (self.recipe,) * self.num_layers
        return tuple(as_recipe(each) for each in given)


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer, arXiv 2002.05202)."""

    def __init__(self, model_dim: int, inner_dim: int) -> None:
        super().__init__()
        self.gate = nn.Linear(model_dim, inner_dim, bias=False)
        self.up = nn.Linear(model_dim, inner_dim, bias=False)
        self.down = nn.Linear(inner_dim, model_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: DecoderConfig, layer_recipe: Recipe) -> None:
        super().__init__()
        dim = config.model_dim
        self.attention_norm = nn.RMSNorm(dim, eps=1e-5)
        self.attention = AttentionLayer(
            layer_recipe,
            model_dim=dim,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            key_dim=config.key_dim,
            value_dim=config.value_dim,
        )
        self.mlp_norm = nn.RMSNorm(dim, eps=1e-5)
        self.mlp = SwiGLU(dim, -(-8 * dim // 3 // 8) * 8 if config.mlp_dim is None else config.mlp_dim)

    def forward(
        self, x: Tensor, *, mask: Tensor | None, state: LayerState | None, return_state: bool
    ) -> tuple[Tensor, LayerState | None]:
        attended, new_state = self.attention(self.attention_norm(x), mask=mask, state=state, return_state=return_state)
        x = x + attended
        return x + self.mlp(self.mlp_norm(x)), new_state


class DecoderLM(nn.Module):
    """Embedding, pre-norm blocks with SwiGLU, final RMSNorm, untied head.

    Args:
        config: the shape.
        seed: of the initial weights; the same seed gives the same weights whatever ran before.

    Shape: tokens int64 ``[B, T]`` -> logits ``[B, T, vocab_size]``.

    Example:
        >>> model = DecoderLM(DecoderConfig("softmax", vocab_size=16, model_dim=8, num_layers=1, num_heads=1))
        >>> model(torch.zeros(2, 5, dtype=torch.int64)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(self, config: DecoderConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with torch.random.fork_rng(devices=[]):  # modules draw weights as they are made; these are drawn again below
            self.embedding = nn.Embedding(config.vocab_size, config.model_dim)
            self.blocks = nn.ModuleList(Block(config, each) for each in config.recipes)
            self.norm = nn.RMSNorm(config.model_dim, eps=1e-5)
            self.head = nn.Linear(config.model_dim, config.vocab_size, bias=False)
        initialize(self, generator=torch.Generator().manual_seed(seed), init_std=config.init_std)

    @property
    def num_parameters(self) -> int:
        """Trainable numbers."""
        return sum(each.numel() for each in self.parameters())

    def forward(self, tokens_BT: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Logits of the next token at every position; ``mask`` is bool ``[B, T]``, False on padding."""
        return self.head(self.encode(tokens_BT, mask=mask)[0])

    def encode(
        self,
        tokens_BT: Tensor,
        *,
        states: tuple[LayerState, ...] | None = None,
        mask: Tensor | None = None,
        return_state: bool = False,
    ) -> tuple[Tensor, tuple[LayerState, ...] | None]:
        """What the head reads, ``[B, T, D]``, after what ``states`` have seen; and the states after it.

        ``model.head`` of any selection of positions gives their logits, which saves the others' where a task scores
        few positions.

        Raises:
            ShapeError: tokens that are not ``[B, T]``.
            DtypeError: tokens that are not integers.
            StateError: another number of states than layers.
        """
        if tokens_BT.ndim != 2:
            raise ShapeError(f"DecoderLM: tokens have shape {tuple(tokens_BT.shape)}; they must be [B, T].")
        if tokens_BT.dtype not in (torch.int64, torch.int32):
            raise DtypeError(
                f"DecoderLM: tokens are {tokens_BT.dtype}; they must be int64 ids below the vocabulary size."
            )
        if states is not None and len(states) != len(self.blocks):
            raise StateError(
                f"DecoderLM: {len(states)} states were given for {len(self.blocks)} layers; give one for each."
            )
        x = self.embedding(tokens_BT)
        new_states: list[LayerState] = []
        for index, block in enumerate(self.blocks):
            x, new_state = block(
                x, mask=mask, state=None if states is None else states[index], return_state=return_state
            )
            if new_state is not None:
                new_states.append(new_state)
        return self.norm(x), tuple(new_states) if return_state else None

    @torch.no_grad()
    def generate(
        self,
        tokens_BT: Tensor,
        num_tokens: int,
        *,
        temperature: float = 0.0,
        generator: torch.Generator | None = None,
        use_state: bool = True,
    ) -> Tensor:
        """Continue ``tokens_BT`` by ``num_tokens``.

        Args:
            tokens_BT: the prompt ``[B, T]``, T >= 1.
            num_tokens: how many to add.
            temperature: 0 takes the likeliest token; otherwise one is drawn from softmax(logits / temperature).
            generator: of the draws; required with a temperature.
            use_state: carry the layers' states, otherwise recompute everything for each token. Same tokens.

        Returns:
            ``[B, T + num_tokens]``.

        Raises:
            ConfigError: an empty prompt, a negative temperature, or a temperature without a generator.
            MethodError: ``use_state`` with a mechanism whose state cannot serve (use ``use_state=False``).
        """
        if tokens_BT.shape[-1] < 1 or not temperature >= 0 or (temperature > 0 and generator is None):
            raise ConfigError(
                f"generate: prompt length {tokens_BT.shape[-1]}, temperature {temperature:g}, generator {generator}.\n"
                "  The prompt needs a token, the temperature must be >= 0, and drawing needs an explicit generator."
            )
        states: tuple[LayerState, ...] | None = None
        fresh = tokens_BT
        for _ in range(num_tokens):
            encoded, states = self.encode(fresh, states=states, return_state=use_state)
            chosen = _choose(self.head(encoded[:, -1]), temperature, generator)
            tokens_BT = torch.cat([tokens_BT, chosen], dim=1)
            fresh = chosen if use_state else tokens_BT
        return tokens_BT


def _choose(logits_BV: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return logits_BV.argmax(-1, keepdim=True)
    return torch.multinomial(torch.softmax(logits_BV / temperature, dim=-1), 1, generator=generator)
