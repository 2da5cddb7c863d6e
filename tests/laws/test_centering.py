"""Centered Taylor is its explicit definition, w = exp(c) T_N(x - c), c the mean logit of the visible keys.

Run: pytest tests/laws/test_centering.py -q
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from laws.cases import Inputs, draw
from laws.checks import RTOL, gradients
from laws.compare import assert_close
from maclaurin import attend, mechanism

ORDERS = range(5)


def explicit(
    inputs: Inputs, order: int, *, is_causal: bool, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(sum w v, sum w, number of keys), written with plain tensor algebra."""
    q, k, v = inputs.qkv
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    x = torch.einsum("bhtk,bhsk->bhts", q, k) / math.sqrt(q.shape[-1])
    seen = torch.ones(x.shape[-2:], dtype=torch.bool)
    if is_causal:
        seen = torch.arange(x.shape[-1]) <= torch.arange(x.shape[-2])[:, None]
    seen = seen.expand_as(x) if mask is None else seen & mask[:, None, None]
    count = seen.sum(-1)
    c = (x * seen).sum(-1) / count.clamp(min=1)
    y = x - c[..., None]
    w = torch.zeros_like(x)
    for n in range(order + 1):
        w = w + y**n / math.factorial(n)
    w = torch.exp(c)[..., None] * w * seen
    return torch.einsum("bhts,bhsv->bhtv", w, v), w.sum(-1), count


@pytest.mark.parametrize("method", ["parallel", "recurrent"])
@pytest.mark.parametrize("is_causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("order", ORDERS)
def test_equals_its_definition(order: int, is_causal: bool, method: str, seed: int) -> None:
    inputs = draw(seed, queries=13)
    mask = torch.rand(2, 13, generator=torch.Generator().manual_seed(4)) < 0.7
    for hide in (None, mask):
        leaves = Inputs(*inputs.qkv, {}).leaves()
        numerator, total, count = explicit(leaves, order, is_causal=is_causal, mask=hide)
        for normalizer, expected in (
            ("sum" if order % 2 == 0 else "sum:signed", numerator / torch.where(total == 0, 1.0, total)[..., None]),
            ("length", numerator / count.clamp(min=1)[..., None]),
            ("none", numerator),
            ("l2", torch.nn.functional.normalize(numerator, dim=-1)),
        ):
            text = f"taylor:{order}@mean/{normalizer}"
            out = attend(text, *leaves.qkv, method=method, is_causal=is_causal, mask=hide).output
            assert_close(out, expected, rtol=RTOL, what=text)
            if normalizer != "sum:signed":  # a signed quotient has rows that lose every digit of a gradient
                found, wanted = (gradients(each, leaves.qkv, 1) for each in (out, expected))
                for one, other in zip(found, wanted, strict=True):
                    assert_close(one, other, rtol=RTOL, scale=max(1.0, float(other.abs().max())), what=f"d {text}")


@pytest.mark.parametrize("order", [2, 4])
def test_one_vector_taken_from_every_key_changes_nothing_but_exp_c(order: int, inputs: Inputs) -> None:
    """The shift multiplies every weight of a row by one number, which the sum forgets."""
    q, k, v = inputs.qkv
    shifted = k - inputs.key[:, :, 7:8]
    for method in ("parallel", "recurrent"):
        one, other = (attend(f"taylor:{order}@mean/sum", q, each, v, method=method).output for each in (k, shifted))
        assert_close(one, other, rtol=RTOL)
        plain = [attend(f"taylor:{order}/sum", q, each, v, method=method).output for each in (k, shifted)]
        assert not torch.allclose(*plain, rtol=1e-2)


def test_a_high_order_is_softmax_whatever_the_offset() -> None:
    inputs = draw(2, key_dim=4)
    q = torch.cat([inputs.query, torch.ones_like(inputs.query[..., :1])], -1)
    for offset in (-80.0, 0.0, 80.0):
        k = torch.cat([inputs.key, torch.full_like(inputs.key[..., :1], offset)], -1)
        out = attend("taylor:40@mean/sum", q, k, inputs.value, scale=0.3).output
        assert_close(out, attend("exp/sum", q, k, inputs.value, scale=0.3).output, rtol=RTOL)


def test_the_center_moves_with_the_keys_a_query_sees(inputs: Inputs) -> None:
    """Not the mean over all keys: row t of a causal run is the last row of the run of its prefix."""
    whole = attend("taylor:2@mean/length", *inputs.qkv).output
    for t in (0, 5, 30):
        prefix = inputs.part(slice(t, t + 1), slice(0, t + 1))
        row = attend("taylor:2@mean/length", *prefix.qkv).output
        assert_close(row, whole[:, :, t : t + 1], rtol=RTOL)


def test_centering_helps_where_logits_share_an_offset(inputs: Inputs) -> None:
    """A measurement, not a law: here it does by a factor of ten and more."""
    q, k, v = inputs.qkv
    k = k + 3.0 * k[:, :, :1]
    exact = attend("exp/sum", q, k, v).output
    plain, centered = (
        float((attend(each, q, k, v).output - exact).abs().mean()) for each in ("taylor:4/sum", "taylor:4@mean/sum")
    )
    assert centered * 2 < plain
    assert mechanism("taylor:4@mean/sum").similarity.is_centered
