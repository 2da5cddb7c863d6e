"""Features of a polynomial's finite state: their inner products, the state's own layout, their gradient.

Run: pytest tests/unit/evaluate/kernels/test_features.py -q
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close, assert_same
from maclaurin.algebra import monomials
from maclaurin.evaluate.kernels.features import Features

ORDERS = ((0, 1, 2), (2,), (1,), (0, 1, 2, 3))
WIDTHS = (1, 2, 3, 5, 8)
COEFFICIENTS = (0.75, -1.5, 0.5, 1.0 / 6)
RTOL = 1e-13  # float64, sums of at most some hundred products

every_kind = pytest.mark.parametrize("features", [Features(n, width) for n in ORDERS for width in WIDTHS], ids=str)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected_features(features: Features, x: Tensor) -> Tensor:
    """From symmetric monomials, by operations that autograd follows; ``[N, C, F]``."""
    powers = monomials(x, features.orders[-1])
    return features.from_moments([powers[n].transpose(1, 2)[:, None] for n in features.orders])[:, 0].transpose(1, 2)


@every_kind
@pytest.mark.parametrize("are_ones", [True, False])
def test_inner_products_are_a_polynomial(features: Features, are_ones: bool) -> None:
    q, k = draw(2, 6, features.width), draw(2, 7, features.width, seed=1)
    coefficients = [1.0 if are_ones else COEFFICIENTS[n] for n in features.orders]
    factors = features.readout(coefficients, q)
    keys = features.of(k).transpose(1, 2)
    found = features.of(q) @ (keys if factors is None else factors * keys)
    x = q @ k.transpose(1, 2)
    expected = sum(a * x**n for n, a in zip(features.orders, coefficients, strict=True))
    assert isinstance(expected, Tensor)
    assert_close(found, expected, rtol=RTOL)


@every_kind
def test_parts_are_the_orders(features: Features) -> None:
    q, k = draw(2, 6, features.width), draw(2, 7, features.width, seed=1)
    found_q, found_k = features.of(q), features.of(k)
    factors = features.readout([1.0] * len(features.orders), q)
    found_k = found_k if factors is None else found_k * factors[:, 0]
    assert features.parts[-1].stop == features.size == found_q.shape[-1]
    for n, part in zip(features.orders, features.parts, strict=True):
        inner = found_q[..., part] @ found_k[..., part].transpose(1, 2)
        assert_close(inner, (q @ k.transpose(1, 2)) ** n, rtol=RTOL)


@every_kind
def test_scales_multiply_orders(features: Features) -> None:
    x = draw(2, 6, features.width)
    scales = {n: draw(2, 6, 1, seed=n + 1) for n in features.orders}
    expected = features.of(x).clone()
    for n, part in zip(features.orders, features.parts, strict=True):
        expected[..., part] *= scales[n]
    assert_close(features.of(x, scales), expected, rtol=RTOL)


@every_kind
def test_moments_are_those_of_symmetric_monomials(features: Features) -> None:
    k, v = draw(2, 7, features.width), draw(2, 7, 4, seed=1)
    found = features.to_moments((features.of(k).transpose(1, 2) @ v)[None])
    powers = monomials(k, features.orders[-1])
    for n, each in zip(features.orders, found, strict=True):
        assert_close(each[0], powers[n].transpose(1, 2) @ v, rtol=RTOL)


@every_kind
def test_moments_and_back(features: Features) -> None:
    state = draw(2, 3, features.size, 4)
    assert_close(features.from_moments(features.to_moments(state)), state, rtol=RTOL)
    if features.orders[-1] != 2:
        assert_same(features.from_moments(features.to_moments(state)), state)


@every_kind
def test_pull_is_the_gradient(features: Features) -> None:
    x, matrix = draw(2, 6, features.width).requires_grad_(), draw(2, features.size, 4, seed=1)
    rows = [draw(2, 6, 4, seed=2 + n) for n in features.orders]
    cotangents = [each @ matrix[:, part].transpose(1, 2) for each, part in zip(rows, features.parts, strict=True)]
    (expected,) = torch.autograd.grad(expected_features(features, x), x, torch.cat(cotangents, dim=-1))
    assert_close(features.of(x.detach()), expected_features(features, x), rtol=RTOL)
    assert_close(features.pull(x.detach(), rows, matrix), expected, rtol=RTOL)
    strided = x.detach().transpose(1, 2).contiguous().transpose(1, 2)
    assert_close(features.pull(strided, rows, matrix), expected, rtol=RTOL)


def test_a_constant_has_no_gradient() -> None:
    found = Features((0,), 3).pull(draw(2, 6, 3), [draw(2, 6, 4)], draw(2, 1, 4))
    assert_same(found, torch.zeros(2, 6, 3, dtype=torch.float64))
