"""Forward and backward of the short convolution, as a sum of shifted products and as torch's depthwise convolution.

One thread, CPU time, interleaved, medians.   Run: OMP_NUM_THREADS=1 python benchmarks/short_convolution.py
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import nn

from maclaurin.nn import ShortConvolution

ROUNDS, REPEATS = 9, 50


def main() -> None:
    """Print milliseconds per call for three taps on [64, 64, 48], the quickstart's recall layer."""
    torch.set_num_threads(1)
    x = torch.randn(64, 64, 48, requires_grad=True)
    ours, theirs = ShortConvolution(48, 3), nn.Conv1d(48, 48, 3, groups=48)

    def shifted_products() -> None:
        ours(x)[0].sum().backward()

    def depthwise_convolution() -> None:
        whole = torch.cat([x.new_zeros(64, 2, 48), x], dim=1)
        theirs(whole.transpose(1, 2)).transpose(1, 2).sum().backward()

    times: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for each in (shifted_products, depthwise_convolution):
            start = time.process_time()
            for _ in range(REPEATS):
                each()
            times.setdefault(each.__name__, []).append((time.process_time() - start) / REPEATS * 1e3)
    for name, found in times.items():
        print(f"{name:22} {statistics.median(found):.2f} ms")


if __name__ == "__main__":
    main()
