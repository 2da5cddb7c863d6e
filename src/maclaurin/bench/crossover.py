"""From which length on one function is faster than another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping


def crossover(ratios: Mapping[int, float]) -> float | None:
    """The length from which on a ratio of times stays below 1, interpolated on logarithms.

    Args:
        ratios: time divided by the reference's, by length.

    Returns:
        The shortest length measured where every ratio is below 1 (the crossover lies at or below it); None where the
        longest one is not.

    Example:
        >>> round(crossover({256: 2.0, 1024: 0.5}))
        512
        >>> crossover({256: 2.0, 1024: 1.5}) is None
        True
    """
    lengths = sorted(ratios, reverse=True)
    if not lengths or ratios[lengths[0]] >= 1:
        return None
    for longer, shorter in itertools.pairwise(lengths):
        if ratios[shorter] >= 1:
            above, below = math.log(ratios[shorter]), math.log(ratios[longer])
            share = above / (above - below)
            return math.exp(math.log(shorter) + share * (math.log(longer) - math.log(shorter)))
    return float(lengths[-1])
