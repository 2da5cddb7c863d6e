"""How attention is computed: the parallel reference, token by token with a state, and the door to both."""

from maclaurin.evaluate.attend import AttentionOutput, Diagnostics, attend, methods
from maclaurin.evaluate.legality import MAX_MOMENT_ORDER
from maclaurin.evaluate.state import State

__all__ = ["MAX_MOMENT_ORDER", "AttentionOutput", "Diagnostics", "State", "attend", "methods"]
