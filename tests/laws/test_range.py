"""Large logits: finite where the normalizer does not see the scale, and never NaN where it does.

Run: pytest tests/laws/test_range.py -q
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from laws.cases import EVERY, Inputs, by, directions, draw, every, named, serving
from laws.checks import gradients
from laws.compare import assert_close, error_ratio
from maclaurin import Mechanism, attend, mechanism
from maclaurin.algebra import Relu

FACTORS = (1.0, 16.0, 200.0)
HIGH = [
    (text, mechanism(text))
    for text in (
        "taylor:40/sum",
        "taylor:39@mean/l2",
        "taylor:40@mean/sum",
        "power:40/sum",
        "power:39/rms",
        "taylor:40/layer",
    )
]
LENGTHS = [
    (text, mechanism(text))
    for text in (
        "exp/length",
        "exp/none",
        "taylor:4/none",
        "taylor:40/length",
        "taylor:4@mean/none",
        "power:2/length",
        "taylor:40@mean/length",
        "expmap/none",
        "exp/cumgate",
        "exp/length+decay",
        "taylor:4/none+valuegate+outgate:after",
        "taylor:2@mean/cumgate+decay+window:3:1",
        "power:2/length+window:3",
    )
]


def forgets_scale(mechanism: Mechanism) -> bool:
    return mechanism.normalizer.uses_denominator or mechanism.normalizer.is_scale_invariant


def with_largest_logit(mechanism: Mechanism, inputs: Inputs, largest: float) -> Inputs:
    """The call with the query scaled so that the largest absolute logit is ``largest`` on the identity map."""
    groups = inputs.query.shape[1] // inputs.key.shape[1]
    x = inputs.query @ inputs.key.repeat_interleave(groups, dim=1).mT * inputs.query.shape[-1] ** -0.5
    return replace(inputs, query=inputs.query * (largest / float(x.abs().max())))


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("mechanism", named((n, m) for n, m in EVERY + HIGH if forgets_scale(m)))
def test_finite_where_the_scale_is_not_seen(mechanism: Mechanism, factor: float, seed: int) -> None:
    """Outputs and gradients, in float32, logits of up to about 6 times the factor."""
    inputs = draw(seed, queries=7, dtype=torch.float32).of(mechanism)
    query = inputs.query if mechanism.similarity.map.name == "expmap" else factor * inputs.query
    inputs = replace(inputs, query=query)
    for method in serving(mechanism):
        for is_causal in directions(mechanism):
            leaves = inputs.leaves()
            out = attend(mechanism, *leaves.qkv, **leaves.operands, **by(method), is_causal=is_causal).output
            assert bool(out.isfinite().all())
            for each in gradients(out, leaves.tensors(), 1):
                assert bool(each.isfinite().all())


@pytest.mark.parametrize("order", [2, 4, 8, 20, 40])
@pytest.mark.parametrize("center", ["", "@mean"])
def test_any_order_is_accurate_at_logits_of_200(order: int, center: str, seed: int) -> None:
    """Relative to a log scale, 200**40 fits in float32.

    1e-4: a logit of 200 is known to 200 * 6e-8, which the 40th power multiplies by 40. Bidirectional, so that every
    row has a large positive logit: among logits near -20 alone the plain series cancels every float32 digit.
    """
    inputs = draw(seed, dtype=torch.float32)
    for normalizer in ("sum", "l2", "rms", "layer"):
        each = mechanism(f"taylor:{order}{center}/{normalizer}")
        large = with_largest_logit(each, replace(inputs, operands={}), 200.0)
        out = attend(each, *large.qkv, method="parallel", is_causal=False).output
        exact = large.map(torch.Tensor.double)
        expected = attend(each, *exact.qkv, method="parallel", is_causal=False).output
        assert error_ratio(out, expected) <= 1e-4


@pytest.mark.parametrize("largest", [1.0, 30.0, 150.0, 600.0])
@pytest.mark.parametrize("mechanism", named(LENGTHS))
def test_infinite_only_where_the_value_is_and_never_nan(mechanism: Mechanism, largest: float, seed: int) -> None:
    inputs = draw(seed, dtype=torch.float32).of(mechanism)
    if mechanism.similarity.map.name == "identity":
        inputs = with_largest_logit(mechanism, inputs, largest)
    exact = inputs.map(torch.Tensor.double)
    expected = attend(mechanism, *exact.qkv, **exact.operands, method="parallel").output
    greatest = torch.finfo(torch.float32).max
    for method in serving(mechanism):
        out = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method)).output
        assert not out.isnan().any()
        # 1e-2: near the edge a rounding of the exponent, 600 * 6e-8, moves a value across it.
        assert bool(out[expected.abs() < greatest * 0.99].isfinite().all())
        beyond = expected.abs() > greatest * 1.01
        assert torch.equal(out[beyond].double(), expected[beyond].sign() * torch.inf)
        inside = (expected.abs() < 1e30) & (expected.abs() > 1e-30)
        assert error_ratio(out[inside], expected[inside]) <= 1e-3


def test_the_range_above_does_reach_infinity(seed: int) -> None:
    inputs = replace(draw(seed, dtype=torch.float32), operands={})
    for text, largest in (("exp/none", 150.0), ("taylor:40/length", 600.0)):
        large = with_largest_logit(mechanism(text), inputs, largest)
        assert bool(attend(text, *large.qkv).output.isinf().any())


@pytest.mark.parametrize(
    "text", ["exp/l2", "exp/rms", "exp/layer", "taylor:4/l2", "power:2/layer", "elu1>taylor:2/rms"]
)
@pytest.mark.parametrize("factor", [1e-30, 1e-12, 1e12, 1e30])
def test_a_norm_forgets_the_magnitude_of_values(text: str, factor: float, inputs: Inputs) -> None:
    q, k, v = inputs.qkv
    for dtype, rtol in ((torch.float64, 1e-12), (torch.float32, 1e-4)):  # float32: rows of nearly orthogonal powers
        given = [each.to(dtype) for each in (q, k, v)]
        expected = attend(text, *given).output
        assert_close(attend(text, *given[:2], factor * given[2]).output, expected, rtol=rtol)


@pytest.mark.parametrize(
    "text", ["exp/sum:eps=1e-3", "exp/sum:clamp=1", "taylor:40@mean/sum:eps=1", "taylor:2@mean/sum:clamp=1"]
)
@pytest.mark.parametrize("offset", [-600.0, -90.0, 90.0, 600.0])
def test_eps_and_clamp_are_in_true_scale_beyond_the_range_of_exp(text: str, offset: float) -> None:
    """exp(-600) under an eps of 1e-3 is nothing; exp(600) does not notice it; neither is NaN."""
    torch.manual_seed(1)
    q = torch.cat([torch.ones(1, 2, 5, 1), 0.1 * torch.randn(1, 2, 5, 3)], dim=-1)
    k = torch.cat([torch.full((1, 1, 5, 1), offset), torch.randn(1, 1, 5, 3)], dim=-1)
    v = torch.randn(1, 1, 5, 2)
    leaves = [each.requires_grad_() for each in (q, k, v)]
    out = attend(text, *leaves, scale=1.0).output
    exact = attend(text, *(each.detach().double() for each in leaves), scale=1.0).output
    assert_close(out, exact, rtol=1e-3, scale=max(1e-30, float(exact.abs().max())))  # 600 * 6e-8 in the exponent
    for each in torch.autograd.grad(out.sum(), leaves):
        assert bool(each.isfinite().all())
    if offset > 0:
        plain = attend(text.partition(":eps")[0].partition(":clamp")[0], *leaves, scale=1.0).output
        assert_close(out, plain, rtol=1e-4)


@pytest.mark.parametrize("mechanism", every(lambda each: not forgets_scale(each)))
def test_ordinary_logits_are_ordinary_without_a_denominator(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    out = attend(mechanism, *inputs.qkv, **inputs.operands).output
    assert bool(out.isfinite().all())
    assert bool((out != 0).any(-1).all()) or mechanism.similarity.map == Relu()  # whose logits may all be zero
