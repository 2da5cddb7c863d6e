"""How attention is computed: the parallel reference, chunks, kernels, token by token; states; the door to them all."""

from maclaurin.evaluate.attend import AttentionOutput, Diagnostics, attend
from maclaurin.evaluate.evaluations import methods
from maclaurin.evaluate.legality import MAX_MOMENT_ORDER
from maclaurin.evaluate.plan import Explanation, explain
from maclaurin.evaluate.shape import Shape
from maclaurin.evaluate.state import State
from maclaurin.evaluate.stepper import Stepper, stepper

__all__ = [
    "MAX_MOMENT_ORDER",
    "AttentionOutput",
    "Diagnostics",
    "Explanation",
    "Shape",
    "State",
    "Stepper",
    "attend",
    "explain",
    "methods",
    "stepper",
]
