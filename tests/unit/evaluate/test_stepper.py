"""The stepper: one token after another in place, with the results of ``attend(method="recurrent")``.

Run: pytest tests/unit/evaluate/test_stepper.py -q
"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from laws.cases import Inputs, draw, members, named
from laws.checks import assert_states_close
from laws.compare import assert_close
from maclaurin import Mechanism, State, attend
from maclaurin.algebra import L2, CallableMap, Power, Similarity, parse
from maclaurin.errors import ConfigError, DtypeError, MaclaurinError, MechanismError, ShapeError, StateError
from maclaurin.evaluate import Stepper, stepper
from maclaurin.evaluate.moments import Moments

#: The same products, added in place and in another order: float64 rounding over some forty steps.
RTOL = 1e-12
TEXTS = (
    "exp/l2+valuegate+decay+outgate:after",
    "taylor:2@mean/sum+window:4:2",
    "taylor:4@mean/sum+decay+window:3",
    "elu1/sum+decay+window:5",
    "power:2/sum+decay",
    "power:3/l2+decay",
    "exp/sum+window:8:2",
    "exp/cumgate+decay",
    "exp/cumgate+decay+window:3:1",
    "elu1>taylor:2/cumgate+decay+outgate+window:3:1",
    "cosine/layer:weight:bias",
    "features/length:learned+valuegate+window:1",
    "taylor:0/none+decay+window:2:1",
    "taylor:2:clamp=0.5@mean/sum",
    "taylor:2/sum",
)  # fmt: skip
CASES = named((text, parse(text)) for text in TEXTS)
TOKENS = 23  # more than twice every window


def inputs_of(mechanism: Mechanism, seed: int = 5) -> Inputs:
    return draw(seed, batch=3, heads=4, kv_heads=2, queries=TOKENS, key_dim=3, value_dim=5).of(mechanism)


def split(mechanism: Mechanism, inputs: Inputs) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(operands on a time, operands on none)."""
    per_time = {"log_decay", "value_gate", "output_gate", "denominator_logit"}
    operands = inputs.operands.items()
    return {n: each for n, each in operands if n in per_time}, {n: each for n, each in operands if n not in per_time}


def start_of(mechanism: Mechanism, inputs: Inputs, tokens: int) -> State:
    """The state of a prompt whose rows see different numbers of keys: windows and sinks fill at different times."""
    part = inputs.part(slice(0, tokens), slice(0, tokens))
    mask = torch.arange(tokens) >= torch.tensor([0, min(2, tokens), tokens])[:, None]
    found = attend(mechanism, *part.qkv, **part.operands, mask=mask, return_state=True)
    assert found.state is not None
    return found.state


def steps(step: Stepper, mechanism: Mechanism, inputs: Inputs, start: int, stop: int) -> Tensor:
    """The outputs of one step after another, ``[B, H, T, V]``."""
    outputs = []
    for t in range(start, stop):
        part = inputs.part(slice(t, t + 1), slice(t, t + 1))
        outputs.append(step(*part.qkv, **split(mechanism, part)[0]))
    return torch.cat(outputs, dim=2)


@pytest.mark.parametrize("mechanism", [*CASES, *members()])
@pytest.mark.parametrize("prompt", [0, 3])
def test_steps_are_the_recurrent_evaluation(mechanism: Mechanism, prompt: int) -> None:
    inputs = inputs_of(mechanism)
    if prompt:
        state = start_of(mechanism, inputs, prompt)
    else:
        state = State.empty(mechanism, batch_size=3, num_kv_heads=2, key_dim=3, value_dim=5, dtype=torch.float64)
    before = state.map_tensors(torch.clone)
    step = stepper(mechanism, state, **split(mechanism, inputs)[1])
    middle = steps(step, mechanism, inputs, prompt, prompt + 9)
    kept = step.state
    copy = kept.map_tensors(torch.clone)
    output = torch.cat([middle, steps(step, mechanism, inputs, prompt + 9, TOKENS)], dim=2)
    rest = inputs.part(slice(prompt, None), slice(prompt, None))
    expected = attend(mechanism, *rest.qkv, **rest.operands, state=state, method="recurrent", return_state=True)
    assert_close(output, expected.output, rtol=RTOL, what="output")
    assert expected.state is not None
    assert_states_close(step.state, expected.state, rtol=RTOL)
    for name, one, other in (("given", state, before), ("handed out", kept, copy)):
        for path, each in one.named_tensors().items():
            assert torch.equal(each, other.named_tensors()[path]), f"the state {name} changed in {path}"


@pytest.mark.parametrize("mechanism", CASES)
def test_a_state_handed_out_goes_on_by_any_method(mechanism: Mechanism) -> None:
    inputs = inputs_of(mechanism)
    step = stepper(mechanism, start_of(mechanism, inputs, 3), **split(mechanism, inputs)[1])
    steps(step, mechanism, inputs, 3, 12)
    rest = inputs.part(slice(12, None), slice(12, None))
    found = attend(mechanism, *rest.qkv, **rest.operands, state=step.state).output
    assert_close(steps(step, mechanism, inputs, 12, TOKENS), found, rtol=RTOL)


@pytest.mark.parametrize("text", ["taylor:2@mean/sum", "power:2/cumgate+decay", "taylor:2/sum+window:4:1"])
def test_finite_states_stay_where_they_are(text: str) -> None:
    """No tensor of the state moves, and none grows: the cost of a step does not depend on how many there were."""
    mechanism = parse(text)
    inputs = inputs_of(mechanism)
    step = stepper(mechanism, start_of(mechanism, inputs, 3))

    def places() -> list[tuple[int, int]]:
        tensors = {path: each for path, each in step._view().named_tensors().items() if path != "cache.visible"}
        return [(each.data_ptr(), each.numel()) for each in tensors.values()]

    before = places()
    steps(step, mechanism, inputs, 3, TOKENS)
    assert places() == before


def test_a_growing_cache_is_moved_only_when_it_has_doubled() -> None:
    mechanism = parse("exp/sum+decay")
    inputs = draw(1, batch=1, heads=1, kv_heads=1, queries=300, key_dim=2, value_dim=2).of(mechanism)
    state = State.empty(mechanism, batch_size=1, num_kv_heads=1, key_dim=2, value_dim=2, dtype=torch.float64)
    step = stepper(mechanism, state)
    places = []
    outputs = []
    for t in range(300):
        outputs.append(steps(step, mechanism, inputs, t, t + 1))
        cache = step._view().cache
        assert cache is not None
        places.append(cache.key.data_ptr())
    assert sum(one != other for one, other in pairwise(places)) <= 3  # 64, 128, 256, 512
    expected = attend(mechanism, *inputs.qkv, **inputs.operands).output
    assert_close(torch.cat(outputs, dim=2), expected, rtol=RTOL)
    assert step.state.nbytes == 300 * (2 + 2 + 1) * 8 + 300  # nothing of the room to spare


def test_scale_is_the_one_of_attend() -> None:
    mechanism = parse("taylor:2/sum+window:4")
    inputs = inputs_of(mechanism)
    state = start_of(mechanism, inputs, 3)
    part = inputs.part(slice(3, 4), slice(3, 4))
    expected = attend(mechanism, *part.qkv, state=state, scale=0.1).output
    assert_close(stepper(mechanism, state, scale=0.1)(*part.qkv), expected, rtol=RTOL)


@pytest.mark.parametrize("text", ["taylor:2/sum", "exp/sum", "taylor:2/sum+window:2:1"])
def test_no_gradient_is_recorded(text: str) -> None:
    mechanism = parse(text)
    inputs = inputs_of(mechanism).leaves()
    step = stepper(mechanism, start_of(mechanism, inputs, 3))  # a state that carries gradients
    output = steps(step, mechanism, inputs, 3, 6)
    assert not output.requires_grad
    assert not any(each.requires_grad for each in step.state.tensors())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_float32_states(dtype: torch.dtype) -> None:
    mechanism = parse("taylor:2@mean/sum+window:4:2")
    inputs = inputs_of(mechanism).map(lambda each: each.to(dtype))
    state = start_of(mechanism, inputs, 3)
    step = stepper(mechanism, state)
    with torch.autocast("cpu", dtype):
        output = steps(step, mechanism, inputs, 3, TOKENS)
    rest = inputs.part(slice(3, None), slice(3, None))
    assert output.dtype == dtype
    assert step.state.dtype == torch.float32
    expected = attend(mechanism, *rest.qkv, state=state, method="recurrent").output
    # computed in float32 and rounded once, to 8 bits at the least: one unit in the last place apart
    assert_close(output, expected, rtol=2**-7)


def test_autocast_changes_nothing() -> None:
    mechanism = parse("taylor:2/sum")
    inputs = inputs_of(mechanism).map(lambda each: each.float())
    state = start_of(mechanism, inputs, 3)
    plain = steps(stepper(mechanism, state), mechanism, inputs, 3, 9)
    with torch.autocast("cpu", torch.bfloat16):
        under = stepper(mechanism, state)
        part = [under(*inputs.part(slice(t, t + 1), slice(t, t + 1)).qkv) for t in range(3, 9)]
    assert all(torch.equal(one, plain[:, :, t : t + 1]) for t, one in enumerate(part))


def test_a_callable_map_is_welcome() -> None:
    mechanism = Mechanism(Similarity(Power(1), CallableMap(lambda x: torch.cat([x, -x], -1).relu(), True)), L2())
    inputs = inputs_of(mechanism)
    state = State.empty(mechanism, batch_size=3, num_kv_heads=2, key_dim=3, value_dim=5, dtype=torch.float64)
    output = steps(stepper(mechanism, state), mechanism, inputs, 0, TOKENS)
    assert_close(output, attend(mechanism, *inputs.qkv).output, rtol=RTOL)


def test_a_state_of_no_row() -> None:
    for text in ("taylor:2/sum+window:2:1", "exp/sum"):
        state = State.empty(parse(text), batch_size=0, num_kv_heads=2, key_dim=3, value_dim=5)
        step = stepper(text, state)
        assert step(torch.ones(0, 4, 1, 3), torch.ones(0, 2, 1, 3), torch.ones(0, 2, 1, 5)).shape == (0, 4, 1, 5)


# ------------------------------------------------------------------------------------------------- refusals

SIZES = {"batch_size": 3, "num_kv_heads": 2, "key_dim": 3, "value_dim": 5, "dtype": torch.float64}


def token(**changes: Tensor) -> dict[str, Tensor]:
    one = torch.ones(3, 2, 1, 3, dtype=torch.float64)
    return {"query": one, "key": one, "value": torch.ones(3, 2, 1, 5, dtype=torch.float64), **changes}


def of(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.ones(shape, dtype=dtype)


REFUSALS: list[tuple[dict[str, Tensor], type[MaclaurinError], str]] = [
    ({"query": of(3, 2, 2, 3)}, ShapeError, "step: query (3, 2, 2, 3) has 2 tokens on its time, dimension 2.\n"),
    ({"key": of(3, 2, 0, 3), "value": of(3, 2, 0, 5)}, ShapeError, "step: key (3, 2, 0, 3) has 0 tokens"),
    ({"value": of(3, 2, 2, 5)}, ShapeError, "disagree on time"),
    ({"query": of(3, 2, 3)}, ShapeError, "must have four dimensions each"),
    ({"query": of(3, 3, 1, 3)}, ShapeError, "query heads must be a multiple of key/value heads"),
    ({"query": of(3, 2, 1, 4)}, ShapeError, "disagree on the key dim"),
    ({"query": of(3, 2, 1, 4), "key": of(3, 2, 1, 4)}, StateError, "the state is for [B, Hkv, K, V] = (3, 2, 3, 5)"),
    ({"value": of(3, 2, 1, 6)}, StateError, "the call for (3, 2, 3, 6)"),
    ({each: of(1, 2, 1, 3) for each in ("query", "key")} | {"value": of(1, 2, 1, 5)}, StateError, "(1, 2, 3, 5)"),
    ({"query": of(3, 2, 1, 3, dtype=torch.float32)}, DtypeError, "query is torch.float32, key is torch.float64"),
    ({name: each.float() for name, each in token().items()}, StateError, "the state is torch.float64 on cpu"),
    ({"log_decay": of(3, 2, 1)}, ConfigError, "which does not read it"),
]  # fmt: skip


@pytest.mark.parametrize("text", ["taylor:2/sum", "exp/sum", "exp/sum+window:2:1"])
@pytest.mark.parametrize(("changes", "error", "message"), REFUSALS, ids=[each[2].split("\n")[0] for each in REFUSALS])
def test_a_refused_step_changes_nothing(
    text: str, changes: dict[str, Tensor], error: type[MaclaurinError], message: str
) -> None:
    step = stepper(text, State.empty(parse(text), **SIZES))
    step(**token())
    before = step.state
    with pytest.raises(error, match=re.escape(message)):
        step(**token(**changes))
    for one, other in zip(step.state.tensors(), before.tensors(), strict=True):
        assert torch.equal(one, other)
    step(**token())


def test_gates_are_needed_and_checked_each_step() -> None:
    text = "elu1/sum+decay"
    step = stepper(text, State.empty(parse(text), **SIZES))
    step(**token(log_decay=-of(3, 2, 1)))
    with pytest.raises(ConfigError, match=r"elu1/sum\+decay needs log_decay"):
        step(**token())
    with pytest.raises(ShapeError, match=r"log_decay, .*has shape \(3, 2, 2\)"):
        step(**token(log_decay=-of(3, 2, 2)))
    with pytest.raises(ConfigError, match="log_decay reaches 1"):
        step(**token(log_decay=of(3, 2, 1)))


def test_what_can_be_said_before_the_first_step() -> None:
    state = State.empty(parse("exp/length:learned"), **SIZES)
    with pytest.raises(StateError, match=r"stepper: state is a NoneType\.\n  Give what attend returned"):
        stepper("exp/sum", None)  # type: ignore[arg-type]
    with pytest.raises(StateError, match=r"stepper: the state belongs to exp/length:learned, the steps are of exp/sum"):
        stepper("exp/sum", state)
    with pytest.raises(ConfigError, match="needs length_exponent"):
        stepper("exp/length:learned", state)
    with pytest.raises(ShapeError, match="length_exponent"):
        stepper("exp/length:learned", state, length_exponent=of(4, 1))
    with pytest.raises(DtypeError, match="length_exponent is float"):
        stepper("exp/length:learned", state, length_exponent=0.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="scale=inf is not a finite number"):
        stepper("exp/length:learned", state, scale=float("inf"), length_exponent=of(4))
    with pytest.raises(ConfigError, match="norm_bias was given to exp/length:learned"):
        stepper("exp/length:learned", state, length_exponent=of(4), norm_bias=of(5))
    with pytest.raises(MechanismError, match="scale=-1"):
        stepper("elu1>taylor:1/sum", State.empty(parse("elu1>taylor:1/sum"), **SIZES), scale=-1.0)
    stepper("exp/length:learned", state, length_exponent=of(4))
    five = State.empty(parse("exp/layer:weight:bias"), **SIZES)
    stepper("exp/layer:weight:bias", five, norm_weight=of(4, 5), norm_bias=of(5))


def test_the_comparison_here_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Moments.absorb_in_place

    def forgets_to_decay(self: Moments, *arguments: Tensor | None) -> None:
        original(self, *arguments[:-1])

    monkeypatch.setattr(Moments, "absorb_in_place", forgets_to_decay)
    with pytest.raises(AssertionError, match="output: deviation"):
        test_steps_are_the_recurrent_evaluation(parse("taylor:2@mean/sum+decay+window:3"), 3)
