"""Values made of tensors, so that one function reaches all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, Self

from torch import Tensor


@dataclass(frozen=True, eq=False)
class TensorTree:
    """A frozen dataclass whose fields are tensors, tuples of tensors, trees, or anything that is left alone."""

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> Self:
        """The same value with ``change`` applied to every tensor."""

        def through(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(through(each) for each in value)
            if isinstance(value, TensorTree):
                return value.map_tensors(change)
            return change(value) if isinstance(value, Tensor) else value

        return replace(self, **{each.name: through(getattr(self, each.name)) for each in fields(self)})

    def named_tensors(self) -> dict[str, Tensor]:
        """Every tensor by its path, such as ``moments.numerators.2``, in a fixed order."""
        found: dict[str, Tensor] = {}

        def visit(path: str, value: Any) -> None:
            if isinstance(value, Tensor):
                found[path] = value
            elif isinstance(value, tuple):
                for i, each in enumerate(value):
                    visit(f"{path}.{i}", each)
            elif isinstance(value, TensorTree):
                for each in fields(value):
                    visit(f"{path}.{each.name}" if path else each.name, getattr(value, each.name))

        visit("", self)
        return found

    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor, in a fixed order."""
        return tuple(self.named_tensors().values())

    def rebuilt(self, tensors: Iterable[Tensor]) -> Self:
        """The same value with its tensors replaced, in the order of :meth:`tensors`."""
        given = iter(tensors)
        return self.map_tensors(lambda _: next(given))
