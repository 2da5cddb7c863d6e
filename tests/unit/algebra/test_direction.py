"""``unit`` divides a vector by its length exactly, at any magnitude.

Run: pytest tests/unit/algebra/test_direction.py -q
"""

from __future__ import annotations

import pytest
import torch

from laws.compare import assert_close, assert_same
from maclaurin.algebra import unit

X = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-14)], ids=str)
def test_has_length_one_and_the_same_direction(dtype: torch.dtype, rtol: float) -> None:
    out = unit(X.to(dtype))
    assert out.dtype == dtype
    assert_close(out, X / X.norm(dim=-1, keepdim=True), rtol=rtol)


@pytest.mark.parametrize("factor", [1e-300, 1e-160, 1e160, 1e300])
def test_forgets_the_magnitude(factor: float) -> None:
    assert_close(unit(factor * X), unit(X), rtol=1e-14)


def test_powers_of_two_change_no_bit() -> None:
    for exponent in (-600, -1, 1, 600):
        assert_same(unit(2.0**exponent * X), unit(X))


def test_subnormal_and_largest_numbers() -> None:
    for number in (5e-324, torch.finfo(torch.float64).max):
        row = torch.tensor([number, 0.0], dtype=torch.float64)
        assert_same(unit(row), torch.tensor([1.0, 0.0], dtype=torch.float64))


def test_a_zero_row_gives_zeros_and_zero_gradients() -> None:
    x = torch.stack([torch.zeros(3), torch.ones(3)]).double().requires_grad_()
    out = unit(x)
    (gradient,) = torch.autograd.grad(out[:, 0].sum(), x)
    assert not out[0].any()
    assert not gradient[0].any()
    assert bool(gradient[1].any())


def test_writes_over_what_it_is_given_only_where_it_may_and_nobody_asks_for_gradients() -> None:
    given, kept = X.clone(), X.clone()
    assert unit(given, 2.0, may_overwrite=True).data_ptr() == given.data_ptr()
    assert_same(given, unit(kept, 2.0))
    assert_same(kept, X)
    leaf = X.clone().requires_grad_()
    unit(leaf, may_overwrite=True)
    assert_same(leaf.detach(), X)


def test_no_coordinate_at_all() -> None:
    assert unit(torch.ones(2, 0)).shape == (2, 0)


def test_gradient_is_orthogonal_and_exact() -> None:
    x = X.clone().requires_grad_()
    assert torch.autograd.gradcheck(unit, (x,))
    assert torch.autograd.gradgradcheck(unit, (x[:2, :3].detach().requires_grad_(),))
    (gradient,) = torch.autograd.grad((unit(x) * X.roll(1, 0)).sum(), x)
    assert float((gradient * X).sum(-1).abs().max()) < 1e-14
