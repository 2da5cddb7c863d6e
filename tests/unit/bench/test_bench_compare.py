"""A whole comparison of tiny shapes, and what it says of the wrong and the absent.   Run: pytest tests/unit/bench"""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

import pytest
import torch

from maclaurin import mechanism
from maclaurin.bench import Dims, Inputs, Plan, Subject, compare, peer, quick
from maclaurin.bench.clock import wall_time
from maclaurin.bench.peer import PEERS, Peer, absent, subjects_of
from maclaurin.bench.roofline import Roofline, fraction, measure, step_bytes, useful_flops
from maclaurin.bench.subject import cumulative, eager, ours, sdpa
from maclaurin.errors import ConfigError, GrammarError

TINY = Plan(
    mechanisms=("elu1/sum",),
    lengths=(8, 16),
    head_sizes=(4,),
    heads=2,
    rounds=1,
    without=("attn-gym flex", "fla naive recurrent"),
)
SHAPE = Dims(1, 2, 256, 8)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short measurements; nothing here asks how long anything takes."""
    import sys

    module: Any = sys.modules["maclaurin.bench.clock"]
    monkeypatch.setattr(module.interleave, "__kwdefaults__", {"least_seconds": 0.0})


@pytest.fixture
def no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "PEERS", ())


@pytest.mark.usefixtures("no_peers")
def test_a_comparison_has_every_cell() -> None:
    result = compare(replace(TINY, without=()))
    names = ["sdpa", "eager", "cumsum", "elu1/sum"]
    for work, expected in (("forward", names), ("training", names), ("decode", ["sdpa", "elu1/sum"])):
        for length in (8, 16):
            rows = [each for each in result.timings if (each.work, each.length) == (work, length)]
            assert [each.subject for each in rows] == expected
            assert all(each.is_right and not each.failure for each in rows)
            assert rows[0].ratio_to_sdpa == 1.0
    assert [each.subject for each in result.memories] == names * 2
    assert all(each.saved_bytes for each in result.memories)
    assert {each.subject for each in result.crossovers} == {*names} - {"sdpa"}


@pytest.mark.usefixtures("no_peers")
def test_json_and_csv() -> None:
    result = compare(replace(TINY, works=("forward", "memory"), without=()))
    document = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert document["schema"] == 1
    assert document["plan"]["lengths"] == [8, 16]
    assert document["timings"][0]["seconds_median"] > 0
    assert document["machine"]["torch"] == torch.__version__
    lines = [*csv.DictReader(io.StringIO(result.to_csv()))]
    assert len(lines) == len(result.timings) + len(result.memories)
    assert lines[0]["subject"] == "sdpa" and lines[-1]["work"] == "memory" and lines[-1]["saved_bytes"]


def test_absent_peers_are_listed_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = replace(PEERS[0], name="gone", module="no_such_package_here", package="no-such")
    bare = replace(PEERS[0], name="bare", module="math", function="no_such_function")
    found, looked_at = subjects_of([mechanism("elu1/sum")], (gone, bare))
    assert (found, looked_at) == ([], [gone, bare])
    reasons = absent(looked_at)
    assert reasons["gone"] == "no_such_package_here is not installed: pip install no-such"
    assert "no_such_function" in reasons["bare"]
    monkeypatch.setattr(peer, "PEERS", (gone,))
    assert "gone" in compare(replace(TINY, works=("forward",), without=())).absent


def test_a_peer_stands_only_beside_what_it_claims() -> None:
    assert subjects_of([mechanism("power:2/sum")])[1] == []


def test_a_fast_wrong_answer_is_labeled_and_a_failure_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(function: Any, inputs: Inputs) -> torch.Tensor:
        raise RuntimeError("no kernel\nfor this")

    wrong = Peer("wrong", "x", "math", "exp", "elu1/sum", lambda function, inputs: inputs.value, lambda shape: 0)
    monkeypatch.setattr(peer, "PEERS", (wrong, replace(wrong, name="broken", call=raises)))
    rows = compare(replace(TINY, works=("forward",), lengths=(8,), without=())).timings
    by_name = {each.subject: each for each in rows}
    assert not by_name["wrong"].is_right and by_name["wrong"].seconds_median is not None
    assert by_name["broken"].failure == "RuntimeError: no kernel" and by_name["broken"].seconds_median is None
    assert by_name["elu1/sum"].is_right


@pytest.mark.parametrize(
    "subject", [sdpa(), eager(), cumulative(), *subjects_of([mechanism(p.claims) for p in PEERS])[0]]
)
def test_subjects_compute_what_they_claim(subject: Subject) -> None:
    inputs = Inputs.random(SHAPE, torch.float32, "cpu")
    expected = ours(str(subject.claims), "parallel").forward(inputs)
    torch.testing.assert_close(subject.forward(inputs), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("text", ["exp/l2", "taylor:2/sum", "power:1/rms+decay+outgate:after", "exp:clamp=5/cumgate"])
def test_ours_run_with_what_they_read(text: str) -> None:
    subject = ours(text, "auto")
    inputs = Inputs.random(Dims(1, 2, 8, 4), torch.float32, "cpu")
    assert subject.forward(inputs).isfinite().all()
    assert subject.decode is not None
    assert subject.decode(inputs)().shape == (1, 2, 1, 4)


def test_useful_work() -> None:
    softmax, linear = mechanism("exp/sum"), mechanism("elu1/sum")
    assert useful_flops(softmax, Dims(1, 1, 1000, 64), "forward") == pytest.approx(2 * 1000 * 64 * 1000, rel=2e-3)
    assert useful_flops(linear, Dims(1, 1, 8, 64), "forward") == useful_flops(softmax, Dims(1, 1, 8, 64), "forward")
    long = Dims(1, 1, 100_000, 16)
    assert useful_flops(linear, long, "forward") < useful_flops(softmax, long, "forward") / 50
    assert useful_flops(linear, long, "training") == 4 * useful_flops(linear, long, "forward")
    assert step_bytes(softmax, Dims(1, 1, 100, 16), 2) == 2 * 16 * 100 * 2
    assert step_bytes(linear, Dims(1, 1, 100, 16), 2) == step_bytes(linear, Dims(1, 1, 9, 16), 2)
    assert fraction(Roofline({"float32": 1e9}, 1e9), softmax, Dims(1, 1, 1, 4), "float32", "forward", 16e-9) == 1.0


def test_rates_are_positive() -> None:
    rates = measure((torch.float32, torch.bfloat16), "cpu", wall_time, size=16, copied=64, rounds=1)
    assert {*rates.flops_per_second} == {"float32", "bfloat16"}
    assert min(*rates.flops_per_second.values(), rates.copy_bytes_per_second) > 0


def test_without_a_budget_nothing_is_left_out_and_with_none_left_all_but_the_start_is() -> None:
    assert quick(TINY).budget_seconds is not None and quick(TINY).rounds == 1
    result = compare(replace(TINY, works=("forward",), budget_seconds=0.0))
    assert result.timings == ()
    assert [each.partition(":")[0] for each in result.left_out] == [f"forward float32 length {n}" for n in (8, 16)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lengths": (0,)}, "--length 0"),
        ({"rounds": -1}, "--rounds -1"),
        ({"lengths": (8, 8)}, "8 was given twice"),
        ({"works": ("fly",)}, "'fly' does not exist"),
        ({"dtypes": ("int8",)}, "'int8' does not exist"),
        ({"device": "tpu"}, "cannot be timed"),
        ({"mechanisms": ()}, "nothing to measure"),
    ],
)
def test_plans_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Plan(**changes)


def test_subjects_that_cannot_be() -> None:
    with pytest.raises(GrammarError):
        compare(replace(TINY, mechanisms=("taylr:2/sum",)))
    with pytest.raises(ConfigError, match="Methods that can"):
        compare(replace(TINY, methods=("fused",)))
    with pytest.raises(ConfigError, match="--without 'nobody'"):
        compare(replace(TINY, without=("nobody",)))
