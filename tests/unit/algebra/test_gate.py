"""Gates: what a text switches on, and the sums of log decays against loops.

Run: pytest tests/unit/algebra/test_gate.py -q
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from laws.compare import assert_close, assert_same
from maclaurin.algebra import Decay, Gates, OutputGate, ValueGate, log_decay_after, pairwise_log_decay

LOG_DECAY = -torch.rand(2, 3, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
WITH_RESETS = LOG_DECAY.clone()
WITH_RESETS[0, 1, 4] = WITH_RESETS[1, 2, 0] = WITH_RESETS[1, 2, 7] = WITH_RESETS[0, 0, 10] = -math.inf
BOTH = pytest.mark.parametrize("log_decay", [LOG_DECAY, WITH_RESETS], ids=["finite", "with resets"])


def looped(log_decay: Tensor, num_queries: int) -> Tensor:
    """a_{s+1} + ... + a_{t + S - T}, term by term."""
    num_keys = log_decay.shape[-1]
    out = torch.zeros(*log_decay.shape[:-1], num_queries, num_keys, dtype=log_decay.dtype)
    for t in range(num_queries):
        for s in range(num_keys):
            for r in range(s + 1, t + num_keys - num_queries + 1):
                out[..., t, s] += log_decay[..., r]
    return out


def assert_sums(actual: Tensor, expected: Tensor) -> None:
    """Resets where they belong; the rest within the rounding of 11 terms."""
    is_reset = expected == -math.inf
    assert torch.equal(actual == -math.inf, is_reset)
    assert_close(actual.masked_fill(is_reset, 0.0), expected.masked_fill(is_reset, 0.0), rtol=1e-15)


@BOTH
@pytest.mark.parametrize("num_queries", [0, 1, 4, 11, 14])
def test_pairs_are_sums_over_the_tokens_between(log_decay: Tensor, num_queries: int) -> None:
    assert_sums(pairwise_log_decay(log_decay, num_queries), looped(log_decay, num_queries))


@BOTH
def test_after_is_what_the_last_query_sees(log_decay: Tensor) -> None:
    assert_sums(log_decay_after(log_decay), looped(log_decay, 1)[..., 0, :])


def test_nothing_of_an_old_large_decay_is_left_in_a_later_sum() -> None:
    """A difference of running sums would lose 1e-3 beside 1e15, and give NaN beside an infinity."""
    for large in (-1e15, -math.inf):
        log_decay = torch.tensor([large, -1e-3, -2e-3], dtype=torch.float64)
        rows = [[0.0, 0.0, 0.0], [-1e-3, 0.0, 0.0], [-3e-3, -2e-3, 0.0]]
        expected = torch.tensor(rows, dtype=torch.float64)
        assert_same(log_decay_after(log_decay), expected[2])
        assert_same(pairwise_log_decay(log_decay, 3), expected)


@pytest.mark.parametrize("num_queries", [0, 3])
def test_no_key_at_all(num_queries: int) -> None:
    none = torch.zeros(2, 0)
    assert pairwise_log_decay(none, num_queries).shape == (2, num_queries, 0)
    assert log_decay_after(none).shape == (2, 0)


def test_gradients_flow_through_the_sums() -> None:
    log_decay = LOG_DECAY[0, 0, :4].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda a: pairwise_log_decay(a, 3), (log_decay,))
    (gradient,) = torch.autograd.grad(log_decay_after(log_decay).sum(), log_decay)
    assert gradient.tolist() == [0.0, 1.0, 2.0, 3.0]  # a_r stands in the sum of every key before it; the first in none


@pytest.mark.parametrize(
    "gates",
    [
        Gates(),
        Gates(value=True),
        Gates(decay=True),
        Gates(output=OutputGate()),
        Gates(value=True, decay=True, output=OutputGate(after=True)),
    ],
    ids=repr,
)
def test_gates_are_the_parts_they_list(gates: Gates) -> None:
    assert Gates.of(gates.parts) == gates
    assert Gates.of(reversed(gates.parts)) == gates
    order = [ValueGate, Decay, OutputGate]
    assert [order.index(type(each)) for each in gates.parts] == sorted(order.index(type(each)) for each in gates.parts)


def test_each_names_its_tensor() -> None:
    whole = Gates(value=True, decay=True, output=OutputGate())
    assert [each.operand for each in whole.parts] == ["value_gate", "log_decay", "output_gate"]
    assert [each.name for each in whole.parts] == ["valuegate", "decay", "outgate"]
