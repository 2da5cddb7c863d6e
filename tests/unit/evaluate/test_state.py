"""State: what is kept of keys and values, and what it refuses to be mixed with.

Run: pytest tests/unit/evaluate/test_state.py -q
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from laws.cases import draw, members
from laws.compare import assert_close, assert_same
from maclaurin import Mechanism, State, attend, mechanism
from maclaurin.algebra import L2, CallableMap, Power, Similarity, monomials
from maclaurin.errors import MethodError, StateError
from maclaurin.evaluate import MAX_MOMENT_ORDER
from maclaurin.evaluate.state import CacheState, MomentState

GENERATOR = torch.Generator().manual_seed(0)
KEY = torch.randn(2, 3, 5, 4, generator=GENERATOR, dtype=torch.float64)
VALUE = torch.randn(2, 3, 5, 2, generator=GENERATOR, dtype=torch.float64)


def empty(text: str, **changes: object) -> State:
    sizes = {"batch_size": 2, "num_kv_heads": 3, "key_dim": 4, "value_dim": 2, "dtype": torch.float64}
    return State.empty(mechanism(text), **{**sizes, **changes})


def filled(text: str, **changes: object) -> State:
    return empty(text, **changes).absorb(KEY, VALUE, None)


# ------------------------------------------------------------------------------------------------- contents


def test_moments_are_sums_of_monomials_times_values() -> None:
    state = filled("taylor:2/sum")
    for n, phi in enumerate(monomials(KEY, 2)):
        assert_close(state.numerators[n], torch.einsum("bhsf,bhsv->bhfv", phi, VALUE), rtol=1e-14)
        assert_close(state.denominators[n], phi.sum(2), rtol=1e-14)
    assert state.separate_count is None
    assert state.key_reference is None
    assert torch.equal(state.count, torch.full((2, 3), 5.0, dtype=torch.float64))


def test_a_norm_that_ignores_the_denominator_keeps_the_count_alone() -> None:
    state = filled("power:3/l2")
    assert [each.shape[-2] for each in state.numerators] == [20]
    assert state.denominators == ()
    assert torch.equal(state.separate_count, torch.full((2, 3), 5.0, dtype=torch.float64))


def test_centered_moments_are_about_the_first_key() -> None:
    state = filled("taylor:2@mean/l2")
    assert_same(state.key_reference, KEY[:, :, 0])
    assert_close(state.numerators[1], torch.einsum("bhsk,bhsv->bhkv", KEY - KEY[:, :, :1], VALUE), rtol=1e-13)
    assert len(state.denominators) == 2  # count and key sum
    assert_close(state.key_sum, KEY.sum(2), rtol=1e-13)


def test_the_reference_is_the_first_visible_key_and_waits_for_one() -> None:
    visible = torch.tensor([[False, False, True, True, True], [False] * 5])
    state = empty("taylor:2@mean/sum").absorb(KEY, VALUE, visible)
    assert_same(state.key_reference[0], KEY[0, :, 2])
    assert not state.key_reference[1].any()
    later = state.absorb(KEY[:, :, 1:], VALUE[:, :, 1:], None)
    assert_same(later.key_reference[0], KEY[0, :, 2])
    assert_same(later.key_reference[1], KEY[1, :, 1])
    assert torch.equal(later.count, torch.tensor([[7.0] * 3, [4.0] * 3], dtype=torch.float64))


def test_a_first_key_of_zeros_is_a_reference_like_any_other() -> None:
    """Zeros mean "none yet" only before the first key."""
    key = torch.cat([torch.zeros_like(KEY[:, :, :1]), KEY], 2)
    value = torch.cat([VALUE[:, :, :1], VALUE], 2)
    whole = empty("taylor:2@mean/sum").absorb(key, value, None)
    state = empty("taylor:2@mean/sum")
    for s in range(6):
        state = state.absorb(key[:, :, s : s + 1], value[:, :, s : s + 1], None)
    assert not state.key_reference.any()
    for one, other in zip(state.tensors(), whole.tensors(), strict=True):
        assert_close(one, other, rtol=1e-13)


@pytest.mark.parametrize("text", ["taylor:2@mean/sum", "taylor:2:clamp=5@mean/sum"])  # moments, and a cache
def test_the_key_sum_is_over_visible_keys(text: str) -> None:
    visible = torch.tensor([[True, False, True, False, True]] * 2)
    state = empty(text).absorb(KEY, VALUE, visible)
    assert_close(state.key_sum, KEY[:, :, ::2].sum(2), rtol=1e-14)


@pytest.mark.parametrize("text", ["taylor:2/sum", "taylor:2@mean/l2", "power:3/l2"])
def test_keys_that_are_not_visible_change_nothing(text: str) -> None:
    visible = torch.tensor([[True, False, True, False, True]] * 2)
    masked = empty(text).absorb(KEY, VALUE, visible)
    alone = empty(text).absorb(KEY[:, :, ::2], VALUE[:, :, ::2], None)
    for one, other in zip(masked.tensors(), alone.tensors(), strict=True):
        assert_close(one, other, rtol=1e-14)


def test_a_cache_keeps_keys_and_values_as_they_are() -> None:
    visible = torch.tensor([[True, False, True, True, True], [True] * 5])
    state = empty("exp/sum").absorb(KEY, VALUE, visible).absorb(KEY, VALUE, None)
    assert_same(state.key, torch.cat([KEY, KEY], 2))
    assert_same(state.value, torch.cat([VALUE, VALUE], 2))
    assert torch.equal(state.visible.sum(-1), torch.tensor([9, 10]))
    assert torch.equal(state.count[:, 0], torch.tensor([9.0, 10.0], dtype=torch.float64))


def test_absorbing_nothing_changes_nothing() -> None:
    for text in ("exp/sum", "taylor:2@mean/sum", "power:2/l2"):
        state = filled(text)
        after = state.absorb(KEY[:, :, :0], VALUE[:, :, :0], None)
        for one, other in zip(after.tensors(), state.tensors(), strict=True):
            assert torch.equal(one, other)


def test_which_kind_serves_which_mechanism() -> None:
    assert isinstance(empty("taylor:4@mean/sum"), MomentState)
    for text in ("exp/sum", "taylor:2:clamp=5/sum", "taylor:12:clamp=5/sum"):
        assert isinstance(empty(text), CacheState)


# ------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("scale", [0.5, 0.0, -1.0])
@pytest.mark.parametrize("text", ["exp/sum", "taylor:3/l2", "taylor:2@mean/sum", "power:2/sum", "poly:1,0,2/none"])
def test_reading_gives_the_sums_of_the_definition(text: str, scale: float) -> None:
    state = filled(text)
    query = torch.randn(2, 3, 2, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    accumulator = state.read(query, scale)
    x = scale * torch.einsum("bhgtk,bhsk->bhgts", query, KEY)
    similarity = mechanism(text).similarity
    center = x.mean(-1) if similarity.is_centered else None
    weights, log_scale = similarity.weigh(x, torch.ones(6, 5, dtype=torch.bool), center)
    weights = weights * log_scale.exp()[..., None]
    factor = accumulator.log_scale.exp()
    assert_close(accumulator.numerator * factor[..., None], weights @ VALUE[:, :, None], rtol=1e-13)
    if accumulator.denominator is not None:
        assert_close(accumulator.true_denominator, weights.sum(-1), rtol=1e-13)
    assert torch.equal(accumulator.count, torch.full((2, 3, 2, 6), 5.0, dtype=torch.float64))


def test_a_center_given_is_shared_with_keys_outside() -> None:
    query = torch.randn(2, 3, 1, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    center = torch.full((2, 3, 1, 6), 0.7, dtype=torch.float64)
    for text in ("taylor:3@mean/none", "taylor:3:clamp=99@mean/none"):  # moments, and a cache
        accumulator = filled(text).read(query, 0.5, center)
        y = 0.5 * torch.einsum("bhgtk,bhsk->bhgts", query, KEY) - 0.7
        weights = torch.exp(center)[..., None] * (1 + y + y**2 / 2 + y**3 / 6)
        numerator = accumulator.numerator * accumulator.log_scale.exp()[..., None]
        assert_close(numerator, weights @ VALUE[:, :, None], rtol=1e-13)


@pytest.mark.parametrize("text", ["exp/sum", "taylor:2@mean/sum", "power:2/l2"])
def test_an_empty_state_answers_with_an_empty_accumulator(text: str) -> None:
    accumulator = empty(text).read(torch.ones(2, 3, 1, 6, 4, dtype=torch.float64), 1.0)
    assert not accumulator.numerator.any()
    assert not accumulator.count.any()
    assert bool((accumulator.log_scale <= -1e29).all())


# ------------------------------------------------------------------------------------------------- as a value


def test_detach_cuts_the_gradient_and_to_moves() -> None:
    for text in ("exp/sum", "taylor:2@mean/sum"):
        leaf = KEY.clone().requires_grad_()
        state = empty(text).absorb(leaf, VALUE, None)
        assert any(each.requires_grad for each in state.tensors())
        assert not any(each.requires_grad for each in state.detach().tensors())
        moved = state.to("cpu")
        assert moved.mechanism == state.mechanism
        for one, other in zip(moved.tensors(), state.tensors(), strict=True):
            assert torch.equal(one, other)
        assert state.to("meta").device == torch.device("meta")


def test_layout_dtype_and_device() -> None:
    for text in (
        "exp/sum",
        "taylor:2@mean/sum",
        "power:2/l2",
        "power:3/sum:signed",
        "poly:0,0,1,2/l2",
        "taylor:0@mean/l2",
    ):
        state = filled(text)
        assert state.layout == (2, 3, 4, 2)
        assert (state.dtype, state.device) == (torch.float64, torch.device("cpu"))
    assert filled("taylor:0/sum").layout == (2, 3, None, 2)
    assert empty("power:2/l2", dtype=torch.float32).dtype == torch.float32


def test_bytes_are_those_of_the_tensors() -> None:
    assert filled("taylor:2/sum").nbytes == 15 * 3 * 6 * 8
    assert filled("taylor:2@mean/sum").nbytes == (15 * 3 + 4) * 6 * 8
    assert filled("exp/sum").nbytes == 5 * (4 + 2) * 6 * 8 + 2 * 5


@pytest.mark.parametrize("each", members())
def test_the_number_of_bytes_does_not_depend_on_the_keys_seen_exactly_when_it_is_finite(each: Mechanism) -> None:
    inputs = draw(0)
    sizes = set()
    for keys in (3, 30):
        part = inputs.of(each).part(slice(0, keys), slice(0, keys))
        sizes.add(attend(each, *part.qkv, **part.learned, return_state=True).state.nbytes)
    assert (len(sizes) == 1) == each.is_finite_state


def test_a_map_is_asked_for_its_width_in_the_dtype_of_the_state() -> None:
    matrix = torch.ones(4, 9, dtype=torch.float64)
    wide = Mechanism(Similarity(Power(1), CallableMap(lambda x: x @ matrix)), L2())
    assert State.empty(wide, batch_size=1, num_kv_heads=1, key_dim=4, value_dim=2, dtype=torch.float64).layout == (
        1,
        1,
        9,
        2,
    )


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("text", ["exp/sum", "taylor:2/sum", "power:2/l2", "taylor:2:clamp=5@mean/sum"])
def test_a_key_reference_where_none_exists(text: str) -> None:
    with pytest.raises(StateError) as caught:
        empty(text, key_reference=torch.zeros(2, 3, 4))
    message = str(caught.value)
    assert message.startswith(f"key_reference (2, 3, 4) was given to {text}.\n")
    assert "Only a centered finite state (taylor:N@mean) has one, of shape [B, H, K] = (2, 3, 4) here." in message


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5), (1, 3, 4)])
def test_a_key_reference_of_another_shape(shape: tuple[int, ...]) -> None:
    with pytest.raises(StateError, match=re.escape(f"key_reference {shape} was given")):
        empty("taylor:2@mean/sum", key_reference=torch.zeros(shape))


@pytest.mark.parametrize(
    "text", ["taylor:5/l2", "taylor:8/sum", "taylor:6@mean/sum", "power:5/l2", "poly:1,0,0,0,0,1/l2"]
)
def test_an_order_whose_moments_lose_too_many_digits(text: str) -> None:
    assert MAX_MOMENT_ORDER == 4
    with pytest.raises(
        MethodError, match=r"loses too many digits \(promised up to order 4\)\.\n  Use method='parallel'"
    ):
        empty(text)


def test_rebasing_what_has_no_reference() -> None:
    with pytest.raises(StateError, match=r"rebase: a state of taylor:2/sum has no key reference\.\n  Only centered"):
        filled("taylor:2/sum").rebase(KEY[:, :, 0])


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 5), (1, 3, 4), (2, 1, 4)])
def test_rebasing_to_a_reference_of_another_shape(shape: tuple[int, ...]) -> None:
    message = f"has a key reference (2, 3, 4), not {shape}.\n"
    with pytest.raises(StateError, match=re.escape(message)):
        filled("taylor:2@mean/sum").rebase(torch.zeros(shape, dtype=torch.float64))


def other_states() -> list[tuple[State, State, str]]:
    one = filled("taylor:2/sum")
    cache = filled("exp/sum")
    wide: Tensor = torch.cat([KEY, KEY], -1)
    return [
        (one, filled("taylor:2/l2"), r"a state of taylor:2/sum and one of taylor:2/l2\.\n  States hold different"),
        (one, cache, r"merge: a state of taylor:2/sum and one of exp/sum"),
        (one, empty("taylor:2/sum", batch_size=1), r"\(2, 3, 4, 2\) in torch\.float64 on cpu, and one of \(1, 3, 4, 2"),
        (one, empty("taylor:2/sum", num_kv_heads=1), r"and one of \(2, 1, 4, 2\)"),
        (one, empty("taylor:2/sum", value_dim=3), r"and one of \(2, 3, 4, 3\)"),
        (one, empty("taylor:2/sum", dtype=torch.float32), r"and one of \(2, 3, 4, 2\) in torch\.float32"),
        (filled("power:2/l2"), empty("power:2/l2", key_dim=8).absorb(wide, VALUE, None), r"and one of \(2, 3, 8, 2\)"),
        (cache, empty("exp/sum", key_dim=8), r"\[B, Hkv, K, V\] = \(2, 3, 4, 2\) (.|\n)*one of \(2, 3, 8, 2\)"),
        (cache, empty("exp/sum", dtype=torch.float32), r"Merge states of one batch, heads, widths, dtype and device"),
        (cache, KEY, r"merge: a state and a Tensor\.\n  Only states can be merged"),
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(10))
def test_states_that_do_not_belong_together(case: int) -> None:
    one, other, message = other_states()[case]
    with pytest.raises(StateError, match=message):
        one.merge(other)
