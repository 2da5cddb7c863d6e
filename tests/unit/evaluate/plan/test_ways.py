"""What is counted of a call, and whom each way serves.

Run: pytest tests/unit/evaluate/plan/test_ways.py -q
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from laws.cases import draw
from laws.compare import assert_close
from maclaurin import CATALOGUE, Shape, attend, mechanism
from maclaurin.evaluate.call import Call, Options
from maclaurin.evaluate.evaluations import EVALUATIONS, methods
from maclaurin.evaluate.plan.ways import WAYS, Counted

SHAPE = Shape(queries=300, key_dim=8, heads=2)
DIRECT = [each for each in WAYS if each.direct is not None]


def names(text: str, shape: Shape) -> set[str]:
    return {way.name for way in WAYS if methods(text)[way.method] is None and way.serves(mechanism(text), shape)}


def test_every_method_has_a_way_for_whatever_it_serves() -> None:
    for name in EVALUATIONS:
        last = [way for way in WAYS if way.method == name][-1]
        assert last.direct is None
        assert last.serves(mechanism("exp/sum"), replace(SHAPE, has_state=True, is_causal=False))


def test_who_serves() -> None:
    assert names("exp/l2", SHAPE) == {"all pairs", "token by token", "chunk by chunk", "kernel as given", "kernel"}
    assert "blocks of exp" in names("exp/l2", replace(SHAPE, dtype=torch.bfloat16))
    assert names("taylor:2/sum", SHAPE) == {"all pairs", "token by token", "spans", "blocks", "chunk by chunk"}
    assert "blocks" not in names("taylor:2/sum", replace(SHAPE, returns_state=True))
    assert "spans" in names("taylor:2/sum", replace(SHAPE, has_state=True))
    assert names("taylor:2/sum", replace(SHAPE, keys=301)) == {"all pairs", "token by token", "chunk by chunk"}
    assert "kernel as given" not in names("exp/length", SHAPE)


@pytest.mark.parametrize("way", DIRECT, ids=lambda way: way.name)
@pytest.mark.parametrize("text", ["exp/l2", "elu1/sum", "taylor:2@mean/sum", "power:2/l2", "taylor:4/rms"])
def test_what_serves_gives_what_the_reference_gives(way, text: str) -> None:
    """Whatever ``serves`` promises, the kernel keeps; nothing else is asked."""
    inputs = draw(3, queries=130)
    dtype = torch.bfloat16 if way.name == "blocks of exp" else torch.float64
    given = [each.to(dtype) for each in inputs.qkv]
    member = mechanism(text)
    call = Call.of(member, *given, Options())
    shape = call.shape()
    if EVALUATIONS[way.method].refusal(member) is not None or not way.serves(member, shape):
        return
    found = way.direct(call, shape, None)
    assert found is not None
    wide = [each.double() for each in given]
    expected, _, diagnostics = attend(text, *wide, method="parallel", return_diagnostics=True)
    # float64 in another order; bfloat16: a query times its scale moves a logit by 2**-9 of it, and so its weight, and
    # weight, value and output are rounded by 2**-9 each
    rtol = 1e-12 if dtype == torch.float64 else (diagnostics.max_logit + 4) * 2**-9
    assert_close(found[0].double(), expected, rtol=rtol)


def test_counts_by_hand() -> None:
    counted = Counted(
        mechanism("taylor:2/sum"), Shape(queries=10, key_dim=3, value_dim=5, batch=2, heads=4, kv_heads=2)
    )
    way = {each.name: each for each in WAYS}
    pairs = 2 * 4 * 10 * 10
    work = way["all pairs"].work(counted)
    assert (work["pairs"], work["powers"], work["products"]) == (pairs, 2 * pairs, pairs * (3 + 5))
    assert work["rows"] == 2 * 4 * 10 * (3 + 5)
    work = way["spans"].work(counted)
    features = 1 + 3 + 6
    assert work["features"] == 2 * (4 + 2) * 10 * features
    assert work["moments"] == work["features"] * (5 + 1)
    assert (work["parts"], work["orders"]) == (1, 3)
    work = way["token by token"].work(counted)
    assert (work["steps"], work["orders"], work["held"]) == (10, 30, 10 * 4 * features * 6)


def test_the_causal_half_and_what_a_state_holds() -> None:
    way = {each.name: each for each in WAYS}["kernel as given"]
    member = mechanism("exp/sum")
    half, whole = (way.work(Counted(member, replace(SHAPE, is_causal=each)))["pairs"] for each in (True, False))
    assert (half, whole) == (2 * 300 * 300 / 2, 2 * 300 * 300)
    all_pairs = WAYS[0].work(Counted(member, replace(SHAPE, has_state=True, cached=100)))
    assert all_pairs["pairs"] == 2 * 300 * 400


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_member_is_counted_by_every_way_that_serves_it(name: str) -> None:
    member = CATALOGUE[name].mechanism if hasattr(CATALOGUE[name], "mechanism") else mechanism(name)
    for way in WAYS:
        if EVALUATIONS[way.method].refusal(member) is None and way.serves(member, SHAPE):
            work = way.work(Counted(member, SHAPE))
            assert all(each >= 0 for each in work.values())
            assert sum(work.values()) > 0
