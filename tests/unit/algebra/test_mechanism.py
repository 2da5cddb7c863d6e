"""A mechanism describes: it refuses illegal pairs, knows its sign, its size and its cost.

Run: pytest tests/unit/algebra/test_mechanism.py -q
"""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from math import comb

import pytest
import torch

from laws.cases import EVERY, every
from maclaurin import MaclaurinError, Mechanism, mechanism
from maclaurin.algebra import L2, CallableMap, Exp, Power, Similarity, Sum, Taylor
from maclaurin.errors import MechanismError


@pytest.mark.parametrize(
    "text",
    ["taylor:3/sum", "taylor:1/sum", "cosine/sum", "power:1/sum", "power:3/sum:eps=1", "poly:1,1/sum", "poly:-1/sum",
     "poly:1,2,0.99/sum", "cosine>taylor:1/sum", "taylor:3@mean/sum", "relu>taylor:3@mean/sum", "elu1>poly:-1,1/sum",
     "elu1>power:1:clamp=-1/sum"],
)  # fmt: skip
def test_a_sum_of_signed_weights_is_refused_with_the_reason_and_the_fix(text: str) -> None:
    with pytest.raises(MechanismError) as caught:
        mechanism(text)
    message = str(caught.value)
    assert message.startswith(f"{text} asks to divide by the sum of weights that may be negative: w = ")
    for fix in ("sum:signed", "taylor:2", "elu1", "l2"):
        assert fix in message
    assert isinstance(caught.value, MaclaurinError)
    assert isinstance(caught.value, ValueError)
    assert mechanism(text.replace("/sum", "/sum:signed")).positivity == "signed"
    assert mechanism(text.partition("/")[0] + "/l2").positivity == "signed"


@pytest.mark.parametrize(
    ("text", "sign"),
    [
        ("exp/sum", "positive"),
        ("taylor:2/sum", "positive"),
        ("taylor:10@mean/sum", "positive"),
        ("power:2/sum", "nonnegative"),
        ("elu1/sum", "nonnegative"),
        ("elu1>taylor:3/sum", "positive"),
        ("features>power:3/sum", "nonnegative"),
        ("poly:1,2,1/sum", "nonnegative"),
        ("cosine>exp/sum", "positive"),
        ("cosine/length", "signed"),
    ],
)
def test_what_is_legal_and_its_sign(text: str, sign: str) -> None:
    assert mechanism(text).positivity == sign


def test_a_callable_promises_its_sign() -> None:
    with pytest.raises(MechanismError, match="CallableMap"):
        Mechanism(Similarity(Power(1), CallableMap(torch.sin)), Sum())
    assert (
        Mechanism(Similarity(Power(1), CallableMap(torch.exp, is_nonnegative=True)), Sum()).positivity == "nonnegative"
    )


def test_it_is_a_value() -> None:
    one = Mechanism(Similarity(Exp()), L2())
    assert one == mechanism("exp/l2")
    assert {one: 1}[mechanism("exp/l2")] == 1
    with pytest.raises(FrozenInstanceError):
        one.normalizer = Sum()


# ------------------------------------------------------------------------------------------------- gates, windows


@pytest.mark.parametrize(
    ("text", "operands"),
    [
        ("exp/sum", ()),
        ("exp/sum+decay", ("log_decay",)),
        ("exp/l2+outgate", ("output_gate",)),
        ("exp/layer:weight:bias+valuegate+decay+outgate:after",
         ("value_gate", "log_decay", "output_gate", "norm_weight", "norm_bias")),
        ("exp/cumgate", ("denominator_logit",)),
        ("cosine/length:learned+window:4", ("length_exponent", "far_log_weight")),
        ("taylor:2/sum+window:4", ()),
        ("taylor:2@mean/sum+window:4", ()),
        ("exp/sum+window:4", ()),
        ("elu1>taylor:2/sum+window:4", ("far_log_weight",)),
        ("poly:1,1,0.5/sum+window:4", ("far_log_weight",)),
    ],
)  # fmt: skip
def test_what_an_evaluation_is_given(text: str, operands: tuple[str, ...]) -> None:
    assert mechanism(text).operands == operands


@pytest.mark.parametrize("text", ["taylor:2:clamp=5/sum+window:4", "elu1>power:1:clamp=5/sum+window:4:1"])
def test_a_window_before_keys_without_a_finite_state_is_refused(text: str) -> None:
    with pytest.raises(
        MechanismError, match=r"asks for a window before keys(.|\n)*no finite state\.\n  Leave the clamp"
    ):
        mechanism(text)


def test_near_and_far() -> None:
    exp, taylor = mechanism("exp/sum"), mechanism("taylor:2/sum")
    assert (exp.near, exp.far) == (exp.similarity, None)
    assert (taylor.near, taylor.far) == (None, taylor.similarity)
    both, alone = mechanism("elu1/sum+window:4"), mechanism("exp/sum+window:4")
    assert (both.near, both.far) == (Similarity(Exp()), both.similarity)
    assert (alone.near, alone.far) == (Similarity(Exp()), None)
    assert both.is_finite_state
    assert alone.is_finite_state


def test_states_of_windows_decays_and_learned_denominators() -> None:
    """Slots of K + V numbers, and one more with decay; a count of filled slots; one sum of exp(u)."""
    size = {
        text: mechanism(text).state_size(5, 7)
        for text in (
            "exp/sum+window:4:2",
            "exp/sum+decay+window:4:2",
            "taylor:2/sum",
            "taylor:2/sum+decay",
            "taylor:2/sum+valuegate+outgate",
            "taylor:2/sum+window:4:2",
            "taylor:2/sum+decay+window:4:2",
            "elu1/cumgate",
            "elu1/none",
        )
    }
    assert size["exp/sum+window:4:2"] == 6 * 12 + 1
    assert size["exp/sum+decay+window:4:2"] == 6 * 13 + 1
    assert size["taylor:2/sum"] == size["taylor:2/sum+decay"] == size["taylor:2/sum+valuegate+outgate"] == 21 * 8
    assert size["taylor:2/sum+window:4:2"] == 21 * 8 + 6 * 12 + 1
    assert size["taylor:2/sum+decay+window:4:2"] == 21 * 8 + 6 * 13 + 1
    assert size["elu1/cumgate"] == size["elu1/none"] + 1 == 5 * 7 + 1 + 1
    assert mechanism("exp/sum+decay").cache_size(5, 7, 10) == 10 * 13
    # keys in a window are kept unmapped, whatever the map beyond it
    wide = CallableMap(lambda x: torch.cat([x, -x], -1).relu(), is_nonnegative=True)
    mapped = Mechanism(Similarity(Power(1), wide), Sum(), window=mechanism("exp/sum+window:3").window)
    assert mapped.state_size(5, 7) == 10 * 8 + 1 + 3 * 12 + 1


def test_costs_of_windows() -> None:
    alone, both = mechanism("exp/sum+window:4:2"), mechanism("taylor:2/sum+window:4:2")
    assert alone.flops_per_token(5, 7) == 2 * 6 * 12
    assert both.flops_per_token(5, 7) == mechanism("taylor:2/sum").flops_per_token(5, 7) + 2 * 6 * 12
    # six slots in 32 bits are twelve cached tokens in 16; moments come on top
    assert alone.break_even_length(5, 7) == 12.0
    assert both.break_even_length(5, 7) == mechanism("taylor:2/sum").break_even_length(5, 7) + 12.0
    assert mechanism("power:2/sum+decay").break_even_length(5, 7) == mechanism("power:2/sum").break_even_length(5, 7)


# ------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("order", range(5))
@pytest.mark.parametrize("key_dim", [1, 3, 8, 16])
def test_state_sizes_are_binomials(order: int, key_dim: int) -> None:
    together = comb(key_dim + order, order)
    signed = ":signed" if order % 2 else ""
    assert mechanism(f"taylor:{order}/sum{signed}").state_size(key_dim, 7) == together * (7 + 1)
    assert mechanism(f"taylor:{order}/l2").state_size(key_dim, 7) == together * 7 + 1
    centered = mechanism(f"taylor:{order}@mean/sum{signed}").state_size(key_dim, 7)
    assert centered == together * 8 + key_dim + (key_dim if order == 0 else 0)  # order 0 still needs the key sum
    # a norm that ignores the denominator keeps of it what centering needs: the count and the key sum
    assert mechanism(f"taylor:{order}@mean/l2").state_size(key_dim, 7) == together * 7 + 1 + key_dim + key_dim
    if order:
        alone = comb(key_dim + order - 1, order)
        assert mechanism(f"power:{order}/sum:signed").state_size(key_dim, 7) == alone * 8 + 1
        assert mechanism(f"power:{order}/layer").state_size(key_dim, 7) == alone * 7 + 1
        assert mechanism(f"poly:{'0,' * order}2/layer").num_moments(key_dim) == alone


def test_sizes_that_the_literature_quotes() -> None:
    """Moments and denominators at K = V = 64, and the 16-bit cache that has as many bytes as the 32-bit state."""
    sizes = [mechanism(f"taylor:{n}/sum" + (":signed" if n % 2 else "")).state_size(64, 64) for n in (1, 2, 3, 4)]
    assert sizes == [4_225, 139_425, 3_113_825, 52_935_025]
    assert mechanism("taylor:2/sum").break_even_length(64, 64) == 2_178.515625
    assert mechanism("taylor:4/sum").break_even_length(64, 64) == 52_935_025 * 4 / 256
    assert mechanism("power:2/none").num_moments(64) == 64 * 65 // 2
    assert mechanism("elu1/sum").state_size(64, 64) == 64 * 65 + 1
    # at equal widths per number, K = V = 64, order 2 alone, two numbers per cached coordinate
    square = mechanism("power:2/sum").break_even_length(64, 64, state_bytes=4, cache_bytes=4)
    assert square == 64 * 65 / 2 * 65 / 128 == 1_056.25


def test_break_even_counts_moments_only() -> None:
    one = mechanism("taylor:2@mean/sum").break_even_length(8, 8)
    assert one == mechanism("taylor:2/sum").break_even_length(8, 8) == 45 * 9 * 4 / (16 * 2)
    assert mechanism("taylor:2/l2").break_even_length(8, 8) == 45 * 8 * 4 / (16 * 2)


def test_sizes_follow_the_width_of_the_map() -> None:
    wide = CallableMap(lambda x: torch.cat([x, -x], -1).relu(), is_nonnegative=True)
    assert Mechanism(Similarity(Power(1), wide), Sum()).state_size(5, 7) == 10 * 8 + 1
    assert Mechanism(Similarity(Exp(), wide), Sum()).cache_size(5, 7, 100) == 100 * 17


def test_what_grows_with_the_length_has_no_state_size() -> None:
    for text in ("exp/sum", "taylor:2:clamp=5/sum"):
        with pytest.raises(MechanismError, match=r"has none: its cache grows(.|\n)*cache_size\(8, 4, length=\.\.\.\)"):
            mechanism(text).state_size(8, 4)
        with pytest.raises(MechanismError, match="has none"):
            mechanism(text).break_even_length(8, 4)
        assert mechanism(text).cache_size(8, 4, 10) == 120


def test_flops() -> None:
    each = mechanism("taylor:2/sum")
    assert each.flops_per_token(8, 4) == 2 * 2 * 45 + 4 * 45 * 5
    assert mechanism("taylor:2/l2").flops_per_token(8, 4) == 2 * 2 * 45 + 4 * 45 * 4
    assert mechanism("exp/sum").flops_per_token(8, 4, length=1000) == 2 * 12 * 1000
    assert each.flops_per_token(8, 4, length=1000) == each.flops_per_token(8, 4)
    with pytest.raises(MechanismError, match=r"grow with the cache\.\n  Give the number of cached keys"):
        mechanism("exp/sum").flops_per_token(8, 4)


@pytest.mark.parametrize("case", every())
def test_denominator_orders_are_what_the_normalizer_and_the_center_need(case: Mechanism) -> None:
    if not case.is_finite_state:
        return
    needed = set(case.moment_orders) if case.normalizer.uses_denominator else set()
    needed |= {0, 1} if case.far is not None and case.similarity.is_centered else set()
    assert case.denominator_orders == tuple(sorted(needed))


# ------------------------------------------------------------------------------------------------- text


def test_describe_is_the_text_where_there_is_one() -> None:
    assert mechanism("exp/l2").describe() == str(mechanism("exp/l2")) == "exp/l2"
    nameless = Mechanism(Similarity(Taylor(2), CallableMap(torch.tanh)), L2())
    assert nameless.describe() == repr(nameless)
    assert "tanh" in nameless.describe()
    assert "order=2" in nameless.describe()


def test_every_member_has_a_formula() -> None:
    for _, each in EVERY:
        start, *_, output = each.formula.split(";  ")
        kept = (each.near or each.similarity).formula
        assert start == (kept if each.window is None else f"{each.window.formula}: {kept}")
        assert output.startswith(each.normalizer.formula)
        assert "None" not in each.formula


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("exp/sum", ["N = sum w v, Z = sum w, n = number of keys", "out = N / Z"]),
        (
            "exp/sum+valuegate+decay+outgate",
            [
                "N = sum w d i v, Z = sum w d, n = sum d; d = exp(sum of log decays after the key)",
                "out = N / Z, N gated by g first",
            ],
        ),
        ("exp/l2+outgate:after", ["N = sum w v, Z = sum w, n = number of keys", "out = N / |N|, times g"]),
    ],
)
def test_gates_stand_in_the_formula(text: str, lines: list[str]) -> None:
    assert mechanism(text).formula.split(";  ")[1:] == lines


def test_a_window_says_what_is_beyond_it() -> None:
    first = "the last 4 and the first 2 keys: w = exp(x); x = scale <q, k>"
    assert mechanism("exp/sum+window:4:2").formula.startswith(f"{first};  beyond the window no key is seen;  N =")
    assert mechanism("taylor:2/sum+window:4:2").formula.startswith(f"{first};  beyond the window;  w = sum over")
    far = mechanism("elu1/sum+window:4:2").formula
    assert far.startswith(f"{first};  beyond the window, times exp(far_log_weight);  w = x")
    alone = mechanism("elu1>exp:clamp=5/sum+window:4").formula  # a window alone keeps its map and clamp
    assert alone.startswith("the last 4 keys: w = exp(x); x = min(scale <phi(q), phi(k)>, phi(x) = elu(x) + 1, 5)")
