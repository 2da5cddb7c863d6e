"""Memory for time: work whose intermediate results are made again when gradients are wanted.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator
from maclaurin.algebra.tracing import is_transformed
from maclaurin.evaluate.state import State
from maclaurin.evaluate.tensor_tree import TensorTree

Given = TypeVar("Given", bound=TensorTree)

#: Ends of the names of tensors that are constants for gradients.
_CONSTANT = ("log_scale", "key_reference", "visible", "filled")


@dataclass(frozen=True, eq=False)
class Found(TensorTree):
    """What some work leaves: the sums of its queries, and the state after its keys where someone wants it."""

    numerator: Tensor
    denominator: Tensor | None
    count: Tensor
    log_scale: Tensor
    log_denominator: Tensor | None
    state: State | None

    @classmethod
    def of(cls, sums: Accumulator, state: State | None = None) -> Found:
        """From an accumulator."""
        return cls(sums.numerator, sums.denominator, sums.count, sums.log_scale, sums.log_denominator, state)

    @property
    def accumulator(self) -> Accumulator:
        """The sums."""
        return Accumulator(self.numerator, self.denominator, self.count, self.log_scale, self.log_denominator)

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """The tensors without a gradient."""
        return tuple(each for name, each in self.named_tensors().items() if name.endswith(_CONSTANT))


def wants_gradient(given: TensorTree) -> bool:
    """Whether autograd is to follow work on ``given`` here and now; compilers and transforms see to themselves."""
    if torch.compiler.is_compiling() or is_transformed() or not torch.is_grad_enabled():
        return False
    return any(each.requires_grad for each in given.tensors())


def recomputed(work: Callable[[Given], Accumulator], given: Given) -> Accumulator:
    """``work(given)``; autograd keeps what was given and the result, and nothing between them.

    Args:
        work: of the tensors in ``given`` alone.
        given: what it works on.
    """
    if not wants_gradient(given):
        return work(given)
    shape: list[Found] = []
    outputs = _Recomputed.apply(work, given, shape, *given.tensors())  # type: ignore[no-untyped-call]
    return shape[0].rebuilt(outputs).accumulator


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, work: Callable[[TensorTree], Accumulator], given: TensorTree, shape: list[Found], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        found = Found.of(work(given)).map_tensors(Tensor.contiguous)
        shape.append(found)
        ctx.work, ctx.shape, ctx.names = work, skeleton(given), tuple(found.named_tensors())
        ctx.save_for_backward(*tensors)
        ctx.mark_non_differentiable(*found.constants)
        ctx.set_materialize_grads(False)
        return found.tensors()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        given: TensorTree = ctx.shape.rebuilt(ctx.saved_tensors)
        twice = torch.is_grad_enabled()  # someone differentiates the gradient
        given = given if twice else given.map_tensors(leaf)
        with torch.enable_grad():
            found = Found.of(ctx.work(given)).named_tensors()
        of_outputs = {name: each for name, each in zip(ctx.names, grads, strict=True) if each is not None}
        inputs = given.named_tensors()
        of_inputs = gradients(found, inputs, of_outputs, twice=twice)
        return None, None, None, *(of_inputs.get(name) for name in inputs)


def skeleton(given: Given) -> Given:
    """The same structure without its numbers."""
    return given.map_tensors(lambda each: each.new_empty(0))


def leaf(tensor: Tensor) -> Tensor:
    """The same numbers, where a gradient begins."""
    return tensor.detach().requires_grad_() if tensor.is_floating_point() else tensor


def gradients(
    outputs: dict[str, Tensor], inputs: dict[str, Tensor], of_outputs: dict[str, Tensor], *, twice: bool = False
) -> dict[str, Tensor]:
    """Gradients of the inputs that have one, by name.

    Args:
        outputs: by name.
        inputs: by name; constants among them have none.
        of_outputs: gradients of the outputs, by name, where there are any.
        twice: keep the graph of the gradients themselves.
    """
    pairs = [
        (outputs[name], each) for name, each in of_outputs.items() if name in outputs and outputs[name].requires_grad
    ]
    names = [name for name, each in inputs.items() if each.requires_grad and not name.endswith(_CONSTANT)]
    if not pairs or not names:
        return {}
    found = torch.autograd.grad(
        [each for each, _ in pairs],
        [inputs[name] for name in names],
        [each for _, each in pairs],
        create_graph=twice,
        allow_unused=True,
    )
    return {name: each for name, each in zip(names, found, strict=True) if each is not None}
