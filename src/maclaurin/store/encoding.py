"""Python values as the store writes them: JSON and numbers, with nothing where a number is not finite."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: float) -> float | None:
    """``value``, or None where it is not finite."""
    return value if math.isfinite(value) else None


def number(value: float | None) -> float:
    """``value``, or nan where there was none."""
    return math.nan if value is None else value


def dump(value: Any) -> str:
    """JSON with null in the place of every number that is not finite.

    >>> dump({"lr": 0.01, "losses": (1.5, math.inf)})
    '{"lr": 0.01, "losses": [1.5, null]}'
    """
    return json.dumps(_without_nonfinite(value), ensure_ascii=False, allow_nan=False)


def _without_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, dict):
        return {key: _without_nonfinite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nonfinite(each) for each in value]
    return value
