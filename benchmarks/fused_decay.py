"""Softmax attention with decay: error against float64 and CPU time of each method, and of one appended column.

The column is minus the running sum of the log decays, as the public kernel alone would take it.

    python benchmarks/fused_decay.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin import attend

LENGTH, WIDTH = 4096, 64


def main() -> None:
    """One line per way."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, LENGTH, WIDTH, generator=generator) for _ in range(3))
    decay = -4 * torch.rand(1, 2, LENGTH, generator=generator)
    doubles = [each.double() for each in (query, key, value)]
    exact = attend("exp/sum+decay", *doubles, log_decay=decay.double(), method="fused").output

    def column() -> Tensor:
        wide_query = torch.cat([query * WIDTH**-0.5, torch.ones_like(query[..., :1])], dim=-1)
        wide_key = torch.cat([key, -decay.cumsum(-1)[..., None]], dim=-1)
        wide_value = F.pad(value, (0, 1))
        out = F.scaled_dot_product_attention(wide_query, wide_key, wide_value, is_causal=True, scale=1.0)
        return out[..., :WIDTH]

    def method(name: str) -> Callable[[], Tensor]:
        return lambda: attend("exp/sum+decay", query, key, value, log_decay=decay, method=name).output

    ways = {"one column": column, **{each: method(each) for each in ("fused", "chunked", "parallel")}}
    for name, way in ways.items():
        way()
        start = time.process_time()
        found = way()
        seconds = time.process_time() - start
        print(f"{name:<11} error {float((found.double() - exact).norm() / exact.norm()):.1e}   {seconds:.3f} s CPU")


if __name__ == "__main__":
    main()
