"""What the laws run on: every member of the catalogue, texts beyond it, and seeded inputs.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from maclaurin.algebra import CATALOGUE, Features, Mechanism, Window, parse
from maclaurin.evaluate import methods

#: Compositions that no name stands for: clamps, options, maps, learned parts, gates and windows.
TEXTS = (
    "exp:clamp=1/sum",
    "exp:clamp=1/length:learned",
    "exp/none",
    "taylor:3:clamp=0.5/l2",
    "taylor:4:clamp=0.5@mean/sum",
    "taylor:3@mean/sum:signed",
    "taylor:2@mean/length",
    "taylor:0@mean/none",
    "taylor:0/sum",
    "poly:1,1,0.5/sum",
    "poly:0.25,0,0,-2/rms",
    "power:3/sum:signed",
    "power:3/layer",
    "power:2/none",
    "taylor:1/sum:signed:eps=0.01:clamp=0.5:detach",
    "taylor:2/sum:eps=0.5",
    "power:2/sum:clamp=3",
    "elu1>taylor:3/sum:detach",
    "elu1>exp:clamp=5/sum",
    "relu>power:3/sum",
    "cosine>exp/sum",
    "cosine>taylor:3@mean/l2",
    "cosine/layer:weight:bias",
    "features/sum",
    "features>taylor:2/length:learned",
    "expmap/sum",
    "taylor:2/l2:gain=64",
    "taylor:1/rms:weight",
    "taylor:2@mean/layer:bias",
    "exp/cumgate",
    "exp/l2+valuegate+decay+outgate:after",
    "exp:clamp=1/length:learned+decay",
    "exp/none+valuegate+outgate",
    "exp/cumgate+decay+outgate",
    "elu1/cumgate+valuegate",
    "cosine>exp/sum+decay",
    "taylor:2/sum+decay",
    "taylor:2@mean/sum+decay",
    "taylor:3@mean/length+valuegate+decay",
    "taylor:4:clamp=0.5@mean/sum+decay",
    "taylor:1/sum:signed+decay",
    "power:1/l2+decay+outgate:after",
    "power:2/cumgate+decay",
    "taylor:2/layer:weight:bias+outgate",
    "features/length:learned+valuegate+decay",
    "exp/sum+window:3",
    "exp/rms:weight+decay+window:4:2",
    "exp/cumgate+decay+window:3:1",
    "cosine>exp/length+window:3:1",
    "taylor:2/sum+window:3:2",
    "taylor:4@mean/sum+decay+window:4:2",
    "taylor:2@mean/length+window:1",
    "taylor:3/sum:signed+window:3",
    "taylor:0/none+decay+window:2:1",
    "elu1/sum+window:3:1",
    "power:2/sum+decay+window:4",
    "power:1/l2+valuegate+window:3:1",
    "elu1>taylor:2/cumgate+decay+outgate+window:3:1",
    "features/length:learned+window:64:4",
)


def named(mechanisms: Iterable[tuple[str, Mechanism]]) -> list[object]:
    """Parameters whose ids are the names."""
    return [pytest.param(mechanism, id=name) for name, mechanism in mechanisms]


#: A new member is under the laws by standing in the catalogue.
MEMBERS = [(name, recipe.mechanism) for name, recipe in CATALOGUE.items()]
BEYOND = [(text, parse(text)) for text in TEXTS]
EVERY = MEMBERS + BEYOND


def members(only: Callable[[Mechanism], bool] = lambda mechanism: True) -> list[object]:
    """The catalogue's members that satisfy ``only``."""
    return named((name, mechanism) for name, mechanism in MEMBERS if only(mechanism))


def every(only: Callable[[Mechanism], bool] = lambda mechanism: True) -> list[object]:
    """The catalogue and the texts beyond it that satisfy ``only``."""
    return named((name, mechanism) for name, mechanism in EVERY if only(mechanism))


def directions(mechanism: Mechanism) -> list[bool]:
    """The values of ``is_causal`` that are legal: decay and windows need a direction of time."""
    return [True] if mechanism.gates.decay or mechanism.window is not None else [True, False]


def in_directions(parameters: Iterable[object]) -> list[object]:
    """Each parameter in its legal directions, as ``(mechanism, is_causal)``."""
    return [
        pytest.param(each.values[0], is_causal, id=f"{each.id}-{'causal' if is_causal else 'bidirectional'}")
        for each in parameters
        for is_causal in directions(each.values[0])
    ]


def serving(mechanism: Mechanism) -> list[str]:
    """The methods that serve a mechanism."""
    return [name for name, refusal in methods(mechanism).items() if refusal is None]


def by(method: str, chunk_size: int = 5) -> dict[str, str | int]:
    """Keywords of a call by one method; where there are chunks, of a size that divides no length used here."""
    return {"method": method, "chunk_size": chunk_size} if method in ("chunked", "fused") else {"method": method}


def pair_masked(mechanism: Mechanism) -> list[str]:
    """Of those, the methods that take a mask per pair of query and key: no state does, no one number per key does."""
    able = ["parallel"] if mechanism.gates.decay else ["parallel", "fused"]
    return [name for name in serving(mechanism) if name in able]


def compact(mechanism: Mechanism) -> Mechanism:
    """The mechanism with a window of a few keys, for calls of a few tokens."""
    window = mechanism.window
    return mechanism if window is None or window.num_slots <= 5 else replace(mechanism, window=Window(3, 2))


def is_signed_sum(mechanism: Mechanism) -> bool:
    """Whether the output divides by a denominator that may vanish: a sum of weights of both signs."""
    return mechanism.normalizer.uses_denominator and mechanism.positivity == "signed"


#: Operands with the time of the keys (dimension 2 of ``[B, Hkv, S]``), and with that of the queries.
KEY_TIME = ("log_decay", "value_gate", "denominator_logit")
QUERY_TIME = ("output_gate",)


@dataclass(frozen=True)
class Inputs:
    """One call's tensors.

    Args:
        query: ``[B, H, T, K]``.
        key: ``[B, Hkv, S, K]``.
        value: ``[B, Hkv, S, V]``.
        operands: every other tensor that a mechanism may read, by its keyword.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    operands: dict[str, Tensor]

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def tensors(self) -> tuple[Tensor, ...]:
        return (*self.qkv, *self.operands.values())

    def map(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same call with every tensor changed."""
        q, k, v = (change(each) for each in self.qkv)
        return Inputs(q, k, v, {name: change(each) for name, each in self.operands.items()})

    def leaves(self) -> Inputs:
        """The same call on fresh leaves that require gradients."""
        return self.map(lambda each: each.detach().clone().requires_grad_())

    def along(self, queries: Callable[[Tensor], Tensor], keys: Callable[[Tensor], Tensor]) -> Inputs:
        """The same call with everything on the queries' time changed, and everything on the keys' time.

        Both functions take tensors ``[B, heads, time, ...]``; what stands on no time is left alone.
        """
        change = {**dict.fromkeys(QUERY_TIME, queries), **dict.fromkeys(KEY_TIME, keys)}
        operands = {name: change[name](each) if name in change else each for name, each in self.operands.items()}
        return Inputs(queries(self.query), keys(self.key), keys(self.value), operands)

    def part(self, queries: slice, keys: slice) -> Inputs:
        """The call on a stretch of queries and one of keys."""
        return self.along(lambda each: each[:, :, queries], lambda each: each[:, :, keys])

    def row(self, batch: int, tokens: Tensor) -> Inputs:
        """The call of one batch row on the tokens that a bool ``[T]`` says, T = S."""
        return self.along(*[lambda each: each[batch : batch + 1, :, tokens]] * 2)

    def of(self, mechanism: Mechanism) -> Inputs:
        """The call as ``mechanism`` takes it: only the operands it reads, and features that are not negative."""
        operands = {name: self.operands[name] for name in mechanism.operands}
        if isinstance(mechanism.similarity.map, Features):
            return replace(self, query=self.query.abs(), key=self.key.abs(), operands=operands)
        return replace(self, operands=operands)

    def without_reset(self) -> Inputs:
        """The same call with a finite log decay everywhere, for what takes differences."""
        if "log_decay" not in self.operands:
            return self
        return replace(self, operands={**self.operands, "log_decay": self.operands["log_decay"].clamp(min=-3.0)})


def draw(
    seed: int,
    *,
    batch: int = 2,
    heads: int = 6,
    kv_heads: int = 3,
    queries: int = 37,
    keys: int | None = None,
    key_dim: int = 5,
    value_dim: int = 7,
    dtype: torch.dtype = torch.float64,
) -> Inputs:
    """Standard normal query, key and value, and every operand that any mechanism reads. T is prime.

    Log decays are moderate, with an exact reset in the middle of the first batch row's last head, which no other has.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    keys = queries if keys is None else keys
    query, key, value = (
        normal(batch, heads, queries, key_dim),
        normal(batch, kv_heads, keys, key_dim),
        normal(batch, kv_heads, keys, value_dim),
    )
    operands = {
        "length_exponent": normal(heads).sigmoid(),
        "norm_weight": 1.0 + 0.5 * normal(heads, value_dim),
        "norm_bias": normal(value_dim),
        "log_decay": torch.nn.functional.logsigmoid(normal(batch, kv_heads, keys) + 2.0),
        "value_gate": normal(batch, kv_heads, keys).sigmoid(),
        "output_gate": 0.5 + normal(batch, heads, queries, value_dim).sigmoid(),
        "denominator_logit": normal(batch, kv_heads, keys),
        "far_log_weight": 0.5 * normal(heads),
    }
    if keys >= 3:
        operands["log_decay"][:1, -1, keys // 2] = -math.inf
    return Inputs(query, key, value, operands).map(lambda each: each.to(dtype))


def like(tensor: Tensor, seed: int) -> Tensor:
    """A standard normal tensor of the same shape and dtype, for instance a cotangent."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
