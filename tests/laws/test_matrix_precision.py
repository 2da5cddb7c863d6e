"""Float32 and bfloat16 by every method: the error ratio to the loops in float64 on the same rounded inputs.

Run: pytest tests/laws/test_matrix_precision.py -q
"""

from __future__ import annotations

import pytest
import torch

from laws.cases import by, draw
from laws.checks import KERNELS, bound_of, well_conditioned_rows
from laws.compare import error_ratio
from laws.matrix import Composition, cells, gated, plain
from laws.oracle import oracle
from laws.refusals import SIGNED, is_built, refusal
from maclaurin import attend
from maclaurin.algebra import parse

#: ||a - b|| / ||b||. bfloat16 is summed in float32 and rounded once, which costs no number more than 2^-8 of itself.
#: Float32 sums cost a few roundings of 6e-8; reading orders 3 and 4 from moments cancels a digit: found up to 9e-7.
BOUNDS = {torch.float32: 2e-6, torch.bfloat16: 2.0**-8}
#: A signed sum is kept where |Z| >= 1e-3 sum |w|, which may cost three digits of 6e-8; found up to 1.3e-5.
SIGNED_BOUND = 3e-5
BUILT = [each for each in (*plain(), *gated(is_built)) if is_built(each)]


def bound(composition: Composition, dtype: torch.dtype) -> float:
    """What an output may be off by."""
    is_signed = composition.similarity in SIGNED and composition.normalizer == "sum:signed"
    return max(BOUNDS[dtype], SIGNED_BOUND) if is_signed else BOUNDS[dtype]


def rows() -> list[object]:
    """One rounding to bfloat16 hides what the similarity did: the gated half of the matrix is enough for it."""
    found = [(each, torch.float32) for each in BUILT] + [(each, torch.bfloat16) for each in gated(is_built)]
    return [pytest.param(*each, id=f"{each[0].text}-{each[1]}") for each in found]


@pytest.mark.parametrize(("composition", "dtype"), rows())
def test_error_ratio_of_every_cell(composition: Composition, dtype: torch.dtype) -> None:
    mechanism = parse(composition.text)
    given = draw(1, heads=4, kv_heads=2, queries=13, key_dim=3, value_dim=4, dtype=dtype).of(mechanism)
    exact = given.map(torch.Tensor.double)
    run = [cell for cell in cells(composition) if refusal(cell) is None]
    for is_causal in sorted({cell.is_causal for cell in run}):
        keep = well_conditioned_rows(mechanism, exact, is_causal=is_causal)
        expected = oracle(mechanism, exact, is_causal=is_causal) * keep
        for cell in [each for each in run if each.is_causal == is_causal]:
            for kernel in KERNELS:
                options = {**by(cell.method), "kernel": kernel, "is_causal": is_causal}
                out = attend(mechanism, *given.qkv, **given.operands, **options).output
                assert out.dtype == dtype
                found = error_ratio(out.double() * keep, expected)
                assert found <= bound_of(bound(composition, dtype), dtype, kernel), f"{cell} {kernel}: {found:.1e}"
