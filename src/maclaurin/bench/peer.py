"""Implementations by others, where they are installed, each beside the mechanism that it claims to be."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra import Mechanism, mechanism
from maclaurin.bench.subject import Dims, Inputs, Subject

_CHUNK = 64


@dataclass(frozen=True)
class Peer:
    """A function of another package.

    Args:
        name: in tables.
        package: what to install.
        module: where the function is.
        function: its name there.
        claims: the mechanism it should equal.
        call: from that function and inputs to the output.
        held: as for :class:`Subject`.
        multiple: as for :class:`Subject`.
    """

    name: str
    package: str
    module: str
    function: str
    claims: str
    call: Callable[[Callable[..., Any], Inputs], Tensor]
    held: Callable[[Dims], int]
    multiple: int = 1


def subjects_of(members: Iterable[Mechanism], peers: Iterable[Peer] | None = None) -> tuple[list[Subject], list[Peer]]:
    """Peers of these mechanisms: the subjects that can be called, and all peers that were looked at."""
    wanted = list(members)
    looked_at = [each for each in (PEERS if peers is None else peers) if mechanism(each.claims) in wanted]
    found = []
    for each in looked_at:
        function = _function(each)
        if callable(function):
            found.append(_subject(each, function))
    return found, looked_at


def absent(peers: Iterable[Peer]) -> dict[str, str]:
    """Why each of those that cannot be imported cannot."""
    return {each.name: reason for each in peers if isinstance(reason := _function(each), str)}


def _subject(peer: Peer, function: Callable[..., Any]) -> Subject:
    def forward(inputs: Inputs) -> Tensor:
        return peer.call(function, inputs)

    return Subject(peer.name, mechanism(peer.claims), forward, None, peer.held, peer.multiple)


def _function(peer: Peer) -> Callable[..., Any] | str:
    """The function, or why it cannot be had; some packages warn on import that there is no GPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(peer.module), peer.function)
        except ModuleNotFoundError as error:
            return f"{error.name} is not installed: pip install {peer.package}"
        except Exception as error:  # a package's own fault while it is imported
            text = str(error) or "no message"
            return f"importing {peer.module} raised {type(error).__name__}: {text.splitlines()[0]}"
    return found


def _swapped(inputs: Inputs) -> tuple[Tensor, ...]:
    return tuple(each.transpose(1, 2) for each in inputs.all)


def _fla_linear(function: Callable[..., Any], inputs: Inputs) -> Tensor:
    """The numerator is the package's, the feature map and the denominator are torch's."""
    query, key, value = _swapped(inputs)
    query, key = F.elu(query) + 1, F.elu(key) + 1
    out = function(query, key, value, scale=1.0)
    out = out[0] if isinstance(out, tuple) else out
    output: Tensor = (out / (query * key.cumsum(1)).sum(-1, keepdim=True)).transpose(1, 2)
    return output


def _fla_based(function: Callable[..., Any], inputs: Inputs) -> Tensor:
    return function(*inputs.all)  # type: ignore[no-any-return]


def _taylor_series(expand: Callable[..., Tensor], inputs: Inputs) -> Tensor:
    """The features are the package's; its causal product needs a compiled kernel, so chunks in torch stand for it."""
    query, key, value = inputs.all
    query, key = expand(query * query.shape[-1] ** -0.5), expand(key)
    numerator = _causal_product(query, key, value)
    return numerator / (query * key.cumsum(2)).sum(-1, keepdim=True)


def _causal_product(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    parts, state = [], None
    for q, k, v in zip(*(torch.split(each, _CHUNK, 2) for each in (query, key, value)), strict=True):
        within = (q @ k.transpose(-1, -2)).tril() @ v
        parts.append(within if state is None else within + q @ state)
        update = k.transpose(-1, -2) @ v
        state = update if state is None else state + update
    return torch.cat(parts, 2)


def _flex(causal: Callable[..., Any], inputs: Inputs) -> Tensor:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    length = inputs.query.shape[2]
    blocks = create_block_mask(causal, None, None, length, length, device=inputs.query.device.type)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that it was not compiled: so it is compared
        output = flex_attention(*inputs.all, block_mask=blocks)
    assert isinstance(output, Tensor)
    return output


def _quadratic(shape: Dims) -> int:
    return 4 * shape.pairs + 4 * shape.numbers


def _features(shape: Dims) -> int:
    return 2 * shape.numbers * (shape.head_size + 2) + 4 * shape.numbers


def _based_chunks(shape: Dims) -> int:
    return 3 * shape.numbers * shape.head_size + shape.pairs // max(shape.length // 256, 1)


PEERS = (
    Peer(
        "fla naive chunk",
        "fla-core",
        "fla.ops.linear_attn.naive",
        "naive_chunk_linear_attn",
        "elu1/sum",
        _fla_linear,
        lambda shape: 12 * shape.numbers,
        _CHUNK,
    ),
    Peer(
        "fla naive recurrent",
        "fla-core",
        "fla.ops.linear_attn.naive",
        "naive_recurrent_linear_attn",
        "elu1/sum",
        _fla_linear,
        lambda shape: 12 * shape.numbers,
    ),
    Peer(
        "fla based parallel",
        "fla-core",
        "fla.ops.based.naive",
        "naive_parallel_based",
        "taylor:2/sum",
        _fla_based,
        _quadratic,
    ),
    Peer(
        "fla based chunk",
        "fla-core",
        "fla.ops.based.naive",
        "naive_chunk_based",
        "taylor:2/sum",
        _fla_based,
        _based_chunks,
        256,
    ),
    Peer(
        "taylor-series-linear",
        "taylor-series-linear-attention",
        "taylor_series_linear_attention.attention",
        "second_taylor_expansion",
        "taylor:2/sum",
        _taylor_series,
        _features,
    ),
    Peer("attn-gym flex", "attn-gym", "attn_gym.masks", "causal_mask", "exp/sum", _flex, _quadratic),
)
