"""One scale means one thing in every method; a negative one is refused exactly where a denominator would change sign.

Run: pytest tests/laws/test_scale.py -q
"""

from __future__ import annotations

import pytest

from laws.cases import by, draw, every, serving
from laws.checks import RTOL, gradients, well_conditioned_rows
from laws.compare import assert_close
from laws.oracle import oracle
from maclaurin import Mechanism, attend
from maclaurin.errors import MechanismError

#: Weights that are non-negative only for non-negative logits, under a denominator: no negative scale. Beside exp in a
#: window, a sign common to all other weights does not cancel.
REFUSED = {"elu1>taylor:3/sum:detach", "elu1/sum+window:3:1"}


@pytest.mark.parametrize("scale", [None, 1.0, 0.1, 0.0, -1.0])
@pytest.mark.parametrize("mechanism", every())
def test_every_method_means_the_same_scale(mechanism: Mechanism, scale: float | None) -> None:
    inputs = draw(9, batch=1, heads=4, kv_heads=2, queries=6, key_dim=3, value_dim=5).of(mechanism)
    if scale == -1.0 and str(mechanism) in REFUSED:
        for method in serving(mechanism):
            with pytest.raises(MechanismError, match=r"scale=-1 was asked of .*\n  Use a scale >= 0"):
                attend(mechanism, *inputs.qkv, **inputs.operands, **by(method), scale=scale)
        return
    expected = oracle(mechanism, inputs, is_causal=True, scale=scale)
    found = []
    for method in serving(mechanism):
        leaves = inputs.leaves()
        out = attend(mechanism, *leaves.qkv, **leaves.operands, **by(method), scale=scale).output
        assert_close(out, expected, rtol=RTOL, scale=max(1.0, float(expected.abs().max())), what=method)
        found.append(gradients(out, leaves.tensors(), 1))
    for one, other in zip(found[0], found[-1], strict=True):
        assert_close(one, other, rtol=RTOL, scale=max(1.0, float(one.abs().max())), what="gradient")


@pytest.mark.parametrize("mechanism", every(lambda each: each.similarity.map.name in ("identity", "relu", "features")))
def test_a_scale_is_a_factor_on_the_query(mechanism: Mechanism) -> None:
    """For maps with phi(a x) = a phi(x), a > 0."""
    inputs = draw(5, queries=9).of(mechanism)
    q, k, v = inputs.qkv
    keep = well_conditioned_rows(mechanism, inputs, is_causal=True)
    for method in serving(mechanism):
        one = attend(mechanism, q, k, v, **inputs.operands, **by(method), scale=0.25).output
        other = attend(mechanism, 0.25 * q, k, v, **inputs.operands, **by(method), scale=1.0).output
        assert_close(one * keep, other * keep, rtol=RTOL, what=method)


@pytest.mark.parametrize(
    ("mechanism", "is_legal"),
    [
        ("relu/sum", True),  # the common sign cancels
        ("elu1>power:3/sum", True),
        ("relu>poly:0,2/sum", True),
        ("taylor:2/sum", True),  # non-negative on all of R
        ("elu1>poly:1,2,1/sum", True),
        ("elu1>exp:clamp=1/sum", True),
        ("elu1>taylor:3/l2", True),
        ("elu1>taylor:3/sum:signed", True),
        ("elu1>taylor:1/sum", False),
        ("elu1>poly:1,1/sum", False),
        ("relu>poly:0,1,0,1/sum", False),
        ("relu/sum:eps=1", False),  # eps and clamp keep their sign
        ("relu/sum:clamp=1", False),
        ("relu>power:1:clamp=1/sum", False),
    ],
)
def test_which_mechanisms_take_a_negative_scale(mechanism: str, is_legal: bool) -> None:
    inputs = draw(9, batch=1, heads=2, kv_heads=2, queries=4, key_dim=3, value_dim=5)
    if not is_legal:
        with pytest.raises(MechanismError, match="non-negative only at a scale >= 0"):
            attend(mechanism, *inputs.qkv, scale=-0.5)
        return
    out = attend(mechanism, *inputs.qkv, scale=-0.5).output
    assert bool(out.isfinite().all())
    if mechanism in ("relu/sum", "elu1>power:3/sum", "relu>poly:0,2/sum"):
        assert_close(out, attend(mechanism, *inputs.qkv, scale=0.5).output, rtol=RTOL)
