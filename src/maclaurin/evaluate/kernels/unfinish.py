"""Backward through what becomes of the sums, a part at a time.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, V value dim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator
from maclaurin.evaluate.finish import Finish
from maclaurin.evaluate.kernels.tiles import Tile
from maclaurin.evaluate.recompute import gradients, leaf


class Unfinish:
    """Gradients through :class:`Finish`; those of its own tensors are added up over the parts.

    Args:
        finish: of the whole call.
        total: where the gradients of its tensors are added, by name behind ``finish.``.
    """

    def __init__(self, finish: Finish, total: Mapping[str, Tensor]) -> None:
        self.finish, self.total = finish, total

    def __call__(
        self,
        place: Tile,
        time: slice,
        inputs: Mapping[str, Tensor],
        accumulate: Callable[[dict[str, Tensor]], Accumulator],
        grad_BHGTV: Tensor,
    ) -> dict[str, Tensor]:
        """Gradients of ``inputs``, by name, where there are any.

        Args:
            place: batch rows and heads of the part.
            time: its queries.
            inputs: what the sums are made of.
            accumulate: from leaves like ``inputs`` to the sums.
            grad_BHGTV: of the part's output.
        """
        finish = self.finish.of_heads(*place).during(time).map_tensors(leaf)
        leaves = {name: leaf(each) for name, each in inputs.items()}
        with torch.enable_grad():
            output = finish(accumulate(leaves))
        own = {f"finish.{name}": each for name, each in finish.named_tensors().items()}
        found = gradients({"output": output}, {**leaves, **own}, {"output": grad_BHGTV.to(output.dtype)})
        for name in own.keys() & found.keys():
            self._view(name, place, time).add_(found.pop(name))
        return found

    def _view(self, name: str, place: Tile, time: slice) -> Tensor:
        """The part of a total that belongs to a part of the call."""
        field = name.removeprefix("finish.")
        held = getattr(self.finish, field)
        totals = self.finish.map_tensors(lambda each: self.total[name] if each is held else each)
        view: Tensor = getattr(totals.of_heads(*place).during(time), field)
        return view
