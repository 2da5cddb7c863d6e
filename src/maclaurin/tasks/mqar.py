"""Multi-query associative recall: pairs of a key and a value, then the keys again; what was the value?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from maclaurin.errors import ConfigError, nearest
from maclaurin.tasks.batch import Batch, check_sizes
from maclaurin.tasks.draws import distinct, others, successive
from maclaurin.tasks.streams import check_generator, generator


class MQAR(BaseModel):
    """Multi-query associative recall, as zoology defines it, from a generator of its own.

    One sequence with ``num_pairs=2`` and ``length=12``; a dot is a position whose target does not count::

        position   0  1  2  3    4  5  6  7  8  9 10 11
        tokens    k1 v1 k2 v2   k2  0  0  0 k1  0  0  0
        targets    .  .  .  .   v2  .  .  . v1  .  .  .
                  '- pairs --'  '- slots 0, 1, 2, 3 ---'      here k1 is asked in slot 2, k2 in slot 0

    The K keys are distinct, from [1, V/2), the K values distinct, from [V/2, V). The rest of the sequence is
    (T - 2K)/2 slots of two positions; key i is asked again at the first position of slot gap_i, 2K + 2 gap_i,
    and its value is the target at that same position. The slots are drawn one after the other without
    replacement, slot j = 1, 2, ... with p_j proportional to j^(power_a - 1): the smaller ``power_a``, the
    earlier the queries.

    Dimension key: B sequences, T positions, V vocabulary, K pairs.

    Args:
        vocab_size: V, even, larger than ``length``.
        length: T, even, at least 4 ``num_pairs``.
        num_pairs: K >= 1, the pairs of a sequence, and its queries.
        power_a: exponent of the slot distribution, > 0; 1 is uniform.
        random_non_queries: fill the positions that hold neither a pair nor a query with tokens drawn
            uniformly from the vocabulary without the sequence's own keys and values, which would blur the
            question. If False they are 0.

    Raises:
        ConfigError: if a setting is out of its range, missing, or unknown.

    Example:
        >>> import numpy as np
        >>> task = MQAR(vocab_size=256, length=64, num_pairs=8)
        >>> batch = task.sample(np.random.default_rng(0), 3)
        >>> batch.tokens.shape, batch.mask.sum(axis=1).tolist()
        ((3, 64), [8, 8, 8])

    References: Arora et al., Zoology, arXiv:2312.04927.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    vocab_size: int
    length: int
    num_pairs: int
    power_a: float = 0.01
    random_non_queries: bool = False

    def __init__(self, **settings: Any) -> None:
        with _refusing(f"MQAR({', '.join(f'{name}={value!r}' for name, value in settings.items())})"):
            super().__init__(**settings)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Build the task from a mapping, as ``MQAR(**mapping)`` does.

        Args:
            obj: the settings by name, or a task.
            **options: pydantic's own.

        Raises:
            ConfigError: if a setting is out of its range, missing, or unknown.
        """
        with _refusing(f"MQAR.model_validate({obj!r})"):
            return super().model_validate(obj, **options)

    @classmethod
    def model_validate_json(cls, json_data: str | bytes | bytearray, **options: Any) -> Self:
        """Build the task from JSON text, as ``model_validate`` does from a mapping.

        Args:
            json_data: one JSON object.
            **options: pydantic's own.

        Raises:
            ConfigError: if it is not JSON, or a setting is out of its range, missing, or unknown.
        """
        with _refusing("MQAR.model_validate_json(...)"):
            return super().model_validate_json(json_data, **options)

    @model_validator(mode="after")
    def _check_ranges(self) -> Self:
        v, t, k = self.vocab_size, self.length, self.num_pairs
        refusals = []
        if k < 1:
            refusals.append(f"num_pairs >= 1 does not hold for {k}; one pair is the least there is")
        if 4 * k > t:
            refusals.append(
                f"4 * num_pairs <= length does not hold: 4 * {k} = {4 * k} > {t}; "
                f"take at most {t // 4} pairs or a length of {4 * k}"
            )
        if t >= v:
            refusals.append(f"length < vocab_size does not hold: {t} >= {v}; take a larger vocabulary")
        if t % 2:
            refusals.append(f"length % 2 == 0 does not hold for {t}: queries sit in slots of two positions")
        if v % 2:
            refusals.append(f"vocab_size % 2 == 0 does not hold for {v}: half are keys, half are values")
        if self.power_a <= 0:
            refusals.append(f"power_a > 0 does not hold for {self.power_a}; 0.01 is zoology's, 1 is uniform")
        if refusals:
            raise ValueError("\n  ".join(refusals))
        return self

    def sample(self, rng: np.random.Generator, num_sequences: int) -> Batch:
        """Draw fresh sequences.

        Args:
            rng: the only source of randomness; it is advanced.
            num_sequences: B >= 1.

        Returns:
            A batch of [B, T] with exactly ``num_pairs`` labelled positions per sequence; other targets are 0.

        Raises:
            ConfigError: if ``rng`` is not a generator or ``num_sequences`` < 1.

        Example:
            >>> import numpy as np
            >>> task = MQAR(vocab_size=16, length=12, num_pairs=2)
            >>> batch = task.sample(np.random.default_rng(0), 1)
            >>> sorted(batch.targets[batch.mask].tolist()) == sorted(batch.tokens[0, 1:4:2].tolist())
            True
        """
        check_generator("MQAR.sample", rng)
        check_sizes("MQAR.sample", num_sequences=num_sequences)
        context, half = 2 * self.num_pairs, self.vocab_size // 2
        keys = distinct(rng, (num_sequences, self.num_pairs), low=1, high=half)
        values = distinct(rng, (num_sequences, self.num_pairs), low=half, high=self.vocab_size)
        log_p = (self.power_a - 1) * np.log(np.arange(1, (self.length - context) // 2 + 1))
        slots = successive(rng, log_p, num_rows=num_sequences, num_drawn=self.num_pairs)
        positions = context + 2 * slots
        tokens = np.zeros((num_sequences, self.length), dtype=np.int64)
        targets = np.zeros_like(tokens)
        mask = np.zeros(tokens.shape, dtype=np.bool_)
        tokens[:, 0:context:2] = keys
        tokens[:, 1:context:2] = values
        np.put_along_axis(tokens, positions, keys, axis=1)
        np.put_along_axis(targets, positions, values, axis=1)
        np.put_along_axis(mask, positions, True, axis=1)
        if self.random_non_queries:
            own = np.concatenate([keys, values], axis=1)
            empty = tokens == 0
            tokens[empty] = others(rng, own, high=self.vocab_size, length=self.length)[empty]
        return Batch(tokens=tokens, targets=targets, mask=mask)

    def batches(self, seed: int, batch_size: int, split: str = "train") -> Iterator[Batch]:
        """Fresh batches without end; the same seed and split give the same batches.

        Args:
            seed: a whole number >= 0.
            batch_size: B >= 1, sequences per batch.
            split: ``train``, ``validation`` or ``test``, each with a stream of its own.

        Raises:
            ConfigError: if an argument is out of its range; at the call, not at the first batch.

        Example:
            >>> next(MQAR(vocab_size=16, length=12, num_pairs=2).batches(0, 4)).tokens.shape
            (4, 12)
        """
        check_sizes("MQAR.batches", batch_size=batch_size)
        rng = generator(seed, split)
        return (self.sample(rng, batch_size) for _ in count())

    def test_set(self, seed: int, num_sequences: int) -> Batch:
        """The test sequences of a seed, from a stream that training never reads.

        Small tasks have few sequences at all (T = 4, V = 6 has six), so single ones may still recur in
        training.

        Args:
            seed: a whole number >= 0.
            num_sequences: B >= 1.

        Raises:
            ConfigError: if an argument is out of its range.

        Example:
            >>> MQAR(vocab_size=16, length=12, num_pairs=2).test_set(0, 5).tokens.shape
            (5, 12)
        """
        check_sizes("MQAR.test_set", num_sequences=num_sequences)
        return self.sample(generator(seed, "test"), num_sequences)


@contextmanager
def _refusing(call: str) -> Iterator[None]:
    """Turn a pydantic refusal inside the block into our own: what was asked, what is wrong, what to do."""
    try:
        yield
    except ValidationError as error:
        lines = []
        for problem in error.errors(include_url=False):
            name = ".".join(str(part) for part in problem["loc"])
            cause = problem.get("ctx", {}).get("error")
            if isinstance(cause, ConfigError):
                raise cause from None
            if problem["type"] == "extra_forbidden":
                lines.append(f"{name}: there is no such setting; {nearest(name, MQAR.model_fields)}")
            elif problem["type"] == "missing":
                lines.append(f"{name}: this setting is missing and has no default")
            elif name:
                lines.append(f"{name}={problem['input']!r}: {problem['msg'].lower()}")
            else:
                lines.append(str(cause or problem["msg"]))
        raise ConfigError(f"{call} is no task.\n  " + "\n  ".join(lines)) from None
