"""Symmetric monomials reproduce powers of inner products, and their product is that of polynomials.

Run: pytest tests/unit/algebra/test_monomials.py -q
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import comb, factorial, prod, sqrt

import pytest
import torch

from laws.compare import assert_close, assert_same
from maclaurin.algebra import monomials, num_monomials, shifted_moments, symmetric_product


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("dim", [1, 2, 5, 9])
def test_inner_products_are_powers(dim: int, order: int) -> None:
    x, y = normal(20, dim), normal(20, dim, seed=1)
    levels = monomials(x, order), monomials(y, order)
    for n in range(order + 1):
        # float64: rounding is relative to (|x| |y|)^n, the size of the terms
        size = (x.norm(dim=-1) * y.norm(dim=-1)) ** n
        assert_close((levels[0][n] * levels[1][n]).sum(-1), (x * y).sum(-1) ** n, rtol=1e-14, scale=size)


@pytest.mark.parametrize("order", range(6))
def test_each_monomial_is_the_weighted_product_of_its_multiset(order: int) -> None:
    x = normal(4)
    expected = []
    for index in combinations_with_replacement(range(4), order):
        multiplicities = [index.count(i) for i in set(index)]
        weight = sqrt(factorial(order) / prod(map(factorial, multiplicities)))
        expected.append(weight * prod(float(x[i]) for i in index))
    assert_close(monomials(x, order)[order], torch.tensor(expected, dtype=torch.float64), rtol=1e-14)


def test_numbers_of_monomials() -> None:
    assert [num_monomials(64, n) for n in range(5)] == [1, 64, 2080, 45760, 766480]
    for dim in range(7):
        for order in range(6):
            assert monomials(torch.ones(dim), order)[order].shape == (num_monomials(dim, order),)
            assert sum(num_monomials(dim, n) for n in range(order + 1)) == comb(dim + order, order)


def test_without_coordinates_only_the_constant_is_left() -> None:
    assert [num_monomials(0, n) for n in range(3)] == [1, 0, 0]
    assert [each.shape[-1] for each in monomials(torch.ones(2, 0), 2)] == [1, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_dtype_and_leading_dims_are_kept(dtype: torch.dtype) -> None:
    for each in monomials(torch.ones(2, 3, 4, dtype=dtype), 3):
        assert each.dtype == dtype
        assert each.shape[:2] == (2, 3)


@pytest.mark.parametrize("order", range(5))
def test_the_binomial_law(order: int) -> None:
    x, y = normal(7, 3), normal(7, 3, seed=1)
    of_x, of_y = monomials(x, order), monomials(y, order)
    terms = [symmetric_product(of_x[j][..., None], of_y[order - j], 3, j, order - j) for j in range(order + 1)]
    assert_close(torch.stack(terms).sum(0)[..., 0], monomials(x + y, order)[order], rtol=1e-13)


@pytest.mark.parametrize(("order_a", "order_b"), [(0, 0), (0, 2), (2, 0), (1, 1), (1, 3), (3, 1), (2, 2)])
def test_the_symmetric_product_represents_the_product_of_forms(order_a: int, order_b: int) -> None:
    r"""<phi_{j+l}(z), phi_j(x) . phi_l(y)> is (n choose j)^(1/2)-weighted so that it sums to the binomial law:
    C(n, j) (z.x)^j (z.y)^l."""
    x, y, z = normal(6, 3), normal(6, 3, seed=1), normal(6, 3, seed=2)
    n = order_a + order_b
    product = symmetric_product(
        monomials(x, order_a)[order_a][..., None], monomials(y, order_b)[order_b], 3, order_a, order_b
    )
    value = (monomials(z, n)[n] * product[..., 0]).sum(-1)
    expected = comb(n, order_a) * (z * x).sum(-1) ** order_a * (z * y).sum(-1) ** order_b
    assert_close(value, expected, rtol=1e-13)


def test_the_symmetric_product_is_symmetric_and_linear() -> None:
    a, b = normal(6), normal(10, seed=1)
    one = symmetric_product(a[:, None], b, 3, 2, 3)[..., 0]
    other = symmetric_product(b[:, None], a, 3, 3, 2)[..., 0]
    assert one.shape == (num_monomials(3, 5),)
    assert_close(one, other, rtol=1e-14)
    columns = symmetric_product(torch.stack([a, 2.0 * a], -1), b, 3, 2, 3)
    assert_same(columns[:, 1], 2.0 * columns[:, 0])


def test_moments_of_shifted_vectors() -> None:
    x, value, shift = normal(2, 9, 3), normal(2, 9, 4, seed=1), normal(2, 3, seed=2)

    def moments(vectors: torch.Tensor, order: int) -> tuple[torch.Tensor, ...]:
        return tuple(phi.mT @ value for phi in monomials(vectors, order))

    for order in range(5):
        for one, other in zip(
            shifted_moments(moments(x, order), shift), moments(x + shift[:, None], order), strict=True
        ):
            assert_close(one, other, rtol=1e-12)
        for one, other in zip(shifted_moments(moments(x, order), 0 * shift), moments(x, order), strict=True):
            assert_same(one, other)
    assert shifted_moments((), shift) == ()


def test_gradients_flow() -> None:
    x = normal(3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda each: monomials(each, 4), (x,))
    moment, shift = normal(3, 4).requires_grad_(), normal(2).requires_grad_()
    product = lambda a, b: symmetric_product(a, monomials(b, 2)[2], 2, 2, 2)  # noqa: E731
    assert torch.autograd.gradcheck(product, (moment, shift))
