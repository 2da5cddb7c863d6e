"""A call pair by pair through the blocks kernel: what it serves.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T time, K width of the mapped key.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from maclaurin.algebra import Mechanism, Similarity
from maclaurin.evaluate.call import Call
from maclaurin.evaluate.finish import grouped
from maclaurin.evaluate.kernels.blocks import Given, LogitsTooLarge, Plan, attend_in_blocks
from maclaurin.evaluate.kernels.tiles import Cut
from maclaurin.evaluate.operands import Keys, Queries
from maclaurin.evaluate.pairs import accumulate_pairs
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.shape import Shape

#: Pairs of a block, on a CPU: what its second cache holds.
_PAIRS = 1 << 19


def is_served(mechanism: Mechanism, shape: Shape) -> bool:
    """Whether the blocks kernel computes such calls, their logits permitting."""
    if mechanism.window is not None or mechanism.gates.decay or mechanism.normalizer.uses_log_denominator:
        return False
    if mechanism.similarity.clamp is not None or shape.has_state or shape.returns_state:
        return False
    return shape.is_triangle and not shape.is_empty


def attend_quadratically(call: Call, shape: Shape, chunk_size: int | None) -> tuple[Tensor, None] | None:
    """Output ``[B, H G, T, V]``, or None where a logit is too large for weights without a maximum taken from them."""
    similarity = call.mechanism.similarity
    dtype = shape.product_dtype(call.mechanism)
    given = _given(call, similarity, dtype)
    limit = similarity.function.limit(dtype)
    if abs(call.scale[0]) * _bound(given) <= limit:
        limit = float("inf")
    elif dtype != torch.bfloat16:
        return None  # where nothing is gained by looking closer
    plan = Plan(
        similarity.function,
        call.mechanism.normalizer,
        call.scale[0],
        cut_of(shape, chunk_size),
        limit,
        call.sum_dtype,
        partial(_again, call),
    )
    try:
        return attend_in_blocks(plan, given).flatten(1, 2), None
    except LogitsTooLarge:
        return None


def cut_of(shape: Shape, chunk_size: int | None = None) -> Cut:
    """Blocks of queries, and as many heads at a time as leave their pairs in cache."""
    length = shape.queries
    chunk = min(length, chunk_size or (128 if length < 2048 else 256))
    rows = chunk * shape.heads // shape.kv_heads
    return Cut(chunk, max(1, _PAIRS // (rows * length)) * length)


def _given(call: Call, similarity: Similarity, dtype: torch.dtype) -> Given:
    feature_map = similarity.map
    key, value = call.key.to(dtype), call.value.to(dtype)
    gate = call.operands.get("value_gate")
    if call.hidden is not None:
        key, value, gate = key.masked_fill(call.hidden, 1.0), value.masked_fill(call.hidden, 0.0), call.shown(gate)
    if gate is not None:
        value = (value * gate[..., None]).to(dtype)
    query = feature_map.rounded(grouped(call.without_padding(call.query.to(dtype)), 1, call.groups))
    key = feature_map.rounded(key)
    count = call.visible_count.expand(-1, call.sizes.kv_heads, -1)
    center = None
    if similarity.is_centered:
        shown = key if call.hidden is None else key.masked_fill(call.hidden, 0.0)
        mean = shown.cumsum(2, dtype=call.sum_dtype) / count.masked_fill(count <= 0, 1.0)[..., None]
        center = (query * mean[:, :, None]).sum(-1) * call.scale[0]
    return Given(query, key, value, call.key_mask, count, center, call.finish)


def _bound(given: Given) -> float:
    """No inner product is larger: the longest query times the longest key of any head."""
    query, key = given.query.detach(), given.key.detach()
    longest = [torch.linalg.vector_norm(each, dim=-1).amax(-1) for each in (query.flatten(2, 3), key)]
    return float((longest[0] * longest[1]).max())


def _again(call: Call, given: Given) -> Tensor:
    """The same by operations that autograd follows twice."""
    dtype = call.sum_dtype
    hidden = None if given.visible is None else ~given.visible[:, None, :, None]
    key = given.key.to(dtype) if hidden is None else given.key.to(dtype).masked_fill(hidden, 0.0)
    near, far = (given.query.to(dtype) if each else None for each in (call.mechanism.near, call.mechanism.far))
    problem = Problem(
        call.mechanism,
        Queries(near, far, *call.scale, None),
        Keys(key, given.value.to(dtype), given.visible),
        None,
        True,
        None,
        given.finish,
        call.key.shape[-1],
        call.query.dtype,
    )
    return given.finish(accumulate_pairs(problem)).to(given.query.dtype)
