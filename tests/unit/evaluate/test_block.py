"""One block of keys against queries: logits, their mean, and the sums.

Run: pytest tests/unit/evaluate/test_block.py -q
"""

from __future__ import annotations

import math

import torch

from laws.compare import assert_close, assert_same
from maclaurin.algebra import Exp, Similarity, Taylor
from maclaurin.evaluate.block import accumulate_block, logits, mean_logit

GENERATOR = torch.Generator().manual_seed(0)
QUERY = torch.randn(2, 3, 4, 5, 6, generator=GENERATOR, dtype=torch.float64)  # B H G T K
KEY = torch.randn(2, 3, 7, 6, generator=GENERATOR, dtype=torch.float64)  # B H S K
VALUE = torch.randn(2, 3, 7, 2, generator=GENERATOR, dtype=torch.float64)  # B H S V
VISIBLE = torch.rand(2, 1, 1, 5, 7, generator=GENERATOR) < 0.5
VISIBLE[1, :, :, 2] = False


def test_logits_are_scaled_inner_products_with_the_groups_own_keys() -> None:
    x = logits(QUERY, KEY, 0.5)
    assert x.shape == (2, 3, 4, 5, 7)
    assert_close(x, 0.5 * torch.einsum("bhgtk,bhsk->bhgts", QUERY, KEY), rtol=1e-14)


def test_mean_logit_counts_visible_keys_only() -> None:
    x = logits(QUERY, KEY, 1.0)
    center = mean_logit(x, VISIBLE)
    for b, t in ((0, 0), (0, 4), (1, 1)):
        seen = VISIBLE[b, 0, 0, t]
        assert_close(center[b, :, :, t], x[b, :, :, t][..., seen].mean(-1), rtol=1e-14)
    assert not center[1, :, :, 2].any()  # a query that sees nothing


def test_mean_logit_with_keys_outside_the_block() -> None:
    x = logits(QUERY, KEY, 1.0)
    everything = torch.ones(1, 1, 1, 1, 7, dtype=torch.bool)
    first = torch.arange(7) < 3
    partial = mean_logit(x, everything & first, more_sum=x[..., 3:].sum(-1), more_count=4.0)
    assert_close(partial, x.mean(-1), rtol=1e-14)


def test_the_mean_of_no_key_at_all_is_zero() -> None:
    x = logits(QUERY, KEY[:, :, :0], 1.0)
    assert_same(mean_logit(x, torch.ones(5, 0, dtype=torch.bool)), torch.zeros(2, 3, 4, 5, dtype=torch.float64))


def test_sums_of_the_block() -> None:
    x = logits(QUERY, KEY, 1.0)
    accumulator = accumulate_block(Similarity(Exp()), x, VALUE, VISIBLE)
    weights = torch.where(VISIBLE, x.exp(), 0.0)
    factor = accumulator.log_scale.exp()
    assert_close(accumulator.numerator * factor[..., None], weights @ VALUE[:, :, None], rtol=1e-14)
    assert_close(accumulator.true_denominator, weights.sum(-1), rtol=1e-14)
    assert torch.equal(accumulator.count, VISIBLE.sum(-1).double().expand(2, 3, 4, 5))


def test_decay_multiplies_weights_and_counts() -> None:
    x = logits(QUERY, KEY, 1.0)
    decay = -torch.rand(2, 3, 1, 5, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    decay[0, 1, :, 2, 3] = -math.inf
    accumulator = accumulate_block(Similarity(Exp()), x, VALUE, VISIBLE, log_decay=decay)
    kept = torch.where(VISIBLE, decay.exp(), 0.0).expand_as(x)
    assert_close(accumulator.true_denominator, (kept * x.exp()).sum(-1), rtol=1e-14)
    assert_close(accumulator.count, kept.sum(-1), rtol=1e-14)


def test_the_mean_is_weighed_by_decay() -> None:
    x = logits(QUERY, KEY, 1.0)
    decay = -torch.rand(2, 3, 1, 5, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    kept = torch.where(VISIBLE, decay.exp(), 0.0).expand_as(x)
    expected = (kept * x).sum(-1) / torch.where(kept.sum(-1) == 0, 1.0, kept.sum(-1))
    assert_close(mean_logit(x, VISIBLE, decay), expected, rtol=1e-13)


def test_a_center_given_is_the_center_used() -> None:
    x = logits(QUERY, KEY, 1.0)
    center = torch.full((2, 3, 4, 5), 0.3, dtype=torch.float64)
    everything = torch.ones(1, 1, 1, 1, 7, dtype=torch.bool)
    accumulator = accumulate_block(Similarity(Taylor(1), is_centered=True), x, VALUE, everything, center_BHGT=center)
    assert_close(accumulator.true_denominator, (1 + x - 0.3).sum(-1) * math.exp(0.3), rtol=1e-13)
