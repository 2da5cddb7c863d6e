"""What is refused: the table of ``refusals`` against the algebra's rules, worked out here from numbers.

Run: pytest tests/laws/test_refusals.py -q
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import pytest
import torch

from laws.cases import draw
from laws.matrix import NORMALIZERS, SIMILARITIES, WINDOWS, Cell, Composition, gated, plain
from laws.refusals import (
    REFUSALS,
    has_state,
    is_built,
    needs_far_weight,
    refusal,
    takes_negative_scale,
)
from maclaurin import attend
from maclaurin.algebra import parse
from maclaurin.errors import ConfigError, MechanismError, MethodError

EXPONENTIAL = math.inf


def degree(similarity: str) -> float:
    """The highest power of the logit, infinite for exp."""
    word = similarity.partition(">")[2] or similarity
    name, *options = word.removesuffix("@mean").split(":")
    if name == "exp":
        return EXPONENTIAL
    if name == "poly":
        return len(options[0].split(",")) - 1
    return int(options[0]) if name in ("taylor", "power") else 1  # a map alone is its first power


def kappa(similarity: str, x: float) -> float:
    """The weight of a logit, read off the words."""
    word = similarity.partition(">")[2] or similarity
    name, *options = word.removesuffix("@mean").split(":")
    clamps = [float(each.removeprefix("clamp=")) for each in options if each.startswith("clamp=")]
    x = min(x, *clamps, math.inf)
    if name == "exp":
        return math.exp(x)
    if name == "taylor":
        return sum(x**n / math.factorial(n) for n in range(int(options[0]) + 1))
    if name == "power":
        return x ** int(options[0])
    if name == "poly":
        return sum(float(a) * x**n for n, a in enumerate(options[0].split(",")))
    return x


def lowest(similarity: str, sign: float = 1.0) -> float:
    """The least weight over the logits that a map can make, all times ``sign``."""
    feature_map = similarity.partition(">")[0].split(":")[0]
    signs = (1.0,) if feature_map in ("elu1", "relu", "features", "expmap") else (1.0, -1.0)
    if similarity.endswith("@mean"):
        signs = (1.0, -1.0)
    return min(kappa(similarity, sign * each * x / 64) for each in signs for x in range(64 * 20))


def is_cancelled(similarity: str) -> bool:
    """Whether the sign of the logits is but a sign of the weights."""
    return all(kappa(similarity, -x / 8) == -kappa(similarity, x / 8) for x in range(1, 80))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_the_table_is_the_rule_of_the_algebra(similarity: str) -> None:
    """A grid of logits, the degree and the clamp say what the table says by name."""
    is_clamped = "clamp" in similarity
    is_exp = degree(similarity) == EXPONENTIAL
    is_finite = not is_exp and not is_clamped
    for normalizer, window in product(NORMALIZERS, WINDOWS):
        composition = Composition(similarity, normalizer, window=window)
        divides = normalizer.split(":")[0] == "sum" and "signed" not in normalizer.split(":")
        can_build = not (window and is_clamped and not is_exp) and not (divides and lowest(similarity) < 0)
        assert is_built(composition) == can_build
        for method, is_causal in product(("parallel", "recurrent", "chunked", "fused"), (True, False)):
            is_legal = can_build and not (window and not is_causal)
            if method == "fused":
                is_legal = is_legal and is_exp and not is_clamped and not window
            if method in ("recurrent", "chunked"):
                is_legal = is_legal and not (is_finite and degree(similarity) > 4)
            if method == "chunked":
                is_legal = is_legal and not (is_clamped and similarity.endswith("@mean"))
            assert (refusal(Cell(composition, method, is_causal)) is None) == is_legal
            decayed = Cell(replace(composition, decay="decay"), method, is_causal)
            assert (refusal(decayed) is None) == (is_legal and is_causal)
        assert has_state(composition) == (not is_finite or degree(similarity) <= 4)
        if not can_build:
            continue
        is_taylor_of_x = similarity.startswith("taylor")
        assert needs_far_weight(composition) == (bool(window) and is_finite and not is_taylor_of_x)
        is_safe = not divides or lowest(similarity, -1.0) >= 0
        adds = window or normalizer != "sum"
        assert takes_negative_scale(composition) == (is_safe or (is_cancelled(similarity) and not adds))


def test_every_rule_of_the_table_applies_to_some_cell() -> None:
    compositions = [
        *plain(),
        *gated(is_built),
        *(Composition("taylor:2:clamp=3", "l2", window=each) for each in WINDOWS),
    ]
    met = {
        found.reason
        for composition in compositions
        for method in ("parallel", "recurrent", "chunked", "fused")
        for is_causal in (True, False)
        if (found := refusal(Cell(composition, method, is_causal)))
    }
    assert met == {each.reason for each in REFUSALS}


BUILT = [each for each in (*plain(), *gated(is_built)) if is_built(each)]
SIZES = {"heads": 4, "kv_heads": 2, "queries": 5, "key_dim": 3, "value_dim": 4}


@pytest.mark.parametrize(
    "composition", [each for each in BUILT if takes_negative_scale(each) is False], ids=lambda each: each.text
)
def test_no_negative_scale_where_a_denominator_would_change_sign(composition: Composition) -> None:
    mechanism = parse(composition.text)
    inputs = draw(2, **SIZES).of(mechanism)
    with pytest.raises(MechanismError, match=r"scale=-0\.5 was asked of .*non-negative only at a scale >= 0"):
        attend(mechanism, *inputs.qkv, **inputs.operands, scale=-0.5)


@pytest.mark.parametrize(
    "composition", [each for each in BUILT if takes_negative_scale(each)], ids=lambda each: each.text
)
def test_a_negative_scale_elsewhere(composition: Composition) -> None:
    mechanism = parse(composition.text)
    inputs = draw(2, **SIZES).of(mechanism)
    out = attend(mechanism, *inputs.qkv, **inputs.operands, scale=-0.5).output
    assert bool(out.isfinite().all())


@pytest.mark.parametrize("composition", gated(is_built), ids=lambda each: each.text)
def test_what_a_composition_reads_is_asked_for_and_nothing_else(composition: Composition) -> None:
    needed = {
        "value_gate": composition.value,
        "log_decay": composition.decay,
        "output_gate": composition.output,
        "denominator_logit": composition.normalizer == "cumgate",
        "length_exponent": composition.normalizer == "length:learned",
        "far_log_weight": needs_far_weight(composition),
    }
    optional = {"norm_weight": ":weight" in composition.normalizer, "norm_bias": ":bias" in composition.normalizer}
    every = draw(2, **SIZES)
    reads = {name: every.operands[name] for name, is_read in {**needed, **optional}.items() if is_read}
    qkv = [each.abs() for each in every.qkv]
    attend(composition.text, *qkv, **reads)
    for name in every.operands:
        given = {other: each for other, each in reads.items() if other != name}
        if needed.get(name):
            with pytest.raises(ConfigError, match=f"needs {name}, .* it is missing"):
                attend(composition.text, *qkv, **given)
        elif optional.get(name):
            attend(composition.text, *qkv, **given)
        else:
            with pytest.raises(ConfigError, match=f"{name} was given to .* which does not read it"):
                attend(composition.text, *qkv, **reads, **{name: every.operands[name]})


@pytest.mark.parametrize("composition", [each for each in BUILT if not has_state(each)], ids=lambda each: each.text)
def test_no_state_of_a_high_order(composition: Composition) -> None:
    mechanism = parse(composition.text)
    inputs = draw(2, **SIZES).of(mechanism)
    with pytest.raises(MethodError, match="reading order 6 from moments loses too many digits"):
        attend(mechanism, *inputs.qkv, **inputs.operands, method="parallel", return_state=True)


@pytest.mark.parametrize("method", ["recurrent", "chunked", "fused"])
def test_the_methods_that_can_are_named(method: str) -> None:
    inputs = draw(2, **SIZES)
    with pytest.raises(
        MethodError, match=rf"method='{method}' cannot serve taylor:6/sum: (.|\n)*Methods that can: parallel\."
    ):
        attend("taylor:6/sum", *inputs.qkv, method=method)


def test_masks_per_pair_meet_no_state_and_no_decay_in_kernels() -> None:
    """Refusals of a call, beside those of a cell."""
    inputs = draw(2, **SIZES)
    pairs = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    decay = {"log_decay": inputs.operands["log_decay"]}
    for text, method, operands in (
        ("exp/sum", "recurrent", {}),
        ("elu1/sum", "recurrent", {}),
        ("exp/sum", "chunked", {}),
        ("elu1/sum", "chunked", {}),
        ("exp/sum+decay", "fused", decay),
    ):
        with pytest.raises(MethodError, match=r"a mask \[B, H, T, S\]"):
            attend(text, *inputs.qkv, **operands, method=method, mask=pairs)
