"""Multi-query associative recall: every label is what the context says, and nothing else is random but the seed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from maclaurin.errors import ConfigError
from maclaurin.tasks import MQAR
from maclaurin.tasks.draws import distinct, others, successive

SMALL = MQAR(vocab_size=64, length=32, num_pairs=4)


@st.composite
def tasks(draw: st.DrawFn, *, random_non_queries: bool) -> MQAR:
    """Any legal task of a small size, the tight ones (length = 4 pairs, vocabulary = length + 2) among them."""
    num_pairs = draw(st.integers(1, 12))
    length = 4 * num_pairs + 2 * draw(st.integers(0, 12))
    return MQAR(
        vocab_size=length + 2 * draw(st.integers(1, 40)),
        length=length,
        num_pairs=num_pairs,
        power_a=draw(st.sampled_from([0.01, 0.5, 1.0, 3.0])),
        random_non_queries=random_non_queries,
    )


def check_laws(task: MQAR, batch) -> None:
    """What holds in every sequence, found with loops from the tokens alone."""
    context, half = 2 * task.num_pairs, task.vocab_size // 2
    assert batch.tokens.shape[1] == task.length
    assert batch.tokens.min() >= 0
    assert batch.tokens.max() < task.vocab_size
    assert not batch.targets[~batch.mask].any()
    for tokens, targets, mask in zip(batch.tokens, batch.targets, batch.mask, strict=True):
        keys, values = tokens[:context:2].tolist(), tokens[1:context:2].tolist()
        assert len(set(keys)) == len(set(values)) == task.num_pairs
        assert all(1 <= key < half for key in keys)
        assert all(half <= value < task.vocab_size for value in values)
        positions = np.flatnonzero(mask).tolist()
        assert all(position >= context and position % 2 == 0 for position in positions)
        assert sorted(tokens[positions].tolist()) == sorted(keys)  # every key once, hence exactly K labels
        meaning = dict(zip(keys, values, strict=True))
        assert [meaning[key] for key in tokens[positions].tolist()] == targets[positions].tolist()


@settings(deadline=None, max_examples=60)
@given(task=tasks(random_non_queries=False), seed=st.integers(0, 2**32))
def test_labels_are_the_values_of_their_keys_and_the_rest_is_zero(task, seed):
    batch = task.sample(np.random.default_rng(seed), 5)
    check_laws(task, batch)
    assert not batch.tokens[:, 2 * task.num_pairs :][~batch.mask[:, 2 * task.num_pairs :]].any()


@settings(deadline=None, max_examples=60)
@given(task=tasks(random_non_queries=True), seed=st.integers(0, 2**32))
def test_random_fillers_never_repeat_a_key_or_value_of_their_sequence(task, seed):
    batch = task.sample(np.random.default_rng(seed), 5)
    check_laws(task, batch)
    context = 2 * task.num_pairs
    for tokens, mask in zip(batch.tokens, batch.mask, strict=True):
        assert not set(tokens[context:][~mask[context:]].tolist()) & set(tokens[:context].tolist())


def test_random_fillers_are_uniform_over_the_other_tokens():
    task = MQAR(vocab_size=10, length=8, num_pairs=1, random_non_queries=True)
    batch = task.sample(np.random.default_rng(0), 20_000)
    for key, value in [(1, 5), (4, 9)]:
        chosen = (batch.tokens[:, 0] == key) & (batch.tokens[:, 1] == value)
        filler = batch.tokens[chosen, 2:][~batch.mask[chosen, 2:]]
        counts = np.bincount(filler, minlength=10)
        assert counts[key] == counts[value] == 0
        # One fixed seed: the bound is how unlucky that seed may be, and a wrong distribution gives p < 1e-30.
        assert stats.chisquare(np.delete(counts, [key, value])).pvalue > 1e-3


@pytest.mark.parametrize("power_a", [0.01, 1.0, 2.5])
def test_slots_are_drawn_one_after_the_other_without_replacement(power_a):
    """The first and the second draw against exact probabilities; zoology's numpy.random.choice has the same."""
    task = MQAR(vocab_size=64, length=16, num_pairs=2, power_a=power_a)
    batch = task.sample(np.random.default_rng(1), 40_000)
    rows = np.arange(len(batch.tokens))
    first, second = (
        (np.argmax(batch.tokens[:, 4:] == batch.tokens[rows, 2 * pair][:, None], axis=1) // 2) for pair in (0, 1)
    )
    p = np.arange(1, 7) ** (power_a - 1)
    p /= p.sum()
    joint = p[:, None] * p / (1 - p[:, None])  # first i, then j among the rest
    np.fill_diagonal(joint, 0)
    seen = np.zeros((6, 6))
    np.add.at(seen, (first, second), 1)
    off = ~np.eye(6, dtype=bool)
    assert stats.chisquare(seen.sum(axis=1), 40_000 * p).pvalue > 1e-3  # fixed seed: see above
    assert stats.chisquare(seen[off], 40_000 * joint[off]).pvalue > 1e-3


def test_keys_and_values_are_uniform_over_ordered_choices():
    """All 4 * 3 * 2 ordered choices of three of four values are equally likely, repeats and redraws included."""
    drawn = distinct(np.random.default_rng(2), (48_000, 3), low=7, high=11)
    codes, counts = np.unique((drawn - 7) @ [16, 4, 1], return_counts=True)
    assert len(codes) == 24
    assert stats.chisquare(counts).pvalue > 1e-3  # fixed seed: see above


def test_draws_at_their_limits():
    rng = np.random.default_rng(0)
    assert (np.sort(distinct(rng, (50, 9), low=0, high=9)) == np.arange(9)).all()
    assert (np.sort(successive(rng, np.zeros(5), num_rows=50, num_drawn=5)) == np.arange(5)).all()
    assert (others(rng, np.array([[0, 1, 3], [3, 2, 1]]), high=4, length=6) == [[2] * 6, [0] * 6]).all()
    MQAR(vocab_size=4098, length=4096, num_pairs=1024, power_a=50.0).sample(rng, 2)  # weights up to 2048^49


def test_seeds_ignore_and_leave_every_global_generator():
    torch = pytest.importorskip("torch")
    task = MQAR(vocab_size=64, length=32, num_pairs=4, random_non_queries=True)

    def draw(seed: int) -> list[np.ndarray]:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        before = (random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes())
        batches = [next(task.batches(5, 8)), task.test_set(5, 8), task.sample(np.random.default_rng(5), 8)]
        assert before == (
            random.getstate(),
            np.random.get_state()[1].tobytes(),
            torch.get_rng_state().numpy().tobytes(),
        )
        return [array for batch in batches for array in (batch.tokens, batch.targets, batch.mask)]

    assert all(np.array_equal(one, other) for one, other in zip(draw(1), draw(2), strict=True))


def test_batches_are_fresh_and_repeat_with_their_seed():
    stream, again = SMALL.batches(3, 16), SMALL.batches(3, 16)
    first, second = next(stream), next(stream)
    assert not np.array_equal(first.tokens, second.tokens)
    assert np.array_equal(first.tokens, next(again).tokens)
    assert np.array_equal(second.tokens, next(again).tokens)
    assert not np.array_equal(first.tokens, next(SMALL.batches(4, 16)).tokens)


def test_no_test_sequence_is_in_training():
    """With 64-token sequences of 8 pairs a chance repeat is impossible in practice; a shared stream is not."""
    task = MQAR(vocab_size=256, length=64, num_pairs=8)
    training = task.batches(0, 512)
    seen = {row.tobytes() for _ in range(8) for row in next(training).tokens}
    for held_out in (task.test_set(0, 2048), next(task.batches(0, 512, split="validation"))):
        assert not seen & {row.tobytes() for row in held_out.tokens}
    assert np.array_equal(task.test_set(0, 512).tokens, next(task.batches(0, 512, split="test")).tokens)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_pairs": 9}, r"4 \* num_pairs <= length does not hold: 4 \* 9 = 36 > 32"),
        ({"num_pairs": 0}, "num_pairs >= 1 does not hold for 0"),
        ({"length": 64}, "length < vocab_size does not hold: 64 >= 64"),
        ({"length": 33}, "length % 2 == 0 does not hold for 33"),
        ({"vocab_size": 65}, "vocab_size % 2 == 0 does not hold for 65"),
        ({"power_a": 0.0}, "power_a > 0 does not hold for 0.0"),
        ({"power_a": float("nan")}, "power_a=nan: .*finite"),
        ({"length": 32.0}, "length=32.0: .*valid integer"),
        ({"length": True}, "length=True: .*valid integer"),
        ({"train_power_a": 0.01}, "train_power_a: there is no such setting; did you mean 'power_a'"),
    ],
)
def test_illegal_settings_are_refused_with_their_values(wrong, message):
    settings = {"vocab_size": 64, "length": 32, "num_pairs": 4, **wrong}
    (name, value) = next(iter(wrong.items()))
    for build in (lambda: MQAR(**settings), lambda: MQAR.model_validate(settings)):
        with pytest.raises(ConfigError, match=message) as refusal:
            build()
        assert f"{name}={value!r}" in str(refusal.value).splitlines()[0]
        assert str(refusal.value).count("is no task") == 1


def test_all_that_is_wrong_is_said_at_once():
    with pytest.raises(ConfigError, match=r"4 \* num_pairs <= length(?s:.*)length < vocab_size(?s:.*)power_a > 0"):
        MQAR(vocab_size=16, length=16, num_pairs=5, power_a=-1.0)
    with pytest.raises(ConfigError, match=r"length: this setting is missing(?s:.*)lenght: .*did you mean 'length'"):
        MQAR(vocab_size=64, lenght=32, num_pairs=4)


def test_json_and_what_is_no_mapping():
    assert MQAR.model_validate_json(SMALL.model_dump_json()) == SMALL
    for build in (
        lambda: MQAR.model_validate_json("{"),
        lambda: MQAR.model_validate_json('{"x": 1}'),
        lambda: MQAR.model_validate(3),
    ):
        with pytest.raises(ConfigError, match="is no task"):
            build()


def test_wrong_arguments_are_refused_at_the_call():
    with pytest.raises(ConfigError, match="num_sequences=0"):
        SMALL.sample(np.random.default_rng(0), 0)
    with pytest.raises(ConfigError, match=r"numpy.random.default_rng"):
        SMALL.sample(7, 1)
    with pytest.raises(ConfigError, match="batch_size=0"):
        SMALL.batches(0, 0)
    with pytest.raises(ConfigError, match=r"split='vaildation'.*'validation'"):
        SMALL.batches(0, 1, split="vaildation")
    with pytest.raises(ConfigError, match="seed=-1"):
        SMALL.batches(-1, 1)
    with pytest.raises(ConfigError, match=r"MQAR.test_set.num_sequences=0"):
        SMALL.test_set(0, 0)
