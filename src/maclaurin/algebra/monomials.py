r"""Symmetric monomials: the finite feature map of a power of an inner product.

.. math:: \langle x, y\rangle^n = \langle \varphi_n(x), \varphi_n(y)\rangle, \qquad
          \varphi_n(x)_I = \sqrt{n!/I!}\; x^I

where I runs over the multisets of n coordinates (written as sorted index tuples) and I! is the product of the
factorials of its multiplicities. There are C(K+n-1, n) of them instead of the K^n of the plain Kronecker power
(Mongaras & Larson, arXiv 2507.23632, use the latter).

Dimension key: K key dim, n order, F_n = C(K+n-1, n) monomials of order n.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations_with_replacement
from math import comb

import numpy as np
import torch
from torch import Tensor

from maclaurin.algebra.tracing import constant_when_traced


def num_monomials(dim: int, order: int) -> int:
    """Number of symmetric monomials of exactly ``order`` in ``dim`` variables, C(dim+order-1, order).

    >>> num_monomials(16, 2), sum(num_monomials(16, n) for n in range(5))
    (136, 4845)
    """
    return comb(dim + order - 1, order) if order else 1


def monomials(x: Tensor, order: int) -> tuple[Tensor, ...]:
    r"""All symmetric monomials of ``x`` up to ``order``, one tensor per order.

    Built hierarchically, phi_n = gather(phi_{n-1}) * x, one multiplication per monomial; the factor
    sqrt(n / multiplicity of the last index) folds the multinomial weight in.

    Args:
        x: ``[..., K]``, any floating dtype, kept.
        order: highest order n >= 0.

    Returns:
        ``(phi_0, ..., phi_order)`` with shapes ``[..., F_n]``; ``phi_0`` is ones.

    Cost: sum of F_n multiplications and as many numbers per row.

    Example:
        >>> x, y = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
        >>> [round(float((a * b).sum()), 4) for a, b in zip(monomials(x, 3), monomials(y, 3))]
        [1.0, 11.0, 121.0, 1331.0]
    """
    assert order >= 0, order
    levels = [x.new_ones(*x.shape[:-1], 1)]
    if order >= 1:
        levels.append(x)
    for n in range(2, order + 1):
        parent, last, factor = _hierarchy(x.shape[-1], n)
        index_parent = torch.from_numpy(parent).to(x.device)
        index_last = torch.from_numpy(last).to(x.device)
        weight = torch.from_numpy(factor).to(x.device, x.dtype)
        levels.append(levels[-1][..., index_parent] * (x[..., index_last] * weight))
    return tuple(levels)


@constant_when_traced
def multisets(dim: int, order: int) -> tuple[tuple[int, ...], ...]:
    """The sorted index tuples I of the monomials of ``order`` in ``dim`` variables, in the order of phi_n.

    >>> multisets(2, 2)
    ((0, 0), (0, 1), (1, 1))
    """
    return tuple(_multisets(dim, order))


def symmetric_product(a: Tensor, b: Tensor, dim: int, order_a: int, order_b: int) -> Tensor:
    r"""Product of the symmetric algebra, so that phi_n(x + y) = sum_j symmetric_product(phi_j(x), phi_{n-j}(y)).

    .. math:: (a \odot b)_I = \sum_{J + L = I} \sqrt{\tbinom{n}{j} \tbinom{I}{J}}\; a_J\, b_L

    Args:
        a: ``[..., F_j, *rest]`` coefficients of order j = ``order_a``; the monomial axis is -2.
        b: ``[..., F_l]`` coefficients of order l = ``order_b``.
        dim: number of variables K.
        order_a: j.
        order_b: l.

    Returns:
        ``[..., F_{j+l}, V]`` for ``a`` of shape ``[..., F_j, V]``.

    Cost: F_j * F_l * V multiplications.
    """
    if order_b == 0:
        return a * b[..., None]
    target, weight = _product_table(dim, order_a, order_b)
    pairs = a[..., :, None, :] * (b[..., None, :] * torch.from_numpy(weight).to(b.device, b.dtype))[..., None]
    flat = pairs.flatten(-3, -2)
    out = flat.new_zeros(*flat.shape[:-2], num_monomials(dim, order_a + order_b), flat.shape[-1])
    return out.index_add(-2, torch.from_numpy(target).to(b.device).flatten(), flat)


def shifted_moments(moments: tuple[Tensor, ...], shift: Tensor) -> tuple[Tensor, ...]:
    r"""Moments M_n = sum_s phi_n(x_s) v_s of shifted vectors, from those of the vectors themselves.

    .. math:: M_n[x + d] = \sum_{j \le n} M_j[x] \odot \varphi_{n-j}(d)

    with the symmetric product.

    Args:
        moments: ``(M_0, ..., M_N)``, each ``[..., F_n, V]``.
        shift: d, ``[..., K]``.

    Cost: sum of F_j F_{n-j} V over j <= n <= N.
    """
    dim = shift.shape[-1]
    powers = monomials(shift, max(len(moments) - 1, 0))
    shifted = []
    for n in range(len(moments)):
        terms = [symmetric_product(moments[j], powers[n - j], dim, j, n - j) for j in range(n + 1)]
        shifted.append(torch.stack(terms).sum(0))
    return tuple(shifted)


@lru_cache(maxsize=64)
def _multisets(dim: int, order: int) -> dict[tuple[int, ...], int]:
    return {index: i for i, index in enumerate(combinations_with_replacement(range(dim), order))}


@constant_when_traced
def _hierarchy(dim: int, order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For every multiset of ``order``: its parent (last index removed), that index, sqrt(n / its multiplicity)."""
    return _count_hierarchy(dim, order)


@constant_when_traced
def _product_table(dim: int, order_a: int, order_b: int) -> tuple[np.ndarray, np.ndarray]:
    """For every pair (J, L): the position of J + L, and sqrt(C(n, j) * binom(J + L, J))."""
    return _count_products(dim, order_a, order_b)


@lru_cache(maxsize=64)
def _count_hierarchy(dim: int, order: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    parents = _multisets(dim, order - 1)
    indices = list(_multisets(dim, order))
    parent = np.array([parents[index[:-1]] for index in indices], dtype=np.int64)
    last = np.array([index[-1] for index in indices], dtype=np.int64)
    multiplicity = np.array([index.count(index[-1]) for index in indices], dtype=np.float64)
    return parent, last, np.sqrt(order / multiplicity)


@lru_cache(maxsize=64)
def _count_products(dim: int, order_a: int, order_b: int) -> tuple[np.ndarray, np.ndarray]:
    whole = _multisets(dim, order_a + order_b)
    rows, columns = list(_multisets(dim, order_a)), list(_multisets(dim, order_b))
    target = np.empty((len(rows), len(columns)), dtype=np.int64)
    weight = np.empty((len(rows), len(columns)), dtype=np.float64)
    choose = comb(order_a + order_b, order_a)
    for i, first in enumerate(rows):
        for j, second in enumerate(columns):
            union = tuple(sorted(first + second))
            binomial = 1
            for each in set(first):
                binomial *= comb(union.count(each), first.count(each))
            target[i, j] = whole[union]
            weight[i, j] = (choose * binomial) ** 0.5
    return target, weight
