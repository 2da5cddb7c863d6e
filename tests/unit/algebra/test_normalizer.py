"""Normalizers: each formula on an accumulator given by hand, whatever its log scale.

Run: pytest tests/unit/algebra/test_normalizer.py -q
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close, assert_same
from maclaurin import Accumulator
from maclaurin.algebra import L2, RMS, CumulativeGate, Layer, Length, NormalizerInputs, Sum, Unnormalized
from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE
from maclaurin.algebra.normalizer import NORMALIZERS, Normalizer
from maclaurin.errors import MechanismError

N = torch.tensor([[3.0, 4.0, 0.0], [1.0, -2.0, 2.0]], dtype=torch.float64)
Z = torch.tensor([2.0, 0.5], dtype=torch.float64)
COUNT = torch.tensor([4.0, 9.0], dtype=torch.float64)
SUM_OF_EXP_U = torch.tensor([5.0, 0.25], dtype=torch.float64)
NOTHING = NormalizerInputs()
GAUGES = pytest.mark.parametrize("gauge", [0.0, 3.0, -3.0, 600.0, -600.0])


def accumulator(gauge: float, numerator: Tensor = N, denominator: Tensor = Z) -> Accumulator:
    """The same true sums about any log scale that keeps them in range."""
    factor = math.exp(-gauge)
    log_scale = torch.full((2,), gauge, dtype=torch.float64)
    return Accumulator(factor * numerator, factor * denominator, COUNT, log_scale, SUM_OF_EXP_U.log())


@GAUGES
@pytest.mark.parametrize(
    ("normalizer", "expected"),
    [
        (Sum(), N / Z[:, None]),
        (Sum(eps=0.5), N / (Z + 0.5)[:, None]),
        (Sum(clamp=1.0), N / Z.clamp(min=1.0)[:, None]),
        (Sum(clamp=1.0, eps=0.5), N / (Z.clamp(min=1.0) + 0.5)[:, None]),
        (Sum(detach=True), N / Z[:, None]),
        (Length(), N / COUNT[:, None]),
        (Unnormalized(), N),
        (CumulativeGate(), N / torch.tensor([[5.0], [1.0]])),
        (L2(), N / torch.tensor([[5.0], [3.0]])),
        (L2(gain=64.0), 64.0 * N / torch.tensor([[5.0], [3.0]])),
        (RMS(), 3**0.5 * N / torch.tensor([[5.0], [3.0]])),
        (Layer(), (N - N.mean(-1, keepdim=True)) / N.var(-1, keepdim=True, correction=0).sqrt()),
    ],
    ids=repr,
)
def test_formulas_do_not_depend_on_the_log_scale(normalizer: Normalizer, expected: Tensor, gauge: float) -> None:
    """1e-12: exp(600) itself is known to 600 * 1e-16."""
    assert_close(normalizer(accumulator(gauge), NOTHING), expected, rtol=1e-12)


@pytest.mark.parametrize("normalizer", [Sum(), L2(), L2(gain=64.0), RMS(), RMS(weight=True), Layer()], ids=repr)
def test_those_that_forget_a_scale_need_the_mean_alone(normalizer: Normalizer) -> None:
    assert normalizer.forgets_row_scale
    inputs = NormalizerInputs(weight=torch.tensor([0.5, 2.0, 3.0], dtype=torch.float64) if normalizer.learned else None)
    expected = normalizer(accumulator(0.0), inputs)
    assert_close(normalizer.of_mean(N / Z[:, None], inputs), expected, rtol=1e-14)


def test_learned_tensors() -> None:
    weight, bias = torch.tensor([2.0, 1.0, -1.0]).double(), torch.tensor([0.5, 0.0, 1.0]).double()
    given = NormalizerInputs(weight=weight, bias=bias)
    layer = Layer()(accumulator(0.0), NOTHING)
    assert_close(Layer(weight=True, bias=True)(accumulator(0.0), given), layer * weight + bias, rtol=1e-15)
    rms = RMS()(accumulator(0.0), NOTHING)
    assert_close(RMS(weight=True)(accumulator(0.0), NormalizerInputs(weight=weight)), rms * weight, rtol=1e-15)
    exponent = torch.tensor([0.5, 2.0]).double()
    found = Length(learned_exponent=True)(accumulator(1.0), NormalizerInputs(length_exponent=exponent))
    assert_close(found, N / torch.tensor([[2.0], [81.0]]), rtol=1e-14)


@pytest.mark.parametrize("normalizer", [each() for each in NORMALIZERS.values()], ids=NORMALIZERS.keys())
def test_a_row_without_keys_is_zero_after_everything(normalizer: Normalizer) -> None:
    nothing = torch.full((2,), EMPTY_LOG_SCALE, dtype=torch.float64)
    empty = Accumulator(0 * N, 0 * Z, 0 * COUNT, nothing, nothing)
    given = NormalizerInputs(weight=torch.ones(3).double(), bias=torch.ones(3).double())
    assert_same(normalizer(empty, given), 0 * N)


@pytest.mark.parametrize("normalizer", [Sum(), Sum(eps=1.0), Sum(clamp=1.0), L2(), RMS(), Layer()], ids=repr)
def test_a_row_whose_sums_vanish_is_zero_and_gives_zero_gradient(normalizer: Normalizer) -> None:
    numerator, denominator = N.clone(), Z.clone()
    numerator[0], denominator[0] = 0.0, 0.0
    numerator.requires_grad_()
    denominator.requires_grad_()
    out = normalizer(accumulator(2.0, numerator, denominator), NOTHING)
    assert not out[0].any()
    assert bool(out[1].all())
    found = torch.autograd.grad(out.square().sum(), (numerator, denominator), allow_unused=True)
    assert bool(found[0].isfinite().all())
    assert not found[0][0].any()


def test_a_denominator_that_cancels_to_zero_gives_a_zero_row() -> None:
    """Signed weights 1 and -1: N is not zero, Z is."""
    numerator, denominator = N.clone().requires_grad_(), torch.tensor([0.0, 2.0]).double().requires_grad_()
    for normalizer in (Sum(signed=True), Sum(signed=True, detach=True)):
        out = normalizer(accumulator(0.0, numerator, denominator), NOTHING)
        assert not out[0].any()
        assert_close(out[1], N[1] / 2.0, rtol=1e-15)
        for each in torch.autograd.grad(out.sum(), (numerator, denominator), allow_unused=True):
            assert each is None or not each[0].any()


def test_a_constant_row_has_no_deviation_from_its_mean() -> None:
    """Exact zeros, not rounding errors blown up to size one."""
    for number in (0.1, 1e-300, 1e300, -7.7):
        row = torch.full((2, 3), number, dtype=torch.float64, requires_grad=True)
        out = Layer()(accumulator(0.0, row), NOTHING)
        assert_same(out, torch.zeros(2, 3, dtype=torch.float64))
        (gradient,) = torch.autograd.grad(out.sum(), row)
        assert not gradient.any()


def test_a_small_deviation_from_a_large_mean_is_standardized() -> None:
    row = torch.tensor([[1.0, 1.0 + 1e-9, 1.0 - 1e-9]] * 2, dtype=torch.float64)
    out = Layer()(accumulator(0.0, row), NOTHING)
    assert_close(out[0], torch.tensor([0.0, 1.0, -1.0]).double() * 1.5**0.5, rtol=1e-6)  # 1e-16 / 1e-9, and the mean


@pytest.mark.parametrize("normalizer", [L2(), RMS(), Layer()], ids=repr)
def test_scale_invariance_at_any_magnitude(normalizer: Normalizer) -> None:
    expected = normalizer(accumulator(0.0), NOTHING)
    for factor in (1e-300, 1e-150, 1e150, 1e300):
        assert_close(normalizer(accumulator(0.0, factor * N), NOTHING), expected, rtol=1e-14)
    for exponent in (-900, 900):
        assert_same(normalizer(accumulator(0.0, 2.0**exponent * N), NOTHING), expected)


@pytest.mark.parametrize("normalizer", [Layer(), L2(), RMS(), Sum()], ids=repr)
def test_no_value_coordinate_at_all(normalizer: Normalizer) -> None:
    assert normalizer(accumulator(0.0, N[:, :0]), NOTHING).shape == (2, 0)


def test_detach_stops_the_whole_denominator() -> None:
    for normalizer, reaches in (
        (Sum(), True),
        (Sum(detach=True), False),
        (Sum(detach=True, clamp=0.1, eps=0.1), False),
    ):
        denominator = Z.clone().requires_grad_()
        numerator = N.clone().requires_grad_()
        out = normalizer(accumulator(0.0, numerator, denominator), NOTHING)
        found = torch.autograd.grad(out.sum(), (numerator, denominator), allow_unused=True)
        assert (found[1] is not None) == reaches
        assert bool(found[0].all())


def test_a_cumulative_gate_is_exact_where_its_sum_leaves_the_range() -> None:
    """Sums of exp(u) of e^900 and of weights of e^900: the quotient is finite, and so are its gradients."""
    log_sum = torch.tensor([900.0, -900.0], dtype=torch.float64, requires_grad=True)
    numerator = N.clone().requires_grad_()
    both = Accumulator(numerator, None, COUNT, torch.tensor([900.0, 0.0]).double(), log_sum)
    out = CumulativeGate()(both, NOTHING)
    assert_close(out, N, rtol=1e-12)
    found = torch.autograd.grad(out.sum(), (log_sum, numerator))
    assert_close(found[0], torch.tensor([-float(N[0].sum()), 0.0]).double(), rtol=1e-12)  # below 1 the floor holds
    assert_close(found[1], torch.ones(2, 3).double(), rtol=1e-12)


def test_a_negative_denominator_divides_as_it_is_and_a_clamp_lifts_it() -> None:
    negative = accumulator(1.0, N, -Z)
    assert_close(Sum(signed=True)(negative, NOTHING), -N / Z[:, None], rtol=1e-14)
    assert_close(Sum(signed=True, clamp=2.0)(negative, NOTHING), N / 2.0, rtol=1e-14)


def test_what_each_one_reads_and_promises() -> None:
    assert {name for name, each in NORMALIZERS.items() if each.uses_denominator} == {"sum"}
    assert {name for name, each in NORMALIZERS.items() if each.is_scale_invariant} == {"l2", "rms", "layer"}
    assert {name for name, each in NORMALIZERS.items() if each().needs_nonnegative} == {"sum"}
    assert not Sum(signed=True).needs_nonnegative
    assert Sum().cancels_sign
    assert not Sum(eps=1e-4).cancels_sign
    assert not Sum(clamp=1.0).cancels_sign
    assert Length(learned_exponent=True).learned == ("length_exponent",)
    assert RMS(weight=True).learned == ("norm_weight",)
    assert Layer(weight=True, bias=True).learned == ("norm_weight", "norm_bias")
    assert Layer(bias=True).learned == ("norm_bias",)
    assert {name: each().learned for name, each in NORMALIZERS.items() if each().learned} == {
        "cumgate": ("denominator_logit",)
    }
    assert {name for name, each in NORMALIZERS.items() if each.uses_log_denominator} == {"cumgate"}
    assert all(each().formula.startswith("out = ") for each in NORMALIZERS.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sum(eps=-1.0), r"sum:eps=-1.0 asks for the eps -1.0\.\n  It must be a finite number >= 0\."),
        (lambda: Sum(eps=math.nan), r"sum:eps=nan asks"),
        (lambda: Sum(clamp=0.0), r"sum:clamp=0.0 asks for the clamp 0.0\.\n  It must be a finite number > 0\."),
        (lambda: Sum(clamp=math.inf), r"sum:clamp=inf asks"),
        (lambda: L2(gain=0.0), r"l2:gain=0.0 asks for the gain 0.0\.\n  It must be a finite number > 0\."),
        (lambda: L2(gain=-2), r"l2:gain=-2 asks"),
    ],
)
def test_numbers_out_of_range_are_refused(make: object, message: str) -> None:
    with pytest.raises(MechanismError, match=message):
        make()
