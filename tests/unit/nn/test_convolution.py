"""The short convolution sees only the past, and continues from the inputs it hands back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close, assert_same
from maclaurin.nn import ShortConvolution

#: A sum of at most 4 products: a few float64 roundings.
RTOL = 1e-14


def make(width: int, *, channels: int = 5) -> ShortConvolution:
    convolution = ShortConvolution(channels, width).double()
    generator = torch.Generator().manual_seed(width)
    for parameter in convolution.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return convolution


def draw(length: int, *, channels: int = 5) -> Tensor:
    return torch.randn(2, length, channels, generator=torch.Generator().manual_seed(9), dtype=torch.float64)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_definition(width: int) -> None:
    convolution, x = make(width), draw(7)
    y, _ = convolution(x)
    for t in range(7):
        expected = convolution.bias.expand(2, 5)
        for j in range(width):
            if t - width + 1 + j >= 0:
                expected = expected + convolution.weight[j] * x[:, t - width + 1 + j]
        assert_close(y[:, t], expected, rtol=RTOL, what=f"t={t}")


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("cuts", [[3], [1, 2, 3, 4, 5, 6], [5, 6], [6]])
def test_continuing_equals_the_whole(width: int, cuts: list[int]) -> None:
    convolution, x = make(width), draw(7)
    past, parts = None, []
    for start, stop in zip([0, *cuts], [*cuts, 7], strict=True):
        part, past = convolution(x[:, start:stop], past)
        assert past.shape == (2, width - 1, 5)
        parts.append(part)
    whole, whole_past = convolution(x)
    assert_close(torch.cat(parts, 1), whole, rtol=RTOL)
    assert_same(past, whole_past)


def test_no_time_at_all() -> None:
    convolution, x = make(3), draw(7)
    _, past = convolution(x)
    nothing, same = convolution(x[:, :0], past)
    assert nothing.shape == (2, 0, 5)
    assert_same(same, past)


def test_the_future_does_not_matter() -> None:
    convolution, x = make(3), draw(7)
    changed = x.clone()
    changed[:, 4:] = torch.nan
    assert_same(convolution(changed)[0][:, :4], convolution(x)[0][:, :4])


def test_channels_do_not_mix() -> None:
    convolution, x = make(3), draw(7)
    changed = x.clone()
    changed[..., 2] += 1.0
    moved = (convolution(changed)[0] - convolution(x)[0]).abs().amax((0, 1)) > 0
    assert moved.tolist() == [False, False, True, False, False]


def test_gradients_flow_through_the_past() -> None:
    convolution, x = make(3), draw(7).requires_grad_()
    _, past = convolution(x[:, :5])
    convolution(x[:, 5:].detach(), past)[0].sum().backward()
    reached = x.grad.abs().sum((0, 2)) > 0
    assert reached.tolist() == [False, False, False, True, True, False, False]
