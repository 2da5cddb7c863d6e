"""What is compared: a name, what it claims to compute, and how to call it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra import Mechanism, mechanism
from maclaurin.errors import ConfigError
from maclaurin.evaluate import Shape, attend, methods, stepper
from maclaurin.evaluate.plan import choose

REFERENCE = "sdpa"


@dataclass(frozen=True)
class Dims:
    """Sizes of one call: ``[batch, heads, length, head_size]`` for query, key and value alike."""

    batch: int
    heads: int
    length: int
    head_size: int

    @property
    def numbers(self) -> int:
        """Of the query."""
        return self.batch * self.heads * self.length * self.head_size

    @property
    def pairs(self) -> int:
        """Of a query and a key, visible or not."""
        return self.batch * self.heads * self.length**2


@dataclass(frozen=True)
class Inputs:
    """Tensors of one call, each ``[batch, heads, length, head_size]``."""

    query: Tensor
    key: Tensor
    value: Tensor

    @staticmethod
    def random(shape: Dims, dtype: torch.dtype, device: str, seed: int = 0) -> Inputs:
        """Standard normal, the same for the same seed."""
        generator = torch.Generator().manual_seed(seed)
        sizes = (shape.batch, shape.heads, shape.length, shape.head_size)
        query, key, value = (torch.randn(sizes, generator=generator).to(device, dtype) for _ in range(3))
        return Inputs(query, key, value)

    @property
    def all(self) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value."""
        return self.query, self.key, self.value


Forward = Callable[[Inputs], Tensor]
Decode = Callable[[Inputs], Callable[[], Tensor]]


@dataclass(frozen=True)
class Subject:
    """One contestant.

    Args:
        name: in tables and figures.
        claims: the mechanism whose values it should give.
        forward: from inputs to the output ``[B, H, T, V]``.
        decode: from the inputs that were absorbed to a function that makes one step; None: it has no such form.
        held: numbers that a forward pass holds at once besides inputs and output, at most.
        multiple: lengths it takes are multiples of this.
    """

    name: str
    claims: Mechanism
    forward: Forward
    decode: Decode | None = None
    held: Callable[[Dims], int] = field(default=lambda shape: 4 * shape.numbers)
    multiple: int = 1


def ours(text: str, method: str) -> Subject:
    """A mechanism by one method of :func:`maclaurin.attend`; a decode step by :func:`maclaurin.stepper`.

    Raises:
        GrammarError: no such mechanism.
        ConfigError: the method cannot serve it.
    """
    member = mechanism(text)
    able = [name for name, reason in methods(member).items() if reason is None]
    if method != "auto" and method not in able:
        raise ConfigError(
            f"bench: --method {method} was asked for {text}, which it cannot serve.\n"
            f"  Methods that can: auto, {', '.join(able)}."
        )
    unknown = sorted({*member.operands} - {*_OPERANDS})
    if unknown:
        raise ConfigError(f"bench: {text} needs {', '.join(unknown)}, which bench does not make up.")
    label = text if method == "auto" else f"{text} ({method})"
    return Subject(label, member, partial(_attend, member, method), partial(_step, member), _held(member, method))


def sdpa() -> Subject:
    """Torch's own softmax attention; a step asks one query against a cache that was allocated before."""
    return Subject(REFERENCE, mechanism("exp/sum"), _sdpa, _sdpa_step)


def eager() -> Subject:
    """The quadratic form written out, as papers' code has it: exp(QK^T), masked, times V, over the row sums."""
    return Subject("eager", mechanism("exp/sum"), _eager, held=lambda shape: 3 * shape.pairs + 4 * shape.numbers)


def cumulative() -> Subject:
    """Linear attention as plain cumulative sums of outer products."""
    return Subject(
        "cumsum", mechanism("elu1/sum"), _cumulative, held=lambda shape: 2 * shape.numbers * (shape.head_size + 3)
    )


def _operand_shapes(inputs: Inputs) -> dict[str, Tensor]:
    batch, heads, length, _ = inputs.query.shape
    like = inputs.query
    rates = torch.log1p(-(2.0 ** (-5.0 - torch.arange(heads, dtype=torch.float32, device=like.device) % 8)))
    per_key = like.new_full((batch, heads, length), 0.5)
    return {
        "log_decay": rates.to(like.dtype)[None, :, None].expand(batch, heads, length).contiguous(),
        "value_gate": per_key,
        "output_gate": per_key,
        "denominator_logit": torch.zeros_like(per_key),
        "length_exponent": like.new_ones(heads),
        "far_log_weight": like.new_zeros(heads),
        "norm_weight": like.new_ones(like.shape[-1]),
        "norm_bias": like.new_zeros(like.shape[-1]),
    }


_OPERANDS = frozenset(_operand_shapes(Inputs(*[torch.zeros(1, 1, 1, 1)] * 3)))
_OF_TIME = frozenset({"log_decay", "value_gate", "output_gate", "denominator_logit"})


def operands_of(member: Mechanism, inputs: Inputs) -> dict[str, Any]:
    """The learned tensors that a mechanism reads, by keyword: fixed decay rates by head, gates of one half."""
    return {name: each for name, each in _operand_shapes(inputs).items() if name in member.operands}


def _attend(member: Mechanism, method: str, inputs: Inputs) -> Tensor:
    return attend(member, *inputs.all, method=method, **operands_of(member, inputs)).output


def _step(member: Mechanism, inputs: Inputs) -> Callable[[], Tensor]:
    able = [name for name, reason in methods(member).items() if reason is None and name in ("chunked", "fused")]
    operands = operands_of(member, inputs)
    with torch.no_grad():
        prefill = attend(member, *inputs.all, method=able[0] if able else "auto", return_state=True, **operands)
    assert prefill.state is not None
    learned = {name: each for name, each in operands.items() if name not in _OF_TIME}
    step = stepper(member, prefill.state, **learned)
    one = [each[:, :, -1:].contiguous() for each in inputs.all]
    now = {name: each[:, :, -1:] for name, each in operands.items() if name in _OF_TIME}
    return lambda: step(*one, **now)


def _held(member: Mechanism, method: str) -> Callable[[Dims], int]:
    def numbers(dims: Dims) -> int:
        sizes = Shape(queries=dims.length, key_dim=dims.head_size, batch=dims.batch, heads=dims.heads)
        chosen = choose(member, sizes).method if method == "auto" else method
        return 4 * (dims.pairs if chosen == "parallel" else 0) + 8 * dims.numbers

    return numbers


def _sdpa(inputs: Inputs) -> Tensor:
    query, key, value = inputs.all
    return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def _sdpa_step(inputs: Inputs) -> Callable[[], Tensor]:
    query = inputs.query[:, :, -1:].contiguous()
    last = inputs.key[:, :, -1:].contiguous(), inputs.value[:, :, -1:].contiguous()
    key, value = inputs.key.clone(), inputs.value.clone()

    @torch.no_grad()
    def step() -> Tensor:
        key[:, :, -1:], value[:, :, -1:] = last
        return F.scaled_dot_product_attention(query, key, value)

    return step


def _eager(inputs: Inputs) -> Tensor:
    query, key, value = inputs.all
    length = query.shape[-2]
    visible = torch.ones(length, length, dtype=torch.bool, device=query.device).tril()
    weights = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).exp() * visible
    out: Tensor = (weights @ value) / weights.sum(-1, keepdim=True)
    return out


def _cumulative(inputs: Inputs) -> Tensor:
    query, key = F.elu(inputs.query) + 1, F.elu(inputs.key) + 1
    states = (key.unsqueeze(-1) * inputs.value.unsqueeze(-2)).cumsum(2)
    out = (query.unsqueeze(-2) @ states).squeeze(-2)
    normalized: Tensor = out / (query * key.cumsum(2)).sum(-1, keepdim=True)
    return normalized
