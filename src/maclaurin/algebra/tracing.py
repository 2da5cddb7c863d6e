"""What a compiler's tracer is told about functions that hold no tensor mathematics."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result", bound=Callable[..., object])


def constant_when_traced(function: Result) -> Result:
    """Let ``torch.compile`` call ``function`` instead of tracing it, and keep what it returns.

    This is ``torch.compiler.assume_constant_result``, which would import the compiler (seconds) where it decorates.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
