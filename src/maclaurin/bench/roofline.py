"""What the machine can do at most, measured, and what a mechanism needs at least, counted."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import torch

from maclaurin.algebra import Mechanism
from maclaurin.bench.clock import Timer
from maclaurin.bench.subject import Dims

_BACKWARD_OF_CACHE = 3.5  # two products forward, five backward, the logits again among them
_BACKWARD_OF_STATE = 4.0  # the same update and read-out once for each of three gradients


@dataclass(frozen=True)
class Roofline:
    """Rates of the machine.

    Args:
        flops_per_second: of a square matrix product, by dtype.
        copy_bytes_per_second: of a large copy, bytes read and bytes written together.
    """

    flops_per_second: dict[str, float]
    copy_bytes_per_second: float


def measure(
    dtypes: tuple[torch.dtype, ...],
    device: str,
    timer: Timer,
    *,
    size: int = 1024,
    copied: int = 1 << 25,
    rounds: int = 3,
) -> Roofline:
    """Time a matrix product ``[size, size]`` in every dtype and a copy of ``copied`` float32 numbers.

    Args:
        dtypes: of the products.
        device: where.
        timer: the clock that the comparison uses, so that fractions are of the same kind of time.
        size: rows and columns.
        copied: numbers; far more than the caches hold.
        rounds: medians are taken over so many.
    """
    rates = {}
    for dtype in dtypes:
        left = torch.randn(size, size, device=device).to(dtype)
        out = torch.empty_like(left)
        rates[_name(dtype)] = 2 * size**3 / _seconds(lambda a=left, o=out: torch.mm(a, a, out=o), timer, rounds)
    source = torch.ones(copied, device=device)
    target = torch.empty_like(source)
    return Roofline(rates, 8 * copied / _seconds(lambda: target.copy_(source), timer, rounds))


def useful_flops(mechanism: Mechanism, shape: Dims, work: str) -> float:
    """Floating-point operations that causal attention needs in all: the fewer of its two forms.

    The quadratic form takes 2 (K + V) per visible pair, the state form what
    :meth:`Mechanism.flops_per_token` says. A backward pass adds 2.5 and 3 times as much.
    """
    tokens = shape.batch * shape.heads * shape.length
    of_cache = 2.0 * (shape.head_size + shape.head_size) * (shape.length + 1) / 2 * tokens
    is_training = work == "training"
    totals = [of_cache * (_BACKWARD_OF_CACHE if is_training else 1)]
    if mechanism.is_finite_state:
        of_state = float(mechanism.flops_per_token(shape.head_size, shape.head_size)) * tokens
        totals.append(of_state * (_BACKWARD_OF_STATE if is_training else 1))
    return min(totals)


def step_bytes(mechanism: Mechanism, shape: Dims, item_size: int) -> float:
    """Bytes that one decode step moves at least: a state read and written, or a cache read."""
    heads = shape.batch * shape.heads
    if mechanism.is_finite_state:
        return 2.0 * mechanism.state_size(shape.head_size, shape.head_size) * max(item_size, 4) * heads
    return 2.0 * shape.head_size * shape.length * item_size * heads


def fraction(roofline: Roofline, mechanism: Mechanism, shape: Dims, dtype: str, work: str, seconds: float) -> float:
    """Least time that the machine could take, over the time taken; below 1 unless the rate was measured too low."""
    if work == "decode":
        item_size = torch.empty((), dtype=getattr(torch, dtype)).element_size()
        return step_bytes(mechanism, shape, item_size) / roofline.copy_bytes_per_second / seconds
    return useful_flops(mechanism, shape, work) / roofline.flops_per_second[dtype] / seconds


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _seconds(call: object, timer: Timer, rounds: int) -> float:
    assert callable(call)
    call()
    return max(median(timer(call, 1) for _ in range(rounds)), 1e-9)
