"""What ``auto`` does with a call, said aloud."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from maclaurin.algebra import Mechanism
from maclaurin.algebra.catalogue import mechanism_of
from maclaurin.evaluate.evaluations import methods
from maclaurin.evaluate.plan.choice import choose, ways_of
from maclaurin.evaluate.plan.costs import load_costs
from maclaurin.evaluate.shape import Shape


@dataclass(frozen=True)
class MethodCost:
    """One method on one call.

    Args:
        method: of ``attend``.
        way: the kernel or loop it would go through; None where it does not serve.
        seconds: predicted; None where it does not serve.
        refusal: why it does not serve, or None.
    """

    method: str
    way: str | None
    seconds: float | None
    refusal: str | None


@dataclass(frozen=True)
class Explanation:
    """What ``auto`` picks for a call, and what every method would cost.

    Args:
        mechanism: to evaluate.
        shape: of the call.
        method: the pick.
        reason: why, in words.
        costs: of every method, cheapest first, those that do not serve last.
        source: where the constants are from.
    """

    mechanism: Mechanism
    shape: Shape
    method: str
    reason: str
    costs: tuple[MethodCost, ...]
    source: str

    def __str__(self) -> str:
        lines = [f"{self.mechanism}: {self.method} ({self.reason})"]
        for each in self.costs:
            if each.seconds is None:
                lines.append(f"  {each.method:<10} does not serve: {each.refusal}")
            else:
                lines.append(f"  {each.method:<10} {1e3 * each.seconds:>10.3f} ms  {each.way}")
        phase = "forward and backward" if self.shape.wants_gradient else "forward"
        return "\n".join([*lines, f"  predicted for {phase}; constants {self.source}"])


def explain(mechanism: Mechanism | str, shape: Shape) -> Explanation:
    """What ``attend(method="auto")`` picks for a call of this shape, why, and every method's predicted cost.

    The prediction is a sum of counts of work (pairs, products, features, passes of a loop) times constants in
    seconds, which are built in or measured by :func:`maclaurin.calibrate`.

    Args:
        mechanism: a :class:`Mechanism`, its text, or a catalogue name.
        shape: sizes, dtype and device of the call.

    Raises:
        GrammarError: a name or text that does not exist.

    Cost: below a millisecond; the first call reads one small file.

    Example:
        >>> found = explain("elu1/sum", Shape(queries=16384, key_dim=64))
        >>> found.method, [each.method for each in found.costs if each.refusal]
        ('chunked', ['fused'])
    """
    mechanism = mechanism_of(mechanism)
    choice = choose(mechanism, shape)
    costs = []
    for method, refusal in methods(mechanism).items():
        found = ways_of(mechanism, shape, method)
        if shape.has_pair_mask and method in ("recurrent", "chunked"):
            found, refusal = [], "a state has one set of keys for all queries"
        way, seconds = (found[0].way.name, found[0].seconds) if found else (None, None)
        costs.append(MethodCost(method, way, seconds, refusal))
    costs.sort(key=lambda each: (each.seconds is None, each.seconds or 0.0))
    source = load_costs(shape.device, torch.get_num_threads()).source
    return Explanation(mechanism, shape, choice.method, choice.reason, tuple(costs), source)
