"""What the evaluations are held to: ratios of one thread's CPU time, the median of 3 processes of 9 interleaved rounds.

    python benchmarks/targets.py [--only WORDS] [--processes 3] [--json FILE]

Both sides of a row run in turns in one process. "reached" is below the bound; no row is left out. About 15 minutes; the
decode step has a script of its own, decode_step.py.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import torch

from maclaurin.bench.clock import interleave, processor_time, ratio, torch_threads
from maclaurin.bench.peer import subjects_of
from maclaurin.bench.subject import Dims, Inputs, Subject, eager, ours, sdpa

BF16 = torch.bfloat16


@dataclass(frozen=True)
class Row:
    """One figure: the time of ``mine`` over that of ``other``, or tokens per time at two lengths."""

    mine: str
    other: str
    dims: Dims
    bound: float
    training: bool = False
    dtype: torch.dtype = torch.float32

    @property
    def name(self) -> str:
        kind = "f+b" if self.training else "fwd"
        dtype = str(self.dtype).removeprefix("torch.")
        sizes = f"T={self.dims.length} D={self.dims.head_size}"
        return f"{self.mine} / {self.other}, {dtype}, {sizes}, {kind}"


def rows() -> list[Row]:
    """The table."""
    found = []
    for text in ("exp/l2", "exp/rms"):
        for length in (1024, 2048, 4096):
            for training in (False, True):
                found.append(Row(text, "sdpa", Dims(1, 8, length, 64), 1.05, training))
    for length, forward, both in ((512, 0.50, 0.55), (1024, 0.65, 0.70), (4096, 0.70, 0.80)):
        found.append(Row("exp/l2", "sdpa", Dims(1, 8, length, 64), forward, False, BF16))
        found.append(Row("exp/l2", "sdpa", Dims(1, 8, length, 64), both, True, BF16))
    found.append(Row("exp/sum", "eager", Dims(1, 8, 1024, 64), 0.25))
    found.append(Row("elu1/sum", "sdpa", Dims(1, 8, 2048, 64), 0.30))
    found.append(Row("elu1/sum", "sdpa", Dims(1, 8, 2048, 64), 0.30, True))
    found.append(Row("elu1/sum", "sdpa", Dims(1, 4, 16384, 64), 0.07))
    found.append(Row("elu1/sum", "sdpa", Dims(1, 8, 2048, 64), 0.18, False, BF16))
    found.append(Row("taylor:2/sum", "sdpa", Dims(1, 8, 4096, 16), 0.58))
    found.append(Row("taylor:2/sum", "sdpa", Dims(1, 4, 16384, 16), 0.16))
    for length in (4096, 16384):
        found.append(Row("taylor:2@mean/sum", "taylor:2/sum", Dims(1, 8, length, 16), 1.15))
    for peer in ("taylor-series-linear", "fla based chunk"):
        found.append(Row("taylor:2/sum", peer, Dims(1, 8, 2048, 16), 0.50))
    return found


def subject(name: str, peers: dict[str, Subject]) -> Subject:
    """By the name it has in the table."""
    if name in ("sdpa", "eager"):
        return sdpa() if name == "sdpa" else eager()
    return peers[name] if name in peers else ours(name, "auto")


def call(which: Subject, inputs: Inputs, *, training: bool) -> Callable[[], object]:
    """What is timed."""
    if not training:
        return lambda: which.forward(inputs)
    leaves = Inputs(*(each.clone().requires_grad_() for each in inputs.all))
    ones = torch.ones_like(inputs.query)
    return lambda: torch.autograd.grad(which.forward(leaves), leaves.all, ones)


def measure(row: Row, rounds: int) -> float:
    """The ratio, median over rounds."""
    peers = {each.name: each for each in subjects_of([ours(row.mine, "auto").claims])[0]}
    inputs = Inputs.random(row.dims, row.dtype, "cpu")
    calls = {
        side: call(subject(name, peers), inputs, training=row.training)
        for side, name in (("mine", row.mine), ("other", row.other))
    }
    seconds = interleave(calls, rounds, processor_time)
    return ratio(seconds["mine"], seconds["other"])


def per_token(text: str, head_size: int, rounds: int) -> float:
    """Largest over smallest time per token from 2,048 to 65,536 tokens."""
    which, lengths = ours(text, "auto"), (2048, 8192, 32768, 65536)
    calls = {
        str(each): call(which, Inputs.random(Dims(1, 8, each, head_size), torch.float32, "cpu"), training=False)
        for each in lengths
    }
    seconds = interleave(calls, rounds, processor_time)
    each_token = [median(seconds[str(each)]) / each for each in lengths]
    return max(each_token) / min(each_token)


def one_process(rounds: int, only: str) -> dict[str, tuple[float, float]]:
    """Name -> (figure, bound)."""
    with torch_threads(1):
        found = {row.name: (measure(row, rounds), row.bound) for row in rows() if only in row.name}
        for text, head_size in (("elu1/sum", 64), ("taylor:2/sum", 16), ("taylor:2@mean/sum", 16)):
            name = f"{text} time per token, T=2048 to 65536 D={head_size}, largest/smallest"
            if only in name:
                found[name] = (per_token(text, head_size, rounds), 1.15)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows that have these words in their name")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.processes == 1:
        print(json.dumps(one_process(options.rounds, options.only)))
        return
    command = [sys.executable, __file__, "--processes", "1", "--rounds", str(options.rounds), "--only", options.only]
    runs = [
        json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(options.processes)
    ]
    table = {}
    for name, (_, bound) in runs[0].items():
        figures = [run[name][0] for run in runs]
        table[name] = {"median": median(figures), "of": figures, "bound": bound, "reached": median(figures) <= bound}
        mark = "reached" if table[name]["reached"] else "MISSED"
        print(f"{name:<78} {median(figures):6.3f}  <= {bound:.2f}  {mark}")
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
