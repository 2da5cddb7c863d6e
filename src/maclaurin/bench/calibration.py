"""The constants that ``attend(method="auto")`` compares methods by, measured on this machine in a few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from maclaurin.algebra import Mechanism
from maclaurin.algebra.catalogue import mechanism_of
from maclaurin.bench.clock import interleave, spread, timer_of, torch_threads
from maclaurin.evaluate import Shape, attend
from maclaurin.evaluate.call import Call, Options
from maclaurin.evaluate.plan.choice import forget
from maclaurin.evaluate.plan.costs import dtype_name, phase_of, store_costs
from maclaurin.evaluate.plan.ways import WAYS, Counted, Way

#: One measurement lasts at least so long.
_LEAST_SECONDS = 0.001
_DTYPES = (torch.float32, torch.bfloat16)

#: (heads, T, K) of the calls of each way, and the mechanisms: few, small, and far apart in every kind of work.
_LINEAR = ((2, 128, 64), (4, 512, 16), (1, 1024, 32), (1, 2048, 64), (1, 4096, 16))
_QUADRATIC = ((2, 64, 16), (2, 128, 64), (2, 384, 32), (1, 768, 64), (2, 512, 16), (1, 1536, 16), (1, 1536, 64))
_SAMPLES: dict[str, tuple[tuple[str, ...], tuple[tuple[int, int, int], ...]]] = {
    "all pairs": (("exp/sum", "taylor:2/sum"), (*_QUADRATIC, (3, 2048, 16))),
    "token by token": (("elu1/sum", "taylor:2/sum", "exp/sum"), ((1, 8, 16), (2, 24, 16), (4, 16, 32))),
    "spans": (("elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "taylor:3/l2"), _LINEAR),
    "blocks": (("elu1/sum", "taylor:4/l2"), _QUADRATIC),
    "chunk by chunk": (("elu1/sum", "taylor:2/sum", "exp/sum", "exp/sum+window:64"), _LINEAR[:3]),
    "blocks of exp": (("exp/l2",), _QUADRATIC),
    "kernel as given": (("exp/l2",), _QUADRATIC),
    "kernel": (("exp/length",), _QUADRATIC),
}
#: Features beyond which a call is no small one.
_MANY_FEATURES = 2500


@dataclass(frozen=True)
class _Sample:
    """One call to time."""

    way: Way
    counted: Counted

    @property
    def row(self) -> tuple[str, str, str]:
        """Where its constants belong: way, dtype of the products, phase."""
        dtype = self.way.product_dtype(self.counted.mechanism, self.counted.shape)
        return self.way.name, dtype_name(dtype), phase_of(self.counted)

    def call(self) -> Callable[[], object]:
        """What is timed."""
        mechanism, shape = self.counted.mechanism, self.counted.shape
        generator = torch.Generator().manual_seed(0)
        sizes = (shape.batch, shape.heads, shape.queries, shape.key_dim)
        query, key, value = (
            torch.randn(sizes, generator=generator).to(shape.device, shape.dtype).requires_grad_(shape.wants_gradient)
            for _ in range(3)
        )

        def forward() -> Tensor:
            if self.way.direct is None:
                return attend(mechanism, query, key, value, method=self.way.method, kernel=_kernel(self.way)).output
            call = Call.of(mechanism, query, key, value, Options())
            found = self.way.direct(call, shape, None)
            assert found is not None
            output: Tensor = found[0]
            return output.to(shape.dtype)

        if not shape.wants_gradient:
            return forward
        cotangent = torch.ones_like(query)
        return lambda: torch.autograd.grad(forward(), (query, key, value), cotangent)


def calibrate(device: str = "cpu", *, threads: int | None = None, rounds: int = 3) -> Path | None:
    """Measure this machine's constants and keep them, for ``method="auto"`` and :func:`maclaurin.explain`.

    Small calls of every way to compute attention are timed, forward and with a backward pass, in float32 and bfloat16;
    constants are the non-negative least-squares fit of relative errors.

    Args:
        device: ``cpu`` or ``cuda``.
        threads: of torch; None: as many as it uses now. Constants hold for that number alone.
        rounds: measurements of each call; the median counts.

    Returns:
        The file that was written, in the folder ``MACLAURIN_CACHE`` or the user's cache folder; None, with a warning,
        where it could not be.

    Cost: about 10 seconds on one core.
    """
    count = torch.get_num_threads() if threads is None else threads
    with torch_threads(count):
        seconds = measure(device, count, rounds)
    path = store_costs(device, count, seconds, date.today().isoformat())
    forget()
    return path


def measure(device: str, threads: int, rounds: int) -> dict[str, Any]:
    """The table of constants: way, dtype, phase, unit of work.

    Args:
        device: where.
        threads: that torch uses.
        rounds: measurements of each call.
    """
    rows: dict[tuple[str, str, str], list[tuple[_Sample, float]]] = {}
    timer, _ = timer_of(device, threads)
    for sample in _samples(device):
        found = interleave({"": sample.call()}, rounds, timer, least_seconds=_LEAST_SECONDS)
        rows.setdefault(sample.row, []).append((sample, spread(found[""]).median))
    table: dict[str, Any] = {}
    for (way, dtype, phase), samples in rows.items():
        table.setdefault(way, {}).setdefault(dtype, {})[phase] = _fitted(samples)
    return table


def _samples(device: str) -> Iterator[_Sample]:
    for way in WAYS:
        texts, sizes = _SAMPLES[way.name]
        for text, dtype, wants_gradient in product(texts, _DTYPES, (False, True)):
            mechanism = mechanism_of(text)
            for heads, length, key_dim in sizes:
                shape = Shape(queries=length, key_dim=key_dim, heads=heads, dtype=dtype, device=device)
                shape = replace(shape, wants_gradient=wants_gradient)
                if _is_of_use(way, mechanism, shape):
                    yield _Sample(way, Counted(mechanism, shape))


def _is_of_use(way: Way, mechanism: Mechanism, shape: Shape) -> bool:
    """Whether the way serves, and its constants in that dtype are its own."""
    is_own = shape.dtype == torch.float32 or way.product_dtype(mechanism, shape) == shape.dtype
    return is_own and way.serves(mechanism, shape) and mechanism.num_moments(shape.key_dim) <= _MANY_FEATURES


def _kernel(way: Way) -> str:
    """Of ``attend``, to go through a method's accumulator and not one of its kernels."""
    return "torch" if way.method == "chunked" else "auto"


def _fitted(samples: list[tuple[_Sample, float]]) -> dict[str, float]:
    """Constants >= 0 with the least squares of relative errors."""
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    works = [sample.way.work(sample.counted) for sample, _ in samples]
    names = sorted({name for work in works for name in work})
    seconds = np.array([each for _, each in samples])
    counts = np.array([[work.get(name, 0.0) for name in names] for work in works]) / seconds[:, None]
    unit = counts.max(axis=0).clip(min=1e-300)
    constants, _ = nnls(counts / unit, np.ones(len(seconds)))
    return {name: float(each) for name, each in zip(names, constants / unit, strict=True) if each > 0}
