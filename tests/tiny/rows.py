"""Result rows and arms for the tests of statistics and verdicts, written in one line each."""

from __future__ import annotations

import math
import statistics

from maclaurin.store import Arm, ArmResult, Measurement, ResultRow
from maclaurin.study import student_interval
from maclaurin.study.section import digest_of


def row(
    section: str,
    mechanism: str,
    task: str,
    metric: str,
    points: list[float],
    *,
    interval: tuple[float, float] | None = None,
    n: int | None = None,
    seeds: tuple[int, ...] | None = None,
) -> ResultRow:
    """A row over seeds; with ``n`` and ``interval`` one over trials."""
    over_trials = n is not None
    return ResultRow(
        section,
        mechanism,
        task,
        metric,
        statistics.fmean(points),
        n or len(points),
        interval or student_interval(points),
        1.0,
        () if over_trials else tuple(points),
        (0,) if over_trials else seeds or tuple(range(len(points))),
    )


def result(
    mechanism: str = "softmax",
    seed: int = 0,
    *,
    task: str = "mqar",
    notes: dict[str, str] | None = None,
    trials: int | None = None,
    interval: tuple[float, float] | None = None,
    **metrics: float,
) -> ArmResult:
    """What an arm of section ``recall`` gave."""
    config = {"mechanism": mechanism, "seed": seed, "task": task}
    return ArmResult(
        Arm(digest_of(config), "recall", mechanism, task, seed, config),
        tuple(Measurement(name, value, trials, interval) for name, value in metrics.items()),
        seconds=0.5,
        notes=notes or {},
    )


NAN = math.nan
