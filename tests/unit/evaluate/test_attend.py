"""``attend``: the door. Which method serves, what comes back, what is refused.

Run: pytest tests/unit/evaluate/test_attend.py -q
"""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torch import Tensor

from laws.cases import draw
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, State, attend, mechanism, methods
from maclaurin.algebra import CallableMap, Length, Power, Similarity, parse
from maclaurin.errors import ConfigError, GrammarError, MechanismError, MethodError
from maclaurin.evaluate.evaluations import EVALUATIONS
from maclaurin.evaluate.plan import forget
from maclaurin.evaluate.plan.costs import Costs
from maclaurin.evaluate.plan.ways import Counted, Way

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


def used(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The methods whose accumulators are called from now on."""
    found: list[str] = []
    for name, evaluation in list(EVALUATIONS.items()):

        def spy(problem, name=name, function=evaluation.accumulate, **options):
            found.append(name)
            return function(problem, **options)

        monkeypatch.setitem(EVALUATIONS, name, evaluation._replace(accumulate=spy))
    return found


def test_auto_is_recurrent_for_one_query_on_a_state_and_parallel_where_only_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = attend("taylor:2/sum", Q, K, V, return_state=True).state
    pairs = torch.ones(2, 1, 1, 1, dtype=torch.bool)
    found = used(monkeypatch)
    attend("taylor:2/sum", one(Q), one(K), one(V), state=state)
    attend("taylor:2/sum", one(Q), one(K), one(V), state=state, mask=pairs)
    attend("taylor:2/sum", one(Q), one(K), one(V), state=state, return_diagnostics=True)
    attend("taylor:2/sum", Q[:, :, :0], K[:, :, :0], V[:, :, :0])
    assert found == ["recurrent", "parallel", "parallel", "parallel"]


@pytest.mark.parametrize("text", ["exp/l2", "elu1/sum", "taylor:2@mean/sum"])
def test_auto_goes_where_the_plan_says(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Every method in turn is made the cheapest."""
    mechanism = parse(text)
    able = [name for name, reason in methods(mechanism).items() if reason is None]
    expected = attend(text, Q, K, V, method="parallel").output
    found = used(monkeypatch)
    for wanted in able:

        def predict(costs: Costs, way: Way, counted: Counted, wanted: str = wanted) -> float:
            return float(way.method != wanted)

        with monkeypatch.context() as patch:
            patch.setattr(Costs, "predict", predict)
            forget()
            output = attend(text, Q, K, V, kernel="torch").output
        forget()
        assert_close(output, expected, rtol=1e-12)  # the same in another order, float64
    assert found == able


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # torch's own rules for forward mode are written in it
@pytest.mark.parametrize("text", ["exp/l2", "exp/sum", "elu1/sum", "cosine/l2", "taylor:2@mean/sum"])
def test_auto_under_transforms(text: str) -> None:
    """vmap, grad and jvp of torch.func, forward mode: operations that all of them follow."""

    def loss(x: Tensor) -> Tensor:
        return attend(text, x, K, V).output.pow(3).sum()

    plain = Q.clone().requires_grad_()
    loss(plain).backward()
    assert_close(torch.func.grad(loss)(Q), plain.grad, rtol=1e-12)  # the same products in another order, float64
    direction = torch.ones_like(Q)
    along = (plain.grad * direction).sum()
    assert_close(torch.func.jvp(loss, (Q,), (direction,))[1], along, rtol=1e-11)  # a sum that cancels a digit
    with torch.autograd.forward_ad.dual_level():
        dual = loss(torch.autograd.forward_ad.make_dual(Q, direction))
        assert_close(torch.autograd.forward_ad.unpack_dual(dual).tangent, along, rtol=1e-11)
    both = torch.func.vmap(lambda x: attend(text, x, K, V).output)(torch.stack([Q, -Q]))
    assert_close(both[1], attend(text, -Q, K, V).output, rtol=1e-12)


@pytest.mark.parametrize("method", ["auto", "chunked", "fused"])
@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_scales_that_are_not_positive(method: str, scale: float) -> None:
    """A kernel that multiplies its mask by the scale hides nothing."""
    x = torch.randn(2, 6, 40, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    for text in ("exp/sum", "exp/l2"):
        expected = attend(text, x, x, x, scale=scale, method="parallel").output
        assert_close(attend(text, x, x, x, scale=scale, method=method).output, expected, rtol=1e-12)


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
