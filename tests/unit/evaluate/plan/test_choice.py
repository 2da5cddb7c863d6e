"""What ``auto`` picks, and what ``explain`` says of it.

Run: pytest tests/unit/evaluate/plan/test_choice.py -q
"""

from __future__ import annotations

import pytest
import torch

from maclaurin import Shape, explain, mechanism
from maclaurin.errors import GrammarError
from maclaurin.evaluate.plan import choice, choose, choose_for_compiler, forget, ways_of


@pytest.mark.parametrize(
    ("text", "expected"), [("exp/l2", "fused"), ("elu1/sum", "chunked"), ("taylor:8/sum", "parallel")]
)
def test_long_calls_leave_the_parallel_form_where_they_can(text: str, expected: str) -> None:
    assert choose(mechanism(text), Shape(queries=32768, key_dim=64)).method == expected


def test_the_pick_is_the_least_predicted() -> None:
    for text in ("exp/sum", "taylor:2/sum", "elu1/sum+decay"):
        for queries in (8, 256, 4096):
            found = explain(text, Shape(queries=queries, key_dim=16))
            seconds = [each.seconds for each in found.costs if each.seconds is not None]
            assert found.method == found.costs[0].method
            assert seconds == sorted(seconds)
            assert "least predicted time" in found.reason


def test_a_method_has_the_cheaper_of_its_ways() -> None:
    member = mechanism("taylor:2/sum")
    short, long = (ways_of(member, Shape(queries=each, key_dim=64), "chunked") for each in (128, 16384))
    assert (short[0].way.name, long[0].way.name) == ("blocks", "spans")
    assert "blocks" not in {
        way.name for way, _ in ways_of(member, Shape(queries=128, key_dim=64), "chunked", has_chunk_size=True)
    }
    (generic,) = ways_of(member, Shape(queries=128, key_dim=64), "chunked", kernel="torch")
    assert generic.way.direct is None


def test_what_does_not_fit_into_memory_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    member, shape = mechanism("taylor:8/sum+decay"), Shape(queries=4096, key_dim=8)
    monkeypatch.setattr(choice, "memory_bytes", lambda device: 1e6)
    forget()
    assert choose(member, shape).method == "parallel"  # there is no other
    member = mechanism("exp:clamp=5/sum")
    monkeypatch.setattr(choice.load_costs("cpu", torch.get_num_threads()).__class__, "predict", lambda *_: 1.0)
    forget()
    found = choose(member, shape)
    assert found.method == "recurrent"
    assert found.reason == "least predicted time, after those that do not fit into memory"
    forget()


def test_what_is_no_matter_of_cost() -> None:
    member = mechanism("elu1/sum")
    assert choose(member, Shape(queries=1, key_dim=4, has_state=True)).method == "recurrent"
    assert choose(member, Shape(queries=0, key_dim=4)).method == "parallel"
    masked = explain(member, Shape(queries=9000, key_dim=4, has_pair_mask=True))
    assert masked.method == "parallel"
    assert {each.method: each.refusal for each in masked.costs}["chunked"] == (
        "a state has one set of keys for all queries"
    )


def test_compiled_code_asks_for_the_number_of_pairs_alone() -> None:
    few, many = 1 << 26, (1 << 26) + 1
    member = mechanism("taylor:2/sum")
    assert choose_for_compiler(member, is_step=False, num_pairs=few) == "parallel"
    assert choose_for_compiler(member, is_step=False, num_pairs=many) == "chunked"
    assert choose_for_compiler(member, is_step=True, num_pairs=1) == "recurrent"
    assert choose_for_compiler(mechanism("exp/sum"), is_step=False, num_pairs=many) == "fused"
    assert choose_for_compiler(mechanism("taylor:8/sum"), is_step=False, num_pairs=many) == "parallel"


def test_what_is_said() -> None:
    text = str(explain("taylor-2", Shape(queries=2048, key_dim=16, heads=4, wants_gradient=True)))
    first, *rest = text.splitlines()
    assert first.startswith("taylor:2/sum: chunked (least predicted time)")
    assert [line.split()[0] for line in rest[:3]] == ["chunked", "recurrent", "parallel"] or len(rest) == 5
    assert "fused      does not serve: softmax kernels weigh keys by exp of the logit" in text
    assert rest[-1].startswith("  predicted for forward and backward; constants built in: ")
    with pytest.raises(GrammarError):
        explain("tailor-2", Shape(queries=1, key_dim=1))
