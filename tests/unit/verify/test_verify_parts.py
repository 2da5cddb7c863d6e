"""Comparisons, states as trees, inputs by their axes, signatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from maclaurin import attend
from maclaurin.verify.compare import DOUBLE, close, close_gradients, deviation, error_ratio, finite, same, zero
from maclaurin.verify.inputs import Sizes, draw, smaller
from maclaurin.verify.probe import refusal
from maclaurin.verify.target import Fault, Form, Target
from maclaurin.verify.tree import as_leaves, copied, map_tensors, moved, nbytes, tensors_of, through_disk

NAN, INFINITY = torch.tensor([0.0, float("nan")]), torch.tensor([0.0, float("inf")])


def test_what_is_not_finite_is_never_equal() -> None:
    for bad in (NAN, INFINITY):
        for other in (bad, torch.zeros(2)):
            assert deviation(bad, other) == float("inf")
            assert error_ratio(other, bad) == float("inf")
            assert same("x", bad, other).is_failure
            assert close("x", other, bad, DOUBLE).is_failure
        assert finite("x", bad).is_failure
    assert zero("x", NAN).is_failure
    assert not zero("x", torch.zeros(3)).is_failure
    assert zero("x", torch.tensor([1e-300], dtype=torch.float64)).is_failure
    assert same("x", torch.zeros(2), torch.zeros(3)).is_failure


def test_a_deviation_is_relative_to_the_largest_expected_number() -> None:
    assert deviation(torch.tensor([9.0, 4.0]), torch.tensor([8.0, 4.0])) == 0.125
    assert deviation(torch.tensor([1.0]), torch.tensor([0.0])) == float("inf")
    assert deviation(torch.tensor([1.0]), torch.tensor([0.0]), floor=4.0) == 0.25
    (gap,) = close_gradients("g", {"x": torch.tensor([1e-17])}, {"x": torch.tensor([0.0])}, DOUBLE)
    assert not gap.is_failure


class Pair(NamedTuple):
    one: Tensor
    other: object


@dataclass(frozen=True)
class Held:
    tensor: Tensor
    words: str


def test_states_of_any_shape_travel() -> None:
    state = Pair(torch.arange(3.0), [{"k": torch.full((2,), 1.5)}, Held(torch.tensor([0.25]), "words"), None, 3])
    back = through_disk(state)
    assert isinstance(back, Pair)
    assert [each.tolist() for each in tensors_of(back)] == [[0.0, 1.0, 2.0], [1.5, 1.5], [0.25]]
    assert back.other[1].words == "words"
    assert nbytes(state) == 24
    doubled = map_tensors(state, lambda each: 2 * each)
    assert doubled.other[0]["k"].tolist() == [3.0, 3.0]
    assert state.other[0]["k"].tolist() == [1.5, 1.5]
    assert copied(state).one.data_ptr() != state.one.data_ptr()
    tree, leaves = as_leaves(state)
    assert len(leaves) == 2
    assert not tree.one.requires_grad  # whole numbers count something
    assert tree.other[0]["k"].requires_grad


def test_our_states_travel() -> None:
    q = torch.randn(1, 2, 4, 3, generator=torch.Generator().manual_seed(1))
    for name in ("exp/sum", "taylor:2@mean/sum"):
        state = attend(name, q, q, q, return_state=True).state
        one, other = (attend(name, q, q, q, state=each).output for each in (state, through_disk(state)))
        assert torch.equal(one, other)


def test_the_key_reference_is_no_leaf() -> None:
    q = torch.randn(1, 2, 4, 3, generator=torch.Generator().manual_seed(1))
    state = attend("taylor:2@mean/sum", q, q, q, return_state=True).state
    tree, leaves = as_leaves(state)
    assert not tree.key_reference.requires_grad
    assert len(leaves) == len(tensors_of(state)) - 2  # D_0 counts the keys
    other = tensors_of(moved(state, 1, torch.ones_like(leaves[1])))
    changed = [i for i, (a, b) in enumerate(zip(tensors_of(state), other, strict=True)) if not torch.equal(a, b)]
    assert len(changed) == 1
    assert torch.equal(other[changed[0]], leaves[1] + 1)


def test_inputs_are_taken_by_their_axes() -> None:
    sizes = Sizes(batch=2, heads=4, queries=5, key_dim=3, value_dim=2, kv_heads=2, keys=7)
    inputs = draw(sizes, ["log_decay", "output_gate", "norm_weight"], 1)
    shapes = {name: tuple(each.shape) for name, each in inputs.tensors.items()}
    assert shapes == {
        "query": (2, 4, 5, 3),
        "key": (2, 2, 7, 3),
        "value": (2, 2, 7, 2),
        "log_decay": (2, 2, 7),
        "output_gate": (2, 4, 5),
        "norm_weight": (4, 2),
    }
    assert (inputs["log_decay"] <= 0).all()
    part = inputs.times(1, 3)
    assert part["key"].shape[2] == part["query"].shape[2] == part["log_decay"].shape[2] == 2
    assert torch.equal(part["norm_weight"], inputs["norm_weight"])
    joined = inputs.times(0, 2).joined(inputs.times(2))
    assert all(torch.equal(joined[name], inputs[name]) for name in inputs.tensors)
    alone = draw(sizes, [], 1)
    assert torch.equal(alone["key"], inputs["key"])  # an operand more changes nothing else
    assert not torch.equal(draw(sizes, [], 2)["key"], inputs["key"])


def test_smaller_sizes_grow_and_keep_what_matters() -> None:
    found = smaller(Sizes(batch=2, heads=6, queries=37, key_dim=5, value_dim=7, kv_heads=3))
    assert found[0].volume <= found[-1].volume < Sizes(2, 6, 37, 5, 7).volume
    assert any(each.of("h") < each.heads for each in found)
    assert all(each.of("S") > each.queries for each in smaller(Sizes(queries=5, keys=12)))


def test_which_errors_decline_a_call() -> None:
    class OwnError(RuntimeError):
        pass

    assert refusal(ValueError("T must be even")) == "T must be even"
    assert refusal(NotImplementedError("no\nwords")) == "no"
    assert refusal(OwnError("a library's own")) == "a library's own"
    for accident in (ValueError(), AssertionError("x"), RuntimeError("x"), IndexError("x"), KeyError("x"), Fault("x")):
        assert refusal(accident) is None


def test_a_signature_says_what_a_function_takes() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor, g: Tensor, sm_scale: float = 1.0, *, mode: str) -> Tensor:
        return v

    target = Target({"f": function}, rename={"log_decay": "g", "scale": "sm_scale"}, fixed={"mode": "fast"})
    form = Form.of(target, "f")
    assert form.accepted == {"log_decay", "scale"}
    assert form.required == ("log_decay",)
    inputs = draw(Sizes(batch=1, heads=2, queries=3), ["log_decay"], 0)
    positional, named = form.arguments(inputs, scale=0.5)
    assert len(positional) == 3
    assert sorted(named) == ["g", "mode", "sm_scale"]


def test_a_pair_mask_holds_the_direction() -> None:
    def function(
        q: Tensor, k: Tensor, v: Tensor, *, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        return v

    form = Form.of(Target({"f": function}, mask_kind="pairs", rename={"mask": "attn_mask"}), "f")
    inputs = draw(Sizes(batch=1, heads=2, queries=3), [], 0)
    mask = torch.tensor([[True, False, True]])
    _, named = form.arguments(inputs, mask=mask, is_causal=True)
    assert named["is_causal"] is False
    assert named["attn_mask"][0, 0].tolist() == [[True, False, False], [True, False, False], [True, False, True]]


@pytest.mark.parametrize("returned", [3.0, (), "text", torch.zeros(1, 2, 4, 4)])
def test_what_is_no_output_fails(returned: object) -> None:
    form = Form.of(Target({"f": lambda q, k, v: returned}), "f")
    with pytest.raises(Fault, match="returned"):
        form.call(draw(Sizes(batch=1, heads=2, queries=3), [], 0))
