"""How attention is computed: the parallel reference, chunks, kernels, token by token; states; the door to them all."""

from maclaurin.evaluate.attend import AttentionOutput, Diagnostics, attend, methods
from maclaurin.evaluate.legality import MAX_MOMENT_ORDER
from maclaurin.evaluate.state import State
from maclaurin.evaluate.stepper import Stepper, stepper

__all__ = [
    "MAX_MOMENT_ORDER",
    "AttentionOutput",
    "Diagnostics",
    "State",
    "Stepper",
    "attend",
    "methods",
    "stepper",
]
