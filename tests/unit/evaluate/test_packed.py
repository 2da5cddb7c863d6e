"""Packed sequences: one call with the documents' bounds is one call for each document.

Run: pytest tests/unit/evaluate/test_packed.py -q
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from laws.cases import Inputs, directions, draw, members, named, serving
from laws.checks import differentiable, gradients, numbers
from laws.compare import assert_close
from maclaurin import Mechanism, State, attend
from maclaurin.algebra import Cosine, Exp, Similarity, Sum, parse
from maclaurin.errors import ConfigError, DtypeError, MaclaurinError, MaskError, MethodError, ShapeError, StateError
from maclaurin.evaluate import packed
from maclaurin.evaluate.cache import Cache
from maclaurin.evaluate.packed import Documents

#: One batch row instead of many: the sums are those of tests/laws, in another order.
RTOL = 1e-12
TEXTS = (
    "exp/l2+valuegate+decay+outgate:after",
    "taylor:2@mean/sum+window:4:2",
    "elu1/sum+decay+window:5",
    "power:2/sum+decay",
    "exp/sum+window:8:2",
    "exp/cumgate+decay",
    "taylor:2/sum",
    "power:3/layer",
    "exp/length:learned+outgate",
)  # fmt: skip
CASES = named((text, parse(text)) for text in TEXTS)

#: Documents of length 0 and 1, longer and shorter ones in mixed order, first and last ones too.
#: Those of 4 and 5 queries share a batch with 5 and 4 keys: a padded query stands on a key of its document.
QUERIES = (0, 4, 4, 5, 10, 11, 17, 17)
KEYS = (0, 5, 7, 8, 12, 12, 18, 18)  # more keys than queries, fewer, none, and a document without either


def looped(
    mechanism: Mechanism,
    inputs: Inputs,
    bounds: tuple[Sequence[int], Sequence[int]],
    state: State | None = None,
    **options: object,
) -> tuple[Tensor, list[State]]:
    """One call for each document: their outputs one after another, and their states."""
    outputs, states = [], []
    for i, (queries, keys) in enumerate(zip(pairwise(bounds[0]), pairwise(bounds[1]), strict=True)):
        part = inputs.part(slice(*queries), slice(*keys))
        start = None if state is None else state.reorder([i])
        found = attend(mechanism, *part.qkv, **part.operands, state=start, return_state=True, **options)
        outputs.append(found.output)
        assert found.state is not None
        states.append(visible(found.state))
    return torch.cat(outputs, dim=2), states


def visible(state: State) -> State:
    """A state of one row without the hidden entries of a growing cache."""
    cache = state.cache
    if not isinstance(cache, Cache):
        return state
    seen = cache.visible[0]
    log_weight = None if cache.log_weight is None else cache.log_weight[:, :, seen]
    return replace(
        state, cache=Cache(cache.key[:, :, seen], cache.value[:, :, seen], cache.visible[:, seen], log_weight)
    )


def check(
    mechanism: Mechanism,
    inputs: Inputs,
    bounds: tuple[Sequence[int], Sequence[int]],
    state: State | None = None,
    **options: object,
) -> None:
    """Outputs, states, and all gradients of both, those with respect to ``state`` included."""
    leaves = inputs.leaves()
    past: list[Tensor] = []
    if state is not None:
        moving = {id(each) for each in differentiable(state)}
        state = state.map_tensors(
            lambda each: each.detach().clone().requires_grad_() if id(each) in moving else each.clone()
        )
        past = [each for each in state.tensors() if each.requires_grad]
    cu_seqlens, cu_seqlens_k = (torch.tensor(each, dtype=torch.int32) for each in bounds)
    arguments = {**leaves.operands, "state": state, "return_state": True, **options}
    found = attend(mechanism, *leaves.qkv, cu_seqlens=cu_seqlens, cu_seqlens_k=cu_seqlens_k, **arguments)
    output, states = looped(mechanism, leaves, bounds, state, **options)
    assert_close(found.output, output, rtol=RTOL, what="output")
    assert found.state is not None
    assert found.state.layout[0] == len(states)
    rows = [visible(found.state.reorder([i])) for i in range(len(states))]
    for i, (row, alone) in enumerate(zip(rows, states, strict=True)):
        one, other = numbers(row), numbers(alone)
        assert list(one) == list(other)
        for path, each in one.items():
            assert_close(each, other[path], rtol=RTOL, what=f"state of document {i}: {path}")
    wanted = [output, *[each for state in states for each in differentiable(state)]]
    given = [found.output, *[each for row in rows for each in differentiable(row)]]
    names = ["query", "key", "value", *leaves.operands, *[f"state {i}" for i in range(len(past))]]
    pairs = zip(
        names,
        *(gradients(each, [*leaves.tensors(), *past], seed=1) for each in (given, wanted)),
        strict=True,
    )
    for name, one, other in pairs:
        assert_close(one, other, rtol=RTOL, what=f"gradient of {name}")


def inputs_of(mechanism: Mechanism, seed: int = 3, queries: int = 17, keys: int = 18) -> Inputs:
    return draw(seed, batch=1, heads=4, kv_heads=2, queries=queries, keys=keys, key_dim=3, value_dim=5).of(mechanism)


def carried(mechanism: Mechanism, num_documents: int) -> State:
    """A state with a row a document, some of which have seen more keys than others."""
    past = draw(8, batch=num_documents, heads=4, kv_heads=2, queries=6, key_dim=3, value_dim=5).of(mechanism)
    mask = torch.arange(6) >= torch.arange(num_documents)[:, None]
    found = attend(mechanism, *past.qkv, **past.operands, mask=mask, return_state=True).state
    assert found is not None
    return found.detach()


# ------------------------------------------------------------------------------------------------- equal to a loop


@pytest.mark.parametrize("mechanism", CASES)
def test_packed_is_a_loop_over_documents(mechanism: Mechanism) -> None:
    inputs = inputs_of(mechanism)
    for method in serving(mechanism):
        for is_causal in directions(mechanism):
            check(mechanism, inputs, (QUERIES, KEYS), method=method, is_causal=is_causal)


@pytest.mark.parametrize("mechanism", CASES)
def test_packed_is_a_loop_from_carried_states(mechanism: Mechanism) -> None:
    inputs, state = inputs_of(mechanism), carried(mechanism, len(QUERIES) - 1)
    for is_causal in directions(mechanism):
        check(mechanism, inputs, (QUERIES, KEYS), state, is_causal=is_causal)
    check(mechanism, inputs, (QUERIES, KEYS), state, method="recurrent")


@pytest.mark.parametrize("mechanism", members())
def test_every_member_of_the_catalogue(mechanism: Mechanism) -> None:
    check(mechanism, inputs_of(mechanism, queries=17, keys=17), (QUERIES, QUERIES))


@pytest.mark.parametrize("mechanism", CASES)
def test_a_state_of_packed_documents_goes_on_packed(mechanism: Mechanism) -> None:
    """Two packed calls are one on whole documents; a growing cache keeps its padding hidden in between."""
    whole = inputs_of(mechanism, queries=18)
    cut = [(a + b) // 2 for a, b in pairwise(KEYS)]  # each document's first half and second half
    halves = [
        torch.cat([torch.arange(a, m) for (a, _), m in zip(pairwise(KEYS), cut, strict=True)]),
        torch.cat([torch.arange(m, b) for (_, b), m in zip(pairwise(KEYS), cut, strict=True)]),
    ]
    lengths = [[m - a for (a, _), m in zip(pairwise(KEYS), cut, strict=True)]]
    lengths.append([b - m for (_, b), m in zip(pairwise(KEYS), cut, strict=True)])
    state, outputs = None, torch.empty_like(attend(mechanism, *whole.qkv, **whole.operands).output)
    for time, length in zip(halves, lengths, strict=True):
        part = whole.along(*[lambda each, time=time: each[:, :, time]] * 2)
        bounds = torch.tensor([0, *length]).cumsum(0)
        found = attend(mechanism, *part.qkv, **part.operands, cu_seqlens=bounds, state=state, return_state=True)
        outputs[:, :, time], state = found.output, found.state
    expected = attend(mechanism, *whole.qkv, **whole.operands, cu_seqlens=torch.tensor(KEYS)).output
    assert_close(outputs, expected, rtol=RTOL)


@pytest.mark.parametrize("text", ["exp/sum", "taylor:2@mean/sum+decay", "exp/cumgate+window:3:1"])
def test_no_document_at_all_and_empty_ones_only(text: str) -> None:
    mechanism = parse(text)
    inputs = inputs_of(mechanism, queries=0, keys=0)
    for bounds in ([0], [0, 0], [0, 0, 0]):
        found = attend(mechanism, *inputs.qkv, **inputs.operands, cu_seqlens=torch.tensor(bounds), return_state=True)
        assert found.output.shape == (1, 4, 0, 5)
        assert found.state is not None
        assert found.state.layout[:2] == (len(bounds) - 1, 2)


def test_int64_bounds_and_the_same_bounds_for_keys() -> None:
    mechanism = parse("taylor:2/sum")
    inputs = inputs_of(mechanism, queries=17, keys=17)
    bounds = torch.tensor(QUERIES)
    one = attend(mechanism, *inputs.qkv, cu_seqlens=bounds).output
    other = attend(mechanism, *inputs.qkv, cu_seqlens=bounds, cu_seqlens_k=bounds.int()).output
    assert torch.equal(one, other)


def test_half_precision_and_autocast_are_as_without_packing() -> None:
    mechanism = parse("taylor:2@mean/sum+window:4:2")
    inputs = inputs_of(mechanism, queries=17, keys=17).map(lambda each: each.to(torch.bfloat16))
    with torch.autocast("cpu", torch.float16):
        found = attend(mechanism, *inputs.qkv, cu_seqlens=torch.tensor(QUERIES), return_state=True)
    expected, _ = looped(mechanism, inputs, (QUERIES, QUERIES))
    assert found.output.dtype == torch.bfloat16
    assert found.state is not None
    assert found.state.dtype == torch.float32
    # both are computed in float32 and rounded once to 8 bits: at most one unit in the last place apart
    assert_close(found.output, expected, rtol=2**-7)


# ------------------------------------------------------------------------------------------------- padding


def test_documents_of_like_length_share_a_batch() -> None:
    rows: list[tuple[int, int]] = []
    mechanism = parse("taylor:2/sum")
    sizes = [3, 100, 2, 95, 0, 1, 70, 3]
    inputs = inputs_of(mechanism, queries=sum(sizes), keys=sum(sizes))

    class Watched(type(mechanism.similarity.map)):  # type: ignore[misc]
        def __call__(self, x: Tensor) -> Tensor:
            rows.append((x.shape[0], x.shape[2]))
            return x

    watched = replace(mechanism, similarity=replace(mechanism.similarity, map=Watched()))
    bounds = torch.tensor([0, *sizes]).cumsum(0)
    attend(watched, *inputs.qkv, cu_seqlens=bounds, method="parallel")
    assert sorted(set(rows)) == [(1, 0), (1, 1), (1, 2), (1, 70), (2, 3), (2, 100)]
    assert sum(batch * length for batch, length in set(rows)) < 2**0.5 * sum(sizes)


def test_lengths_are_bucketed_for_queries_and_keys_apart() -> None:
    assert Documents((0, 1, 101, 201), (0, 100, 200, 201)).buckets() == [[0], [1], [2]]


@pytest.mark.parametrize("text", ["exp/none", "cosine>exp/sum", "power:2/l2+outgate", "exp/sum"])
def test_padding_gives_no_gradient_and_no_nan(text: str) -> None:
    """A document of zeros next to a longer one: its padding must not make its gradients anything but its own."""
    mechanism = parse(text)
    inputs = inputs_of(mechanism, queries=9, keys=9).map(
        lambda each: torch.cat([each[:, :, :4] * 0, each[:, :, 4:]], 2)
    )
    check(mechanism, inputs, ((0, 4, 9), (0, 4, 9)))
    leaves = inputs.leaves()
    output = attend(mechanism, *leaves.qkv, **leaves.operands, cu_seqlens=torch.tensor([0, 4, 9])).output
    for gradient in torch.autograd.grad(output[:, :, 4:].sum(), leaves.qkv):
        assert not gradient[:, :, :4].any()
        assert bool(gradient.isfinite().all())


def test_a_document_of_nan_stays_by_itself() -> None:
    mechanism = parse("exp/sum")
    inputs = inputs_of(mechanism, queries=17, keys=17)
    spoiled = inputs.map(lambda each: torch.cat([each[:, :, :5], each[:, :, 5:10] * torch.nan, each[:, :, 10:]], 2))
    found = attend(mechanism, *spoiled.qkv, cu_seqlens=torch.tensor(QUERIES)).output
    expected = attend(mechanism, *inputs.qkv, cu_seqlens=torch.tensor(QUERIES)).output
    assert bool(found[:, :, 5:10].isnan().all())
    kept = [*range(5), *range(10, 17)]
    assert torch.equal(found[:, :, kept], expected[:, :, kept])


# ------------------------------------------------------------------------------------------------- refusals


def call(text: str = "exp/sum", **changes: object) -> None:
    mechanism = parse(text)
    inputs = inputs_of(mechanism, queries=17, keys=17)
    arguments = {**inputs.operands, "cu_seqlens": torch.tensor(QUERIES), **changes}
    attend(mechanism, *inputs.qkv, **arguments)


def bounds_of(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


REFUSALS: list[tuple[dict[str, object], type[MaclaurinError], str]] = [
    ({"cu_seqlens": bounds_of(1, 17)}, ConfigError, "cu_seqlens starts at 1, not at 0.\n"),
    ({"cu_seqlens": bounds_of(0, 16)}, ConfigError, "cu_seqlens ends at 16, but T = 17.\n  Give an int32 or int64"),
    ({"cu_seqlens": bounds_of(0, 18)}, ConfigError, "cu_seqlens ends at 18, but T = 17.\n"),
    ({"cu_seqlens": bounds_of(0, 9, 8, 17)}, ConfigError, "cu_seqlens decreases from 9 to 8 at document 1.\n"),
    ({"cu_seqlens": bounds_of(0, 17)[None]}, ShapeError, "cu_seqlens has shape (1, 2).\n"),
    ({"cu_seqlens": bounds_of()}, DtypeError, "cu_seqlens is torch.float32.\n"),
    ({"cu_seqlens": torch.zeros(0, dtype=torch.int32)}, ShapeError, "cu_seqlens has shape (0,).\n"),
    ({"cu_seqlens": bounds_of(0, 17).short()}, DtypeError, "cu_seqlens is torch.int16.\n"),
    ({"cu_seqlens": [0, 17]}, DtypeError, "cu_seqlens is a list.\n"),
    ({"cu_seqlens_k": bounds_of(0, 17)}, ConfigError, "cu_seqlens is of 7 documents, cu_seqlens_k of 1.\n"),
    (
        {"cu_seqlens_k": bounds_of(0, 0, 0, 0, 0, 0, 0, 16)},
        ConfigError,
        "cu_seqlens_k ends at 16, but S = 17.\n",
    ),
    ({"cu_seqlens": None, "cu_seqlens_k": bounds_of(0, 17)}, ConfigError, "cu_seqlens_k was given without cu_seqlens"),
    ({"mask": torch.ones(1, 17, dtype=torch.bool)}, MaskError, "a mask was given together with cu_seqlens"),
    ({"return_diagnostics": True}, MethodError, "return_diagnostics was asked together with cu_seqlens"),
    ({"state": 3}, StateError, "state is a int"),
    ({"method": "nearly"}, MethodError, "method='nearly' does not exist"),
    ({"value_gate": torch.ones(1, 2, 17)}, ConfigError, "value_gate was given to exp/sum, which does not read it"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "error", "message"), REFUSALS, ids=[each[2].split("\n")[0] for each in REFUSALS])
def test_refusals(changes: dict[str, object], error: type[MaclaurinError], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        call(**changes)
    assert str(caught.value).startswith("attend: ")


def test_a_batch_of_rows() -> None:
    inputs = draw(0, batch=2, queries=17, keys=17)
    with pytest.raises(ShapeError, match="cu_seqlens was given with a batch of 2; documents are packed into one row"):
        attend("exp/sum", *inputs.qkv, cu_seqlens=torch.tensor(QUERIES))


def test_other_lengths_of_keys_need_bounds_of_their_own() -> None:
    inputs = draw(0, batch=1, queries=17, keys=18)
    with pytest.raises(ConfigError, match="cu_seqlens was given alone, with 17 queries and 18 keys"):
        attend("exp/sum", *inputs.qkv, cu_seqlens=torch.tensor(QUERIES))


@pytest.mark.parametrize("text", ["exp/sum", "taylor:2/sum", "exp/sum+window:4"])
def test_a_state_of_another_batch(text: str) -> None:
    with pytest.raises(StateError, match=r"the state has a batch of 3, cu_seqlens is of 7 documents\.\n  Give a state"):
        call(text, state=carried(parse(text), 3))


def test_a_state_of_another_mechanism() -> None:
    with pytest.raises(StateError, match=r"the state belongs to taylor:2/sum, the call is for exp/sum"):
        call("exp/sum", state=carried(parse("taylor:2/sum"), 7))


@pytest.mark.parametrize("name", ["log_decay", "value_gate"])
def test_operands_are_packed_too(name: str) -> None:
    with pytest.raises(ShapeError, match=re.escape(f"{name}, ")):
        call("exp/sum+valuegate+decay", **{name: -torch.ones(7, 2, 17)})


def test_a_positive_log_decay_is_found_before_any_work() -> None:
    calls = []

    class Watched(Cosine):
        def __call__(self, x: Tensor) -> Tensor:
            calls.append(x.shape)
            return super().__call__(x)

    mechanism = replace(parse("exp/sum+decay"), similarity=Similarity(Exp(), Watched()), normalizer=Sum())
    inputs = inputs_of(parse("exp/sum+decay"), queries=17, keys=17)
    log_decay = inputs.operands["log_decay"].clone()
    log_decay[0, 0, -1] = 1.0
    with pytest.raises(ConfigError, match="log_decay reaches 1"):
        attend(mechanism, *inputs.qkv, log_decay=log_decay, cu_seqlens=torch.tensor(QUERIES))
    assert calls == []


def test_the_comparison_here_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents whose tokens are each one place late are noticed."""
    original = packed._Rows.batched
    monkeypatch.setattr(packed._Rows, "batched", lambda rows, tensor: original(rows, tensor).roll(1, 2))
    with pytest.raises(AssertionError, match="output: deviation"):
        check(parse("taylor:2/sum"), inputs_of(parse("taylor:2/sum")), (QUERIES, KEYS))
