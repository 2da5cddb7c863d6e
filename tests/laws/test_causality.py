"""The future cannot matter: earlier rows keep their very bits when later keys, values and queries change.

Run: pytest tests/laws/test_causality.py -q
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from laws.cases import KEY_TIME, QUERY_TIME, Inputs, by, draw, every, serving
from laws.checks import RTOL, gradients
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, attend
from maclaurin.algebra import Taylor

CUT = 20


def disturbed(inputs: Inputs, start_queries: int, start_keys: int) -> Inputs:
    """Everything from a time on a thousand times larger and of the other sign; log decays keep theirs."""

    def change(x: Tensor, start: int) -> Tensor:
        return torch.cat([x[:, :, :start], -1e3 * x[:, :, start:]], dim=2)

    changed = inputs.along(lambda each: change(each, start_queries), lambda each: change(each, start_keys))
    if "log_decay" in changed.operands:
        changed.operands["log_decay"] = -changed.operands["log_decay"].abs()
    return changed


@pytest.mark.parametrize("mechanism", every())
def test_the_future_cannot_matter_bit_for_bit(mechanism: Mechanism, inputs: Inputs) -> None:
    inputs = inputs.of(mechanism)
    changed = disturbed(inputs, CUT, CUT)
    for method in serving(mechanism):
        before, after = (
            attend(mechanism, *each.qkv, **each.operands, **by(method)).output for each in (inputs, changed)
        )
        assert_same(after[:, :, :CUT], before[:, :, :CUT], what=method)
        assert not torch.equal(after[:, :, CUT:], before[:, :, CUT:])


@pytest.mark.parametrize("mechanism", every())
def test_the_future_cannot_matter_with_fewer_queries_than_keys(mechanism: Mechanism, seed: int) -> None:
    inputs = draw(seed, queries=13, keys=29).of(mechanism)
    changed = disturbed(inputs, 13, 20)
    for method in serving(mechanism):  # query t sees keys up to t + 16
        before, after = (
            attend(mechanism, *each.qkv, **each.operands, **by(method)).output for each in (inputs, changed)
        )
        assert_same(after[:, :, :4], before[:, :, :4], what=method)
        assert (after[:, :, 4:] != before[:, :, 4:]).any(dim=(0, 1, 3)).all()


def sees_keys(mechanism: Mechanism) -> bool:
    """Whether some weight depends on its key: not in the series of order 0 alone."""
    return (
        mechanism.similarity.function != Taylor(0) or mechanism.similarity.is_centered or mechanism.window is not None
    )


@pytest.mark.parametrize("mechanism", every(sees_keys))
def test_no_gradient_reaches_the_future(mechanism: Mechanism, inputs: Inputs) -> None:
    for method in serving(mechanism):
        leaves = inputs.of(mechanism).leaves()
        out = attend(mechanism, *leaves.qkv, **leaves.operands, **by(method)).output
        timed = [*leaves.qkv, *(leaves.operands[name] for name in KEY_TIME + QUERY_TIME if name in leaves.operands)]
        for each in gradients(out[:, :, :CUT], timed, 1):
            assert not each[:, :, CUT:].any()
            assert each[:, :, 1 : CUT - 1].any()


@pytest.mark.parametrize("mechanism", every())
def test_a_prefix_alone_gives_the_same_rows(mechanism: Mechanism, inputs: Inputs) -> None:
    """Catches a stabilizer that looks ahead. RTOL: another length sums in another order."""
    inputs = inputs.of(mechanism)
    prefix = inputs.part(slice(0, 9), slice(0, 9))
    for method in serving(mechanism):
        rows = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method)).output[:, :, :9]
        assert_close(attend(mechanism, *prefix.qkv, **prefix.operands, **by(method)).output, rows, rtol=RTOL)
