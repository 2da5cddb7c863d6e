"""maclaurin: softmax attention, order by order.

exp(x) is an infinite Maclaurin series, so softmax attention is an infinite sum of recurrent networks and linear
attention is one term of it. This package holds one composable family of attention mechanisms, evaluated in
parallel, chunked, fused and recurrent form with equal results; ``maclaurin.verify`` holds their laws.

Public names resolve on first use: ``import maclaurin`` alone imports nothing else, not even torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

#: Public name -> the module that defines it.
_PUBLIC = {
    "Accumulator": "maclaurin.algebra",
    "AttentionLayer": "maclaurin.nn",
    "AttentionOutput": "maclaurin.evaluate",
    "CATALOGUE": "maclaurin.algebra",
    "DecoderConfig": "maclaurin.nn",
    "DecoderLM": "maclaurin.nn",
    "MaclaurinError": "maclaurin.errors",
    "Mechanism": "maclaurin.algebra",
    "Recipe": "maclaurin.algebra",
    "State": "maclaurin.evaluate",
    "Stepper": "maclaurin.evaluate",
    "attend": "maclaurin.evaluate",
    "mechanism": "maclaurin.algebra",
    "methods": "maclaurin.evaluate",
    "recipe": "maclaurin.algebra",
    "stepper": "maclaurin.evaluate",
}

__all__ = [
    "CATALOGUE",
    "Accumulator",
    "AttentionLayer",
    "AttentionOutput",
    "DecoderConfig",
    "DecoderLM",
    "MaclaurinError",
    "Mechanism",
    "Recipe",
    "State",
    "Stepper",
    "__version__",
    "attend",
    "mechanism",
    "methods",
    "recipe",
    "stepper",
]

if TYPE_CHECKING:
    from maclaurin.algebra import CATALOGUE, Accumulator, Mechanism, Recipe, mechanism, recipe
    from maclaurin.errors import MaclaurinError
    from maclaurin.evaluate import AttentionOutput, State, Stepper, attend, methods, stepper
    from maclaurin.nn import AttentionLayer, DecoderConfig, DecoderLM


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'maclaurin' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
