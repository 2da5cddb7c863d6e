"""``attend``: the door. Which method serves, what comes back, what is refused.

Run: pytest tests/unit/evaluate/test_attend.py -q
"""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from laws.cases import draw
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, State, attend, mechanism, methods
from maclaurin.algebra import CallableMap, Length, Power, Similarity
from maclaurin.errors import ConfigError, GrammarError, MechanismError, MethodError

Q, K, V = draw(0, queries=6).qkv


def one(x: torch.Tensor) -> torch.Tensor:
    return x[:, :, :1]


def test_the_example_of_the_docstring() -> None:
    eye = torch.eye(3)[None, None]
    expected = torch.tensor([[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]])
    assert_close(attend("exp/sum", eye, eye, eye, scale=0.0).output[0, 0], expected, rtol=1e-7)


def test_a_mechanism_its_text_and_its_name_are_one() -> None:
    outs = [attend(each, Q, K, V).output for each in (mechanism("taylor-2"), "taylor-2", "taylor:2/sum")]
    assert_same(outs[1], outs[0])
    assert_same(outs[2], outs[0])


@pytest.mark.parametrize("wrong", [None, 3, "sofmax", "exp"])
def test_what_is_no_mechanism(wrong: object) -> None:
    with pytest.raises((GrammarError, MechanismError)):
        attend(wrong, Q, K, V)


# ------------------------------------------------------------------------------------------------- methods


def test_methods_say_who_serves_and_why_not() -> None:
    assert methods("exp/sum") == {"parallel": None, "recurrent": None, "chunked": None, "fused": None}
    softmax_alone = methods("taylor:4@mean/sum")
    assert softmax_alone.pop("fused").startswith("softmax kernels weigh keys by exp of the logit, not by w = exp(c) (")
    assert softmax_alone == {"parallel": None, "recurrent": None, "chunked": None}
    refused = methods(mechanism("taylor:8/sum"))
    assert refused["parallel"] is None
    assert refused["recurrent"] == "reading order 8 from moments loses too many digits (promised up to order 4)"
    assert refused["chunked"] == refused["recurrent"]
    assert methods("taylor:8:clamp=5/sum")["recurrent"] is None  # a cache loses no digits
    assert methods("exp/sum+window:4")["fused"] == "softmax kernels have no window"
    needs_pairs = methods("taylor:4:clamp=5@mean/sum")["chunked"]
    assert needs_pairs == "without a finite state the mean logit needs every pair before the first weight"


def test_an_unknown_method() -> None:
    with pytest.raises(MethodError, match=r"method='recurent' does not exist: did you mean 'recurrent'"):
        attend("exp/sum", Q, K, V, method="recurent")
    with pytest.raises(
        MethodError, match=r"method='zzz' does not exist: legal: parallel, recurrent, chunked, fused, auto"
    ):
        attend("exp/sum", Q, K, V, method="zzz")


def test_an_explicit_method_that_cannot_serve_raises() -> None:
    with pytest.raises(MethodError) as caught:
        attend("taylor:8/sum", Q, K, V, method="recurrent")
    assert "method='recurrent' cannot serve taylor:8/sum: reading order 8" in str(caught.value)
    assert str(caught.value).endswith("Methods that can: parallel.")


def test_a_state_of_an_order_that_moments_cannot_hold() -> None:
    with pytest.raises(MethodError, match="reading order 8 from moments loses too many digits"):
        attend("taylor:8/sum", Q, K, V, return_state=True)
    assert attend("taylor:8/sum", Q, K, V).output.shape == (2, 6, 6, 7)


def test_auto_is_recurrent_for_one_query_on_a_state_and_parallel_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    from maclaurin.evaluate import attend as door

    module = inspect.getmodule(door)
    used = []
    for name, evaluation in list(module._EVALUATIONS.items()):

        def spy(problem, name=name, function=evaluation.accumulate, **options):
            used.append(name)
            return function(problem, **options)

        monkeypatch.setitem(module._EVALUATIONS, name, evaluation._replace(accumulate=spy))
    state = attend("taylor:2/sum", Q, K, V, return_state=True).state
    pairs = torch.ones(2, 1, 1, 1, dtype=torch.bool)
    attend("taylor:2/sum", one(Q), one(K), one(V), state=state)
    attend("taylor:2/sum", one(Q), one(K), one(V))
    attend("taylor:2/sum", Q, K, V, state=state)
    attend("taylor:2/sum", one(Q), one(K), one(V), state=state, mask=pairs)
    attend("taylor:2/sum", one(Q), one(K), one(V), state=state, return_diagnostics=True)
    assert used == ["parallel", "recurrent", "parallel", "parallel", "parallel", "parallel"]


def test_a_pair_mask_has_no_state() -> None:
    pairs = torch.ones(2, 1, 6, 6, dtype=torch.bool)
    with pytest.raises(MethodError, match=r"return_state was asked together with a mask \[B, H, T, S\](.|\n)*\[B, S\]"):
        attend("exp/sum", Q, K, V, mask=pairs, return_state=True)
    with pytest.raises(
        MethodError, match=r"a mask \[B, H, T, S\] gives every query its own keys(.|\n)*method='parallel'"
    ):
        attend("exp/sum", Q, K, V, mask=pairs, method="recurrent")
    with pytest.raises(MethodError, match=r"method='chunked'\): a mask \[B, H, T, S\] gives every query its own keys"):
        attend("exp/sum", Q, K, V, mask=pairs, method="chunked")


def test_a_pair_mask_meets_no_decay_in_softmax_kernels() -> None:
    pairs, decay = torch.ones(2, 1, 6, 6, dtype=torch.bool), -torch.ones(2, 3, 6, dtype=torch.float64)
    with pytest.raises(MethodError, match=r"together with decay, which is one number per key(.|\n)*method='parallel'"):
        attend("exp/sum+decay", Q, K, V, mask=pairs, log_decay=decay, method="fused")
    out = attend("exp/sum+decay", Q, K, V, mask=pairs, log_decay=decay, method="parallel").output
    assert_close(out, attend("exp/sum+decay", Q, K, V, log_decay=decay).output, rtol=1e-13)


@pytest.mark.parametrize("size", [0, -1, 2.0, True, "8"])
def test_a_chunk_size_is_a_whole_number(size: object) -> None:
    with pytest.raises(ConfigError, match=r"is no number of tokens\.\n  Give a whole number >= 1"):
        attend("exp/sum", Q, K, V, method="chunked", chunk_size=size)


@pytest.mark.parametrize("method", ["parallel", "recurrent"])
def test_methods_without_chunks_take_no_chunk_size(method: str) -> None:
    with pytest.raises(ConfigError, match=f"chunk_size=4 was given to method='{method}', which has no chunks"):
        attend("exp/sum", Q, K, V, method=method, chunk_size=4)
    assert_same(attend("exp/sum", Q, K, V, chunk_size=4).output, attend("exp/sum", Q, K, V).output)


def test_an_unknown_kernel() -> None:
    with pytest.raises(ConfigError, match=r"kernel='cuda' does not exist: legal: auto, torch"):
        attend("exp/sum", Q, K, V, kernel="cuda")


def test_a_pair_mask_applies_to_new_keys_only() -> None:
    state = attend("exp/sum", Q, K, V, return_state=True).state
    nothing = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    out = attend("exp/sum", Q, K, V, mask=nothing, state=state).output
    assert_close(out, attend("exp/sum", Q, K, V, is_causal=False).output, rtol=1e-13)


# ------------------------------------------------------------------------------------------------- what comes back


def test_what_was_not_asked_for_is_none() -> None:
    result = attend("exp/sum", Q, K, V)
    assert (result.state, result.diagnostics) == (None, None)
    output, state, diagnostics = attend("exp/sum", Q, K, V, return_state=True, return_diagnostics=True)
    assert output.shape == (2, 6, 6, 7)
    assert isinstance(state, State)
    assert diagnostics.negative_share == 0.0


def test_diagnostics_of_a_signed_sum() -> None:
    x = torch.tensor([[[[-3.0]], [[1.0]]]]).double()  # two heads, weights 1 + x: -2 and 2
    key, value = torch.ones(1, 2, 1, 1).double(), torch.ones(1, 2, 1, 1).double()
    found = attend("taylor:1/sum:signed", x, key, value, scale=1.0, return_diagnostics=True).diagnostics
    assert tuple(found) == pytest.approx((-2.0, 0.5, 3.0))


def test_diagnostics_leave_out_what_is_not_visible_and_include_the_state() -> None:
    mask = torch.tensor([[True] * 5 + [False]] * 2)
    big = torch.cat([K[:, :, :5], 1e9 * K[:, :, 5:]], 2)
    masked = attend("exp/sum", Q, big, V, mask=mask, return_diagnostics=True).diagnostics
    assert masked.max_logit < 100
    state = attend("power:2/sum", Q, K, V, return_state=True).state
    alone = attend("power:2/sum", Q, K, V, is_causal=False, return_diagnostics=True).diagnostics
    both = attend("power:2/sum", Q, K, V, is_causal=False, state=state, return_diagnostics=True).diagnostics
    assert both.min_denominator == pytest.approx(2 * alone.min_denominator)


def test_the_largest_logit_is_of_pairs_that_causality_allows() -> None:
    query, key = torch.eye(2)[None, None], torch.tensor([[0.5, 1.0], [9.0, 0.0]])[None, None]  # only x[0, 1] is 9
    for is_causal, largest in ((True, 1.0), (False, 9.0)):
        found = attend("exp/sum", query, key, key, scale=1.0, is_causal=is_causal, return_diagnostics=True).diagnostics
        assert found.max_logit == largest


def test_diagnostics_without_a_denominator_or_without_a_key() -> None:
    found = attend("exp/l2", Q, K, V, return_diagnostics=True).diagnostics
    assert math.isnan(found.min_denominator)
    assert math.isnan(found.negative_share)
    assert found.max_logit > 0
    empty = attend("exp/sum", Q, K[:, :, :0], V[:, :, :0], return_diagnostics=True).diagnostics
    assert math.isnan(empty.min_denominator)
    assert empty.max_logit == 0.0


def test_diagnostics_need_every_logit() -> None:
    with pytest.raises(MethodError, match=r"return_diagnostics needs every logit(.|\n)*Use method='parallel'"):
        attend("taylor:2/sum", Q, K, V, method="recurrent", return_diagnostics=True)


# ------------------------------------------------------------------------------------------------- keywords


@pytest.mark.parametrize("unknown", ["causal", "attn_mask", "past_key_values", "dropout_p", "key_reference", "eps"])
def test_an_unknown_keyword_is_a_type_error(unknown: str) -> None:
    with pytest.raises(TypeError, match=unknown):
        attend("exp/sum", Q, K, V, **{unknown: None})


def test_everything_after_the_value_goes_by_keyword() -> None:
    with pytest.raises(TypeError, match="positional"):
        attend("exp/sum", Q, K, V, "parallel")
    kinds = [each.kind for each in inspect.signature(attend).parameters.values()]
    assert kinds[4:] == [inspect.Parameter.KEYWORD_ONLY] * (len(kinds) - 4)


def test_a_callable_map_is_attended_like_any_other() -> None:
    doubled = Mechanism(Similarity(Power(1), CallableMap(lambda x: torch.cat([x, -x], -1).relu())), Length())
    for method in ("parallel", "recurrent", "chunked"):
        out = attend(doubled, Q, K, V, method=method).output
        q, k = (torch.cat([each, -each], -1).relu() for each in (Q, K))
        x = (q @ k.repeat_interleave(2, 1).mT).tril()
        expected = x @ V.repeat_interleave(2, 1) / torch.arange(1, 7)[:, None]
        assert_close(out, expected, rtol=1e-13)


def test_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    attend("taylor:2@mean/sum", Q, K, V, method="recurrent", return_state=True)
    assert capsys.readouterr() == ("", "")
