"""Worker processes: spawned, of one thread each, deaf to Ctrl-C, and gone when their parent is."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from maclaurin.store import Arm, ArmResult
from maclaurin.study.section import Section

#: Keep freed memory in the worker instead of returning it to the system after every large tensor (glibc only).
_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}

#: Steps between two reports of a worker.
_STEPS_PER_REPORT = 10


@dataclass(frozen=True)
class Failure:
    """Why an arm gave no result, in words: the exception itself may not survive the way to the parent."""

    reason: str


class Pool:
    """Workers that run arms, and the queue on which they report (arm key, finished steps)."""

    def __init__(self, executor: ProcessPoolExecutor, queue: Any) -> None:
        self._executor = executor
        self._queue = queue

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Hand over work; the process it may start never sees Ctrl-C, which is the parent's."""
        with _interrupts_held():
            return self._executor.submit(work, *arguments)

    def reports(self) -> Iterator[tuple[str, int]]:
        """What is there now, oldest first."""
        while not self._queue.empty():
            yield self._queue.get()


@contextmanager
def open_pool(workers: int) -> Iterator[Pool]:
    """Spawned worker processes; stopped at once when left by an error."""
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()  # written at once: a worker that is killed has said what it was at
    saved = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    executor = ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=(queue,))
    try:
        yield Pool(executor, queue)
        executor.shutdown()
    except BaseException:
        with _interrupts_held():
            processes = list((getattr(executor, "_processes", None) or {}).values())
            executor.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.terminate()
        raise
    finally:
        queue.close()
        for name, value in saved.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits until the block is over, and processes that are started in it inherit that they do not hear it.

    The mask is for them; here the signal may still arrive by way of another thread, and is noted.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread() and handler is not None
    noted: list[int] = []
    if is_ours:
        signal.signal(signal.SIGINT, lambda number, frame: noted.append(number))
    has_masks = hasattr(signal, "pthread_sigmask")  # not on Windows
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if has_masks else set()
    try:
        yield
    finally:
        if has_masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if is_ours:
            signal.signal(signal.SIGINT, handler)
        if noted:
            signal.raise_signal(signal.SIGINT)


_report: Callable[[tuple[str, int]], None] | None = None


def _start(queue: Any) -> None:
    """In the worker, before any arm: one thread, Ctrl-C left to the parent, and no life without it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    import torch

    torch.set_num_threads(1)
    global _report  # the worker's own; set once, before any arm
    _report = queue.put


def _end_with_parent() -> None:
    """A parent that was killed cannot stop its workers: they see it go and follow."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def run_arm(section: Section, arm: Arm, folder: Path) -> ArmResult | Failure:
    """In the worker: run one arm and time it."""
    total = section.num_steps(arm)
    reported = 0

    def on_step(finished: int) -> None:
        nonlocal reported
        if finished - reported >= _STEPS_PER_REPORT or finished >= total:
            _say(arm, finished)
            reported = finished

    _say(arm, 0)  # it has begun
    start = time.perf_counter()
    try:
        result = section.run(arm, folder=folder, on_step=on_step)
        return replace(result, seconds=time.perf_counter() - start)
    except (Exception, SystemExit) as error:  # whatever an arm raises, it must not stop or hide the others
        return Failure(f"{type(error).__name__}: {error}")


def _say(arm: Arm, finished: int) -> None:
    if _report is not None:
        _report((arm.key, finished))
