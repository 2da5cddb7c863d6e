"""Timings and memory of attention, ours beside others', in one process and interleaved.

:func:`compare` runs a :class:`Plan` and returns a :class:`Result`: medians with quartiles, ratios to torch's own
attention taken round by round, fractions of what the machine can do, and the lengths where one overtakes the other.
"""

from maclaurin.bench.calibration import calibrate
from maclaurin.bench.compare import compare
from maclaurin.bench.crossover import crossover
from maclaurin.bench.plan import Plan, quick
from maclaurin.bench.result import Crossover, Memory, Result, Timing
from maclaurin.bench.subject import Dims, Inputs, Subject

__all__ = [
    "Crossover",
    "Dims",
    "Inputs",
    "Memory",
    "Plan",
    "Result",
    "Subject",
    "Timing",
    "calibrate",
    "compare",
    "crossover",
    "quick",
]
