"""A finite-state call through the spans kernel: what it serves, and states in and out.

Dimension key: B batch, H key/value heads, T time, K width of the mapped key, V value dim, F features, W = V + 1 where a
denominator is needed, otherwise V.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from maclaurin.algebra import Mechanism, Series, log_decay_after
from maclaurin.evaluate.call import Call
from maclaurin.evaluate.finish import grouped
from maclaurin.evaluate.kernels.features import Features
from maclaurin.evaluate.kernels.spans import Given, Plan, Result, attend_in_spans
from maclaurin.evaluate.kernels.tiles import Cut
from maclaurin.evaluate.legality import moment_refusal
from maclaurin.evaluate.moments import Moments
from maclaurin.evaluate.operands import Keys, Queries, map_visible
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.scan import Stretch, scan
from maclaurin.evaluate.shape import Shape
from maclaurin.evaluate.state import State

#: Numbers in a span's intermediate results by their bytes: few enough for caches, and for an allocator to keep for the
#: next span; in half precision calls weigh more beside them.
_NUMBERS = {8: 1 << 20, 4: 1 << 21, 2: 1 << 22}


def is_served(mechanism: Mechanism, shape: Shape) -> bool:
    """Whether the spans kernel computes such calls."""
    far, normalizer = mechanism.far, mechanism.normalizer
    if far is None or mechanism.window is not None or normalizer.uses_log_denominator:
        return False
    assert isinstance(far.function, Series)
    if far.is_centered and (far.function.degree < 1 or mechanism.gates.decay):
        return False  # no key sum to center by; a mean that decays
    if mechanism.gates.decay and (normalizer.uses_count or shape.has_key_mask):
        return False  # counts that decay
    return moment_refusal(mechanism) is None and shape.is_triangle and not shape.is_empty


def attend_finite_state(call: Call, shape: Shape, chunk_size: int | None) -> tuple[Tensor, State | None]:
    """Output ``[B, H G, T, V]`` in the sums' or the inputs' dtype, and the state after every key if asked for."""
    layout, dtype = _Layout(call), shape.product_dtype(call.mechanism)
    plan = Plan(
        layout.similarity,
        layout.features,
        call.scale[1],
        cut_of(call.mechanism, shape, chunk_size),
        layout.has_denominator,
        partial(_again, call, layout),
    )
    before, count = _moments_before(call), _count(call)
    result = attend_in_spans(plan, _given(call, layout, dtype, before, count))
    output = result.output.flatten(1, 2)
    if not shape.returns_state:
        return output, None
    return output, layout.state(result.state, _count_after(call, count), before.key_reference)


class _Layout:
    """How the state's moments lie among the kernel's features."""

    def __init__(self, call: Call) -> None:
        assert call.mechanism.far is not None
        self.mechanism, self.similarity = call.mechanism, call.mechanism.far
        width = self.similarity.map.num_features(call.key.shape[-1], dtype=call.sum_dtype, device=call.key.device)
        self.features = Features(self.mechanism.moment_orders, width)
        self.has_denominator = self.mechanism.normalizer.uses_denominator or self.similarity.is_centered
        self.value_dim = call.value.shape[-1]

    def sums(self, moments: Moments) -> Tensor:
        """``[B, H, F, W]``, zeros for denominators that nobody reads."""
        columns = []
        for n, numerator in zip(self.features.orders, moments.numerators, strict=True):
            if not self.has_denominator:
                columns.append(numerator)
                continue
            is_held = n in self.mechanism.denominator_orders
            total = moments.denominator(n) if is_held else torch.zeros_like(numerator[..., 0])
            columns.append(torch.cat([numerator, total[..., None]], dim=-1))
        return self.features.from_moments(columns)

    def state(self, sums_BHFW: Tensor, count: Tensor, reference: Tensor | None) -> State:
        """The state that holds these sums."""
        moments = dict(zip(self.features.orders, self.features.to_moments(sums_BHFW), strict=True))
        orders = self.mechanism.denominator_orders
        held = Moments(
            self.mechanism,
            tuple(each[..., : self.value_dim].contiguous() for each in moments.values()),
            tuple(moments[n][..., self.value_dim].contiguous() for n in orders),
            None if 0 in orders else count,
            reference,
        )
        return State(self.mechanism, None, held, None)


def _given(call: Call, layout: _Layout, dtype: torch.dtype, before: Moments, count: Tensor) -> Given:
    key, value = call.key.to(dtype), call.value.to(dtype)
    gate = call.operands.get("value_gate")
    if call.hidden is not None:
        # the map sees ones instead: zeros are where x / |x| or log x are not finite
        key, value = key.masked_fill(call.hidden, 1.0), value.masked_fill(call.hidden, 0.0)
        gate = call.shown(gate)
    if gate is not None:
        value = (value * gate[..., None]).to(dtype)
    return Given(
        grouped(call.without_padding(call.query.to(dtype)), 1, call.groups),
        key,
        value,
        call.key_mask,
        call.operands.get("log_decay"),
        count,
        layout.sums(before),
        before.key_reference,
        call.finish,
    )


def _again(call: Call, layout: _Layout, given: Given) -> Result:
    """The same by operations that autograd follows twice."""
    dtype = call.sum_dtype
    feature_map, reference = layout.similarity.map, given.key_reference
    hidden = None if given.visible is None else ~given.visible[:, None, :, None]
    count = given.count[..., 0] if given.visible is None else given.count[..., 0] - given.visible[:, :1].to(dtype)
    queries = Queries(None, feature_map(given.query.to(dtype)), *call.scale, None)
    keys = Keys(
        map_visible(feature_map, given.key.to(dtype), hidden), given.value.to(dtype), given.visible, given.log_decay
    )
    state = layout.state(given.state, count - (1.0 if given.visible is None else 0.0), reference)
    problem = Problem(
        call.mechanism, queries, keys, None, True, state, given.finish, call.key.shape[-1], call.query.dtype
    )
    sums, after = scan(problem, [Stretch(call.query.shape[2], call.query.shape[2])], return_state=True)
    assert after is not None and after.moments is not None
    return Result(given.finish(sums).to(given.query.dtype), layout.sums(after.moments))


def _count(call: Call) -> Tensor:
    """Keys that each query sees, ``[B, H, T]``; ones more than before where they decay, which nobody reads."""
    count = call.visible_count.expand(-1, call.sizes.kv_heads, -1)
    return count if call.state is None else count + call.state.count[..., None]


def _count_after(call: Call, count: Tensor) -> Tensor:
    """Keys after the last, each as far as it has not decayed, ``[B, H]``."""
    log_decay = call.operands.get("log_decay")
    if log_decay is None:
        return count[..., -1]
    new = torch.exp(log_decay_after(log_decay)).sum(-1)
    return new if call.state is None else new + call.state.count * torch.exp(log_decay.sum(-1))


def _moments_before(call: Call) -> Moments:
    """The state's moments, or none; about the first visible key where they are centered and have no reference."""
    far = call.mechanism.far
    assert far is not None
    key = call.key.detach().to(call.sum_dtype)
    if call.state is None:
        width = far.map.num_features(key.shape[-1], dtype=key.dtype, device=key.device)
        like = key.new_zeros(key.shape[:2])
        moments = Moments.empty(call.mechanism, like, width, call.value.shape[-1], None)
    else:
        assert call.state.moments is not None
        moments = call.state.moments
    if not far.is_centered:
        return moments
    visible = torch.ones_like(key[:, 0, :, 0], dtype=torch.bool) if call.key_mask is None else call.key_mask
    first_B = visible.to(torch.int64).argmax(-1)
    first = key[torch.arange(len(key), device=key.device), :, first_B]
    return moments.adopt(map_visible(far.map, first, ~visible.any(-1)[:, None, None]))


def cut_of(mechanism: Mechanism, shape: Shape, chunk_size: int | None = None) -> Cut:
    """Chunks that cost as much as reading moments, and spans whose intermediate results stay in cache."""
    features = Features(mechanism.moment_orders, shape.width(mechanism))
    size, width = features.size, shape.num_values
    chunk = min(shape.queries, chunk_size or max(64, min(256, 1 << (size // 16 - 1).bit_length())))
    per_token = 2 * size + 4 * features.width + 3 * (chunk + width) + 3 * size * width // chunk
    span = _NUMBERS[shape.product_dtype(mechanism).itemsize] // per_token
    return Cut(chunk, max(chunk, span // chunk * chunk))
