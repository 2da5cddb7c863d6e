"""The nouns of the store: what was run, what came out, and one row of a result table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class StudyRecord:
    """Which study a store belongs to.

    Args:
        name: the study's name, for instance ``quickstart``.
        version: counts up when the meaning of the study changes.
        digest: digest of the resolved ``config``; two studies with the same name and digest are the same.
        config: every setting of the study, as JSON values.
    """

    name: str
    version: int
    digest: str
    config: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Measurement:
    """One number an arm produced.

    Args:
        metric: name with its unit, for instance ``accuracy``, ``loss_nats``, ``bits_per_byte``.
        value: a finite number; one that is not is kept as missing and comes back from the store as nan.
        trials: for a rate over independent trials, how many trials it is the mean of; otherwise None.
        interval: a 95 % interval (low, high) that belongs to this measurement itself; None where seeds or trials
            give it.
    """

    metric: str
    value: float
    trials: int | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Curve:
    """A metric recorded along training: ``values[i]`` was measured after ``steps[i]`` optimizer steps."""

    metric: str
    steps: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Arm:
    """One cell of a study: a mechanism on a task with a seed, resolved to the last setting.

    Args:
        key: digest of ``config``; two arms with the same key are the same work.
        section: the part of the study it belongs to.
        mechanism: catalogue name or text of the mechanism.
        task: name of the task.
        seed: the seed of everything random in the arm.
        config: every setting, as JSON values.
    """

    key: str
    section: str
    mechanism: str
    task: str
    seed: int
    config: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class ArmResult:
    """What an arm produced, and the seconds it took."""

    arm: Arm
    measurements: tuple[Measurement, ...]
    curves: tuple[Curve, ...] = ()
    seconds: float = 0.0
    notes: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ResultRow:
    """One row of a result table: (section, mechanism, task, metric) over its seeds or trials.

    ``value`` is the mean over ``n`` seeds (for rates: trials) and is finite; ``interval`` is a 95 % interval
    (low, high), or None when n < 2 gives none; ``seconds`` is the sum over the arms behind it; ``points`` are
    the single values behind the mean, in the order of ``seeds`` (empty for rates over trials).
    """

    section: str
    mechanism: str
    task: str
    metric: str
    value: float
    n: int
    interval: tuple[float, float] | None
    seconds: float
    points: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A row that has no finite value, and why."""

    section: str
    mechanism: str
    task: str
    metric: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What a section shows: one sentence, and how far its seeds, trials and budget carry it."""

    section: str
    sentence: str
    sureness: str
