"""A call through softmax's kernel on the tensors as they were given: nothing widened, no column appended.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T time, K key dim, V value dim.
"""

from __future__ import annotations

from torch import Tensor

from maclaurin.algebra import Exp, Mechanism
from maclaurin.evaluate import flash
from maclaurin.evaluate.call import Call
from maclaurin.evaluate.finish import grouped
from maclaurin.evaluate.shape import Shape


def is_served(mechanism: Mechanism, shape: Shape) -> bool:
    """Whether softmax's kernel computes such calls, up to what the normalizer forgets."""
    similarity = mechanism.similarity
    if mechanism.window is not None or mechanism.gates.decay or mechanism.normalizer.uses_log_denominator:
        return False
    if not isinstance(similarity.function, Exp) or similarity.clamp is not None:
        return False
    is_alone = not (shape.has_state or shape.returns_state or shape.has_key_mask)
    return is_alone and shape.is_triangle and not shape.is_empty and mechanism.normalizer.forgets_row_scale


def attend_as_given(call: Call, shape: Shape, chunk_size: int | None) -> tuple[Tensor, None]:
    """Output ``[B, H G, T, V]`` from softmax's, in the dtype of the inputs."""
    similarity, groups = call.mechanism.similarity, call.groups[1]
    query, key, value = similarity.map.rounded(call.query), similarity.map.rounded(call.key), call.value
    if (gate := call.operands.get("value_gate")) is not None:
        value = (value * gate[..., None]).to(value.dtype)
    if groups > 1:
        key, value = (each.repeat_interleave(groups, dim=1) for each in (key, value))
    out = flash.attend_normalized(query, key, value, is_causal=True, scale=call.scale[0])
    return call.finish.of_mean(grouped(out, 1, call.groups)).flatten(1, 2), None
