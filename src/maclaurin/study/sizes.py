"""What a mechanism keeps per key/value head: no order is named without its bytes and break-even length."""

from __future__ import annotations

from maclaurin.store import Measurement

#: Numbers are kept in float32 by the evaluations that the studies use.
_ITEM_BYTES = 4


def size_measurements(mechanism: str, *, key_dim: int, value_dim: int, length: int) -> tuple[Measurement, ...]:
    """``state_bytes`` per head, float32; and, where it does not grow, ``break_even_tokens`` of a 16-bit cache.

    A mechanism without a finite state keeps keys and values: its bytes are those after ``length`` tokens.

    >>> size_measurements("exp/sum", key_dim=16, value_dim=16, length=64)[0].value
    8192.0
    """
    from maclaurin.algebra import mechanism as mechanism_of

    chosen = mechanism_of(mechanism)
    if not chosen.is_finite_state:
        return (Measurement("state_bytes", float(_ITEM_BYTES * chosen.cache_size(key_dim, value_dim, length))),)
    return (
        Measurement("state_bytes", float(_ITEM_BYTES * chosen.state_size(key_dim, value_dim))),
        Measurement("break_even_tokens", chosen.break_even_length(key_dim, value_dim)),
    )
