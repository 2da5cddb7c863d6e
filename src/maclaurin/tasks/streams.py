"""Random streams of a task: one per seed and split, so that no split ever reads what another has read."""

from __future__ import annotations

import numpy as np

from maclaurin.errors import ConfigError, nearest

SPLITS = {"train": 0, "validation": 1, "test": 2}
"""Split numbers. They are part of every seeded data set, so none is ever changed or used again."""


def generator(seed: int, split: str = "train") -> np.random.Generator:
    """The random generator of one split under one seed.

    The split number is the spawn key of ``numpy.random.SeedSequence(seed)``: the streams of two splits are
    independent, and so are those of two seeds. No global generator is read or set.

    Args:
        seed: a whole number >= 0.
        split: ``train``, ``validation`` or ``test``.

    Raises:
        ConfigError: if the seed is negative or not whole, or there is no such split.

    Example:
        >>> bool(generator(0, "train").random() == generator(0, "test").random())
        False
    """
    if split not in SPLITS:
        raise ConfigError(f"split={split!r}: there is no such split; {nearest(str(split), SPLITS)}")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ConfigError(f"seed={seed!r}: a seed needs to be a whole number >= 0.")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=(SPLITS[split],))))


def check_generator(call: str, rng: object) -> None:
    """Refuse anything but a ``numpy.random.Generator``, a bare seed above all.

    Args:
        call: what the user called, the head of the message.
        rng: what was given as a generator.

    Raises:
        ConfigError: if ``rng`` is not a ``numpy.random.Generator``.

    Example:
        >>> check_generator("MQAR.sample", generator(0))
    """
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(
            f"{call}(rng={rng!r}): this is a {type(rng).__name__}, not a numpy.random.Generator.\n"
            "  Give numpy.random.default_rng(seed)."
        )
