"""The identities of the family: what two different formulas must agree on.

Numbers are those of the table of identities that accompanies the first paper's restatement.
Run: pytest tests/laws/test_identities.py -q
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from laws.cases import Inputs, draw
from laws.checks import RTOL
from laws.compare import assert_close, assert_same, error_ratio
from maclaurin import Mechanism, attend
from maclaurin.algebra import (
    Accumulator,
    CallableMap,
    NormalizerInputs,
    Power,
    Similarity,
    Sum,
    monomials,
    num_monomials,
    parse,
)

BOTH = pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])


@pytest.fixture
def qkv(seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ungrouped heads, K = 8, T = 17, as in the table."""
    return draw(seed, heads=3, queries=17, key_dim=8, value_dim=8).qkv


def out(text: str, qkv: tuple[Tensor, ...], **options: object) -> Tensor:
    return attend(text, *qkv, **options).output


def softmax(qkv: tuple[Tensor, ...], *, is_causal: bool, factor: float = 1.0) -> Tensor:
    q, k, v = qkv
    return F.scaled_dot_product_attention(factor * q, k, v, is_causal=is_causal)


@BOTH
def test_01_explicit_masked_softmax(qkv: tuple[Tensor, ...], is_causal: bool) -> None:
    q, k, v = qkv
    x = q @ k.mT / 8**0.5
    x = x.masked_fill(torch.ones(17, 17, dtype=torch.bool).triu(1) & is_causal, -math.inf)
    assert_close(out("exp/sum", qkv, is_causal=is_causal), torch.softmax(x, -1) @ v, rtol=RTOL)
    assert_close(softmax(qkv, is_causal=is_causal), torch.softmax(x, -1) @ v, rtol=RTOL)


@BOTH
@pytest.mark.parametrize("factor", [1.0, 16.0])
@pytest.mark.parametrize("method", ["parallel", "recurrent"])
def test_02_a_norm_of_the_numerator_is_the_norm_of_softmax(
    qkv: tuple[Tensor, ...], is_causal: bool, factor: float, method: str
) -> None:
    """Exact, so that it holds at logits of 70 as at 4: no epsilon, no clamp."""
    given = (factor * qkv[0], *qkv[1:])
    expected = softmax(qkv, is_causal=is_causal, factor=factor)
    weight, bias = torch.linspace(0.5, 2.0, 8).double(), torch.linspace(-1.0, 1.0, 8).double()
    options = {"is_causal": is_causal, "method": method}
    assert_close(out("exp/l2", given, **options), F.normalize(expected, dim=-1, eps=0.0), rtol=RTOL)
    rms = F.rms_norm(expected, (8,), eps=0.0)
    assert_close(out("exp/rms", given, **options), rms, rtol=RTOL)
    assert_close(out("exp/rms:weight", given, **options, norm_weight=weight), rms * weight, rtol=RTOL)
    layer = F.layer_norm(expected, (8,), eps=0.0)
    assert_close(out("exp/layer", given, **options), layer, rtol=RTOL)
    affine = out("exp/layer:weight:bias", given, **options, norm_weight=weight, norm_bias=bias)
    assert_close(affine, layer * weight + bias, rtol=RTOL)


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 8e-3)], ids=str)
def test_02_in_lower_precision(qkv: tuple[Tensor, ...], dtype: torch.dtype, bound: float) -> None:
    """A few float32 roundings; one rounding of the output to bfloat16, 2^-8."""
    given = tuple(each.to(dtype) for each in qkv)
    exact = softmax(tuple(each.double() for each in given), is_causal=True)
    assert error_ratio(out("exp/l2", given), F.normalize(exact, dim=-1)) <= bound


@BOTH
def test_03_a_norm_forgets_positive_factors(qkv: tuple[Tensor, ...], is_causal: bool) -> None:
    q, k, v = qkv
    for norm in ("l2", "rms", "layer"):
        expected = out(f"exp/{norm}", qkv, is_causal=is_causal)
        assert_close(out(f"exp/{norm}", (q, k, 7.3 * v), is_causal=is_causal), expected, rtol=RTOL)
        accumulator = Accumulator(
            *(torch.rand(4, 8).double() + 0.1, torch.rand(4).double()), torch.ones(4), torch.zeros(4)
        )
        positive = torch.tensor([1e-200, 1e-3, 1.0, 1e200], dtype=torch.float64)
        scaled = Accumulator(
            positive[:, None] * accumulator.numerator, accumulator.denominator, accumulator.count, torch.ones(4)
        )
        normalizer = parse(f"exp/{norm}").normalizer
        assert_close(normalizer(scaled, NormalizerInputs()), normalizer(accumulator, NormalizerInputs()), rtol=RTOL)
    by_count = out("exp/length", qkv, is_causal=is_causal)
    assert_close(F.normalize(by_count, dim=-1), out("exp/l2", qkv, is_causal=is_causal), rtol=RTOL)


def test_07_rms_is_l2_times_the_root_of_the_width(qkv: tuple[Tensor, ...]) -> None:
    l2, rms = out("exp/l2", qkv), out("exp/rms", qkv)
    assert_close(rms, 8**0.5 * l2, rtol=RTOL)
    assert_close(out("exp/l2:gain=8", qkv), 8**0.5 * rms, rtol=RTOL)
    assert_close(l2.norm(dim=-1), torch.ones(2, 3, 17).double(), rtol=RTOL)


def test_08_a_shift_of_every_logit_of_a_query_changes_nothing(qkv: tuple[Tensor, ...]) -> None:
    q, k, v = qkv
    shift = draw(1, heads=3, queries=17, key_dim=1).query
    wide = torch.cat([q, 20.0 * shift], -1), torch.cat([k, torch.ones_like(k[..., :1])], -1), v
    for norm in ("sum", "l2", "rms", "layer"):
        assert_close(out(f"exp/{norm}", wide, scale=8**-0.5), out(f"exp/{norm}", qkv), rtol=RTOL)


def test_08_logits_two_hundred_times_larger_overflow_exp_but_not_the_sum(qkv: tuple[Tensor, ...]) -> None:
    q, k, v = (each.float() for each in qkv)
    raw = torch.exp(200.0 * q @ k.mT / 8**0.5)
    assert not bool((raw @ v / raw.sum(-1, keepdim=True)).isfinite().all())
    for norm in ("sum", "l2", "rms", "layer"):
        assert bool(out(f"exp/{norm}", (200.0 * q, k, v), is_causal=False).isfinite().all())


def test_09_partial_sums_converge_to_softmax_within_the_remainder() -> None:
    q, k, v = draw(0, heads=3, queries=17, key_dim=8, value_dim=8).qkv
    x = q @ k.mT / 8**0.5
    q = q * (4.25 / float(x.abs().max()))  # the largest logit of the table
    x = q @ k.mT / 8**0.5
    exact = out("exp/sum", (q, k, v), is_causal=False)
    errors = []
    for order in (2, 4, 10, 20, 40):
        error = (out(f"taylor:{order}/sum", (q, k, v), is_causal=False) - exact).abs().max()
        remainder = x.abs() ** (order + 1) / float(math.factorial(order + 1)) * torch.exp(x).clamp(min=1.0)
        bound = remainder.amax(-1)
        weights = torch.exp(x).sum(-1)
        # both sums are off by at most S * bound, and the output is a mean of values
        assert float(error) <= float((2 * 17 * bound / weights).max() * v.abs().max()) + 1e-14
        errors.append(float(error))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.05
    assert errors[-1] <= 1e-14


@pytest.mark.parametrize("order", range(5))
def test_10_kronecker_powers_and_12_symmetric_monomials(order: int) -> None:
    q, k = torch.randn(2, 50, 4, generator=torch.Generator().manual_seed(order), dtype=torch.float64)
    expected = (q * k).sum(-1) ** order
    full = [torch.ones(50, 1, dtype=torch.float64)] * 2
    for _ in range(order):
        full = [(a[:, :, None] * x[:, None]).flatten(1) for a, x in zip(full, (q, k), strict=True)]
    # rounding is relative to (|q| |k|)^n, the size of what is summed
    size = (q.norm(dim=-1) * k.norm(dim=-1)) ** order
    assert_close((full[0] * full[1]).sum(-1), expected, rtol=RTOL, scale=size)
    symmetric = monomials(q, order)[order], monomials(k, order)[order]
    assert symmetric[0].shape[-1] == num_monomials(4, order) == math.comb(4 + order - 1, order)
    assert_close((symmetric[0] * symmetric[1]).sum(-1), expected, rtol=RTOL, scale=size)


def test_12_all_orders_together_are_one_binomial() -> None:
    for dim, order in itertools.product(range(1, 9), range(6)):
        assert sum(num_monomials(dim, n) for n in range(order + 1)) == math.comb(dim + order, order)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_11_a_sum_of_recurrent_networks_is_the_parallel_series(order: int, qkv: tuple[Tensor, ...]) -> None:
    """Written as in the paper: H^n += k^(n) v, o = sum_n K^{-n/2} / n! q^(n) H^n, full Kronecker powers."""
    q, k, v = qkv
    k, q = k[..., :3], q[..., :3]
    hidden = [torch.zeros(2, 3, 3**n, 8, dtype=torch.float64) for n in range(order + 1)]
    memory = [torch.zeros(2, 3, 3**n, dtype=torch.float64) for n in range(order + 1)]

    def powers(x: Tensor) -> list[Tensor]:
        levels = [torch.ones_like(x[..., :1])]
        for _ in range(order):
            levels.append((levels[-1][..., :, None] * x[..., None, :]).flatten(-2))
        return levels

    rows = []
    for t in range(17):
        for n, each in enumerate(powers(k[:, :, t])):
            hidden[n] = hidden[n] + each[..., None] * v[:, :, t, None]
            memory[n] = memory[n] + each
        numerator, total = 0.0, 0.0
        for n, each in enumerate(powers(q[:, :, t])):
            factor = 3.0 ** (-n / 2) / math.factorial(n)
            numerator = numerator + factor * (each[..., None, :] @ hidden[n])[..., 0, :]
            total = total + factor * (each * memory[n]).sum(-1, keepdim=True)
        rows.append(numerator / total)
    expected = torch.stack(rows, 2)
    text = f"taylor:{order}/sum" + (":signed" if order % 2 else "")
    for method in ("parallel", "recurrent"):
        assert_close(out(text, (q, k, v), method=method), expected, rtol=1e-11)  # order 1: Z loses a digit on a row


def test_13_even_partial_sums_are_positive_and_odd_ones_are_not() -> None:
    x = torch.linspace(-12.0, 12.0, 100_001, dtype=torch.float64)
    for order, least in ((2, 0.5), (4, 0.2704), (6, 0.1493), (8, 0.0833), (10, 0.0467)):
        series = parse(f"taylor:{order}/none").similarity.function.series
        values = sum(a * x**n for n, a in enumerate(series))
        assert float(values.min()) == pytest.approx(least, abs=5e-5)
    for order in (1, 3, 5, 7, 9):
        series = parse(f"taylor:{order}/none").similarity.function.series
        assert sum(a * (-50.0) ** n for n, a in enumerate(series)) < -10.0


@pytest.mark.parametrize("text", ["exp/sum", "exp/l2", "taylor:2@mean/sum", "elu1/sum"])
def test_15_permuting_keys_and_values_changes_nothing(text: str, qkv: tuple[Tensor, ...]) -> None:
    q, k, v = qkv
    order = torch.arange(16, -1, -1)
    assert_close(
        out(text, (q, k[:, :, order], v[:, :, order]), is_causal=False), out(text, qkv, is_causal=False), rtol=RTOL
    )


@pytest.mark.parametrize("text", ["exp/sum", "exp/l2", "taylor:2@mean/sum", "elu1/sum"])
def test_16_causality_bit_for_bit(text: str, qkv: tuple[Tensor, ...]) -> None:
    edited = tuple(torch.cat([each[:, :, :9], torch.randn_like(each[:, :, 9:])], 2) for each in qkv)
    assert_same(out(text, edited)[:, :, :9], out(text, qkv)[:, :, :9])


def test_17_the_first_row_is_the_first_value_and_constant_values_come_back(qkv: tuple[Tensor, ...]) -> None:
    q, k, v = qkv
    for text in ("exp/sum", "taylor:4/sum", "taylor:2@mean/sum", "elu1/sum", "taylor:1/sum:signed"):
        for method in ("parallel", "recurrent"):
            assert_close(out(text, qkv, method=method)[:, :, 0], v[:, :, 0], rtol=RTOL)
    assert_close(out("exp/l2", qkv)[:, :, 0], F.normalize(v[:, :, 0], dim=-1), rtol=RTOL)
    constant = v[:, :, :1].expand_as(v)
    assert_close(out("exp/sum", (q, k, constant)), constant, rtol=RTOL)
    assert_close(out("taylor:2/sum", (q, k, constant)), constant, rtol=RTOL)
    assert_close(out("exp/l2", (q, k, constant)), F.normalize(constant, dim=-1), rtol=RTOL)


def test_18_degree_in_the_values(qkv: tuple[Tensor, ...]) -> None:
    q, k, v = qkv
    for text, degree in (
        ("exp/sum", 1),
        ("exp/length", 1),
        ("exp/none", 1),
        ("exp/l2", 0),
        ("exp/rms", 0),
        ("exp/layer", 0),
    ):
        assert_close(out(text, (q, k, 3.0 * v)), 3.0**degree * out(text, qkv), rtol=RTOL)


def test_19_a_clamp_is_the_identity_exactly_when_no_logit_exceeds_it(qkv: tuple[Tensor, ...]) -> None:
    q, k, _ = qkv
    largest = float((q @ k.mT / 8**0.5).tril().max())
    for norm in ("sum", "length", "l2"):
        assert_same(out(f"exp:clamp={largest + 1e-9}/{norm}", qkv), out(f"exp/{norm}", qkv, method="parallel"))
        assert not torch.equal(out(f"exp:clamp={largest - 1e-3}/{norm}", qkv), out(f"exp/{norm}", qkv))


def test_20_linear_attention_is_a_cumulative_sum(qkv: tuple[Tensor, ...]) -> None:
    shifted = CallableMap(lambda x: torch.relu(x) + 0.1, is_nonnegative=True)
    mechanism = Mechanism(Similarity(Power(1), shifted), Sum())
    q, k, v = qkv
    phi_q, phi_k = torch.relu(q) + 0.1, torch.relu(k) + 0.1
    hidden = (phi_k[..., :, None] * v[..., None, :]).cumsum(2)
    expected = (phi_q[..., None, :] @ hidden)[..., 0, :] / (phi_q * phi_k.cumsum(2)).sum(-1, keepdim=True)
    for method in ("parallel", "recurrent"):
        assert_close(attend(mechanism, q, k, v, method=method).output, expected, rtol=RTOL)


def test_22_squares_forget_scale_and_sign(qkv: tuple[Tensor, ...]) -> None:
    q, k, v = qkv
    expected = out("power:2/sum", qkv, is_causal=False)
    flips = torch.where(torch.arange(17) % 3 == 0, -1.0, 1.0).double()[:, None]
    for method in ("parallel", "recurrent"):
        for given, scale in (((q, k, v), 123.0), ((q, k, v), -0.5), ((q, flips * k, v), None), ((-q, k, v), None)):
            assert_close(out("power:2/sum", given, is_causal=False, scale=scale, method=method), expected, rtol=RTOL)
    assert_close(out("poly:0,0,3/sum", qkv, is_causal=False), expected, rtol=RTOL)


def test_26_the_gradient_of_a_norm_is_orthogonal_to_what_it_norms() -> None:
    """g . N vanishes relative to |g| |N|; that of the layer norm also sums to zero."""
    numerator = draw(6).value.clone().requires_grad_()
    ones = torch.ones(numerator.shape[:-1], dtype=torch.float64)
    for norm in ("l2", "rms", "layer"):
        normed = parse(f"exp/{norm}").normalizer(Accumulator(numerator, ones, ones, 0 * ones), NormalizerInputs())
        (gradient,) = torch.autograd.grad((normed * draw(7).value).sum(), numerator)
        size = gradient.norm(dim=-1) * numerator.detach().norm(dim=-1)
        assert float(((gradient * numerator.detach()).sum(-1) / size).abs().max()) <= 1e-14
        assert norm != "layer" or float((gradient.sum(-1) / gradient.norm(dim=-1)).abs().max()) <= 1e-14


def test_28_dropping_the_denominator_leaves_z_times_softmax(qkv: tuple[Tensor, ...]) -> None:
    """What a series of 80 terms that forgets to divide computes is not softmax."""
    q, k, _ = qkv
    x = (q @ k.mT / 8**0.5).tril() + torch.full((17, 17), -math.inf).triu(1).double()
    total = torch.exp(x).sum(-1, keepdim=True)
    undivided = out("taylor:80/none", qkv)
    assert_close(undivided, total * softmax(qkv, is_causal=True), rtol=RTOL)
    assert_close(undivided / total, out("exp/sum", qkv), rtol=RTOL)
    assert error_ratio(undivided, softmax(qkv, is_causal=True)) > 1.0


def test_28_the_cosine_map_normalizes_the_width_and_not_the_heads(seed: int) -> None:
    inputs: Inputs = draw(seed, queries=9)
    q, k, _ = inputs.qkv
    mapped = parse("cosine/l2").similarity.map(k)
    assert_close(mapped.norm(dim=-1), torch.ones(2, 3, 9).double(), rtol=RTOL)
    assert float((mapped.norm(dim=1) - 1.0).abs().max()) > 0.1
    ones = torch.ones(2, 3, 9, 1, dtype=torch.float64)
    one_key = attend("cosine/none", q[:, :, :1], k[:, :, :1], ones[:, :, :1]).output
    cosine = F.cosine_similarity(q[:, :, 0], k[:, :, 0].repeat_interleave(2, 1), dim=-1)
    assert_close(one_key[:, :, 0, 0], cosine, rtol=RTOL)
