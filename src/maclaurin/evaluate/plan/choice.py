"""Which way a call goes: what serves it, cheapest first by predicted seconds."""

from __future__ import annotations

import os
from functools import lru_cache
from typing import NamedTuple

import torch

from maclaurin.algebra import Mechanism
from maclaurin.evaluate.evaluations import EVALUATIONS
from maclaurin.evaluate.plan.costs import load_costs
from maclaurin.evaluate.plan.ways import WAYS, Counted, Way
from maclaurin.evaluate.shape import Shape

#: Numbers in the logits of one call beyond which compiled code leaves the parallel form: 256 MB in float32.
_MANY_PAIRS = 1 << 26
#: Share of the machine's memory that the logits of one call may take.
_SHARE = 0.25


class Predicted(NamedTuple):
    """A way and the seconds that it is predicted to take."""

    way: Way
    seconds: float


class Choice(NamedTuple):
    """The method that ``auto`` takes, and why, in words."""

    method: str
    reason: str


def choose(mechanism: Mechanism, shape: Shape, *, kernel: str = "auto") -> Choice:
    """The method for a call.

    Args:
        mechanism: to evaluate.
        shape: of the call.
        kernel: ``torch`` to keep to public functions.
    """
    if shape.has_pair_mask:
        return Choice("parallel", "every query has its own mask")
    if shape.has_state and shape.queries == 1 and serves(mechanism, "recurrent"):
        return Choice("recurrent", "one query on a state")
    if shape.is_empty:
        return Choice("parallel", "there is nothing to compute")
    return _choose_by_cost(mechanism, shape, kernel, torch.get_num_threads())


def choose_for_compiler(mechanism: Mechanism, *, is_step: bool, num_pairs: int) -> str:
    """The method for a call that is compiled: to compare costs would tie the code to every size there is.

    Args:
        mechanism: to evaluate.
        is_step: whether it is one query on a state.
        num_pairs: logits of every query with every new key.
    """
    wanted = ["recurrent"] if is_step else ["fused", "chunked"] if num_pairs > _MANY_PAIRS else []
    able = [each for each in wanted if serves(mechanism, each)]
    return able[0] if able else "parallel"


def ways_of(
    mechanism: Mechanism, shape: Shape, method: str, *, kernel: str = "auto", has_chunk_size: bool = False
) -> list[Predicted]:
    """The ways of a method that serve a call, its kernels before its loop, cheapest first; none if it does not serve.

    Args:
        mechanism: to evaluate.
        shape: of the call.
        method: one of ``attend``'s.
        kernel: ``torch`` to keep to public functions.
        has_chunk_size: whether a chunk size was given.
    """
    if not serves(mechanism, method):
        return []
    found = _predicted(mechanism, shape, method, torch.get_num_threads())
    return [
        each
        for each in found
        if (kernel == "auto" or each.way.direct is None) and (each.way.takes_chunk_size or not has_chunk_size)
    ]


def forget() -> None:
    """Drop what was decided from costs that have changed."""
    _predicted.cache_clear()
    _choose_by_cost.cache_clear()


@lru_cache(maxsize=4096)
def _predicted(mechanism: Mechanism, shape: Shape, method: str, threads: int) -> list[Predicted]:
    costs, counted = load_costs(shape.device, threads), Counted(mechanism, shape)
    able = [each for each in WAYS if each.method == method and each.serves(mechanism, shape)]
    found = [Predicted(each, costs.predict(each, counted)) for each in able]
    return sorted(found, key=lambda each: (each.way.direct is None, each.seconds))


@lru_cache(maxsize=4096)
def _choose_by_cost(mechanism: Mechanism, shape: Shape, kernel: str, threads: int) -> Choice:
    counted = Counted(mechanism, shape)
    best = {name: found[0] for name in EVALUATIONS if (found := ways_of(mechanism, shape, name, kernel=kernel))}
    limit = _SHARE * memory_bytes(shape.device) / 4
    fitting = {name: each for name, each in best.items() if each.way.numbers(counted) <= limit}
    name = min(fitting or best, key=lambda each: best[each].seconds)
    reason = "least predicted time"
    if len(fitting) < len(best) and fitting:
        reason += ", after those that do not fit into memory"
    return Choice(name, reason)


def serves(mechanism: Mechanism, method: str) -> bool:
    """Whether a method serves a mechanism."""
    return EVALUATIONS[method].refusal(mechanism) is None


@lru_cache(maxsize=8)
def memory_bytes(device: str) -> float:
    """Of the device; infinite where the system does not say."""
    if device == "cuda" and torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return float("inf")
