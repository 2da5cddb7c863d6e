"""The training loop and the two ways a trained model is scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.nn import DecoderLM
from maclaurin.store import Curve
from maclaurin.tasks import Batch, accuracy
from maclaurin.train.config import TrainConfig
from maclaurin.train.optimizer import learning_rate, make_optimizer


def fit(
    model: DecoderLM,
    batches: Iterator[Batch],
    config: TrainConfig,
    *,
    on_step: Callable[[int], None] | None = None,
) -> Curve:
    """Train ``model`` in place.

    Training stops early if a loss that is recorded is no longer finite; the curve then ends there, and the model's
    scores are not finite either, which a study lists as missing.

    Args:
        model: the model, on the device to train on.
        batches: as many as there are steps; the data order is theirs.
        config: of the training.
        on_step: called with the number of finished steps.

    Returns:
        The training loss in nats per target, every ``log_every`` steps and at the last.
    """
    optimizer = make_optimizer(model, config)
    model.train()
    steps: list[int] = []
    losses: list[float] = []
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, config)
        loss = loss_nats(model, next(batches))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip_norm)
        optimizer.step()
        if (step + 1) % config.log_every == 0 or step + 1 == config.steps:
            steps.append(step + 1)
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                break
        if on_step is not None:
            on_step(step + 1)
    return Curve("loss_nats", tuple(steps), tuple(losses))


def loss_nats(model: DecoderLM, batch: Batch) -> Tensor:
    """Mean cross-entropy over the positions whose target counts, in nats; only those reach the head."""
    tokens, targets, counted = _tensors(model, batch)
    encoded, _ = model.encode(tokens)
    return F.cross_entropy(model.head(encoded[counted]), targets[counted])


@torch.no_grad()
def task_accuracy(model: DecoderLM, batch: Batch, *, batch_size: int = 128) -> float:
    """Share of right answers of the likeliest token, averaged over sequences; nan where a logit is not finite.

    Without a likeliest token there is no answer, not even a wrong one.
    """
    model.eval()
    predicted = np.zeros_like(batch.tokens)
    for start in range(0, len(batch.tokens), batch_size):
        rows = slice(start, start + batch_size)
        tokens, _, counted = _tensors(model, Batch(batch.tokens[rows], batch.targets[rows], batch.mask[rows]))
        encoded, _ = model.encode(tokens)
        logits = model.head(encoded[counted])
        if not torch.isfinite(logits).all():
            return math.nan
        predicted[rows][batch.mask[rows]] = logits.argmax(-1).cpu().numpy()
    return float(accuracy(predicted, batch))


@torch.no_grad()
def mean_loss_nats(model: DecoderLM, batches: Iterable[Batch]) -> tuple[float, int]:
    """Mean cross-entropy over every counted target of all batches, in nats, and the number of those targets.

    A batch in which none counts adds nothing; where none counts at all, the mean is nan.
    """
    model.eval()
    total, count = 0.0, 0
    for batch in batches:
        counted = int(batch.mask.sum())
        if counted:
            total += float(loss_nats(model, batch).double()) * counted
            count += counted
    return total / count if count else math.nan, count


def _tensors(model: DecoderLM, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    device = model.embedding.weight.device
    tokens, targets, mask = (torch.from_numpy(each).to(device) for each in (batch.tokens, batch.targets, batch.mask))
    return tokens, targets, mask
