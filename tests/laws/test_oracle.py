"""The parallel reference equals loops written from the definitions, for the catalogue and for texts beyond it.

Run: pytest tests/laws/test_oracle.py -q
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from laws.cases import Inputs, by, draw, every, in_directions, serving
from laws.compare import assert_close
from laws.oracle import oracle
from maclaurin import Mechanism, attend

#: float64: the loops add with fsum, the package in another order and relative to a log scale; sums of signed weights
#: (the worst 2e-15 per digit lost) keep this margin at the seed used.
RTOL = 1e-12


NORMS = ("norm_weight", "norm_bias")


def small(queries: int, keys: int) -> Inputs:
    return draw(3, batch=2, heads=4, kv_heads=2, queries=queries, keys=keys, key_dim=3, value_dim=5)


def learns_norm(mechanism: Mechanism) -> bool:
    return bool({*NORMS} & {*mechanism.operands})


@pytest.mark.parametrize(("mechanism", "is_causal"), in_directions(every()))
def test_equals_the_loops(mechanism: Mechanism, is_causal: bool) -> None:
    for queries, keys in ((7, 7), (3, 8), (6, 4)):
        inputs = small(queries, keys).of(mechanism)
        out = attend(mechanism, *inputs.qkv, **inputs.operands, method="parallel", is_causal=is_causal).output
        assert_close(out, oracle(mechanism, inputs, is_causal=is_causal), rtol=RTOL, what=f"T={queries} S={keys}")


@pytest.mark.parametrize("mechanism", every())
def test_equals_the_loops_under_a_key_mask(mechanism: Mechanism) -> None:
    inputs = small(6, 6).of(mechanism)
    mask = [[False, True, True, False, True, True], [True, True, False, True, True, False]]
    for method in serving(mechanism):
        out = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method), mask=torch.tensor(mask)).output
        expected = oracle(mechanism, inputs, is_causal=True, mask=mask)
        assert_close(out, expected, rtol=RTOL, what=method)


@pytest.mark.parametrize("mechanism", every(learns_norm))
def test_norm_weights_may_be_per_head(mechanism: Mechanism) -> None:
    inputs = small(5, 5).of(mechanism)
    heads = inputs.query.shape[1]
    norms = {name: each for name, each in inputs.operands.items() if name in NORMS}
    per_head = {name: each.expand(heads, -1) * torch.arange(1.0, heads + 1)[:, None] for name, each in norms.items()}
    for learned in (per_head, {name: each[1] for name, each in per_head.items()}):
        given = replace(inputs, operands={**inputs.operands, **learned})
        out = attend(mechanism, *given.qkv, **given.operands).output
        assert_close(out, oracle(mechanism, given, is_causal=True), rtol=RTOL)


@pytest.mark.parametrize("mechanism", every(learns_norm))
def test_norm_weights_left_out_are_ones_and_zeros(mechanism: Mechanism) -> None:
    inputs = small(5, 5).of(mechanism)
    left = {name: each for name, each in inputs.operands.items() if name not in NORMS}
    given = replace(inputs, operands=left)
    assert_close(attend(mechanism, *given.qkv, **left).output, oracle(mechanism, given, is_causal=True), rtol=RTOL)
