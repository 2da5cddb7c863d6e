"""The table of methods: how each turns a problem into sums, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from maclaurin.algebra import Accumulator, Mechanism
from maclaurin.algebra.catalogue import mechanism_of
from maclaurin.evaluate import chunked, fused, parallel, recurrent
from maclaurin.evaluate.state import State


class Evaluation(NamedTuple):
    """One way to compute a mechanism.

    Args:
        accumulate: from a problem to its accumulator and state.
        refusal: why it cannot serve a mechanism, or None.
        has_chunks: whether it takes ``chunk_size`` and ``kernel``.
    """

    accumulate: Callable[..., tuple[Accumulator, State | None]]
    refusal: Callable[[Mechanism], str | None]
    has_chunks: bool = False


EVALUATIONS = {
    "parallel": Evaluation(parallel.accumulate, lambda mechanism: None),
    "recurrent": Evaluation(recurrent.accumulate, recurrent.refusal),
    "chunked": Evaluation(chunked.accumulate, chunked.refusal, has_chunks=True),
    "fused": Evaluation(fused.accumulate, fused.refusal, has_chunks=True),
}


def methods(mechanism: Mechanism | str) -> dict[str, str | None]:
    """Every evaluation, with None if it serves the mechanism and the reason if it does not.

    Example:
        >>> [name for name, reason in methods("taylor:2/sum").items() if reason is None]
        ['parallel', 'recurrent', 'chunked']
    """
    mechanism = mechanism_of(mechanism)
    return {name: each.refusal(mechanism) for name, each in EVALUATIONS.items()}
