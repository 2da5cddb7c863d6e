"""CPU seconds of help and of the imports, each in a process of its own; medians of nine.

Run: python benchmarks/startup.py   (POSIX)
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

COMMANDS = {
    "maclaurin --help": ["-m", "maclaurin", "--help"],
    "maclaurin study --help": ["-m", "maclaurin", "study", "--help"],
    "import torch": ["-c", "import torch"],
    "import torch, maclaurin": ["-c", "import torch, maclaurin"],
    "... and maclaurin.attend": ["-c", "import torch, maclaurin; maclaurin.attend"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one run of this Python."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    for name, arguments in COMMANDS.items():
        print(f"{name:26} {statistics.median(cpu_seconds(arguments) for _ in range(9)):.3f} s")
