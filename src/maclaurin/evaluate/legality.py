"""What is promised of moments, and of which mechanisms."""

from __future__ import annotations

from maclaurin.algebra import Mechanism, Series

#: Highest order for which reading from moments is promised; beyond, powers and centering cancel too many digits.
MAX_MOMENT_ORDER = 4


def moment_refusal(mechanism: Mechanism) -> str | None:
    """Why moments cannot serve this mechanism, or None if they can (or are not needed)."""
    function = mechanism.similarity.function
    if mechanism.far is not None and isinstance(function, Series) and function.degree > MAX_MOMENT_ORDER:
        lost = f"reading order {function.degree} from moments loses too many digits"
        return f"{lost} (promised up to order {MAX_MOMENT_ORDER})"
    return None
