"""States as opaque trees: tensors in tuples, lists, dicts, dataclasses, or anything with ``map_tensors``."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maclaurin.evaluate import State


def map_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with every tensor changed; what holds no tensor stays as it is.

    Example:
        >>> map_tensors((torch.ones(2), {"count": 3}), lambda each: 2 * each)
        (tensor([2., 2.]), {'count': 3})
    """
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, State):
        return tree.map_tensors(change)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_tensors(each, change) for each in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_tensors(each, change) for each in tree)
    if isinstance(tree, dict):
        return type(tree)((key, map_tensors(each, change)) for key, each in tree.items())
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        names = [each.name for each in dataclasses.fields(tree) if each.init]
        return dataclasses.replace(tree, **{name: map_tensors(getattr(tree, name), change) for name in names})
    return tree


def tensors_of(tree: Any) -> list[Tensor]:
    """Every tensor of the tree, in a fixed order."""
    found: list[Tensor] = []

    def note(each: Tensor) -> Tensor:
        found.append(each)
        return each

    map_tensors(tree, note)
    return found


def nbytes(tree: Any) -> int:
    """Bytes of every tensor in the tree."""
    return sum(each.numel() * each.element_size() for each in tensors_of(tree))


def copied(tree: Any) -> Any:
    """The same numbers in new memory, without a graph."""
    return map_tensors(tree, lambda each: each.detach().clone())


def as_leaves(tree: Any) -> tuple[Any, list[Tensor]]:
    """A copy whose floating tensors are fresh leaves that require gradients, and those leaves.

    Constants stay constants: the key reference of a centered state, and whole numbers, which count something.
    """
    leaves: list[Tensor] = []
    reference = getattr(tree, "key_reference", None)

    def leaf(each: Tensor) -> Tensor:
        fresh = each.detach().clone()
        if fresh.is_floating_point() and each is not reference and bool((fresh != fresh.round()).any()):
            leaves.append(fresh.requires_grad_())
        return fresh

    return map_tensors(tree, leaf), leaves


def moved(tree: Any, index: int, by: Tensor) -> Any:
    """A copy in which one of the tensors that :func:`as_leaves` makes leaves is moved."""
    copy, leaves = as_leaves(tree)
    return map_tensors(copy, lambda each: each.detach() + by if each is leaves[index] else each.detach())


def through_disk(tree: Any) -> Any:
    """The tree with every tensor written to a file and read back: nothing else of it survives a process."""

    def travel(each: Tensor) -> Tensor:
        with tempfile.TemporaryFile() as file:
            torch.save(each.detach().clone(), file)
            file.seek(0)
            loaded: Tensor = torch.load(file, weights_only=True)
        return loaded

    return map_tensors(tree, travel)
