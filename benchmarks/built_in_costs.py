"""Write the constants that the library comes with: those of this machine, one thread, from many rounds.

python benchmarks/built_in_costs.py "AMD EPYC (Zen 4), 1 thread"
"""

from __future__ import annotations

import json
import sys
from datetime import date
from importlib import resources
from pathlib import Path

from maclaurin.bench.calibration import measure
from maclaurin.bench.clock import torch_threads
from maclaurin.evaluate.plan.costs import FORMAT

if __name__ == "__main__":
    with torch_threads(1):
        seconds = measure("cpu", 1, rounds=9)
    content = {"format": FORMAT, "machine": sys.argv[1], "date": date.today().isoformat(), "seconds": seconds}
    path = Path(str(resources.files("maclaurin.evaluate.plan").joinpath("costs.json")))
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(path)
