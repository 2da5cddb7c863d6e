"""Write the constants that the library comes with for processors like this one: one thread, many rounds.

python benchmarks/built_in_costs.py "AMD EPYC (Zen 4), 1 thread"
"""

from __future__ import annotations

import json
import sys
from datetime import date

from maclaurin.bench.calibration import measure
from maclaurin.bench.clock import torch_threads
from maclaurin.evaluate.plan.costs import FORMAT, built_in_file

if __name__ == "__main__":
    with torch_threads(1):
        seconds = measure("cpu", 1, rounds=9)
    content = {"format": FORMAT, "machine": sys.argv[1], "date": date.today().isoformat(), "seconds": seconds}
    path = built_in_file()
    path.write_text(json.dumps(content, indent=1) + "\n")
    print(path)
