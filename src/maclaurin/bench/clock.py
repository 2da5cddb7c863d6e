"""Time of many calls, interleaved, so that whatever disturbs the machine disturbs all of them alike."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from statistics import median, quantiles
from typing import Any, NamedTuple

import torch

#: Seconds that so many calls of a function take together.
Timer = Callable[[Callable[[], object], int], float]

LEAST_SECONDS = 0.02  # one timing lasts at least so long, else the clock's own grain shows
_MOST_REPEATS = 10_000


class Spread(NamedTuple):
    """Median and quartiles."""

    median: float
    low: float
    high: float


def processor_time(call: Callable[[], object], repeats: int) -> float:
    """CPU seconds of this process: other processes slow the machine down, yet add nothing."""
    began = time.process_time()
    for _ in range(repeats):
        call()
    return time.process_time() - began


def wall_time(call: Callable[[], object], repeats: int) -> float:
    """Seconds on the wall."""
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - began


def device_time(call: Callable[[], object], repeats: int) -> float:
    """Seconds between two events on the CUDA device's stream."""
    event: Any = torch.cuda.Event
    start, end = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def timer_of(device: str, threads: int) -> tuple[Timer, str]:
    """The clock that fits, and what it measures in words."""
    if torch.device(device).type == "cuda":
        return device_time, "time on the CUDA stream"
    if threads == 1:
        return processor_time, "CPU time of one thread"
    return wall_time, f"wall time of {threads} threads"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads; afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def interleave(
    calls: Mapping[str, Callable[[], object]], rounds: int, timer: Timer, *, least_seconds: float = LEAST_SECONDS
) -> dict[str, list[float]]:
    """Seconds per call of every function, round by round; each round begins with another one.

    Args:
        calls: what to time, by name; each is called once before, unmeasured.
        rounds: measurements of each.
        timer: one of this module, or any other :data:`Timer`.
        least_seconds: a measurement repeats its call until it lasts so long.
    """
    names = [*calls]
    repeats = {name: _repeats(call, timer, least_seconds) for name, call in calls.items()}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with _without_collection():
        for index in range(rounds):
            first = index % max(len(names), 1)
            for name in names[first:] + names[:first]:
                seconds[name].append(timer(calls[name], repeats[name]) / repeats[name])
    return seconds


@contextmanager
def _without_collection() -> Iterator[None]:
    """As ``timeit`` has it: a look through every object of the process falls to whoever allocates next."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def spread(values: list[float]) -> Spread:
    """Median and quartiles of at least one value.

    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.5, high=2.5)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Spread(median(values), low, high)


def ratio(values: list[float], reference: list[float]) -> float:
    """Median over rounds of one time divided by the other's of the same round.

    >>> ratio([2.0, 4.0, 9.0], [1.0, 2.0, 3.0])
    2.0
    """
    return median(a / b if b else math.inf for a, b in zip(values, reference, strict=True))


def _repeats(call: Callable[[], object], timer: Timer, least_seconds: float) -> int:
    call()
    count, taken = 1, timer(call, 1)
    while taken < least_seconds and count < _MOST_REPEATS:
        grow = least_seconds / taken * 1.1 if taken > 0 else 10.0
        count = min(_MOST_REPEATS, max(count + 1, math.ceil(count * min(grow, 10.0))))
        taken = timer(call, count)
    return count
