"""Steps on fused moments: equal to the recurrent evaluation, in few operations, refusing what they refuse when new.

Run: pytest tests/unit/evaluate/test_decode.py -q

Dimension key: B batch, H query heads, Hkv key/value heads, T tokens, K key dim, V value dim.
"""

from __future__ import annotations

import copy
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from laws.cases import BEYOND, MEMBERS, Inputs, draw, named
from laws.checks import assert_states_close
from laws.compare import assert_close
from maclaurin import Mechanism, State, attend
from maclaurin.algebra import CallableMap, Gates, Similarity, Sum, Taylor, parse
from maclaurin.errors import ConfigError, DtypeError, MaclaurinError, ShapeError, StateError
from maclaurin.evaluate import Stepper, decode, stepper
from maclaurin.evaluate.decode import Decoder

#: float64 rounding is 1.1e-16; the same few dozen products, in another order, cost up to three digits of it.
RTOL = 1e-12
TOKENS = 19

GATED = (
    "elu1/sum+valuegate+decay+outgate:after",
    "taylor:2/sum+valuegate+decay+outgate",
    "taylor:1/length:learned+valuegate+decay+outgate:after",
    "power:2/l2+decay+outgate",
    "poly:0.25,0,0,-2/rms:weight+decay+valuegate",
    "taylor:4/sum+decay",
    "taylor:3/layer:weight:bias+valuegate",
    "cosine>taylor:2/cumgate+decay+outgate",
    "taylor:0/none+decay",
    "relu>power:3/sum:eps=0.1:clamp=0.5+decay",
    "taylor:2@mean/sum:eps=0.1+valuegate+decay+outgate",
    "taylor:1@mean/none+decay",
    "taylor:3@mean/length:learned+outgate:after",
    "cosine>taylor:4@mean/l2",
    "taylor:2@mean/cumgate+decay",
)


def is_served(mechanism: Mechanism) -> bool:
    """Whether moments are the whole state, but for taylor:0@mean, which holds a denominator without a numerator."""
    if mechanism.far is None or mechanism.window is not None:
        return False
    return not (mechanism.far.is_centered and mechanism.far.function == Taylor(0))


def served() -> list[object]:
    every = [*MEMBERS, *BEYOND, *((text, parse(text)) for text in GATED)]
    return named((name, mechanism) for name, mechanism in every if is_served(mechanism))


def sizes_of(inputs: Inputs) -> dict[str, Any]:
    """What ``State.empty`` needs for these."""
    batch, kv_heads, _, key_dim = inputs.key.shape
    value_dim, dtype = inputs.value.shape[-1], inputs.value.dtype
    return {
        "batch_size": batch,
        "num_kv_heads": kv_heads,
        "key_dim": key_dim,
        "value_dim": value_dim,
        "dtype": torch.float64 if dtype == torch.float64 else torch.float32,
    }


def start_of(mechanism: Mechanism, inputs: Inputs, tokens: int) -> State:
    """The state of a prompt; rows see different numbers of its keys."""
    if tokens == 0:
        return State.empty(mechanism, **sizes_of(inputs))
    part = inputs.part(slice(0, tokens), slice(0, tokens))
    seen = torch.arange(inputs.key.shape[0])[:, None] % tokens
    mask = torch.arange(tokens) >= seen
    found = attend(mechanism, *part.qkv, **part.operands, mask=mask, return_state=True).state
    assert found is not None
    return found


def of_time(inputs: Inputs) -> dict[str, Tensor]:
    names = ("log_decay", "value_gate", "output_gate", "denominator_logit")
    return {name: each for name, each in inputs.operands.items() if name in names}


def made(mechanism: Mechanism, state: State, inputs: Inputs) -> Stepper:
    now = of_time(inputs)
    return stepper(mechanism, state, **{name: each for name, each in inputs.operands.items() if name not in now})


def token(inputs: Inputs, t: int) -> dict[str, Tensor]:
    """The keywords of step ``t``."""
    part = inputs.part(slice(t, t + 1), slice(t, t + 1))
    return {"query": part.query, "key": part.key, "value": part.value, **of_time(part)}


def steps(step: Stepper, inputs: Inputs, start: int, stop: int) -> Tensor:
    return torch.cat([step(**token(inputs, t)) for t in range(start, stop)], dim=2)


def is_fused(step: Stepper) -> bool:
    return isinstance(step._decoder, Decoder)


# ---------------------------------------------------------------------------------------- what the steps compute


@pytest.mark.parametrize("mechanism", served())
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("prompt", [0, 3])
def test_fused_steps_are_the_recurrent_evaluation(mechanism: Mechanism, kv_heads: int, prompt: int) -> None:
    inputs = draw(3, batch=2, heads=4, kv_heads=kv_heads, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)
    state = start_of(mechanism, inputs, prompt)
    step = made(mechanism, state, inputs)
    output = steps(step, inputs, prompt, TOKENS)
    assert is_fused(step)
    rest = inputs.part(slice(prompt, None), slice(prompt, None))
    expected = attend(mechanism, *rest.qkv, **rest.operands, state=state, method="recurrent", return_state=True)
    assert_close(output, expected.output, rtol=RTOL, what="output")
    assert expected.state is not None
    assert_states_close(step.state, expected.state, rtol=RTOL)


@pytest.mark.parametrize("mechanism", served())
def test_a_state_handed_out_mid_way_stays_and_goes_on(mechanism: Mechanism) -> None:
    inputs = draw(4, batch=2, heads=4, kv_heads=2, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)
    step = made(mechanism, start_of(mechanism, inputs, 3), inputs)
    steps(step, inputs, 3, 9)
    kept = step.state
    before = kept.map_tensors(torch.clone)
    rest = steps(step, inputs, 9, TOKENS)
    for path, each in kept.named_tensors().items():
        assert torch.equal(each, before.named_tensors()[path]), f"{path} changed"
    assert torch.equal(steps(made(mechanism, kept, inputs), inputs, 9, TOKENS), rest)  # the same numbers in, and out


@pytest.mark.parametrize("mechanism", served())
def test_no_step_leaves_the_state_as_it_was_given(mechanism: Mechanism) -> None:
    inputs = draw(4, batch=2, heads=4, kv_heads=2, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)
    state = start_of(mechanism, inputs, 7)
    handed = made(mechanism, state, inputs).state
    assert handed.nbytes == state.nbytes
    for path, each in state.named_tensors().items():
        assert torch.equal(handed.named_tensors()[path], each), path


def test_outputs_are_not_written_over_by_later_steps() -> None:
    for text in ("elu1/sum", "taylor:2/none", "power:1/l2", "taylor:1/length"):
        inputs = draw(4, batch=2, heads=4, kv_heads=2, queries=3, key_dim=3, value_dim=5)
        inputs = inputs.of(parse(text))
        step = stepper(text, State.empty(parse(text), **sizes_of(inputs)))
        first = step(**token(inputs, 0))
        copied = first.clone()
        step(**token(inputs, 1))
        assert torch.equal(first, copied), text


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "text", ["elu1/sum+decay+valuegate+outgate", "taylor:2/sum", "taylor:2/length:learned", "taylor:2@mean/sum"]
)
def test_half_precision_keeps_float32_sums(text: str, dtype: torch.dtype) -> None:
    mechanism = parse(text)
    inputs = draw(6, batch=2, heads=4, kv_heads=2, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)
    inputs = inputs.without_reset().map(lambda each: each.to(dtype))
    state = State.empty(mechanism, **sizes_of(inputs))
    step = made(mechanism, state, inputs)
    output = steps(step, inputs, 0, TOKENS)
    expected = attend(mechanism, *inputs.qkv, **inputs.operands, method="recurrent", return_state=True)
    assert is_fused(step)
    assert output.dtype == dtype
    # computed in float32 and rounded once, to 8 bits at the least: one unit in the last place apart
    assert_close(output, expected.output, rtol=2**-7)
    assert expected.state is not None
    assert step.state.dtype == torch.float32
    assert_states_close(step.state, expected.state, rtol=1e-5)  # float32 rounding, 6e-8, of some twenty sums


def test_gates_in_another_dtype_are_taken_as_before() -> None:
    """Gates of another width than the token are brought to that of the sums, not the sums to theirs."""
    mechanism = parse("elu1/sum+valuegate+decay+outgate:after")
    inputs = draw(6, batch=2, heads=4, kv_heads=2, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)
    narrow = Inputs(*inputs.qkv, {name: each.float() for name, each in inputs.operands.items()})
    output = steps(made(mechanism, State.empty(mechanism, **sizes_of(inputs)), narrow), narrow, 0, TOKENS)
    expected = attend(mechanism, *narrow.qkv, **narrow.operands, method="recurrent").output
    assert_close(output, expected, rtol=RTOL)


@pytest.mark.parametrize(
    ("text", "rtol"),
    [
        ("elu1/sum+decay", 0.0),
        ("taylor:2/sum+decay", 0.0),
        ("power:1/l2+decay", 0.0),
        ("taylor:3/length+decay", 0.0),
        ("taylor:2@mean/sum+decay", RTOL),  # sums are forgotten exactly, yet the new ones are about the old reference
    ],
)
def test_a_log_decay_of_minus_infinity_forgets_exactly(text: str, rtol: float) -> None:
    mechanism = parse(text)
    inputs = draw(7, batch=2, heads=4, kv_heads=2, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)
    inputs.operands["log_decay"][:, :, 9] = -math.inf
    old, new = (made(mechanism, start_of(mechanism, inputs, n), inputs) for n in (6, 0))
    steps(old, inputs, 6, 9)
    assert_close(steps(old, inputs, 9, TOKENS), steps(new, inputs, 9, TOKENS), rtol=rtol)
    assert torch.equal(old.state.count, new.state.count)
    reference = new.state.key_reference
    same = old.state if reference is None else old.state.rebase(reference)
    assert_states_close(same, new.state, rtol=rtol)


def test_a_reference_of_zeros_is_given_up_where_all_was_forgotten() -> None:
    """As by ``attend``: such a row is like one that has seen no key, and the next key becomes its reference."""
    mechanism = parse("taylor:2@mean/sum+decay")
    inputs = draw(7, batch=2, heads=4, kv_heads=2, queries=6, key_dim=3, value_dim=5).of(mechanism)
    inputs.key[0, 0, 0] = 0.0
    inputs.operands["log_decay"][:, :, 3] = -math.inf
    state = State.empty(mechanism, **sizes_of(inputs))
    step = made(mechanism, state, inputs)
    for t in range(6):
        given = token(inputs, t)
        state = attend(mechanism, **given, state=state, method="recurrent", return_state=True).state
        step(**given)
        assert state is not None and state.key_reference is not None and step.state.key_reference is not None
        assert torch.equal(step.state.key_reference, state.key_reference), t


def wider(x: Tensor) -> Tensor:
    return torch.cat([x, -x], -1).relu()


def sometimes(x: Tensor) -> Tensor:
    return x if bool((x >= 0).all()) else x.relu()


@pytest.mark.parametrize("function", [wider, sometimes, torch.relu_])
def test_any_map_is_served(function: Callable[[Tensor], Tensor]) -> None:
    """Also one that returns what it is given for some vectors and not for others, or writes over it."""
    mechanism = Mechanism(Similarity(Taylor(2), CallableMap(function, True)), Sum())
    inputs = draw(8, batch=2, heads=4, kv_heads=2, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)
    inputs.query[:, :, ::2].abs_()
    inputs.key[:, :, ::2].abs_()
    step = stepper(mechanism, State.empty(mechanism, **sizes_of(inputs)))
    output = steps(step, inputs.map(torch.clone), 0, TOKENS)
    assert is_fused(step)
    assert_close(output, attend(mechanism, *inputs.map(torch.clone).qkv, method="recurrent").output, rtol=RTOL)


def test_a_map_that_fails_leaves_the_state() -> None:
    def fails(x: Tensor) -> Tensor:
        if bool(x.isnan().any()):
            raise ValueError("not a number")
        return x.relu()

    mechanism = Mechanism(Similarity(Taylor(2), CallableMap(fails, True)), Sum(), Gates(decay=True))
    inputs = draw(8, batch=2, heads=4, kv_heads=2, queries=6, key_dim=3, value_dim=5).of(mechanism)
    step, other = (stepper(mechanism, State.empty(mechanism, **sizes_of(inputs))) for _ in range(2))
    for each in (step, other):
        steps(each, inputs, 0, 4)
    with pytest.raises(ValueError, match="not a number"):
        step(**{**token(inputs, 4), "query": torch.full_like(inputs.query[:, :, :1], math.nan)})
    assert torch.equal(steps(step, inputs, 4, 6), steps(other, inputs, 4, 6))


def test_learned_tensors_are_read_as_they_are_now() -> None:
    mechanism = parse("taylor:2/rms:weight")
    inputs = draw(8, batch=2, heads=4, kv_heads=2, queries=4, key_dim=3, value_dim=5).of(mechanism)
    weight = inputs.operands["norm_weight"].float()  # another dtype: a copy kept from the first step would be stale
    state = State.empty(mechanism, **sizes_of(inputs))
    step, other = (stepper(mechanism, state, norm_weight=each) for each in (weight, weight.clone()))
    assert torch.equal(step(**token(inputs, 0)), other(**token(inputs, 0)))
    weight.mul_(2.0)
    assert torch.equal(step(**token(inputs, 1)), 2.0 * other(**token(inputs, 1)))  # a power of two rounds nothing


def test_copies_go_their_own_way() -> None:
    mechanism = parse("taylor:2/sum+decay")
    inputs = draw(9, batch=2, heads=4, kv_heads=2, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)
    step = made(mechanism, start_of(mechanism, inputs, 3), inputs)
    steps(step, inputs, 3, 6)
    twin = copy.deepcopy(step)
    output = steps(step, inputs, 6, TOKENS)
    assert torch.equal(steps(twin, inputs, 6, TOKENS), output)


@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum+decay", "taylor:2@mean/sum"])
def test_steps_go_on_across_inference_mode(text: str) -> None:
    """Buffers made inside it could not be written to outside."""
    mechanism = parse(text)
    inputs = draw(9, batch=2, heads=4, kv_heads=2, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)
    with torch.inference_mode():
        step = made(mechanism, State.empty(mechanism, **sizes_of(inputs)), inputs)
        first = steps(step, inputs, 0, 5)
    output = torch.cat([first, steps(step, inputs, 5, TOKENS)], dim=2)
    assert_close(output, attend(mechanism, *inputs.qkv, **inputs.operands, method="recurrent").output, rtol=RTOL)


def test_steps_under_torch_compile_are_the_same() -> None:
    mechanism = parse("taylor:2/sum+decay")
    inputs = draw(9, batch=2, heads=4, kv_heads=2, queries=4, key_dim=3, value_dim=5).of(mechanism)
    step, other = (made(mechanism, State.empty(mechanism, **sizes_of(inputs)), inputs) for _ in range(2))
    compiled = torch.compile(lambda **given: step(**given), backend="eager")
    for t in range(4):
        assert torch.equal(compiled(**token(inputs, t)), other(**token(inputs, t)))


class Mark:
    """Something to watch."""


class Marked(torch.autograd.Function):
    """The identity; its node in the graph holds a mark."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mark: Mark) -> Tensor:
        ctx.mark = mark
        return x.clone()


@pytest.mark.parametrize("text", ["elu1/sum+decay", "exp/sum+decay"])
def test_no_graph_is_kept(text: str) -> None:
    """What made the first token may be freed after its step."""
    mechanism = parse(text)
    inputs = draw(9, batch=2, heads=4, kv_heads=2, queries=2, key_dim=3, value_dim=5).of(mechanism).leaves()
    step = made(mechanism, State.empty(mechanism, **sizes_of(inputs)), inputs)
    mark = Mark()
    watched = weakref.ref(mark)
    given = {name: Marked.apply(each, mark) for name, each in token(inputs, 0).items()}
    del mark
    assert watched() is not None
    step(**given)
    del given
    gc.collect()
    assert watched() is None


@pytest.mark.parametrize("sizes", [(0, 2, 3, 5), (2, 2, 0, 5), (2, 2, 3, 0)])
@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum", "power:2/l2"])
def test_sizes_of_zero(text: str, sizes: tuple[int, int, int, int]) -> None:
    batch, kv_heads, key_dim, value_dim = sizes
    inputs = draw(9, batch=batch, heads=4, kv_heads=kv_heads, queries=3, key_dim=key_dim, value_dim=value_dim)
    inputs = inputs.of(parse(text))
    step = stepper(text, State.empty(parse(text), **sizes_of(inputs)))
    output = steps(step, inputs, 0, 3)
    assert is_fused(step)
    assert torch.equal(output, attend(text, *inputs.qkv, method="recurrent").output)


# ---------------------------------------------------------------------------------------- what the steps refuse


def changed(**changes: Any) -> Callable[[dict[str, Tensor]], dict[str, Any]]:
    return lambda given: {**given, **{name: change(given[name]) for name, change in changes.items()}}


def missing(name: str) -> Callable[[dict[str, Tensor]], dict[str, Any]]:
    return lambda given: {key: each for key, each in given.items() if key != name}


def _narrow(given: dict[str, Tensor]) -> dict[str, Any]:
    return {name: each.float() for name, each in given.items()}


def _first_row(given: dict[str, Tensor]) -> dict[str, Any]:
    return {name: each[:1] for name, each in given.items()}


def _two_tokens(given: dict[str, Tensor]) -> dict[str, Any]:
    return {name: torch.cat([each, each], 2) for name, each in given.items()}


def _extra(given: dict[str, Tensor]) -> dict[str, Any]:
    return {**given, "denominator_logit": given["log_decay"]}


CHANGES: list[tuple[str, Callable[[dict[str, Tensor]], dict[str, Any]], type[MaclaurinError]]] = [
    ("the other dtype", _narrow, StateError),
    ("another batch", _first_row, StateError),
    ("two tokens", _two_tokens, ShapeError),
    ("one wider key", changed(key=lambda x: torch.cat([x, x], -1)), ShapeError),
    ("another value dim", changed(value=lambda x: x[..., :2], output_gate=lambda x: x[..., :2]), StateError),
    ("heads that do not group", changed(query=lambda x: x[:, :3]), ShapeError),
    ("three dimensions", changed(query=lambda x: x[:, :, 0]), ShapeError),
    ("mixed dtypes", changed(key=lambda x: x.float()), DtypeError),
    ("no decay", missing("log_decay"), ConfigError),
    ("no value gate", missing("value_gate"), ConfigError),
    ("no output gate", missing("output_gate"), ConfigError),
    ("an operand that it does not read", _extra, ConfigError),
    ("a number for a gate", changed(value_gate=lambda x: 0.5), DtypeError),
    ("an integer gate", changed(value_gate=lambda x: x.long()), DtypeError),
    ("a gate of another shape", changed(output_gate=lambda x: x[..., :2]), ShapeError),
    ("a positive decay", changed(log_decay=lambda x: x.masked_fill(x == x.max(), 0.25)), ConfigError),
]


@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum"])
@pytest.mark.parametrize(("change", "error"), [each[1:] for each in CHANGES], ids=[each[0] for each in CHANGES])
def test_a_change_is_refused_as_at_first_and_leaves_the_state(
    text: str, change: Callable[[dict[str, Tensor]], dict[str, Any]], error: type[MaclaurinError]
) -> None:
    mechanism = parse(f"{text}+valuegate+decay+outgate")
    inputs = draw(2, batch=2, heads=4, kv_heads=2, queries=6, key_dim=3, value_dim=5).of(mechanism)
    wrong = change(token(inputs, 4))

    def fresh() -> Stepper:
        return made(mechanism, State.empty(mechanism, **sizes_of(inputs)), inputs)

    with pytest.raises(error) as at_first:
        fresh()(**wrong)
    step, other = fresh(), fresh()
    for each in (step, other):
        steps(each, inputs, 0, 4)
    before = step.state
    for _ in range(2):  # it is not accepted by being seen once
        with pytest.raises(error) as found:
            step(**wrong)
        assert str(found.value) == str(at_first.value)
    for one, two in zip(step.state.tensors(), before.tensors(), strict=True):
        assert torch.equal(one, two)
    assert torch.equal(step(**token(inputs, 4)), other(**token(inputs, 4)))


@pytest.mark.parametrize("text", ["elu1/sum+decay", "exp/sum+decay", "taylor:2@mean/sum+decay+window:2"])
def test_every_log_decay_is_looked_at(text: str) -> None:
    mechanism = parse(text)
    inputs = draw(2, batch=2, heads=4, kv_heads=2, queries=6, key_dim=3, value_dim=5).of(mechanism)
    step = made(mechanism, State.empty(mechanism, **sizes_of(inputs)), inputs)
    for t in range(6):
        with pytest.raises(ConfigError, match=r"log_decay reaches 0\.5; weights would grow with time"):
            step(**{**token(inputs, t), "log_decay": torch.full((2, 2, 1), 0.5, dtype=torch.float64)})
        step(**token(inputs, t))
    assert_close(step.state.count, attend_count(mechanism, inputs), rtol=RTOL)


def attend_count(mechanism: Mechanism, inputs: Inputs) -> Tensor:
    found = attend(mechanism, *inputs.qkv, **inputs.operands, return_state=True).state
    assert found is not None
    return found.count


def test_what_is_legal_may_change_from_step_to_step() -> None:
    """Half precision and float32 share a state, and so do calls with more query heads."""
    mechanism = parse("taylor:2/sum+outgate")
    inputs = draw(2, batch=2, heads=4, kv_heads=2, queries=6, key_dim=3, value_dim=5).of(mechanism)
    given = [token(inputs.map(lambda each: each.float()), t) for t in range(6)]
    given[2] = {name: each.bfloat16() for name, each in given[2].items()}
    given[3] = {**given[3], "query": given[3]["query"].repeat(1, 2, 1, 1), "output_gate": torch.ones(2, 8, 1)}
    given[4] = {**given[4], "output_gate": given[4]["output_gate"][..., 0]}
    state = State.empty(mechanism, **sizes_of(inputs.map(lambda each: each.float())))
    step = stepper(mechanism, state)
    for each in given:
        found = attend(mechanism, **each, state=state, method="recurrent", return_state=True)
        output = step(**each)
        assert output.dtype == found.output.dtype
        # one rounding of the output's own dtype, or of float32 in the sums
        assert_close(output, found.output, rtol=2**-7 if output.dtype == torch.bfloat16 else 1e-5)
        assert found.state is not None
        state = found.state


# ---------------------------------------------------------------------------------------- what a step costs


class Counted(TorchDispatchMode):
    """Tensor operations, views included, and how many numbers the largest new tensor had."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


#: Operations of one step; each costs 1 to 3 microseconds before it computes anything, and that is nearly all a step
#: costs. What is here was counted, with room for one more: raise it only for something that pays.
MOST_OPERATIONS = {
    "elu1/sum": 16,
    "taylor:2/sum": 14,
    "power:1/l2": 15,
    "taylor:2/sum+decay": 21,
    "elu1/sum+decay+valuegate+outgate": 30,
    "taylor:2@mean/sum": 56,
}


@pytest.mark.parametrize("text", MOST_OPERATIONS)
def test_a_step_is_few_operations_however_many_came_before(text: str) -> None:
    mechanism = parse(text)
    inputs = draw(1, batch=1, heads=8, kv_heads=8, queries=40, key_dim=16, value_dim=16).of(mechanism)
    inputs = inputs.map(lambda each: each.float())
    step = made(mechanism, State.empty(mechanism, **sizes_of(inputs)), inputs)
    counts = []
    for t in range(40):
        given = token(inputs, t)
        with Counted() as counted:
            step(**given)
        counts.append(len(counted.names))
    assert counts[1] <= MOST_OPERATIONS[text], counted.names
    assert set(counts[1:]) == {counts[1]}


@pytest.mark.parametrize("text", ["elu1/sum", "taylor:2/sum+decay"])
def test_the_sums_stay_where_they_are(text: str) -> None:
    mechanism = parse(text)
    inputs = draw(1, batch=2, heads=4, kv_heads=2, queries=9, key_dim=3, value_dim=5).of(mechanism)
    step = made(mechanism, State.empty(mechanism, **sizes_of(inputs)), inputs)
    places = []
    for t in range(9):
        step(**token(inputs, t))
        assert step._fused is not None
        places.append(step._fused.buffer.data_ptr())
    assert len(set(places)) == 1
    tensors = step._view().moments
    assert tensors is not None
    start, stop = places[0], places[0] + step._fused.buffer.numel() * 8
    assert all(start <= each.data_ptr() < stop for each in (*tensors.numerators, *tensors.denominators))


def test_these_comparisons_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = decode._weights

    def without_readout(*arguments: Any) -> tuple[Tensor, Tensor]:
        weight, _ = right(*arguments)
        return weight, weight

    monkeypatch.setattr(decode, "_weights", without_readout)
    with pytest.raises(AssertionError, match="output: deviation"):
        test_fused_steps_are_the_recurrent_evaluation(parse("taylor:2/sum"), 2, 3)
