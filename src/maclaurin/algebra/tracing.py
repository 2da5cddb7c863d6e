"""Who else follows a call: a compiler, a transform of ``torch.func``, forward-mode differentiation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

Result = TypeVar("Result", bound=Callable[..., object])


def constant_when_traced(function: Result) -> Result:
    """Let ``torch.compile`` call ``function`` instead of tracing it, and keep what it returns.

    This is ``torch.compiler.assume_constant_result``, which would import the compiler (seconds) where it decorates.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def is_traced(*tensors: Tensor) -> bool:
    """Whether a call must keep to operations that anyone can follow, without a backward of its own.

    Args:
        tensors: those of the call.
    """
    if torch.compiler.is_compiling():
        return True
    return is_transformed() or any(forward_ad.unpack_dual(each).tangent is not None for each in tensors)  # type: ignore[no-untyped-call]


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` follows the operations of this moment."""
    functions: Any = torch._C
    return bool(functions._are_functorch_transforms_active())
