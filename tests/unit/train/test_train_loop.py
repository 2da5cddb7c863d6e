"""The loop is deterministic and stops where it must; the scores equal plain loops over every position.

Run: pytest tests/unit/train/test_train_loop.py
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from maclaurin.nn import DecoderConfig, DecoderLM
from maclaurin.store import Curve
from maclaurin.tasks import MQAR, Batch
from maclaurin.train import TrainConfig, fit, loss_nats, mean_loss_nats, task_accuracy

TASK = MQAR(vocab_size=16, length=12, num_pairs=2)

#: Two float32 reductions of the same numbers in another order.
RTOL = 1e-6


def make_model(seed: int = 0) -> DecoderLM:
    return DecoderLM(DecoderConfig("softmax", vocab_size=16, model_dim=8, num_layers=1, num_heads=1), seed=seed)


def config(**changes: object) -> TrainConfig:
    return TrainConfig(**{"steps": 12, "batch_size": 4, "learning_rate": 0.01, "log_every": 5, **changes})


def train(seed: int = 0, **changes: object) -> tuple[DecoderLM, Curve]:
    model = make_model(seed)
    return model, fit(model, TASK.batches(seed, 4), config(**changes))


def draw(rows: int, seed: int = 3) -> Batch:
    """A batch whose rows count different numbers of targets."""
    rng = np.random.default_rng(seed)
    tokens, targets = rng.integers(0, 16, (2, rows, 12))
    mask = rng.random((rows, 12)) < np.linspace(0.1, 0.9, rows)[:, None]
    mask[:, 0] = True
    return Batch(tokens, targets, mask)


def same_weights(first: DecoderLM, second: DecoderLM) -> bool:
    return all(torch.equal(x, y) for x, y in zip(first.parameters(), second.parameters(), strict=True))


def test_two_runs_of_one_seed_are_equal_to_the_last_bit_and_another_seed_is_not() -> None:
    (first, curve), (second, again), (other, _) = train(), train(), train(seed=1)
    assert curve == again
    assert same_weights(first, second)
    assert not same_weights(first, other)


def test_no_global_generator_is_read_or_moved() -> None:
    models = [make_model(), make_model()]
    curves = []
    for number, model in enumerate(models):
        torch.manual_seed(number)
        np.random.seed(number)
        before = torch.get_rng_state(), np.random.get_state()[1].copy()
        curves.append(fit(model, TASK.batches(0, 4), config()))
        assert torch.equal(torch.get_rng_state(), before[0])
        assert np.array_equal(np.random.get_state()[1], before[1])
    assert curves[0] == curves[1]
    assert same_weights(*models)


def test_the_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = make_model()
    torch.manual_seed(2)
    assert same_weights(first, make_model())


def test_training_lowers_the_loss_and_the_curve_has_every_fifth_step_and_the_last() -> None:
    seen: list[int] = []
    model = make_model()
    curve = fit(model, TASK.batches(0, 4), config(), on_step=seen.append)
    assert (curve.metric, curve.steps) == ("loss_nats", (5, 10, 12))
    assert seen == list(range(1, 13))
    assert curve.values[0] == pytest.approx(math.log(16), abs=0.5)  # nothing known yet, logits of size 1/2
    _, long = train(steps=150, learning_rate=0.03)
    assert long.values[-1] < long.values[0] - 0.3


def test_each_step_is_that_of_the_rate_and_the_clipped_gradient() -> None:
    """One step written out: AdamW's first step moves every matrix entry by rate * (sign-like term + decay)."""
    model, reference = make_model(), make_model()
    chosen = config(steps=1, learning_rate=0.1, weight_decay=0.2, clip_norm=1e-3)
    fit(model, TASK.batches(0, 4), chosen)
    loss_nats(reference, next(TASK.batches(0, 4))).backward()
    norm = torch.cat([each.grad.flatten() for each in reference.parameters()]).norm()
    assert norm > chosen.clip_norm
    weight = reference.head.weight
    gradient = weight.grad * chosen.clip_norm / norm
    expected = weight * (1 - 0.1 * 0.2) - 0.1 * gradient / (gradient.abs() + 1e-8)
    # the clipping adds 1e-6 to the norm, and entries of the size of AdamW's eps feel it
    torch.testing.assert_close(model.head.weight, expected, rtol=1e-3, atol=1e-4)


def test_the_rate_of_every_step_is_the_schedules() -> None:
    """The last step's rate is zero: of two steps only the first moves anything."""
    (one, _), (two, _) = train(steps=1), train(steps=2)
    assert same_weights(one, two)
    assert not same_weights(one, train(steps=3)[0])


def test_it_stops_at_the_first_recorded_loss_that_is_not_finite() -> None:
    taken = 0

    def count() -> Iterator[Batch]:
        nonlocal taken
        for batch in TASK.batches(0, 4):
            taken += 1
            yield batch

    model = make_model()
    seen: list[int] = []
    with torch.no_grad():
        model.head.weight[0, 0] = math.nan
    curve = fit(model, count(), config(steps=1000), on_step=seen.append)
    assert curve.steps == (5,)
    assert math.isnan(curve.values[0])
    assert (taken, seen) == (5, [1, 2, 3, 4])


def test_a_model_that_diverged_has_no_score_at_all() -> None:
    """The likeliest of nans would be token 0: an accuracy that looks like a measurement."""
    model, curve = train(learning_rate=1e30, steps=100)
    assert not math.isfinite(curve.values[-1])
    assert len(curve.steps) < 20
    assert math.isnan(task_accuracy(model, TASK.test_set(0, 20), batch_size=8))
    assert math.isnan(mean_loss_nats(model, [draw(3)])[0])


def test_loss_is_that_of_all_logits_over_the_counted_targets_only() -> None:
    model, batch = make_model(), draw(5)
    logits = model(torch.from_numpy(batch.tokens))
    log_p = F.log_softmax(logits.double(), dim=-1).detach().numpy()
    losses = [-log_p[b, t, batch.targets[b, t]] for b, t in zip(*np.nonzero(batch.mask), strict=True)]
    assert loss_nats(model, batch).item() == pytest.approx(float(np.mean(losses)), rel=RTOL)
    changed = Batch(batch.tokens, np.where(batch.mask, batch.targets, 15 - batch.targets), batch.mask)
    assert loss_nats(model, changed).item() == loss_nats(model, batch).item()


def test_mean_loss_weighs_every_counted_target_the_same_whatever_its_batch() -> None:
    model, whole = make_model(), draw(7)
    parts = [
        Batch(whole.tokens[rows], whole.targets[rows], whole.mask[rows])
        for rows in (slice(3), slice(3, 6), slice(6, 7))
    ]
    mean, count = mean_loss_nats(model, parts)
    assert count == whole.mask.sum()
    assert mean == pytest.approx(loss_nats(model, whole).item(), rel=RTOL)
    by_batch = [loss_nats(model, each).item() for each in parts]
    assert abs(mean - sum(by_batch) / 3) > 1e-4  # or the test could not tell


def test_mean_loss_passes_over_a_batch_in_which_nothing_counts() -> None:
    model, batch = make_model(), draw(3)
    nothing = Batch(batch.tokens, batch.targets, np.zeros_like(batch.mask))
    assert mean_loss_nats(model, [nothing, batch]) == mean_loss_nats(model, [batch])
    mean, count = mean_loss_nats(model, [nothing])
    assert math.isnan(mean)
    assert count == 0


@pytest.mark.parametrize("batch_size", [1, 3, 7, 128])
def test_accuracy_is_that_of_a_plain_loop_over_sequences(batch_size: int) -> None:
    model, batch = make_model(), draw(7)
    batch.targets[::2] = model(torch.from_numpy(batch.tokens)).argmax(-1).numpy()[::2]  # some answers are right
    shares = []
    for tokens, targets, mask in zip(batch.tokens, batch.targets, batch.mask, strict=True):
        predicted = model(torch.from_numpy(tokens[None]))[0].argmax(-1).numpy()
        right = [int(predicted[t]) == int(targets[t]) for t in range(len(tokens)) if mask[t]]
        shares.append(sum(right) / len(right))
    assert 0 < np.mean(shares) < 1
    assert task_accuracy(model, batch, batch_size=batch_size) == pytest.approx(np.mean(shares), rel=1e-12)


def test_scoring_changes_nothing_and_builds_no_graph() -> None:
    model, untouched = make_model(), make_model()
    model.norm.register_forward_hook(lambda module, given, output: built.append(output.requires_grad))
    built: list[bool] = []
    task_accuracy(model, draw(3))
    mean_loss_nats(model, islice(TASK.batches(0, 4), 2))
    assert same_weights(model, untouched)
    assert built == [False] * 3
