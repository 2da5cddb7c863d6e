"""The runner: missing arms go to worker processes of one thread each, results to the store as they are made.

The parent process alone writes to the store, one transaction per arm; a kill at any moment loses only the arms that
were running. The same command resumes.
"""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from maclaurin.errors import StoreError
from maclaurin.store import Arm, ArmResult, Store
from maclaurin.study.plan import Study
from maclaurin.study.workers import Failure, Pool, open_pool, run_arm

#: Seconds between two looks at the workers' progress.
_POLL_SECONDS = 0.2

#: An arm whose worker was ended while it ran is run once more; so are workers that ended before any arm began.
_TRIES = 2

_ENDED = "its worker process was ended from outside (out of memory?)"


class Progress(Protocol):
    """What wants to know how far a study is."""

    def start(self, total_steps: int, finished_arms: int, num_arms: int) -> None:
        """Called once: the work that is left, in steps, and the arms that are stored already."""

    def advance(self, steps: int) -> None:
        """``steps`` more are done; fewer than none where an arm has to begin again."""

    def finish_arm(self, result: ArmResult) -> None:
        """An arm is stored."""

    def retry_arm(self, arm: Arm, reason: str) -> None:
        """An arm will be run a second time, after the others."""

    def fail_arm(self, arm: Arm, reason: str) -> None:
        """An arm failed; the others go on."""


@dataclass
class Outcome:
    """How a run ended: arms that failed, each with its reason."""

    failures: dict[str, str] = field(default_factory=dict)


def run(study: Study, store: Store, arms: list[Arm], *, folder: Path, workers: int, progress: Progress) -> Outcome:
    """Run every arm that the store does not hold.

    An arm that fails is reported and runs again at the next call. One whose worker process is ended from outside is
    run a second time, alone, after the others; if that happens to it twice, it is reported too.

    Args:
        study: what the arms belong to.
        store: open for this study.
        arms: all of the study's arms.
        folder: where prepared data is kept.
        workers: number of processes, each of one thread.
        progress: is told how far it is.

    Raises:
        StoreError: a result cannot be stored; what was stored before stays.
        KeyboardInterrupt: passed on after the workers are stopped.
    """
    finished = store.finished()
    steps = {arm.key: study.section(arm.section).num_steps(arm) for arm in arms}
    todo = [arm for arm in arms if arm.key not in finished]
    todo.sort(key=lambda arm: -steps[arm.key])  # longest first, so that the workers end together
    progress.start(sum(steps[arm.key] for arm in todo), len(arms) - len(todo), len(arms))
    going = _Run(study, store, folder, progress, steps)
    while todo:
        left = going.round(todo, min(workers, len(todo)))
        todo = going.after_breakdown(left) if left else []
    for arm in going.suspects:
        left = [arm]
        while left := going.round(left, 1):
            left = going.after_breakdown(left)
    return going.outcome


class _Run:
    """A run under way: what was reported, and which arms lost their worker."""

    def __init__(self, study: Study, store: Store, folder: Path, progress: Progress, steps: dict[str, int]) -> None:
        self.study, self.store, self.folder, self.progress, self.steps = study, store, folder, progress, steps
        self.outcome = Outcome()
        self.suspects: list[Arm] = []  # their worker was ended while they ran; each has one more try, alone
        self.reported: dict[str, int] = {}  # arm that has begun -> its steps that progress knows of
        self.idle_breakdowns = 0

    def round(self, arms: list[Arm], workers: int) -> list[Arm]:
        """Run ``arms`` in a pool of their own; those that a breakdown of the pool left without a result."""
        left = {arm.key: arm for arm in arms}
        with open_pool(workers) as pool:
            waiting: dict[Future[ArmResult | Failure], Arm] = {}
            try:
                for arm in arms:
                    section = self.study.section(arm.section)
                    waiting[pool.submit(run_arm, section, arm, self.folder)] = arm
            except BrokenProcessPool:
                pass  # before all were handed over; what was is settled below
            while waiting:
                done, _ = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
                self.read(pool)
                for future in done:
                    arm = waiting.pop(future)
                    if not isinstance(future.exception(), BrokenProcessPool):
                        self.settle(arm, future)
                        del left[arm.key]
        return list(left.values())

    def read(self, pool: Pool) -> None:
        """What the workers have reported since the last look."""
        for key, finished in pool.reports():
            self.advance(key, finished)

    def advance(self, key: str, finished: int) -> None:
        """Tell progress what is new in an arm of which ``finished`` steps are done."""
        self.progress.advance(finished - self.reported.get(key, 0))
        self.reported[key] = finished

    def settle(self, arm: Arm, future: Future[ArmResult | Failure]) -> None:
        """Store what an arm gave, or note why it gave nothing."""
        error = future.exception()
        if error is not None:  # it came to nothing on the way: a result that cannot be sent
            self.fail(arm, f"{type(error).__name__}: {error}")
            return
        result = future.result()
        if isinstance(result, Failure):
            self.fail(arm, result.reason)
            return
        try:
            self.store.record(result)
        except StoreError:
            raise
        except Exception as error:  # a result that is not one must not stop or hide the others
            self.fail(arm, f"{type(error).__name__}: {error}")
        else:
            self.advance(arm.key, self.steps[arm.key])  # it may have ended early
            self.progress.finish_arm(result)

    def fail(self, arm: Arm, reason: str) -> None:
        """Note why an arm gave nothing."""
        self.advance(arm.key, self.steps[arm.key])  # nothing of it is left to do
        self.outcome.failures[arm.key] = reason
        self.progress.fail_arm(arm, reason)

    def after_breakdown(self, left: list[Arm]) -> list[Arm]:
        """Sort out what a breakdown left: arms that had not begun are returned, the others have one more try.

        A pool breaks down whole when one of its workers is ended, and does not say which; whatever had begun may be
        the cause, so that each such arm is tried again alone.
        """
        begun = [arm for arm in left if arm.key in self.reported]
        if not begun:
            self.idle_breakdowns += 1
            if self.idle_breakdowns >= _TRIES:
                for arm in left:
                    self.fail(arm, f"{_ENDED}, before an arm began")
                return []
        for arm in begun:
            self.advance(arm.key, 0)
            del self.reported[arm.key]
            if arm in self.suspects:
                self.fail(arm, f"{_ENDED}, twice")
            else:
                self.suspects.append(arm)
                self.progress.retry_arm(arm, _ENDED)
        return [arm for arm in left if arm not in begun]
