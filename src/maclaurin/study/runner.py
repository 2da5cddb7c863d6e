"""The runner: missing arms go to worker processes of one thread each, results to the store as they are made.

The parent process alone writes to the store, one transaction per arm; a kill at any moment loses only the arms that
were running. The same command resumes.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from maclaurin.store import Arm, ArmResult, Store
from maclaurin.study.plan import Study
from maclaurin.study.section import Section

#: Seconds between two looks at the workers' progress.
_POLL_SECONDS = 0.2

#: Keep freed memory in the worker instead of returning it to the system after every large tensor (glibc only).
_WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}


class Progress(Protocol):
    """What wants to know how far a study is."""

    def start(self, total_steps: int, finished_arms: int, num_arms: int) -> None:
        """Called once: the work that is left, in steps, and the arms that are stored already."""

    def advance(self, steps: int) -> None:
        """``steps`` more are done."""

    def finish_arm(self, result: ArmResult) -> None:
        """An arm is stored."""

    def fail_arm(self, arm: Arm, reason: str) -> None:
        """An arm failed; the others go on."""


@dataclass
class Outcome:
    """How a run ended: arms that failed, each with its reason."""

    failures: dict[str, str] = field(default_factory=dict)


def run(study: Study, store: Store, arms: list[Arm], *, folder: Path, workers: int, progress: Progress) -> Outcome:
    """Run every arm that the store does not hold.

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
    todo = [arm for arm in arms if arm.key not in finished]
    steps = {arm.key: study.section(arm.section).num_steps(arm) for arm in arms}
    todo.sort(key=lambda arm: -steps[arm.key])  # longest first, so that the workers end together
    progress.start(sum(steps[arm.key] for arm in todo), len(arms) - len(todo), len(arms))
    outcome = Outcome()
    if not todo:
        return outcome
    with _pool(min(workers, len(todo))) as (pool, queue):
        waiting: dict[Future[ArmResult], Arm] = {
            pool.submit(_run_arm, study.section(arm.section), arm, str(folder)): arm for arm in todo
        }
        while waiting:
            done, _ = wait(waiting, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
            while not queue.empty():
                progress.advance(queue.get())
            for future in done:
                _settle(future, waiting.pop(future), store, progress, outcome)
    return outcome


def _settle(future: Future[ArmResult], arm: Arm, store: Store, progress: Progress, outcome: Outcome) -> None:
    """Store what an arm gave, or note why it gave nothing."""
    try:
        result = future.result()
    except BrokenProcessPool:
        reason = "its worker process was ended from outside (out of memory?); run the same command again"
    except Exception as error:  # whatever an arm raises, it must not stop or hide the others
        reason = f"{type(error).__name__}: {error}"
    else:
        store.record(result)
        progress.finish_arm(result)
        return
    outcome.failures[arm.key] = reason
    progress.fail_arm(arm, reason)


@contextmanager
def _pool(workers: int) -> Iterator[tuple[ProcessPoolExecutor, Any]]:
    """Spawned worker processes and the queue on which they report steps; stopped at once when left by an error."""
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    saved = {name: os.environ.get(name) for name in _WORKER_ENVIRONMENT}
    os.environ.update(_WORKER_ENVIRONMENT)
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker, initargs=(queue,))
    try:
        yield pool, queue
        pool.shutdown()
    except BaseException:
        processes = list((getattr(pool, "_processes", None) or {}).values())
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()
        raise
    finally:
        queue.cancel_join_thread()
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_report_steps: Callable[[int], None] | None = None


def _start_worker(queue: Any) -> None:
    """One thread, and Ctrl-C left to the parent."""
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    global _report_steps  # the worker's own; set once, before any arm
    _report_steps = queue.put


def _run_arm(section: Section, arm: Arm, folder: str) -> ArmResult:
    """In the worker: run one arm and time it."""
    from dataclasses import replace

    reported = 0

    def on_step(finished: int) -> None:
        nonlocal reported
        if _report_steps is not None and (finished - reported >= 10 or finished >= total):
            _report_steps(finished - reported)
            reported = finished

    total = section.num_steps(arm)
    start = time.perf_counter()
    result = section.run(arm, folder=Path(folder), on_step=on_step)
    return replace(result, seconds=time.perf_counter() - start)
