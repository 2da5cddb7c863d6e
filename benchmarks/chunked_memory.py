"""Memory of ``method="chunked"``, forward and backward, in units of query, key, value and output together.

Resident memory of a fresh process per row, above what it had after a short warm-up; one thread; float32. Runs on Linux.

    python benchmarks/chunked_memory.py [LENGTH]
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

#: Mechanism, key dim, value dim.
ROWS = (("elu1/sum", 64, 64), ("taylor:2/sum", 16, 64), ("taylor:2/sum", 16, 16), ("power:2/sum", 16, 64))
LENGTH = 65_536


def resident(word: str) -> int:
    """``VmRSS`` (now) or ``VmHWM`` (highest) of this process, in bytes."""
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith(word))
    return 1024 * int(line.split()[1])


def measure(text: str, key_dim: int, value_dim: int, length: int) -> None:
    """One row, in this process."""
    import torch

    from maclaurin import attend

    torch.set_num_threads(1)

    def run(length: int) -> tuple[int, float]:
        generator = torch.Generator().manual_seed(0)
        widths = (key_dim, key_dim, value_dim)
        inputs = [torch.randn(1, 1, length, each, generator=generator).requires_grad_() for each in widths]
        start = time.process_time()
        output = attend(text, *inputs, method="chunked").output
        output.backward(torch.ones_like(output))
        return 4 * (sum(each.numel() for each in inputs) + output.numel()), time.process_time() - start

    run(2048)
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest so far
    size, seconds = run(length)
    peak = resident("VmHWM") - before
    print(
        f"{text:<14} K={key_dim:<3} V={value_dim:<3} T={length:<7} q, k, v, o {size / 2**20:6.1f} MiB   "
        f"peak {peak / 2**20:6.1f} MiB = {peak / size:.2f}x   {seconds:.2f} s CPU"
    )


def main() -> None:
    """Every row in a process of its own."""
    if len(sys.argv) > 3:
        text, *numbers = sys.argv[1:]
        measure(text, *map(int, numbers))
        return
    length = sys.argv[1] if len(sys.argv) > 1 else str(LENGTH)
    for row in ROWS:
        subprocess.run([sys.executable, __file__, *map(str, row), length], check=True)


if __name__ == "__main__":
    main()
