"""Windows: exact inside, one denominator with what is beyond, pads skipped when counting, sinks counted once.

Run: pytest tests/laws/test_window_laws.py -q
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from laws.cases import Inputs, by, compact, draw, every, serving
from laws.checks import RTOL, evaluate, well_conditioned_rows, whole
from laws.compare import assert_close, assert_same
from laws.oracle import oracle
from maclaurin import Mechanism, attend
from maclaurin.algebra import Exp, Similarity, Window, parse

WINDOWED = every(lambda each: each.window is not None)


def outputs(mechanism: Mechanism, inputs: Inputs, method: str) -> torch.Tensor:
    return evaluate(mechanism, inputs, whole(method), is_causal=True, return_state=False)[0]


@pytest.mark.parametrize("mechanism", WINDOWED)
def test_pads_are_skipped_when_counting(mechanism: Mechanism, seed: int) -> None:
    """Left, inside and right: the window holds the same tokens as that of the unpadded sequence."""
    mechanism = compact(mechanism)
    inputs = draw(seed, queries=17).of(mechanism)
    patterns = torch.tensor(
        [[False] * 3 + [True] * 5 + [False] * 4 + [True] * 5, [True, False] * 6 + [True] * 3 + [False] * 2]
    )
    for method in serving(mechanism):
        out = attend(mechanism, *inputs.qkv, **inputs.operands, **by(method), mask=patterns).output
        for b, tokens in enumerate(patterns):
            alone = inputs.row(b, tokens)
            keep = well_conditioned_rows(mechanism, alone, is_causal=True)
            expected = oracle(mechanism, alone, is_causal=True)
            assert_close(out[b : b + 1, :, tokens] * keep, expected * keep, rtol=RTOL, what=method)


@pytest.mark.parametrize("window", [Window(13), Window(64, 4), Window(9, 4), Window(1, 12), Window(8, 9)], ids=str)
@pytest.mark.parametrize("mechanism", WINDOWED)
def test_a_window_over_everything_is_softmax(mechanism: Mechanism, window: Window, seed: int) -> None:
    """Also where sinks and window meet or overlap: what is both counts once."""
    mechanism = replace(mechanism, window=window)
    inputs = draw(seed, queries=13).of(mechanism)
    exact = mechanism.similarity if isinstance(mechanism.similarity.function, Exp) else Similarity(Exp())
    full = replace(mechanism, similarity=exact, window=None)
    given = {name: each for name, each in inputs.operands.items() if name != "far_log_weight"}
    expected = attend(full, *inputs.qkv, **given, method="parallel").output
    for method in serving(mechanism):
        assert_close(outputs(mechanism, inputs, method), expected, rtol=RTOL, what=method)


@pytest.mark.parametrize("center", ["", "@mean"])
@pytest.mark.parametrize("order", [2, 4])
def test_small_logits_beyond_a_window_are_softmax_within_the_remainder(order: int, center: str, seed: int) -> None:
    """|exp(y) - T_N(y)| <= e^|y| |y|^(N+1) / (N+1)! around the center, relative to weights >= exp(-max |x|)."""
    inputs = replace(draw(seed, queries=19), operands={})
    q, k, v = inputs.qkv
    x = q @ k.repeat_interleave(2, dim=1).mT * 5**-0.5
    q = q * (0.2 / float(x.abs().max()))
    exact = attend("exp/sum", q, k, v).output
    mechanism = parse(f"taylor:{order}{center}/sum+window:3:2")
    y = 0.4 if center else 0.2  # the farthest logit from its center, the center among them
    remainder = math.exp(2 * y) * y ** (order + 1) / math.factorial(order + 1)
    bound = 2 * remainder * math.exp(0.2) * float(v.abs().max())
    for method in serving(mechanism):
        out = attend(mechanism, q, k, v, **by(method)).output
        assert float((out - exact).abs().max()) <= bound
        assert not torch.equal(out, exact)


@pytest.mark.parametrize("text", ["elu1/sum", "power:2/sum+decay", "elu1>taylor:2/l2+valuegate", "features/length"])
def test_a_far_weight_of_nothing_is_a_window_alone(text: str, seed: int) -> None:
    mechanism = parse(f"{text}+window:3:1")
    alone = replace(mechanism, similarity=Similarity(Exp()))
    inputs = draw(seed, queries=13)
    inputs.operands["far_log_weight"][:] = -800.0
    inputs = inputs.of(mechanism)
    given = {name: each for name, each in inputs.operands.items() if name in alone.operands}
    expected = attend(alone, *inputs.qkv, **given, method="parallel").output
    for method in serving(mechanism):
        leaves = inputs.leaves()
        out = outputs(mechanism, leaves, method)
        if "length" not in text:  # which counts the keys beyond, whatever their weight
            assert_close(out, expected, rtol=RTOL, what=method)
        for each in torch.autograd.grad(out.square().sum(), leaves.tensors()):
            assert bool(each.isfinite().all())


@pytest.mark.parametrize("mechanism", every(lambda each: each.window is not None and each.normalizer.name == "sum"))
def test_one_denominator_is_shared_with_what_is_beyond(mechanism: Mechanism, seed: int) -> None:
    """A mean of equal values is that value."""
    if mechanism.gates.value or mechanism.gates.output is not None:
        pytest.skip("gated")
    inputs = draw(seed, queries=23).of(mechanism)
    constant = replace(inputs, value=inputs.value[:, :, :1].expand_as(inputs.value))
    keep = well_conditioned_rows(mechanism, constant, is_causal=True)
    expected = constant.value.repeat_interleave(2, dim=1)
    for method in serving(mechanism):
        assert_close(outputs(mechanism, constant, method) * keep, expected * keep, rtol=RTOL, what=method)


def test_beyond_a_window_of_exp_no_key_is_seen(seed: int) -> None:
    """Bit for bit: what lies between sinks and window may be anything."""
    mechanism = parse("exp/sum+window:3:2")
    inputs = draw(seed, queries=13).of(mechanism)
    for method in serving(mechanism):
        before = outputs(mechanism, inputs, method)
        key, value = inputs.key.clone(), inputs.value.clone()
        key[:, :, 2:10], value[:, :, 2:10] = 1e3, -1e3
        after = outputs(mechanism, replace(inputs, key=key, value=value), method)
        assert_same(after[:, :, -1], before[:, :, -1], what=method)
        assert not torch.equal(after[:, :, -2], before[:, :, -2])
