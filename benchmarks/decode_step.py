"""One decode step after many tokens: finite states against torch's softmax attention with a key/value cache.

    python benchmarks/decode_step.py [--rounds 9] [--json FILE]

Batch 1, 8 heads, float32, CPU time of one thread. A finite state is a prefill's (``method="chunked"``) and its step is
one call of ``maclaurin.stepper``; softmax's cache was allocated before, and its step writes one key and one value into
it and calls ``scaled_dot_product_attention`` on the part that is filled. All lengths and all subjects are timed in one
process, round by round, each round beginning with another one; a step while timing absorbs one more token. Printed are
medians, their ratio to softmax's at the same head size and length, and the largest over the smallest median of a
subject. About 10 seconds.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import maclaurin
from maclaurin import State, attend, stepper
from maclaurin.bench.clock import interleave, processor_time, ratio, spread, torch_threads

LENGTHS = (256, 1024, 4096, 16384, 65536)
SUBJECTS = (("elu1/sum", 64), ("taylor:2/sum", 16))
HEADS = 8
PIECE = 4096  # tokens of a prefill at once

Step = Callable[[], Tensor]


def finite_state(text: str, head_size: int, length: int) -> Step:
    """One step of a mechanism after ``length`` tokens."""
    generator = torch.Generator().manual_seed(length)
    state: State | None = None
    for start in range(0, length, PIECE):
        shape = 1, HEADS, min(PIECE, length - start), head_size
        query, key, value = (torch.randn(shape, generator=generator) for _ in range(3))
        state = attend(text, query, key, value, state=state, method="chunked", return_state=True).state
    assert state is not None
    step = stepper(text, state)
    query, key, value = (torch.randn(1, HEADS, 1, head_size, generator=generator) for _ in range(3))
    return lambda: step(query, key, value)


def softmax(head_size: int, length: int) -> Step:
    """One step of softmax attention whose cache holds ``length`` tokens with the new one."""
    generator = torch.Generator().manual_seed(length)
    query, key, value = (torch.randn(1, HEADS, 1, head_size, generator=generator) for _ in range(3))
    keys, values = (torch.randn(1, HEADS, length, head_size, generator=generator) for _ in range(2))

    @torch.no_grad()
    def step() -> Tensor:
        keys[:, :, length - 1 : length] = key
        values[:, :, length - 1 : length] = value
        return F.scaled_dot_product_attention(query, keys[:, :, :length], values[:, :, :length])

    return step


def measure(rounds: int) -> dict[str, Any]:
    """Seconds of every subject after every length, and their ratios."""
    calls: dict[str, Step] = {}
    for text, size in SUBJECTS:
        for length in LENGTHS:
            calls[f"{text} {size} {length}"] = finite_state(text, size, length)
            calls[f"softmax {size} {length}"] = softmax(size, length)
    seconds = interleave(calls, rounds, processor_time)
    found: dict[str, Any] = {}
    for text, size in SUBJECTS:
        rows = []
        for length in LENGTHS:
            mine, theirs = seconds[f"{text} {size} {length}"], seconds[f"softmax {size} {length}"]
            rows.append(
                {
                    "length": length,
                    "seconds": spread(mine)._asdict(),
                    "softmax_seconds": spread(theirs)._asdict(),
                    "ratio": ratio(mine, theirs),
                }
            )
        medians = [row["seconds"]["median"] for row in rows]
        found[text] = {"head_size": size, "rows": rows, "largest_over_smallest": max(medians) / min(medians)}
    return found


def print_table(found: dict[str, Any]) -> None:
    """Microseconds of a step."""
    for text, each in found.items():
        print(f"{text}, head size {each['head_size']}: largest / smallest {each['largest_over_smallest']:.3f}")
        print(f"{'tokens':>8} {'step us':>9} {'softmax us':>11} {'ratio':>7}")
        for row in each["rows"]:
            mine, theirs = (row[name]["median"] * 1e6 for name in ("seconds", "softmax_seconds"))
            print(f"{row['length']:>8} {mine:>9.1f} {theirs:>11.1f} {row['ratio']:>7.3f}")


def main() -> None:
    """Measure, print, and write if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="measurements of each step (default: 9)")
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    arguments = parser.parse_args()
    with torch_threads(1):
        found = measure(arguments.rounds)
    print_table(found)
    if arguments.json is not None:
        about = {"torch": torch.__version__, "maclaurin": maclaurin.__version__, "cores": os.cpu_count()}
        arguments.json.write_text(
            json.dumps({**about, "batch": 1, "heads": HEADS, "mechanisms": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
