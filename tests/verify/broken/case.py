"""What a deliberately broken attention function is: a target of third-party style with one known fault.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys, K key dim, V value dim.

A target is ``fn(query, key, value, *, <keywords>) -> output``, or ``(output, state)`` with ``return_state=True``. It
takes exactly the keywords in its signature, plain torch only, and imports nothing of maclaurin. Its keywords:

* ``is_causal: bool = True``: query t sees key s iff s <= t + S - T; keys of a state always.
* ``scale: float | None = None``: None is K ** -0.5 for the identity map, 1 for feature maps.
* ``mask``: bool ``[B, S]``, True where a key may be seen; masked positions decay nothing.
* ``log_decay``: ``[B, Hkv, S]`` (layout "bthd": ``[B, S, Hkv]``), <= 0, -inf is a reset, None is no decay. Key s counts
  for query t with exp(a_{s+1} + ... + a_t); a_0 decays a carried state.
* ``state`` and ``return_state``: what an earlier call returned, and whether to return it.
* ``cu_seqlens``: int64 ``[N + 1]``, the edges of packed documents, B = 1. ``chunk_size``: an int.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

FAVORABLE = {"batch": 2, "heads": 4, "kv_heads": 2, "queries": 24, "keys": 24, "key_dim": 8, "value_dim": 6}


@dataclass(frozen=True)
class Broken:
    """One target with one fault.

    Args:
        name: a word for it.
        row: the complaint it re-creates, "C1" to "C25" of the log in ``shared/reference/peers-and-laws.md``, section 5,
            or "" for none.
        fault: what is wrong, in a sentence.
        like: text of the mechanism that it claims to be.
        forms: functions that claim to compute the same thing; where there are several, one is wrong.
        layout: "bhtd" (query ``[B, H, T, K]``) or "bthd" (``[B, T, H, K]``).
        favorable: sizes on which every form is right without any optional keyword.
    """

    name: str
    row: str
    fault: str
    like: str
    forms: dict[str, Callable[..., Any]]
    layout: str = "bhtd"
    favorable: dict[str, int] = field(default_factory=lambda: dict(FAVORABLE))


def favorable(**sizes: int) -> dict[str, int]:
    """The usual sizes with some of them changed."""
    return {**FAVORABLE, **sizes}
