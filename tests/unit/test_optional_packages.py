"""maclaurin needs neither triton, nor fla, nor a compiler, and does the same where they are installed.

Run: pytest tests/unit/test_optional_packages.py -q
"""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Evaluates every method in a fresh process and prints every bit, and which of the packages were loaded by us.
SCRIPT = """
import importlib.abc, shutil, sys

OPTIONAL = ("triton", "fla", "attn_gym", "flash_attn", "einops", "transformers")

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in OPTIONAL:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

if "absent" in sys.argv:
    sys.meta_path.insert(0, Absent())
import torch

before = {each for each in sys.modules if each.split(".")[0] in OPTIONAL}
from maclaurin import attend, methods
import maclaurin.verify

generator = torch.Generator().manual_seed(0)
qkv = [torch.randn(1, 2, 9, 4, generator=generator).requires_grad_() for _ in range(3)]
for text in ("exp/sum", "exp/length", "taylor:2@mean/sum", "taylor:2/sum+window:3:1"):
    for method, refusal in methods(text).items():
        if refusal is None:
            out = attend(text, *qkv, method=method).output
            print(text, method, [each.hex() for each in (out.sum().item(), *(g.sum().item() for g in
                  torch.autograd.grad(out.square().sum(), qkv)))])
print(sorted({each for each in sys.modules if each.split(".")[0] in OPTIONAL} - before))
"""


def run(*arguments: str) -> list[str]:
    """The script's lines."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, *arguments],
        capture_output=True,
        text=True,
        env={"PATH": "/nowhere", "OMP_NUM_THREADS": "1"},  # no compiler either
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows finds its own libraries through PATH")
def test_every_method_gives_the_same_bits_with_and_without_them() -> None:
    present, absent = run(), run("absent")
    assert len(present) > 12
    assert present == absent
    assert present[-1] == "[]"  # and loads none of them by itself
