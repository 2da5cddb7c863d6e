"""Which way to compute a call is fastest, by counts of work and a machine's constants; and the saying of it."""

from maclaurin.evaluate.plan.choice import choose, choose_for_compiler, forget, ways_of
from maclaurin.evaluate.plan.explanation import Explanation, MethodCost, explain

__all__ = ["Explanation", "MethodCost", "choose", "choose_for_compiler", "explain", "forget", "ways_of"]
