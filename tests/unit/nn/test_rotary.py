"""Rotary positions turn pairs by an angle: norms stay, and only differences of positions reach an inner product."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close, assert_same
from maclaurin.nn import rotate

#: Angles up to 5,000 radians carry a rounding of 5,000 * 1.1e-16 = 6e-13 in float64.
FAR = 5000
RTOL = 2e-12


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotate_from(first: int, x: Tensor) -> Tensor:
    """Rotate from a position other than zero."""
    return rotate(x, position=torch.arange(first, first + x.shape[-2]))


def test_position_zero_is_left_alone() -> None:
    x = draw(2, 3, 5, 8)
    assert_same(rotate(x)[:, :, 0], x[:, :, 0])


def test_pairs_turn_as_complex_numbers() -> None:
    x = draw(1, 2, 7, 6)
    position = torch.arange(7, dtype=torch.float64)[:, None]
    turn = torch.polar(
        torch.ones(7, 3, dtype=torch.float64), position * 10000.0 ** (-torch.arange(3, dtype=torch.float64) / 3)
    )
    turned = torch.complex(x[..., :3], x[..., 3:]) * turn
    assert_close(rotate(x), torch.cat([turned.real, turned.imag], -1), rtol=1e-14)


@pytest.mark.parametrize("first_position", [0, 1, FAR])
def test_norms_stay(first_position: int) -> None:
    x = draw(2, 3, 11, 8)
    assert_close(rotate_from(first_position, x).norm(dim=-1), x.norm(dim=-1), rtol=1e-14)


@pytest.mark.parametrize("shift", [1, 17, FAR])
def test_a_common_shift_changes_no_inner_product(shift: int) -> None:
    query, key = draw(2, 3, 11, 8), draw(2, 3, 11, 8, seed=1)
    here = rotate(query) @ rotate(key).transpose(-1, -2)
    there = rotate_from(shift, query) @ rotate_from(shift, key).transpose(-1, -2)
    assert_close(there, here, rtol=RTOL)


def test_inner_products_depend_on_the_distance_alone() -> None:
    query, key = draw(1, 1, 1, 8).expand(1, 1, 9, 8), draw(1, 1, 1, 8, seed=1).expand(1, 1, 9, 8)
    gram = (rotate(query) @ rotate(key).transpose(-1, -2))[0, 0]
    for distance in range(-8, 9):
        diagonal = gram.diagonal(distance)
        assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-13, scale=gram.abs().max())
    assert float((gram[0] - gram[0, 0]).abs().max()) > 0.1  # and they do depend on it


def test_a_part_is_rotated_from_where_it_starts() -> None:
    x = draw(2, 3, 11, 8)
    assert_same(rotate_from(4, x[:, :, 4:]), rotate(x)[:, :, 4:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_is_rotated_in_float32(dtype: torch.dtype) -> None:
    x = draw(1, 2, 9, 8).to(dtype)
    rotated = rotate_from(300, x)
    assert_same(rotated, rotate_from(300, x.float()).to(dtype))
    # float32 angles of 300 radians: 300 * 6e-8 = 2e-5; the dtype's own rounding comes on top
    exact = rotate_from(300, x.double())
    assert_close(rotated, exact, rtol=2e-5 + torch.finfo(dtype).eps)


def test_base_sets_the_slowest_turn() -> None:
    x = draw(1, 1, 2, 4)
    assert_same(rotate(x, base=10.0)[..., 0], rotate(x)[..., 0])
    assert not torch.equal(rotate(x, base=10.0)[..., 1], rotate(x)[..., 1])


def test_rows_may_stand_at_positions_of_their_own() -> None:
    x = draw(2, 3, 5, 8)
    rotated = rotate(x, position=torch.stack([torch.arange(5), torch.arange(7, 12)]))
    assert_same(rotated[0], rotate(x)[0])
    after_seven = torch.cat([draw(2, 3, 7, 8, seed=1), x], dim=2)
    assert_same(rotated[1], rotate(after_seven)[1, :, 7:])
