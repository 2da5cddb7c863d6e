"""The future cannot matter: earlier rows keep their very bits when later keys, values and queries change.

Run: pytest tests/laws/test_causality.py -q
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from laws.cases import Inputs, draw, every, members, serving
from laws.checks import RTOL
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, attend

CUT = 20


def disturbed(x: Tensor, start: int) -> Tensor:
    """``x`` with everything from ``start`` on a thousand times larger and of the other sign."""
    return torch.cat([x[:, :, :start], -1e3 * x[:, :, start:]], dim=2)


@pytest.mark.parametrize("mechanism", members())
def test_the_future_cannot_matter_bit_for_bit(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    changed = replace(inputs, **{name: disturbed(getattr(inputs, name), CUT) for name in ("query", "key", "value")})
    for method in serving(mechanism):
        before, after = (
            attend(mechanism, *each.qkv, **each.learned, method=method).output for each in (inputs, changed)
        )
        assert_same(after[:, :, :CUT], before[:, :, :CUT], what=method)
        assert not torch.equal(after[:, :, CUT:], before[:, :, CUT:])


@pytest.mark.parametrize("mechanism", members())
def test_the_future_cannot_matter_with_fewer_queries_than_keys(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=13, keys=29).of(mechanism)
    changed = replace(inputs, key=disturbed(inputs.key, 20), value=disturbed(inputs.value, 20))
    for method in serving(mechanism):  # query t sees keys up to t + 16
        before, after = (
            attend(mechanism, *each.qkv, **each.learned, method=method).output for each in (inputs, changed)
        )
        assert_same(after[:, :, :4], before[:, :, :4], what=method)
        assert (after[:, :, 4:] != before[:, :, 4:]).any(dim=(0, 1, 3)).all()


@pytest.mark.parametrize("mechanism", members())
def test_no_gradient_reaches_the_future(mechanism: Mechanism, inputs: Inputs) -> None:
    for method in serving(mechanism):
        leaves = inputs.of(mechanism).leaves()
        out = attend(mechanism, *leaves.qkv, **leaves.learned, method=method).output
        for each in torch.autograd.grad(out[:, :, :CUT].sum(), leaves.qkv):
            assert not each[:, :, CUT:].any()
            assert each[:, :, 1 : CUT - 1].any()


@pytest.mark.parametrize("mechanism", every())
def test_a_prefix_alone_gives_the_same_rows(mechanism: Mechanism, inputs: Inputs) -> None:
    """Catches a stabilizer that looks ahead. RTOL: another length sums in another order."""
    inputs = inputs.of(mechanism)
    prefix = inputs.part(slice(0, 9), slice(0, 9))
    for method in serving(mechanism):
        rows = attend(mechanism, *inputs.qkv, **inputs.learned, method=method).output[:, :, :9]
        assert_close(attend(mechanism, *prefix.qkv, **prefix.learned, method=method).output, rows, rtol=RTOL)
