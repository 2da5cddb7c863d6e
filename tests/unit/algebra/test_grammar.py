"""The grammar: exact round trips, one canonical text, and messages that name what is legal.

Run: pytest tests/unit/algebra/test_grammar.py -q
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maclaurin.algebra as algebra
from laws.cases import EVERY
from maclaurin import Mechanism, mechanism
from maclaurin.algebra import (
    L2,
    RMS,
    CallableMap,
    Cosine,
    CumulativeGate,
    Elu1,
    Exp,
    ExpMap,
    Features,
    Gates,
    Identity,
    Layer,
    Length,
    OutputGate,
    Polynomial,
    Power,
    Relu,
    Similarity,
    Sum,
    Taylor,
    Unnormalized,
    Window,
    parse,
    text,
)
from maclaurin.algebra.catalogue import mechanism_of
from maclaurin.errors import GrammarError, MechanismError

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=0.0, exclude_min=True, allow_infinity=False)
MAPS = st.sampled_from([Identity(), Elu1(), Relu(), Cosine(), ExpMap(), Features()])
FUNCTIONS = st.one_of(
    st.just(Exp()),
    st.integers(0, 170).map(Taylor),
    st.integers(1, 170).map(Power),
    st.lists(NUMBERS, min_size=1, max_size=5).filter(any).map(lambda each: Polynomial(tuple(each))),
)
NORMALIZERS = st.one_of(
    st.builds(Sum, signed=st.just(True), eps=st.one_of(st.just(0.0), POSITIVE), clamp=st.none() | POSITIVE,
              detach=st.booleans()),
    st.builds(Length, learned_exponent=st.booleans()),
    st.builds(L2, gain=POSITIVE),
    st.builds(RMS, weight=st.booleans()),
    st.builds(Layer, weight=st.booleans(), bias=st.booleans()),
    st.just(Unnormalized()),
    st.just(CumulativeGate()),
)  # fmt: skip
GATES = st.builds(
    Gates, value=st.booleans(), decay=st.booleans(), output=st.none() | st.builds(OutputGate, after=st.booleans())
)
WINDOWS = st.none() | st.builds(Window, st.integers(1, 10**6), st.integers(0, 10**6))


@st.composite
def mechanisms(draw: st.DrawFn) -> Mechanism:
    function = draw(FUNCTIONS)
    is_centered = function.can_center and draw(st.booleans())
    similarity = Similarity(function, draw(MAPS), clamp=draw(st.none() | NUMBERS), is_centered=is_centered)
    has_window = similarity.is_finite_state or isinstance(function, Exp)
    return Mechanism(similarity, draw(NORMALIZERS), draw(GATES), draw(WINDOWS) if has_window else None)


@given(mechanisms())
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
def test_any_mechanism_survives_its_text_and_its_repr(each: Mechanism) -> None:
    assert parse(text(each)) == each
    assert parse(str(each)) == each
    assert eval(repr(each), vars(algebra).copy()) == each
    assert text(parse(text(each))) == text(each)
    assert not set(text(each)) & set(" \t\n\"'()")


@pytest.mark.parametrize("each", [case for _, case in EVERY], ids=[name for name, _ in EVERY])
def test_the_cases_of_the_laws_survive_too(each: Mechanism) -> None:
    assert parse(str(each)) == each
    assert eval(repr(each), vars(algebra).copy()) == each


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("exp/sum", "exp/sum"),
        (" exp/l2 ", "exp/l2"),
        ("identity>exp/sum", "exp/sum"),
        ("elu1>power:1/sum", "elu1/sum"),
        ("identity/l2", "power:1/l2"),
        ("elu1>power:1:clamp=5/sum", "elu1>power:1:clamp=5/sum"),
        ("exp:clamp=5.0/sum", "exp:clamp=5/sum"),
        ("exp:clamp=500000/sum", "exp:clamp=5e5/sum"),
        ("exp:clamp=100/sum", "exp:clamp=100/sum"),
        ("taylor:4:clamp=5@mean/sum", "taylor:4:clamp=5@mean/sum"),
        ("poly:1,1,0.5/sum", "poly:1,1,0.5/sum"),
        ("poly:1,1,5e-1,0/sum", "poly:1,1,0.5/sum"),
        ("taylor:1/sum:detach:clamp=1:eps=0.0001:signed", "taylor:1/sum:signed:eps=1e-4:clamp=1:detach"),
        ("exp/length:learned", "exp/length:learned"),
        ("exp/rms:weight", "exp/rms:weight"),
        ("exp/layer:bias:weight", "exp/layer:weight:bias"),
        ("exp/l2:gain=64", "exp/l2:gain=64"),
        ("exp/l2:gain=1", "exp/l2"),
        ("exp/sum:eps=0", "exp/sum"),
        ("taylor:2@mean/none", "taylor:2@mean/none"),
        ("exp:clamp=5/cumgate", "exp:clamp=5/cumgate"),
        ("exp/sum+decay", "exp/sum+decay"),
        ("exp/sum+outgate:before", "exp/sum+outgate"),
        ("exp/l2+outgate:after", "exp/l2+outgate:after"),
        ("exp/sum+window:4", "exp/sum+window:4"),
        ("exp/sum+window:4:0", "exp/sum+window:4"),
        ("exp/sum+window:4:2", "exp/sum+window:4:2"),
        ("exp/sum+window:1000:100000", "exp/sum+window:1000:100000"),
        ("power:2/sum+window:64:4+outgate+decay+valuegate", "power:2/sum+valuegate+decay+outgate+window:64:4"),
    ],
)
def test_printing_is_canonical(written: str, canonical: str) -> None:
    assert str(mechanism(written)) == canonical


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("exp", r"'exp' asks for a mechanism that is not in the catalogue: (.|\n)*exp/sum"),
        ("", r"not in the catalogue"),
        ("/", r"not of the form similarity/normalizer\.\n  Write for instance exp/sum"),
        ("exp/", r"not of the form"),
        ("/sum", r"not of the form"),
        ("exp/sum/l2", r"not of the form"),
        ("ecp/sum", r"asks for the function 'ecp', which does not exist: did you mean 'exp'"),
        ("taylr:2/sum", r"function 'taylr', which does not exist: did you mean 'taylor'\?"),
        ("zzz/sum", r"function 'zzz', which does not exist: legal: exp, taylor, power, poly, identity, elu1, relu"),
        ("elu>exp/sum", r"map 'elu', which does not exist: did you mean 'relu' or 'elu1'"),
        (">exp/sum", r"map '', which does not exist"),
        ("elu1>/sum", r"function '', which does not exist"),
        ("elu1>relu/sum", r"function 'relu', which does not exist: legal: exp, taylor, power, poly"),
        ("exp/summ", r"normalizer 'summ', which does not exist: did you mean 'sum'\?"),
        ("exp/zzz", r"normalizer 'zzz', which does not exist: legal: sum, length, l2, rms, layer, none"),
        ("exp/sum+decy", r"asks for the part 'decy', which does not exist: did you mean 'decay'\?"),
        ("exp/sum+zzz", r"asks for the part 'zzz', which does not exist: legal: valuegate, decay, outgate, window"),
        ("exp/sum+", r"asks for the part '', which does not exist"),
        ("exp/sum+decay+decay", r"gives the part 'decay' twice"),
        ("exp/sum+outgate+outgate:after", r"gives the part 'outgate' twice"),
        ("exp/sum+window:2+window:4", r"gives the part 'window' twice"),
        ("exp/sum+outgate:aftr", r"gives 'outgate' the option 'aftr', which it does not have: did you mean 'after'"),
        ("exp/sum+outgate:before:after", r"gives the option 'after' twice"),
        ("exp/sum+outgate:after:before", r"gives 'outgate' the option 'before'"),
        ("exp/sum+decay:fixed", r"gives 'decay' the option 'fixed', which it does not have: 'decay' has no options"),
        ("exp/sum+window", r"leaves out the width of 'window': write window:2"),
        ("exp/sum+window:four", r"gives 'four' as the width, which must be a whole number"),
        ("exp/sum+window:4:two", r"gives 'two' as the sinks, which must be a whole number"),
        ("exp/sum+window:4:2:1", r"gives 'window' the option '1', which it does not have"),
        ("exp/sum+window:4:sinks=2", r"leaves out the sinks of 'window'"),
        ("taylor/sum", r"leaves out the order of 'taylor': write taylor:2"),
        ("taylor:clamp=5/sum", r"leaves out the order of 'taylor'"),
        ("power/sum", r"leaves out the exponent of 'power'"),
        ("taylor:two/sum", r"gives 'two' as the order, which must be a whole number such as 2"),
        ("taylor:2.5/sum", r"gives '2\.5' as the order, which must be a whole number"),
        ("taylor:2_0/sum", r"gives '2_0' as the order, which must be a whole number"),
        ("exp:clamp=1_0/sum", r"gives '1_0' where a number belongs"),
        ("poly:1,x/sum", r"gives 'x' where a number belongs"),
        ("poly:/sum", r"gives '' where a number belongs"),
        ("exp:clamp=five/sum", r"gives 'five' where a number belongs, such as 5 or 1e-4"),
        ("exp:clamp=1:clamp=2/sum", r"gives the option clamp twice"),
        ("exp:clmp=1/sum", r"gives 'exp' the option 'clmp', which it does not have: did you mean 'clamp'"),
        ("exp:5/sum", r"gives 'exp' the option '5', which it does not have: legal: clamp"),
        ("elu1:clamp=5/sum", r"gives 'elu1' the option 'clamp', which it does not have: 'elu1' has no options"),
        ("taylor:2:3/sum", r"gives 'taylor' the option '3', which it does not have"),
        ("exp/sum:sign", r"gives 'sum' the option 'sign', which it does not have: did you mean 'signed'"),
        ("exp/sum:signed=1", r"gives the option 'signed=1' in a form it does not have: write signed\."),
        ("exp/sum:eps", r"gives the option 'eps' in a form it does not have: write eps=NUMBER\."),
        ("exp/sum:eps=", r"gives '' where a number belongs"),
        ("exp/sum:eps=1:eps=2", r"gives the option 'eps' twice"),
        ("exp/none:weight", r"gives 'none' the option 'weight', which it does not have: 'none' has no options"),
        ("exp/layer:eps=1", r"gives 'layer' the option 'eps', which it does not have: legal: weight, bias"),
        ("taylor:2@median/sum", r"asks for the center 'median'\.\n  The only center is @mean"),
        ("taylor:2@/sum", r"asks for the center ''"),
        ("taylor:2@mean@mean/sum", r"asks for the center 'mean@mean'"),
    ],
)
def test_what_the_grammar_does_not_have_is_named(written: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        mechanism(written)
    assert repr(written.strip()) in str(caught.value) or repr(written) in str(caught.value)


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("taylor:-1/sum", r"asks for the order -1\.\n  The order must be an integer from 0"),
        ("taylor:171/l2", r"asks for the order 171"),
        ("power:0/l2", r"asks for the exponent 0"),
        ("poly:0,0/l2", r"without a finite coefficient"),
        ("poly:nan/l2", r"without a finite coefficient"),
        ("exp:clamp=inf/sum", r"asks for a clamp that is not a finite number"),
        ("exp@mean/sum", r"asks to center exp\(x\)"),
        ("elu1@mean/sum", r"asks to center x,"),
        ("exp/sum:eps=-1", r"asks for the eps -1"),
        ("exp/l2:gain=0", r"asks for the gain 0"),
        ("taylor:3/sum", r"weights that may be negative"),
        ("cosine/sum", r"weights that may be negative"),
        ("exp/sum+window:0", r"asks for the width 0\.\n  It must be a whole number >= 1"),
        ("exp/sum+window:-4", r"asks for the width -4"),
        ("exp/sum+window:4:-1", r"asks for the number of sinks -1\.\n  It must be a whole number >= 0"),
        ("taylor:2:clamp=5/sum+window:4", r"asks for a window before keys weighed by"),
        ("taylor:3/sum+window:4", r"weights that may be negative"),
    ],
)
def test_legal_words_with_illegal_values(written: str, message: str) -> None:
    with pytest.raises(MechanismError, match=message):
        mechanism(written)


def test_a_callable_has_no_text() -> None:
    nameless = Mechanism(Similarity(Exp(), CallableMap(torch.tanh)), Sum())
    for print_it in (str, text):
        with pytest.raises(GrammarError, match=r"has no text: its feature map is a function\.\n.*identity, elu1"):
            print_it(nameless)
    assert "tanh" in repr(nameless)


def test_mechanism_of_takes_a_mechanism_its_text_or_a_name() -> None:
    each = parse("exp/l2")
    assert mechanism_of(each) is each
    assert mechanism_of("exp/l2") == mechanism_of("exp-l2") == each
    for wrong in (None, 3, Sum()):
        with pytest.raises(MechanismError, match=r"asks for a mechanism\.\n  Give a Mechanism, its text"):
            mechanism_of(wrong)
