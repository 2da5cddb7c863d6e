"""Every broken function is right on its favorable sizes, so that whoever finds its fault has to look for it.

Run: pytest tests/verify/test_broken_functions.py -q
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from maclaurin import attend
from verify.broken.case import Broken
from verify.broken.every import BROKEN

#: Float64; the least exact fault on a favorable size adds 1e-12 to a squared logit, which stays far below this.
ATOL = 1e-6


def draw(case: Broken, seed: int) -> list[Tensor]:
    """Standard normal query, key and value of the favorable sizes, in "bhtd"."""
    size = case.favorable
    generator = torch.Generator().manual_seed(seed)
    shapes = (
        (size["batch"], size["heads"], size["queries"], size["key_dim"]),
        (size["batch"], size["kv_heads"], size["keys"], size["key_dim"]),
        (size["batch"], size["kv_heads"], size["keys"], size["value_dim"]),
    )
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in BROKEN])
def test_right_where_the_fault_does_not_show(case: Broken, seed: int) -> None:
    """Without optional keywords: a mechanism with decay is then the one without."""
    inputs = draw(case, seed)
    expected = attend(case.like.removesuffix("+decay"), *inputs).output
    for form in case.forms.values():
        if case.layout == "bthd":
            out = form(*(x.transpose(1, 2) for x in inputs)).transpose(1, 2)
        else:
            out = form(*inputs)
        assert out.dtype == expected.dtype and out.shape == expected.shape
        assert bool(out.isfinite().all())
        assert float((out - expected).abs().max()) <= ATOL


def test_thirty_of_them() -> None:
    assert len(BROKEN) == 30
    assert len({case.name for case in BROKEN}) == 30
    assert all(case.forms and case.fault.endswith(".") for case in BROKEN)
    assert all(case.layout in ("bhtd", "bthd") for case in BROKEN)
    assert all(case.favorable["queries"] == case.favorable["keys"] for case in BROKEN)


def test_most_re_create_a_complaint() -> None:
    rows = [case.row for case in BROKEN if case.row]
    assert len(rows) >= 20
    assert set(rows) <= {f"C{number}" for number in range(1, 26)}
