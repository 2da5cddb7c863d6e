"""Finite states, span by span: chunks of pairs, and moments between them, a span of many chunks at once.

Forward keeps its inputs, the sums, and the states at the starts of spans where they are small beside those. Backward
goes through the spans in reverse and computes each once more, one tile of heads at a time.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T time, K key dim, V value dim, F
features, W = V + 1 where a denominator is needed, otherwise V.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra import Accumulator, Similarity
from maclaurin.evaluate.finish import Finish
from maclaurin.evaluate.kernels.features import Features
from maclaurin.evaluate.kernels.span_sums import Decays, Inputs, SpanSums
from maclaurin.evaluate.kernels.tiles import Cut, Span, Tile, from_chunks, to_chunks
from maclaurin.evaluate.kernels.unfinish import Unfinish
from maclaurin.evaluate.recompute import gradients, leaf, skeleton, wants_gradient
from maclaurin.evaluate.tensor_tree import TensorTree


@dataclass(frozen=True, eq=False)
class Given(TensorTree):
    """What the kernel works on.

    Args:
        query: ``[B, H, G, T, K]``, before the map.
        key: ``[B, H, T, K]``, before the map.
        value: gated, zeros where hidden, ``[B, H, T, V]``.
        visible: ones and zeros ``[B, T]``, or None for all.
        log_decay: ``[B, H, T]``, or None.
        count: keys that each query sees, ``[B, H, T]``; not read where they decay.
        state: sums of features times values before the call, ``[B, H, F, W]``.
        key_reference: what is taken from every mapped key, ``[B, H, K']``, or None; a constant for gradients.
        finish: from sums to outputs.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    visible: Tensor | None
    log_decay: Tensor | None
    count: Tensor
    state: Tensor
    key_reference: Tensor | None
    finish: Finish


class Result(NamedTuple):
    """Output ``[B, H, G, T, V]`` and the state after every key, as ``Given.state``."""

    output: Tensor
    state: Tensor


@dataclass(frozen=True, eq=False)
class Plan:
    """What does not depend on the tensors.

    Args:
        similarity: a polynomial.
        features: of its finite state.
        scale: of the logits.
        cut: how the call is cut.
        has_denominator: whether a column of ones stands behind the values.
        again: the same from the same, by operations that autograd follows twice.
    """

    similarity: Similarity
    features: Features
    scale: float
    cut: Cut
    has_denominator: bool
    again: Callable[[Given], Result]

    def spans(self, given: Given) -> list[Span]:
        """Every span of a tile."""
        return self.cut.spans(given.key.shape[2])

    def tiles(self, given: Given) -> list[_Tile]:
        """Every tile of the call."""
        batch, heads, length, _ = given.key.shape
        return [_Tile(self, given, tile) for tile in self.cut.tiles(batch, heads, length)]


def attend_in_spans(plan: Plan, given: Given) -> Result:
    """The output of every query and the state after every key, gradients included."""
    if not wants_gradient(given):
        return _forward(plan, given, None)
    return Result(*_Spans.apply(plan, given, *given.tensors()))  # type: ignore[no-untyped-call]


class _Kept(NamedTuple):
    """What forward leaves for backward, None where it would be large.

    Args:
        states: at the start of every span, ``[spans, B, H, F, W]``.
        sums: ``[B, H, G, T, W]``.
    """

    states: Tensor | None
    sums: Tensor | None

    @classmethod
    def room(cls, plan: Plan, given: Given) -> _Kept:
        """Where to put it."""
        num_spans, query, size = len(plan.spans(given)), given.query, given.state.shape[-1]
        is_small = 2 * num_spans * given.state.nbytes <= query.nbytes
        return cls(
            given.state.new_empty(num_spans, *given.state.shape) if is_small else None,
            None if plan.similarity.is_centered else query.new_empty(*query.shape[:-1], size),
        )


class _Spans(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, given: Given, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.plan, ctx.shape, kept = plan, skeleton(given), _Kept.room(plan, given)
        result = _forward(plan, given, kept)
        ctx.save_for_backward(*tensors, *kept)
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor | None, grad_state: Tensor | None) -> tuple[Tensor | None, ...]:
        *tensors, states, sums = ctx.saved_tensors
        given: Given = ctx.shape.rebuilt(tensors)
        names = given.named_tensors()
        of_outputs = {name: each for name, each in (("output", grad_output), ("state", grad_state)) if each is not None}
        if torch.is_grad_enabled():  # someone differentiates the gradient
            found = gradients(ctx.plan.again(given)._asdict(), names, of_outputs, twice=True)
        else:
            found = _Backward(ctx.plan, given, _Kept(states, sums), of_outputs).run()
        needed = ctx.needs_input_grad[2:]
        return None, None, *(found.get(name) if need else None for name, need in zip(names, needed, strict=True))


def _forward(plan: Plan, given: Given, kept: _Kept | None) -> Result:
    output: Tensor | None = None
    state = torch.empty_like(given.state, memory_format=torch.contiguous_format)
    for tile in plan.tiles(given):
        held = tile.state
        for number, span in enumerate(plan.spans(given)):
            if kept is not None and kept.states is not None:
                kept.states[number][tile.place] = held.reshape(kept.states[number][tile.place].shape)
            part = _Part(tile, span)
            query = part.queries()
            sums = part.sums(part.keys(), held, part.decays(part.log_decay))
            found = part.rows(sums.sums(query))
            if kept is not None and kept.sums is not None:
                kept.sums[tile.place][:, :, :, span.time] = found
            if not given.finish.mechanism.normalizer.rounds_once:
                found = found.to(given.state.dtype)
            part_of_output = part.finish(part.accumulator(found, sums.center, part.count, query))
            if output is None:
                output = query.new_empty(*given.query.shape[:-1], part_of_output.shape[-1])
            output[tile.place][:, :, :, span.time] = part_of_output
            held = sums.state
        state[tile.place] = held.reshape(state[tile.place].shape)
    assert output is not None
    return Result(output, state)


class _Tile:
    """Some batch rows and heads; their heads are one axis, A."""

    def __init__(self, plan: Plan, given: Given, place: Tile) -> None:
        self.plan, self.place = plan, place
        query = given.query[place]
        self.rows = query.shape[:3]
        self.query, self.key, self.value = (x.flatten(0, 1) for x in (query, given.key[place], given.value[place]))
        self.state = given.state[place].flatten(0, 1)
        self.log_decay = None if given.log_decay is None else given.log_decay[place].flatten(0, 1)
        self.count = given.count[place].flatten(0, 1)
        self.finish = given.finish.of_heads(*place)
        self.shown: Tensor | None = None
        if given.visible is not None:
            shown = given.visible[place.batch, None, :, None].to(self.value.dtype)
            self.shown = shown.expand(-1, self.rows[1], -1, -1).flatten(0, 1)
        self.reference: Tensor | None = None
        if given.key_reference is not None:
            self.reference = given.key_reference[place].flatten(0, 1)
        self.zero = self.state.new_zeros(())

    def heads(self, x_A: Tensor) -> Tensor:
        """With batch and heads apart again, ``[B, H, *]``."""
        return x_A.reshape(*self.rows[:2], *x_A.shape[1:])


class _Part:
    """One span of one tile: its tensors cut out, and how they are brought to chunks."""

    def __init__(self, tile: _Tile, span: Span) -> None:
        self.tile, self.plan, self.span = tile, tile.plan, span
        time = span.time
        self.query, self.key, self.value = tile.query[:, :, time], tile.key[:, time], tile.value[:, time]
        self.log_decay = None if tile.log_decay is None else tile.log_decay[:, time]
        self.count = tile.count[:, time]
        self.finish = tile.finish.during(time)
        reference = tile.reference
        self._reference = None if reference is None else reference.repeat_interleave(span.num_chunks, 0)[:, None]

    def queries(self) -> Tensor:
        """Mapped, scaled, in chunks."""
        self.mapped_query = self.plan.similarity.map.rounded(self.query)
        scaled = self.mapped_query if self.plan.scale == 1.0 else self.mapped_query * self.plan.scale
        return to_chunks(scaled, self.span)

    def keys(self) -> Tensor:
        """Mapped, relative to the reference, in chunks."""
        self.mapped_key = self.plan.similarity.map.rounded(self.key)
        key = self._chunks(self.mapped_key)
        return key if self._reference is None else key - self._reference.to(key.dtype)

    def pull_queries(self, grad_NRK: Tensor) -> Tensor:
        """Gradient of the queries as they were given, ``[B, H, G, T, K]``."""
        grad = from_chunks(grad_NRK, self.span, self.mapped_query.shape)
        grad = grad if self.plan.scale == 1.0 else grad * self.plan.scale
        return self.tile.heads(self.plan.similarity.map.pull(self.query, self.mapped_query, grad))

    def pull_keys(self, grad_NCK: Tensor) -> Tensor:
        """Gradient of the keys as they were given, ``[B, H, T, K]``."""
        grad = grad_NCK.reshape(self.mapped_key.shape)
        return self.tile.heads(self.plan.similarity.map.pull(self.key, self.mapped_key, grad))

    def decays(self, log_decay: Tensor | None) -> Decays | None:
        """Factors of the span."""
        span = self.span
        return None if log_decay is None else Decays.of(log_decay.reshape(-1, span.num_chunks, span.chunk))

    def sums(self, key_NCK: Tensor, state_AFW: Tensor, decays: Decays | None) -> SpanSums:
        """The span's keys after a state."""
        plan, value, shown = self.plan, self.value, self.tile.shown
        shown = None if shown is None else shown[:, self.span.time]
        if plan.has_denominator:
            value = F.pad(value, (0, 1), value=1.0) if shown is None else torch.cat([value, shown], dim=-1)
        visible = count = None
        if plan.similarity.is_centered:
            visible = None if shown is None else self._chunks(shown)
            count = to_chunks(self.count[:, None, :, None].expand(*self.query.shape[:-1], 1), self.span)
        inputs = Inputs(key_NCK, self._chunks(value), visible, count, state_AFW, decays)
        return SpanSums(plan.similarity, plan.features, inputs)

    def accumulator(
        self, sums_BHGTW: Tensor, center_NR1: Tensor | None, count_AT: Tensor, query_NRK: Tensor
    ) -> Accumulator:
        """What the normalizer sees, ``[B, H, G, T, *]``.

        Args:
            sums_BHGTW: numerator and denominator.
            center_NR1: c about the key reference, or None.
            count_AT: number of keys.
            query_NRK: as :meth:`queries` gives them.
        """
        width = self.value.shape[-1]
        denominator = sums_BHGTW[..., width] if self.plan.has_denominator else None
        count = self.tile.heads(count_AT)[:, :, None]
        if center_NR1 is None:
            return Accumulator(sums_BHGTW[..., :width], denominator, count, self.tile.zero)
        forgets = self.finish.mechanism.normalizer.forgets_row_scale
        if forgets and not torch.is_grad_enabled():
            return Accumulator(sums_BHGTW[..., :width], denominator, count, self.tile.zero)
        if self._reference is not None:
            center_NR1 = center_NR1 + (query_NRK * self._reference).sum(-1, keepdim=True)
        center = self.rows(center_NR1)[..., 0]
        found = Accumulator(sums_BHGTW[..., :width], denominator, count, center.detach())
        if not torch.is_grad_enabled() or forgets:
            return found
        return replace(found, log_scale=torch.zeros_like(center)).scaled(center)  # with the gradient of exp(c)

    def rows(self, x_NRW: Tensor) -> Tensor:
        """Of chunks of queries, in order of time again, ``[B, H, G, T, W]``."""
        batch, heads, groups = self.tile.rows
        return from_chunks(x_NRW, self.span, (batch, heads, groups, self.key.shape[1], x_NRW.shape[-1]))

    def _chunks(self, x_ATD: Tensor) -> Tensor:
        return x_ATD.reshape(-1, self.span.chunk, x_ATD.shape[-1])


class _Backward:
    """Gradients of what was given, by name, from those of the output and of the state after every key."""

    def __init__(self, plan: Plan, given: Given, kept: _Kept, of_outputs: dict[str, Tensor]) -> None:
        self.plan, self.given, self.kept = plan, given, kept
        self.grad_output, self.grad_state = of_outputs.get("output"), of_outputs.get("state")
        self.total = {
            name: torch.zeros_like(each, memory_format=torch.contiguous_format)
            for name, each in given.named_tensors().items()
            if each.is_floating_point()
        }
        self.unfinish = Unfinish(given.finish, self.total)

    def run(self) -> dict[str, Tensor]:
        """Tile by tile; in each, the spans in reverse."""
        for tile in self.plan.tiles(self.given):
            parts = [_Part(tile, span) for span in self.plan.spans(self.given)]
            states = self._states(tile, parts)
            grad = torch.zeros_like(states[0]) if self.grad_state is None else self.grad_state[tile.place].flatten(0, 1)
            for part, state in zip(reversed(parts), reversed(states), strict=True):
                grad = self._span(part, state, grad)
            self.total["state"][tile.place] = grad.reshape(self.total["state"][tile.place].shape)
        return self.total

    def _states(self, tile: _Tile, parts: list[_Part]) -> list[Tensor]:
        """At the start of every span; found again where forward did not keep them."""
        if self.kept.states is not None:
            return [each[tile.place].flatten(0, 1) for each in self.kept.states]
        states = [tile.state]
        for part in parts[:-1]:
            states.append(part.sums(part.keys(), states[-1], part.decays(part.log_decay)).state)
        return states

    def _span(self, part: _Part, state_AFW: Tensor, grad_state_AFW: Tensor) -> Tensor:
        """Add one span's gradients; returns that of the state before it."""
        place, time = part.tile.place, part.span.time
        query_NRK, decays, log_decay = part.queries(), None, None
        if part.log_decay is not None:
            with torch.enable_grad():
                log_decay = leaf(part.log_decay)
                decays = part.decays(log_decay)
        sums = part.sums(part.keys(), state_AFW, None if decays is None else decays.map_tensors(Tensor.detach))
        if self.kept.sums is None:
            found = part.rows(sums.sums(query_NRK)).to(state_AFW.dtype)
        else:
            sums.look(query_NRK)
            found = self.kept.sums[place][:, :, :, time].to(state_AFW.dtype)
        got = self._unfinish(part, found, sums.center, query_NRK)
        of_sums = got.get("sums", torch.zeros_like(found)).flatten(0, 1)
        cotangents = sums.pull(to_chunks(of_sums, part.span), got.get("center"), grad_state_AFW)
        grad_query = cotangents.query
        if "query" in got:
            grad_query = grad_query + got["query"].to(grad_query.dtype)
        self.total["query"][place][:, :, :, time] = part.pull_queries(grad_query)
        self.total["key"][place][:, :, time] = part.pull_keys(cotangents.key)
        grad_value = cotangents.value[..., : part.value.shape[-1]].reshape(part.value.shape)
        self.total["value"][place][:, :, time] = part.tile.heads(grad_value)
        if cotangents.count is not None:
            self.total["count"][place][:, :, time] += part.rows(cotangents.count)[..., 0].sum(2)
        if decays is not None and log_decay is not None and cotangents.decays is not None:
            (grad,) = torch.autograd.grad(decays.tensors(), log_decay, cotangents.decays)
            self.total["log_decay"][place][:, :, time] = part.tile.heads(grad)
        return cotangents.state

    def _unfinish(
        self, part: _Part, sums_BHGTW: Tensor, center_NR1: Tensor | None, query_NRK: Tensor
    ) -> dict[str, Tensor]:
        """Gradients of sums, center and mapped queries through what becomes of the sums."""
        place, time = part.tile.place, part.span.time
        if self.grad_output is None:
            return {}
        inputs = {"sums": sums_BHGTW}
        if center_NR1 is not None:
            inputs |= {"center": center_NR1, "query": query_NRK}
        if part.finish.mechanism.normalizer.uses_count:
            inputs["count"] = part.count

        def accumulate(given: dict[str, Tensor]) -> Accumulator:
            count, query = given.get("count", part.count), given.get("query", query_NRK)
            return part.accumulator(given["sums"], given.get("center"), count, query)

        found = self.unfinish(place, time, inputs, accumulate, self.grad_output[place][:, :, :, time])
        if "count" in found:
            self.total["count"][place][:, :, time] += part.tile.heads(found["count"])
        return found
