"""Memory for time: a piece of work whose intermediate results are made again when gradients are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import torch
from torch.utils.checkpoint import checkpoint

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")


def recomputed(work: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """``work(*arguments)``; autograd keeps the arguments and the result, and nothing between them.

    A graph that is being compiled decides for itself what it keeps.
    """
    if not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return work(*arguments)
    result: Result = checkpoint(work, *arguments, use_reentrant=False, preserve_rng_state=False)
    return result
