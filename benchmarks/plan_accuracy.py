"""Is the method that ``auto`` predicts to be fastest the fastest one? The methods of every cell are timed.

    python benchmarks/plan_accuracy.py [--calibrate] [--training] [--json FILE]

Cells: 5 mechanisms x 4 lengths x 3 head sizes x 2 dtypes. A prediction is right if the predicted first takes at most
10 % longer than the measured first; medians of 3 interleaved rounds of one thread's CPU time, 1 round of slow methods,
none of those that are predicted to take 50 times as long as the first.
``--calibrate`` measures this machine's constants first and uses those; without, the constants that are in use. About
10 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

import maclaurin
from maclaurin import Shape, attend, explain
from maclaurin.bench.clock import interleave, processor_time

MECHANISMS = ("exp/l2", "elu1/sum", "taylor:2/sum", "taylor:2@mean/sum", "power:3/l2")
LENGTHS = (128, 512, 2048, 8192)
HEAD_SIZES = (16, 32, 64)
DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = 1.10
HOPELESS = 50  # a method that is predicted to take so many times as long as the first is not timed


def measured(text: str, shape: Shape, method: str) -> Any:
    """One call, as a function."""
    generator = torch.Generator().manual_seed(1)
    sizes = (shape.batch, shape.heads, shape.queries, shape.key_dim)
    qkv = [
        torch.randn(sizes, generator=generator).to(shape.dtype).requires_grad_(shape.wants_gradient) for _ in range(3)
    ]
    if not shape.wants_gradient:
        return lambda: attend(text, *qkv, method=method).output
    ones = torch.ones_like(qkv[0])
    return lambda: torch.autograd.grad(attend(text, *qkv, method=method).output, qkv, ones)


def cell(text: str, shape: Shape) -> dict[str, Any]:
    """Predicted and measured milliseconds of every method."""
    found = explain(text, shape)
    able = [
        each for each in found.costs if each.seconds is not None and each.seconds < HOPELESS * found.costs[0].seconds
    ]
    seconds: dict[str, float] = {}
    slow = [each.method for each in able if each.seconds > 0.25]
    quick = {each.method: measured(text, shape, each.method) for each in able if each.method not in slow}
    for name, each in interleave(quick, 3, processor_time, least_seconds=0.005).items():
        seconds[name] = median(each)
    for name in slow:
        seconds[name] = processor_time(measured(text, shape, name), 1)
    best = min(seconds, key=seconds.__getitem__)
    return {
        "mechanism": text,
        "length": shape.queries,
        "head_size": shape.key_dim,
        "dtype": str(shape.dtype).removeprefix("torch."),
        "chosen": found.method,
        "fastest": best,
        "ratio": seconds[found.method] / seconds[best],
        "measured_ms": {name: 1e3 * each for name, each in seconds.items()},
        "predicted_ms": {each.method: 1e3 * each.seconds for each in able},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--training", action="store_true", help="forward and backward")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.calibrate:
        os.environ["MACLAURIN_CACHE"] = tempfile.mkdtemp()
        maclaurin.calibrate()
    cells = []
    for text, length, head_size, dtype in product(MECHANISMS, LENGTHS, HEAD_SIZES, DTYPES):
        shape = Shape(queries=length, key_dim=head_size, heads=1, dtype=dtype)
        cells.append(cell(text, replace(shape, wants_gradient=options.training)))
        each = cells[-1]
        mark = "" if each["ratio"] <= TOLERANCE else f"  <- {each['ratio']:.2f}x {each['fastest']}"
        both = ", ".join(f"{n} {m:.2f} ({each['predicted_ms'][n]:.2f})" for n, m in each["measured_ms"].items())
        print(
            f"{text:<18} T={length:<5} D={head_size:<3} {each['dtype']:<9} {each['chosen']:<9} {both}{mark}", flush=True
        )
    right = sum(each["ratio"] <= TOLERANCE for each in cells)
    print(f"{right} of {len(cells)} cells within 10 % of the fastest: {100 * right / len(cells):.1f} %")
    if options.json:
        options.json.write_text(json.dumps(cells, indent=1))


if __name__ == "__main__":
    main()
