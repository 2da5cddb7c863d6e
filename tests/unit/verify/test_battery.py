"""The battery passes what is right and finds what is broken, each flaw by the law that is about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from plain_attention import LINEAR_FLAWS, SOFTMAX_FLAWS, linear, softmax
from torch import Tensor, nn

from maclaurin.errors import ConfigError, GrammarError
from maclaurin.verify import LAWS, Report, Target, verify


def failed(report: Report) -> list[str]:
    return [f"{each.law}: {each.smallest_input}" for each in report.failures]


def swapped(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same function in the layout [B, T, H, D]."""

    def inner(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float | None = None, g: Tensor | None = None) -> Tensor:
        more = {} if g is None else {"log_decay": g.transpose(1, 2)}
        return function(*(each.transpose(1, 2) for each in (q, k, v)), scale=sm_scale, **more).transpose(1, 2)

    return inner


@pytest.mark.parametrize("like", [None, "exp/sum"])
def test_a_right_softmax_passes(like: str | None) -> None:
    report = verify(softmax, like=like, fixed={"flaw": ""})
    assert failed(report) == []
    assert report.passed
    assert report.count("refused") == 0
    ran = {each.law for each in report.rows if each.verdict == "passed"}
    assert {"future", "padding", "padding: states", "state: splits", "grouped heads", "scale: query", "range"} <= ran
    assert ("like: shapes" in ran) is (like is not None)


@pytest.mark.parametrize("like", [None, "elu1/sum"])
def test_a_right_linear_attention_passes(like: str | None) -> None:
    report = verify(linear, like=like, fixed={"flaw": ""})
    assert failed(report) == []
    ran = {each.law for each in report.rows if each.verdict == "passed"}
    assert {"chunk size", "packed", "packed: states", "decay: reset", "decay: strong", "value gate"} <= ran
    reasons = {each.law: each.reason for each in report.rows if each.verdict == "not run"}
    assert reasons["both directions"] == "takes no is_causal"
    assert reasons["grouped heads"].startswith("grouped heads raised RuntimeError")


def test_the_other_layout_passes_with_the_targets_own_words() -> None:
    names = {"scale": "sm_scale", "log_decay": "g"}
    report = verify(swapped(linear), like="elu1/sum", layout="bthd", rename=names)
    assert failed(report) == []
    assert {"like: scale", "decay: first"} <= {each.law for each in report.rows if each.verdict == "passed"}
    wrong = verify(swapped(linear), like="elu1/sum", rename=names, laws=["like: shapes", "present", "strangers"])
    assert [each.law for each in wrong.failures] == ["like: shapes", "present", "strangers"]


@pytest.mark.parametrize(
    "options", [{"fixed": {"enable_gqa": True}}, {"mask_kind": "pairs", "rename": {"mask": "attn_mask"}}]
)
def test_torchs_own_attention_passes(options: dict[str, object]) -> None:
    report = verify(F.scaled_dot_product_attention, like="exp/sum", **options)
    assert failed(report) == []
    ran = {each.law for each in report.rows if each.verdict == "passed"}
    assert "like: T != S" in ran  # lined up with the first key, as its documentation says
    assert ("padding" in ran) is ("mask_kind" in options)


@pytest.mark.parametrize(("flaw", "law"), SOFTMAX_FLAWS.items())
def test_every_flaw_of_softmax_is_found(flaw: str, law: str) -> None:
    (row,) = verify(softmax, like="exp/sum", fixed={"flaw": flaw}, laws=[law]).rows
    assert row.verdict == "failed"
    assert row.smallest_input.startswith("seed=0 B=")


@pytest.mark.parametrize(("flaw", "law"), LINEAR_FLAWS.items())
def test_every_flaw_of_linear_attention_is_found(flaw: str, law: str) -> None:
    (row,) = verify(linear, like="elu1/sum", fixed={"flaw": flaw}, laws=[law]).rows
    assert row.verdict == "failed"


@pytest.mark.parametrize("name", ["exp/l2", "taylor:1/sum:signed", "power:2/sum+valuegate+decay+outgate:after"])
def test_our_own_methods_obey(name: str) -> None:
    report = verify(name, without=["gradient: elements", "dtypes: long"])
    assert failed(report) == []
    assert {"parallel", "recurrent"} <= {each.form for each in report.rows}
    assert {"forms: agree", "forms: continue"} <= {each.law for each in report.rows if each.verdict == "passed"}


def test_forms_that_disagree_are_told_apart() -> None:
    def less_scaled(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = True) -> Tensor:
        return softmax(query, key, value, is_causal=is_causal, scale=0.9 * query.shape[-1] ** -0.5)

    def same(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = True) -> Tensor:
        return softmax(query, key, value, is_causal=is_causal)

    report = verify(same, forms={"less": less_scaled, "again": softmax}, laws=["forms: agree"])
    assert [each.verdict for each in report.rows] == ["not run", "failed", "passed"]


def test_states_of_two_forms_must_be_interchangeable() -> None:
    def other_order(query: Tensor, key: Tensor, value: Tensor, *, state: Any = None, return_state: bool = False) -> Any:
        state = None if state is None else (*state[:2], state[2].flip(1))
        out = softmax(query, key, value, state=state, return_state=True)
        return (out.output, (*out.state[:2], out.state[2].flip(1))) if return_state else out.output

    def doubled(query: Tensor, key: Tensor, value: Tensor, *, state: Any = None, return_state: bool = False) -> Any:
        state = None if state is None else (state[0] / 2, *state[1:])
        out = softmax(query, key, value, state=state, return_state=True)
        return (out.output, (2 * out.state[0], *out.state[1:])) if return_state else out.output

    forms = {"other order": other_order, "doubled": doubled}
    report = verify(softmax, forms=forms, laws=["forms: agree", "forms: continue"])
    assert [each.verdict for each in report.rows] == ["not run", "passed", "passed", "not run", "passed", "failed"]


def test_a_module_is_run_in_the_dtype_of_the_law_and_left_alone() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(()))

        def forward(self, query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
            return softmax(query, key, value * self.gain, is_causal=is_causal)

    module = Scaled()
    report = verify(module, like="exp/sum")
    assert failed(report) == []
    assert module.training
    assert module.gain.dtype == torch.float32


def test_the_report_is_reproducible_and_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    one, two = (verify(softmax, fixed={"flaw": "sees one ahead"}, laws=["future", "prefix"], seed=3) for _ in range(2))
    assert one.rows == two.rows
    assert torch.equal(torch.get_rng_state(), before)
    assert "seed=3" in one.failures[0].smallest_input
    other = verify(softmax, fixed={"flaw": "sees one ahead"}, laws=["prefix"], seed=4)
    assert other.rows[0].deviation != two.rows[1].deviation


def test_the_smallest_failing_input_is_small() -> None:
    (row,) = verify(softmax, like="exp/l2", fixed={"flaw": ""}, laws=["like: shapes"]).rows
    assert "B=1 H=1 T=1 K=1 V=1" in row.smallest_input
    (row,) = verify(linear, like="elu1/sum", fixed={"flaw": "chunks detached"}, laws=["gradient: long"]).rows
    assert "T=65" in row.smallest_input or "T=70" in row.smallest_input  # no chunk ends before


def test_what_a_function_declines_is_refused_and_accidents_fail() -> None:
    def only_even(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if key.shape[2] % 16:
            raise ValueError(f"T={key.shape[2]} must be a multiple of 16")
        return softmax(query, key, value)

    def only_even_silently(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assert key.shape[2] % 16 == 0
        return softmax(query, key, value)

    laws = ["lengths", "future", "like: shapes"]
    told, silent = (verify(each, like="exp/sum", laws=laws) for each in (only_even, only_even_silently))
    assert failed(told) == []
    assert "must be a multiple of 16" in told.rows[0].reason
    assert [each.law for each in silent.failures] == ["lengths"]
    assert "raised AssertionError" in silent.failures[0].smallest_input


def test_a_function_that_declares_float32_is_held_to_it() -> None:
    def single(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return softmax(*(each.float() for each in (query, key, value))).to(query.dtype)

    assert [each.law for each in verify(single, like="exp/sum").failures] == ["float64"]
    assert failed(verify(single, like="exp/sum", precision=torch.float32)) == []


def test_unknown_keywords_must_be_refused() -> None:
    def swallows(query: Tensor, key: Tensor, value: Tensor, **_: object) -> Tensor:
        return softmax(query, key, value)

    def writes(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out = softmax(query, key, value)
        value.mul_(2.0)
        return out

    assert [each.law for each in verify(swallows, laws=["unknown keyword"]).failures] == ["unknown keyword"]
    assert [each.law for each in verify(writes, laws=["in place"]).failures] == ["in place"]


def test_a_target_can_be_described_whole() -> None:
    def pair(q: Tensor, k: Tensor, v: Tensor) -> tuple[str, Tensor]:
        return "weights", softmax(q, k, v, is_causal=False)

    target = Target({"pair": pair}, output=1, is_causal=False)
    report = verify(target, laws=["batch", "future", "lengths"])
    assert {each.law: each.verdict for each in report.rows} == {
        "lengths": "passed",
        "future": "not run",
        "batch": "passed",
    }


def test_json_holds_plain_numbers() -> None:
    import json

    report = verify(softmax, fixed={"flaw": "NaN without keys"}, laws=["padding: all", "future", "packed"])
    text = json.dumps(report.to_json(), allow_nan=False)
    values = json.loads(text)
    assert values["passed"] is False
    assert values["counts"] == {"failed": 1, "refused": 0, "not run": 1, "passed": 1}
    assert values["rows"][0]["tolerance_reason"]


def test_every_law_says_what_it_states() -> None:
    assert len(LAWS) >= 60
    for law in LAWS.values():
        assert law.statement
        assert law.check.__doc__
        assert law.grid


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"laws": ["futures"]}, ConfigError, "'futures' is not a law: did you mean 'future'"),
        ({"without": ["no law"]}, ConfigError, "is not a law"),
        ({"layout": "bhdt"}, ConfigError, "layout='bhdt' does not exist.\n  Use one of bhtd, bthd"),
        ({"mask_kind": "bias"}, ConfigError, "mask_kind='bias'"),
        ({"rename": {"scales": "x"}}, ConfigError, "'scales', which is not a keyword of attend: did you mean 'scale'"),
        ({"rename": {"scale": "x"}}, ConfigError, "softmax takes no 'x', to which 'scale' was renamed"),
        ({"like": "expp/sum"}, GrammarError, "expp"),
        ({"like": "exp/sum+decay"}, ConfigError, "needs log_decay, but takes no"),
        ({"like": "exp/length:learned"}, ConfigError, "needs length_exponent"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        verify(softmax, **{"fixed": {"flaw": ""}, **options})
    assert message in str(raised.value)


def test_what_cannot_be_called() -> None:
    def needs(query: Tensor, key: Tensor, value: Tensor, gamma: Tensor) -> Tensor:
        return value

    def never(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise RuntimeError("no driver")

    with pytest.raises(ConfigError, match="needs gamma, which no law can give"):
        verify(needs)
    with pytest.raises(ConfigError, match=r"could be called at no size; the first call raised RuntimeError: no driver"):
        verify(never)
    with pytest.raises(ConfigError, match="which cannot be called"):
        verify(Target({"three": 3}))
