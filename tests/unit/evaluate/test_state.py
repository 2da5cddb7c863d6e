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
from maclaurin.evaluate.cache import Cache, Slots
from maclaurin.evaluate.operands import Keys, Queries

GENERATOR = torch.Generator().manual_seed(0)
KEY = torch.randn(2, 3, 5, 4, generator=GENERATOR, dtype=torch.float64)
VALUE = torch.randn(2, 3, 5, 2, generator=GENERATOR, dtype=torch.float64)


def empty(text: str, **changes: object) -> State:
    sizes = {"batch_size": 2, "num_kv_heads": 3, "key_dim": 4, "value_dim": 2, "dtype": torch.float64}
    return State.empty(mechanism(text), **{**sizes, **changes})


def filled(text: str, **changes: object) -> State:
    return empty(text, **changes).absorb(keys())


def keys(key: Tensor = KEY, value: Tensor = VALUE, visible: Tensor | None = None, **operands: Tensor | None) -> Keys:
    return Keys(key, value, visible, **operands)


def queries(query: Tensor, scale: float) -> Queries:
    """For mechanisms of one map and no window: near and far alike."""
    return Queries(query, query, scale, scale, None)


# ------------------------------------------------------------------------------------------------- contents


def test_moments_are_sums_of_monomials_times_values() -> None:
    state = filled("taylor:2/sum")
    for n, phi in enumerate(monomials(KEY, 2)):
        assert_close(state.moments.numerators[n], torch.einsum("bhsf,bhsv->bhfv", phi, VALUE), rtol=1e-14)
        assert_close(state.moments.denominators[n], phi.sum(2), rtol=1e-14)
    assert state.moments.separate_count is None
    assert state.key_reference is None
    assert torch.equal(state.count, torch.full((2, 3), 5.0, dtype=torch.float64))


def test_a_norm_that_ignores_the_denominator_keeps_the_count_alone() -> None:
    state = filled("power:3/l2")
    assert [each.shape[-2] for each in state.moments.numerators] == [20]
    assert state.moments.denominators == ()
    assert torch.equal(state.moments.separate_count, torch.full((2, 3), 5.0, dtype=torch.float64))


def test_centered_moments_are_about_the_first_key() -> None:
    state = filled("taylor:2@mean/l2")
    assert_same(state.key_reference, KEY[:, :, 0])
    assert_close(state.moments.numerators[1], torch.einsum("bhsk,bhsv->bhkv", KEY - KEY[:, :, :1], VALUE), rtol=1e-13)
    assert len(state.moments.denominators) == 2  # count and key sum
    assert_close(state.moments.key_sum, KEY.sum(2), rtol=1e-13)


def test_the_reference_is_the_first_visible_key_and_waits_for_one() -> None:
    visible = torch.tensor([[False, False, True, True, True], [False] * 5])
    state = empty("taylor:2@mean/sum").absorb(keys(visible=visible))
    assert_same(state.key_reference[0], KEY[0, :, 2])
    assert not state.key_reference[1].any()
    later = state.absorb(keys(KEY[:, :, 1:], VALUE[:, :, 1:]))
    assert_same(later.key_reference[0], KEY[0, :, 2])
    assert_same(later.key_reference[1], KEY[1, :, 1])
    assert torch.equal(later.count, torch.tensor([[7.0] * 3, [4.0] * 3], dtype=torch.float64))


def test_a_first_key_of_zeros_is_a_reference_like_any_other() -> None:
    """Zeros mean "none yet" only before the first key."""
    key = torch.cat([torch.zeros_like(KEY[:, :, :1]), KEY], 2)
    value = torch.cat([VALUE[:, :, :1], VALUE], 2)
    whole = empty("taylor:2@mean/sum").absorb(keys(key, value))
    state = empty("taylor:2@mean/sum")
    for s in range(6):
        state = state.absorb(keys(key[:, :, s : s + 1], value[:, :, s : s + 1]))
    assert not state.key_reference.any()
    for one, other in zip(state.tensors(), whole.tensors(), strict=True):
        assert_close(one, other, rtol=1e-13)


def test_the_key_sum_is_over_visible_keys() -> None:
    visible = torch.tensor([[True, False, True, False, True]] * 2)
    state = empty("taylor:2@mean/sum").absorb(keys(visible=visible))
    assert_close(state.moments.key_sum, KEY[:, :, ::2].sum(2), rtol=1e-14)


@pytest.mark.parametrize("text", ["taylor:2/sum", "taylor:2@mean/l2", "power:3/l2"])
def test_keys_that_are_not_visible_change_nothing(text: str) -> None:
    visible = torch.tensor([[True, False, True, False, True]] * 2)
    masked = empty(text).absorb(keys(visible=visible))
    alone = empty(text).absorb(keys(KEY[:, :, ::2], VALUE[:, :, ::2]))
    for one, other in zip(masked.tensors(), alone.tensors(), strict=True):
        assert_close(one, other, rtol=1e-14)


def test_a_cache_keeps_keys_and_values_as_they_are() -> None:
    visible = torch.tensor([[True, False, True, True, True], [True] * 5])
    state = empty("exp/sum").absorb(keys(visible=visible)).absorb(keys())
    assert_same(state.cache.key, torch.cat([KEY, KEY], 2))
    assert_same(state.cache.value, torch.cat([VALUE, VALUE], 2))
    assert torch.equal(state.cache.visible.sum(-1), torch.tensor([9, 10]))
    assert torch.equal(state.count[:, 0], torch.tensor([9.0, 10.0], dtype=torch.float64))


def test_absorbing_nothing_changes_nothing() -> None:
    for text in ("exp/sum", "taylor:2@mean/sum", "power:2/l2"):
        state = filled(text)
        after = state.absorb(keys(KEY[:, :, :0], VALUE[:, :, :0]))
        for one, other in zip(after.tensors(), state.tensors(), strict=True):
            assert torch.equal(one, other)


def test_what_is_kept_for_which_mechanism() -> None:
    for text in ("taylor:4@mean/sum", "elu1/sum+decay", "power:2/cumgate"):
        assert empty(text).cache is None
        assert empty(text).moments is not None
    for text in ("exp/sum", "taylor:2:clamp=5/sum", "taylor:12:clamp=5/sum", "exp/cumgate+decay"):
        assert isinstance(empty(text).cache, Cache)
        assert empty(text).moments is None
    assert isinstance(empty("exp/sum+window:4").cache, Slots)
    assert empty("exp/sum+window:4").moments is None
    assert isinstance(empty("taylor:2/sum+window:4").cache, Slots)
    assert empty("taylor:2/sum+window:4").moments is not None
    for text in ("exp/cumgate", "taylor:2/cumgate"):
        assert empty(text).log_denominator is not None
    assert empty("exp/sum").log_denominator is None


DECAY = -torch.rand(2, 3, 5, generator=GENERATOR, dtype=torch.float64)


def kept(log_decay: Tensor) -> Tensor:
    """The factor of every key after the last, written as sums of what comes later."""
    return torch.stack([log_decay[..., s + 1 :].sum(-1).exp() for s in range(log_decay.shape[-1])], dim=-1)


def test_moments_decay_by_what_comes_after_each_key() -> None:
    reset = DECAY.clone()
    reset[0, 1, 2] = -torch.inf
    for log_decay in (DECAY, reset):
        state = empty("taylor:2/sum+decay").absorb(keys(log_decay=log_decay))
        for n, phi in enumerate(monomials(KEY, 2)):
            weighed = phi * kept(log_decay)[..., None]
            assert_close(state.moments.numerators[n], weighed.transpose(-1, -2) @ VALUE, rtol=1e-14)
            assert_close(state.moments.denominators[n], weighed.sum(2), rtol=1e-14)
        assert_close(state.count, kept(log_decay).sum(-1), rtol=1e-14)


def test_the_first_log_decay_is_of_the_state_before() -> None:
    once = empty("taylor:2/l2+decay").absorb(keys(log_decay=DECAY))
    first = DECAY.clone()
    first[..., 0] = -torch.inf
    assert_close(
        once.moments.numerators[2],
        empty("taylor:2/l2+decay").absorb(keys(log_decay=first)).moments.numerators[2],
        rtol=1e-14,
    )
    twice = once.absorb(keys(log_decay=DECAY))
    expected = once.moments.numerators[2] * (1.0 + DECAY.sum(-1).exp())[..., None, None]
    assert_close(twice.moments.numerators[2], expected, rtol=1e-14)
    assert_same(once.absorb(keys(log_decay=first)).count, once.count)


def test_a_cache_keeps_the_log_decay_of_every_key() -> None:
    state = empty("exp/sum+decay").absorb(keys(log_decay=DECAY)).absorb(keys(log_decay=DECAY))
    later = torch.stack([DECAY[..., s + 1 :].sum(-1) for s in range(5)], dim=-1)
    assert_close(state.cache.log_weight, torch.cat([later + DECAY.sum(-1)[..., None], later], -1), rtol=1e-14)
    assert_close(state.count, state.cache.log_weight.exp().sum(-1), rtol=1e-14)


@pytest.mark.parametrize("seen", range(6))
def test_a_window_keeps_the_first_and_the_last_visible_keys(seen: int) -> None:
    visible = torch.tensor([[True, False, True, True, True], [True] * 5])[:, :seen]
    state = empty("taylor:1/l2+window:2:1").absorb(keys(KEY[:, :, :seen], VALUE[:, :, :seen], visible))
    for b in range(2):
        shown = [s for s in range(seen) if visible[b, s]]
        sinks, last = shown[:1], [s for s in shown if s not in shown[:1]][-2:]
        entries = state.cache.entries
        assert int(state.cache.filled[b, 0]) == len(sinks) + len(last)
        filled = entries.visible[b]
        assert_same(entries.key[b][:, filled], KEY[b][:, sinks + last])
        assert_same(entries.value[b][:, filled], VALUE[b][:, sinks + last])
        assert not entries.key[b][:, ~filled].any()
        beyond = [s for s in shown if s not in sinks + last]
        assert_close(state.moments.numerators[0][b, :, 0], VALUE[b][:, beyond].sum(1), rtol=1e-14, scale=1.0)
    assert torch.equal(state.count[:, 0], visible.sum(-1).double())


def test_the_log_denominator_sums_exp_of_what_each_key_adds() -> None:
    u = 300.0 * DECAY + 200.0
    visible = torch.tensor([[True, False, True, True, True], [True] * 5])
    state = empty("taylor:2/cumgate").absorb(keys(visible=visible, denominator_logit=u))
    expected = torch.where(visible[:, None], u, -torch.inf).logsumexp(-1)
    assert_close(state.log_denominator, expected, rtol=1e-14)
    decayed = empty("exp/cumgate+decay").absorb(keys(log_decay=DECAY, denominator_logit=u))
    assert_close(decayed.log_denominator, (u + kept(DECAY).log()).logsumexp(-1), rtol=1e-14)
    assert bool((empty("exp/cumgate").log_denominator < -1e29).all())


# ------------------------------------------------------------------------------------------------- reading


@pytest.mark.parametrize("scale", [0.5, 0.0, -1.0])
@pytest.mark.parametrize("text", ["exp/sum", "taylor:3/l2", "taylor:2@mean/sum", "power:2/sum", "poly:1,0,2/none"])
def test_reading_gives_the_sums_of_the_definition(text: str, scale: float) -> None:
    state = filled(text)
    query = torch.randn(2, 3, 2, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    accumulator = state.read(queries(query, scale))
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
    accumulator = filled("taylor:3@mean/none").read_moments(queries(query, 0.5), center)
    y = 0.5 * torch.einsum("bhgtk,bhsk->bhgts", query, KEY) - 0.7
    weights = torch.exp(center)[..., None] * (1 + y + y**2 / 2 + y**3 / 6)
    numerator = accumulator.numerator * accumulator.log_scale.exp()[..., None]
    assert_close(numerator, weights @ VALUE[:, :, None], rtol=1e-13)


def test_the_far_log_weight_multiplies_what_the_moments_give() -> None:
    query = torch.randn(2, 3, 1, 6, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)[:, None, None]
    state = filled("power:2/sum+window:1:1")
    plain, weighed = (state.read_moments(Queries(query, query, 0.5, 0.5, each)) for each in (None, weight))
    for one, other in (
        (weighed.true_denominator, plain.true_denominator),
        (weighed.numerator * weighed.log_scale.exp()[..., None], plain.numerator),
    ):
        factor = weight.exp() if other.ndim == 4 else weight.exp()[..., None]
        assert_close(one, other * factor, rtol=1e-13)
    assert_same(weighed.count, plain.count)


@pytest.mark.parametrize("text", ["exp/sum", "taylor:2@mean/sum", "power:2/l2"])
def test_an_empty_state_answers_with_an_empty_accumulator(text: str) -> None:
    accumulator = empty(text).read(queries(torch.ones(2, 3, 1, 6, 4, dtype=torch.float64), 1.0))
    assert not accumulator.numerator.any()
    assert not accumulator.count.any()
    assert bool((accumulator.log_scale <= -1e29).all())


# ------------------------------------------------------------------------------------------------- as a value


def test_detach_cuts_the_gradient_and_to_moves() -> None:
    for text in ("exp/sum", "taylor:2@mean/sum"):
        leaf = KEY.clone().requires_grad_()
        state = empty(text).absorb(keys(leaf, VALUE))
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
        "exp/sum+window:2:1",
        "taylor:2/sum+window:2",
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
    assert filled("exp/sum+window:2:1").nbytes == (3 * (4 + 2) + 1) * 6 * 8
    assert empty("power:2/l2+decay+window:2:1").nbytes == (10 * 2 + 1 + 3 * (4 + 2 + 1) + 1) * 6 * 8
    assert empty("exp/cumgate").nbytes == 6 * 8


@pytest.mark.parametrize("each", members())
def test_the_number_of_bytes_does_not_depend_on_the_keys_seen_exactly_when_it_is_finite(each: Mechanism) -> None:
    inputs = draw(0)
    sizes = set()
    for num_keys in (3, 30):
        part = inputs.of(each).part(slice(0, num_keys), slice(0, num_keys))
        sizes.add(attend(each, *part.qkv, **part.operands, return_state=True).state.nbytes)
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
    assert message == (
        f"key_reference (2, 3, 4) was given to {text}.\n"
        "  Only a centered finite state (taylor:N@mean) has one, of shape [B, H, K]. Leave it out."
    )


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


@pytest.mark.parametrize("log_decay", [torch.zeros(2, 3, dtype=torch.float64), None])
def test_merging_takes_a_log_decay_exactly_with_decay(log_decay: Tensor | None) -> None:
    text = "taylor:2/sum+decay" if log_decay is None else "taylor:2/sum"
    says = "needs" if log_decay is None else "has no decay and takes no"
    with pytest.raises(StateError, match=re.escape(f"merge: {text} {says} log_decay, the sum of the log decays")):
        empty(text).merge(empty(text), log_decay)


@pytest.mark.parametrize("indices", [[0, 2], [-1], [[0]], [0.0], [True, False]])
def test_reordering_by_what_is_no_list_of_rows(indices: object) -> None:
    with pytest.raises(StateError, match=r"is no list of batch rows\.\n  Give whole numbers from 0 to 1"):
        filled("taylor:2/sum").reorder(indices)


@pytest.mark.parametrize("text", ["exp/sum", "taylor:2@mean/sum", "power:2/l2+window:2:1", "exp/cumgate"])
def test_reordering_chooses_batch_rows_and_repeats_them(text: str) -> None:
    state = empty(text).absorb(keys(denominator_logit=DECAY if "cumgate" in text else None))
    for indices in ([1, 0, 1], torch.tensor([1, 0, 1], dtype=torch.int32), torch.tensor([], dtype=torch.int64)):
        chosen = state.reorder(indices)
        for one, other in zip(chosen.tensors(), state.tensors(), strict=True):
            assert torch.equal(one, other[list(map(int, indices))])


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
        (filled("power:2/l2"), empty("power:2/l2", key_dim=8).absorb(keys(wide, VALUE)), r"and one of \(2, 3, 8, 2\)"),
        (cache, empty("exp/sum", key_dim=8), r"\[B, Hkv, K, V\] = \(2, 3, 4, 2\) (.|\n)*one of \(2, 3, 8, 2\)"),
        (cache, empty("exp/sum", dtype=torch.float32), r"Merge states of one batch, heads, widths, dtype and device"),
        (cache, KEY, r"merge: a state and a Tensor\.\n  Only states can be merged"),
    ]  # fmt: skip


@pytest.mark.parametrize("case", range(10))
def test_states_that_do_not_belong_together(case: int) -> None:
    one, other, message = other_states()[case]
    with pytest.raises(StateError, match=message):
        one.merge(other)
