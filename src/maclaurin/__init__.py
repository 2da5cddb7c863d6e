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
    "Explanation": "maclaurin.evaluate",
    "MaclaurinError": "maclaurin.errors",
    "Mechanism": "maclaurin.algebra",
    "Recipe": "maclaurin.algebra",
    "Shape": "maclaurin.evaluate",
    "State": "maclaurin.evaluate",
    "Stepper": "maclaurin.evaluate",
    "attend": "maclaurin.evaluate",
    "calibrate": "maclaurin.bench",
    "explain": "maclaurin.evaluate",
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
    "Explanation",
    "MaclaurinError",
    "Mechanism",
    "Recipe",
    "Shape",
    "State",
    "Stepper",
    "__version__",
    "attend",
    "calibrate",
    "explain",
    "mechanism",
    "methods",
    "recipe",
    "stepper",
]

if TYPE_CHECKING:
    from maclaurin.algebra import CATALOGUE, Accumulator, Mechanism, Recipe, mechanism, recipe
    from maclaurin.bench import calibrate
    from maclaurin.errors import MaclaurinError
    from maclaurin.evaluate import (
        AttentionOutput,
        Explanation,
        Shape,
        State,
        Stepper,
        attend,
        explain,
        methods,
        stepper,
    )
    from maclaurin.nn import AttentionLayer, DecoderConfig, DecoderLM


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'maclaurin' has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
