"""How well predictions answer a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from maclaurin.errors import DataError, ShapeError
from maclaurin.tasks.batch import Batch


def accuracy(predicted: ArrayLike, batch: Batch) -> float:
    """Share of labelled positions answered right, per sequence, averaged over the sequences.

    Every sequence weighs the same however many of its positions count; one without any is left out.

    Args:
        predicted: integer ids [B, T], the most likely token at each position; anything where no target
            counts.
        batch: the batch they answer.

    Returns:
        A number in [0, 1].

    Raises:
        ShapeError: if ``predicted`` does not have the shape of the batch; logits [B, T, V] are the usual
            cause.
        DataError: if ``predicted`` is not of an integer dtype, or no position of the batch counts.

    Example:
        >>> import numpy as np
        >>> ones = np.ones((2, 2), dtype=np.int64)
        >>> batch = Batch(tokens=ones, targets=ones, mask=np.array([[True, True], [False, True]]))
        >>> accuracy([[1, 9], [9, 1]], batch)
        0.75
    """
    answers = np.asarray(predicted)
    if answers.shape != batch.targets.shape:
        raise ShapeError(
            "accuracy: the predictions and the batch disagree.\n"
            f"  predicted {answers.shape} · tokens, targets and mask {batch.targets.shape}\n"
            "  Give one id per position; from logits [B, T, V] that is logits.argmax(-1)."
        )
    if not np.issubdtype(answers.dtype, np.integer):
        raise DataError(f"accuracy: predicted has dtype {answers.dtype}; give integer token ids.")
    labels = batch.mask.sum(axis=1)
    if not labels.any():
        raise DataError("accuracy: no position of the batch counts (its mask is False everywhere).")
    right = ((answers == batch.targets) & batch.mask).sum(axis=1)
    labelled = labels > 0
    return float((right[labelled] / labels[labelled]).mean())
