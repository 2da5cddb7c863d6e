"""Every pair below the diagonal, a block of queries at a time: the quadratic form without its memory.

No maximum is taken from the logits: for ``exp`` a call serves only while they are small, which is looked at first.
Forward keeps its inputs and the sums; backward forms every block again.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T time, K key dim, V value dim, W = V + 1
where a denominator is needed, otherwise V; A heads of a tile, C queries of a block, R = G C, S keys up to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra import Accumulator
from maclaurin.algebra.function import Function
from maclaurin.algebra.normalizer import Normalizer
from maclaurin.evaluate.finish import Finish
from maclaurin.evaluate.kernels.tiles import Cut, Tile
from maclaurin.evaluate.kernels.unfinish import Unfinish
from maclaurin.evaluate.recompute import gradients, skeleton, wants_gradient
from maclaurin.evaluate.tensor_tree import TensorTree


@dataclass(frozen=True, eq=False)
class Given(TensorTree):
    """What the kernel works on.

    Args:
        query: mapped, ``[B, H, G, T, K]``.
        key: mapped, ``[B, H, T, K]``.
        value: gated, zeros where hidden, ``[B, H, T, V]``.
        visible: ones and zeros ``[B, T]``, or None for all.
        count: keys that each query sees, ``[B, H, T]``.
        center: c, ``[B, H, G, T]``, or None.
        finish: from sums to outputs.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    visible: Tensor | None
    count: Tensor
    center: Tensor | None
    finish: Finish


@dataclass(frozen=True, eq=False)
class Plan:
    """What does not depend on the tensors.

    Args:
        function: from logits to weights.
        normalizer: what divides the sums.
        scale: of the logits.
        cut: ``chunk`` queries at a time, of ``span`` tokens over all heads of a tile.
        limit: the largest logit to look out for; infinite for none.
        sum_dtype: of what the normalizer sees.
        again: the same from the same, by operations that autograd follows twice.
    """

    function: Function
    normalizer: Normalizer
    scale: float
    cut: Cut
    limit: float
    sum_dtype: torch.dtype
    again: Callable[[Given], Tensor]

    def tiles(self, given: Given) -> list[_Tile]:
        """Every tile of the call."""
        batch, heads, length, _ = given.key.shape
        return [_Tile(self, given, place) for place in self.cut.tiles(batch, heads, length)]

    @property
    def has_denominator(self) -> bool:
        """Whether a column of ones stands behind the values."""
        return self.normalizer.uses_denominator

    @property
    def forgets_row_scale(self) -> bool:
        """Whether the gradient of exp(c) is of no use."""
        return self.normalizer.forgets_row_scale


class LogitsTooLarge(Exception):
    """A logit beyond the plan's limit was met; nothing was computed."""


def attend_in_blocks(plan: Plan, given: Given) -> Tensor:
    """The output of every query, ``[B, H, G, T, V]``, gradients included.

    Raises:
        LogitsTooLarge: this kernel does not serve the call.
    """
    if not wants_gradient(given):
        return _forward(plan, given, None)
    output: Tensor = _Blocks.apply(plan, given, *given.tensors())  # type: ignore[no-untyped-call]
    return output


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, given: Given, *tensors: Tensor) -> Tensor:
        ctx.plan, ctx.shape = plan, skeleton(given)
        size = given.value.shape[-1] + (1 if plan.has_denominator else 0)
        sums = given.query.new_empty(*given.query.shape[:-1], size)
        output = _forward(plan, given, sums)
        ctx.save_for_backward(*tensors, sums)
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, sums = ctx.saved_tensors
        given: Given = ctx.shape.rebuilt(tensors)
        names = given.named_tensors()
        if torch.is_grad_enabled():  # someone differentiates the gradient
            found = gradients({"output": ctx.plan.again(given)}, names, {"output": grad}, twice=True)
        else:
            found = _Backward(ctx.plan, given).run(sums, grad)
        needed = ctx.needs_input_grad[2:]
        return None, None, *(found.get(name) if need else None for name, need in zip(names, needed, strict=True))


def _forward(plan: Plan, given: Given, kept: Tensor | None) -> Tensor:
    output: Tensor | None = None
    rooms = _Rooms(given.query)
    for tile in plan.tiles(given):
        sums = tile.value.new_empty(*tile.query.shape[:-1], tile.value.shape[-1])
        for time in tile.times:
            block = _Block.of_queries(tile, time, rooms)
            weights, _ = block.weights()
            sums[:, :, time] = block.by_group(torch.bmm(weights, tile.value[:, block.keys]))
        if kept is not None:
            kept[tile.place] = tile.heads(sums)
        finish = given.finish.of_heads(*tile.place)
        sums = sums if given.finish.mechanism.normalizer.rounds_once else sums.to(plan.sum_dtype)
        part_of_output = finish(tile.accumulator(tile.heads(sums), tile.center))
        if output is None:
            output = given.query.new_empty(*given.query.shape[:-1], part_of_output.shape[-1])
        output[tile.place] = part_of_output
    assert output is not None
    return output


class _Rooms:
    """Memory for the pairs of a block, taken again by every block: fresh pages cost as much as what is written there.

    Args:
        like: of the dtype and device to have.
    """

    def __init__(self, like: Tensor) -> None:
        self._like, self._rooms = like, dict[str, Tensor]()

    def product(self, name: str, rows_ARD: Tensor, columns_ASD: Tensor) -> Tensor:
        """Of every row with every column, ``[A, R, S]``, until the next one of that name."""
        heads, num_rows, num_columns = rows_ARD.shape[0], rows_ARD.shape[1], columns_ASD.shape[1]
        size = heads * num_rows * num_columns
        room = self._rooms.get(name)
        if room is None or room.shape[0] < size:
            room = self._rooms[name] = self._like.new_empty(size)
        out = room[:size].view(heads, num_rows, num_columns)
        if heads == 1:  # of a batch of one, some builds copy a transposed part
            torch.mm(rows_ARD[0], columns_ASD[0].T, out=out[0])
        else:
            torch.bmm(rows_ARD, columns_ASD.transpose(1, 2), out=out)
        return out


class _Tile:
    """Some batch rows and heads; their heads are one axis, A."""

    def __init__(self, plan: Plan, given: Given, place: Tile) -> None:
        self.plan, self.place = plan, place
        query = given.query[place]
        self.rows, length = query.shape[:3], query.shape[3]
        self.times = [slice(a, min(a + plan.cut.chunk, length)) for a in range(0, length, plan.cut.chunk)]
        self.query, self.key = query.flatten(0, 1), given.key[place].flatten(0, 1)
        self.asked = self.query * (plan.scale * plan.function.logit_unit)  # what the logits are made of
        self.query = self.query * plan.scale
        value = given.value[place]
        if plan.has_denominator and given.visible is None:
            value = F.pad(value, (0, 1), value=1.0)
        elif plan.has_denominator and given.visible is not None:
            shown = given.visible[place.batch, None, :, None].to(value.dtype)
            value = torch.cat([value, shown.expand(*value.shape[:-1], 1)], dim=-1)
        self.value = value.flatten(0, 1)
        self.count = given.count[place]
        self.center = None if given.center is None else given.center[place]
        self.zero = torch.zeros((), dtype=plan.sum_dtype, device=value.device)

    def heads(self, x_A: Tensor) -> Tensor:
        """With batch and heads apart again, ``[B, H, *]``."""
        return x_A.view(*self.rows[:2], *x_A.shape[1:])

    def accumulate(self, given: Mapping[str, Tensor]) -> Accumulator:
        """:meth:`accumulator` of ``sums`` and, if there is one, ``center``."""
        return self.accumulator(given["sums"], given.get("center"))

    def accumulator(self, sums_BHGTW: Tensor, center_BHGT: Tensor | None) -> Accumulator:
        """What the normalizer sees; the center's value is the log scale, its gradient in the sums."""
        width = self.value.shape[-1] - (1 if self.plan.has_denominator else 0)
        denominator = sums_BHGTW[..., width] if self.plan.has_denominator else None
        found = Accumulator(sums_BHGTW[..., :width], denominator, self.count[:, :, None], self.zero)
        if center_BHGT is None:
            return found
        if not torch.is_grad_enabled() or self.plan.forgets_row_scale:
            return replace(found, log_scale=center_BHGT.detach())
        return replace(found, log_scale=torch.zeros_like(center_BHGT)).scaled(center_BHGT)


@dataclass(frozen=True, eq=False)
class _Block:
    """Some queries against some keys of a tile, the diagonal across a square of them.

    Args:
        tile: where they are.
        queries: their times.
        keys: their times.
        square: the times of both on which the diagonal lies.
        rooms: memory for the pairs.
    """

    tile: _Tile
    queries: slice
    keys: slice
    square: slice
    rooms: _Rooms

    @classmethod
    def of_queries(cls, tile: _Tile, time: slice, rooms: _Rooms) -> _Block:
        """Queries of a stretch of time against every key up to its end."""
        return cls(tile, time, slice(0, time.stop), time, rooms)

    @classmethod
    def of_keys(cls, tile: _Tile, time: slice, rooms: _Rooms) -> _Block:
        """Keys of a stretch of time against every query from its start on."""
        return cls(tile, slice(time.start, tile.query.shape[2]), time, time, rooms)

    def of_rows(self, x_AGTW: Tensor) -> Tensor:
        """The block's part of what has the queries' time, ``[A, R, W]``."""
        part = x_AGTW[:, :, self.queries]
        return part.reshape(part.shape[0], -1, part.shape[-1])

    def by_group(self, x_ARW: Tensor) -> Tensor:
        """``[A, G, C, W]``."""
        return x_ARW.view(x_ARW.shape[0], -1, self.queries.stop - self.queries.start, x_ARW.shape[-1])

    def weights(self) -> tuple[Tensor, Tensor]:
        """``(weights [A, R, S], logits)``; the logits as the weights left them, perhaps in the same memory."""
        plan, center = self.tile.plan, self.tile.center
        logits = self.rooms.product("weights", self.of_rows(self.tile.asked), self.tile.key[:, self.keys])
        if center is not None:
            logits -= self.of_rows(center.flatten(0, 1)[..., None]).to(logits.dtype)
        if plan.limit < float("inf"):
            low, high = torch.aminmax(logits)
            if not max(-float(low), float(high)) <= plan.limit * plan.function.logit_unit:
                raise LogitsTooLarge
        return self.causal(plan.function.values(logits)), logits

    def causal(self, pairs: Tensor) -> Tensor:
        """Zero above the diagonal, in place."""
        rows, columns = (
            slice(self.square.start - each.start, self.square.stop - each.start) for each in (self.queries, self.keys)
        )
        self.by_group(pairs)[:, :, rows, columns].tril_()
        return pairs


class _Backward:
    """Gradients of what was given, by name."""

    def __init__(self, plan: Plan, given: Given) -> None:
        self.plan, self.given = plan, given
        written = ("query", "key", "value", "center")
        self.total = {
            name: (torch.empty_like if name in written else torch.zeros_like)(
                each, memory_format=torch.contiguous_format
            )
            for name, each in given.named_tensors().items()
            if each.is_floating_point()
        }
        self.unfinish = Unfinish(given.finish, self.total)

    def run(self, sums_BHGTW: Tensor, grad_BHGTV: Tensor) -> dict[str, Tensor]:
        """Blocks of keys, so that only the queries' gradients are sums over blocks; in the dtype of sums."""
        rooms = _Rooms(self.given.query)
        for tile in self.plan.tiles(self.given):
            sums = sums_BHGTW[tile.place].to(self.plan.sum_dtype)
            inputs = {"sums": sums} if tile.center is None else {"sums": sums, "center": tile.center}
            got = self.unfinish(tile.place, slice(None), inputs, tile.accumulate, grad_BHGTV[tile.place])
            grad = got.get("sums", torch.zeros_like(sums)).flatten(0, 1).to(tile.value.dtype)
            query = torch.zeros_like(tile.query, dtype=self.plan.sum_dtype)
            center = torch.zeros_like(query[..., :1])
            for time in tile.times:
                block = _Block.of_keys(tile, time, rooms)
                key, value = self._block(block, grad, query, center)
                self.total["key"][tile.place][:, :, time] = tile.heads(key)
                self.total["value"][tile.place][:, :, time] = tile.heads(value)[..., : self.given.value.shape[-1]]
            self.total["query"][tile.place] = tile.heads(query.mul_(self.plan.scale))
            if tile.center is not None:
                self.total["center"][tile.place] = got.get("center", 0.0) - tile.heads(center[..., 0])
        return self.total

    def _block(
        self, block: _Block, grad_AGTW: Tensor, query_AGTK: Tensor, center_AGT1: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of the block's keys and values; adds to those of the queries and of minus the center."""
        tile, grad = block.tile, block.of_rows(grad_AGTW)
        weights, logits = block.weights()
        value = torch.bmm(weights.transpose(1, 2), grad)
        of_weights = block.rooms.product("gradients", grad, tile.value[:, block.keys])
        of_logits = block.causal(of_weights.mul_(self.plan.function.slope(logits, weights)))
        query_AGTK[:, :, block.queries] += block.by_group(torch.bmm(of_logits, tile.key[:, block.keys]))
        if tile.center is not None:
            total = of_logits.sum(-1, keepdim=True, dtype=center_AGT1.dtype)
            center_AGT1[:, :, block.queries] += block.by_group(total)
        return torch.bmm(of_logits.transpose(1, 2), block.of_rows(tile.query)), value
