"""Softmax attention against PyTorch's own, and the Taylor series against softmax.

Run: pytest tests/golden/test_sdpa_golden.py -q
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from laws.cases import Inputs, draw
from laws.compare import assert_close
from maclaurin import attend

#: Two float64 implementations of one formula: a few roundings of 1e-16.
RTOL = 1e-12

METHODS = pytest.mark.parametrize("method", ["parallel", "recurrent"])


@METHODS
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("scale", [None, 1.0, 0.1, 0.0, -1.0])
def test_equals_sdpa(method: str, is_causal: bool, scale: float | None, inputs: Inputs) -> None:
    leaves = inputs.leaves()
    expected = F.scaled_dot_product_attention(*leaves.qkv, is_causal=is_causal, scale=scale, enable_gqa=True)
    out = attend("exp/sum", *leaves.qkv, method=method, is_causal=is_causal, scale=scale).output
    assert_close(out, expected, rtol=RTOL)
    cotangent = torch.randn_like(out)
    one, other = (torch.autograd.grad(each, leaves.qkv, cotangent) for each in (out, expected))
    for found, wanted in zip(one, other, strict=True):
        assert_close(found, wanted, rtol=RTOL, scale=max(1.0, float(wanted.abs().max())))


def test_equals_sdpa_under_boolean_masks(inputs: Inputs) -> None:
    mask = torch.rand(2, 6, 37, 37, generator=torch.Generator().manual_seed(1)) < 0.4
    mask[..., 0] = True  # SDPA gives NaN or zeros, by version, to a row that sees nothing
    for given in (mask, mask[:, :1]):
        expected = F.scaled_dot_product_attention(*inputs.qkv, attn_mask=given, enable_gqa=True)
        assert_close(attend("exp/sum", *inputs.qkv, mask=given, is_causal=False).output, expected, rtol=RTOL)
        causal = given.tril()
        expected = F.scaled_dot_product_attention(*inputs.qkv, attn_mask=causal, enable_gqa=True)
        assert_close(attend("exp/sum", *inputs.qkv, mask=given).output, expected, rtol=RTOL)


@METHODS
def test_equals_sdpa_under_a_key_mask(method: str, inputs: Inputs) -> None:
    keys = torch.rand(2, 37, generator=torch.Generator().manual_seed(2)) < 0.6
    keys[:, 0] = True
    expected = F.scaled_dot_product_attention(*inputs.qkv, attn_mask=keys[:, None, None], enable_gqa=True)
    assert_close(attend("exp/sum", *inputs.qkv, mask=keys, is_causal=False, method=method).output, expected, rtol=RTOL)


@METHODS
def test_equals_sdpa_with_fewer_queries_than_keys(method: str) -> None:
    inputs = draw(5, queries=11, keys=37)
    seen = torch.ones(11, 37, dtype=torch.bool).tril(26)
    for is_causal, mask in ((True, seen), (False, None)):
        expected = F.scaled_dot_product_attention(*inputs.qkv, attn_mask=mask, enable_gqa=True)
        assert_close(attend("exp/sum", *inputs.qkv, is_causal=is_causal, method=method).output, expected, rtol=RTOL)


@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("text", ["taylor:40/sum", "taylor:40@mean/sum"])
def test_order_40_is_softmax_at_logits_up_to_4(text: str, is_causal: bool, inputs: Inputs) -> None:
    """The remainder 4^41 / 41! is 1.4e-25; the alternating terms at -4 cost exp(8) roundings, 3e-13."""
    q, k, v = inputs.qkv
    x = q @ k.repeat_interleave(2, 1).mT / 5**0.5
    q = q * (4.0 / float(x.abs().max()))
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=is_causal, enable_gqa=True)
    assert_close(attend(text, q, k, v, is_causal=is_causal).output, expected, rtol=RTOL)
