"""The runner: every arm once, failures and killed workers reported and not contagious, nothing left behind.

Arms here do nothing but what a test needs, and their workers do not load torch.
Run: pytest tests/unit/study/test_study_runner.py
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from maclaurin.errors import StoreError
from maclaurin.store import Arm, ArmResult, Measurement, Store
from maclaurin.study import Outcome, Study, run, workers
from maclaurin.study.orders import OrdersSection

pytestmark = pytest.mark.xdist_group("workers")

STEPS = 25


class Odd(Exception):
    """An exception that does not survive being sent to another process."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Drill(OrdersSection):
    """Arms that do what their mechanism says; a file of that name in the folder makes a bad one good.

    A real section's class, so that a study accepts it; it must be importable by worker processes.
    """

    acts: tuple[str, ...]

    def arms(self, *, seed: int, folder: Path) -> list[Arm]:
        return [self.arm(mechanism=act, task="drill", seed=seed + number) for number, act in enumerate(self.acts)]

    def num_steps(self, arm: Arm) -> int:
        return 2 * STEPS if arm.mechanism.startswith("first") else STEPS  # the longest are taken first

    def run(self, arm: Arm, *, folder: Path, on_step: Callable[[int], None]) -> ArmResult:
        with (folder / "began").open("a") as file:  # a short line in one write: whole, whoever else writes
            file.write(f"{arm.mechanism}\n")
        for step in range(1, 13):
            on_step(step)
        act = "work" if (folder / arm.mechanism).exists() else arm.mechanism
        value = ACTS[act](folder)
        for step in range(13, self.num_steps(arm) + 1):
            on_step(step)
        value = random.Random(arm.seed).random() if value is None else value
        settings = {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        measurement = Measurement("accuracy", value)
        return ArmResult(arm, (measurement,) * (2 if act == "twice" else 1), notes=settings)


def fail(error: BaseException) -> None:
    raise error


def kill(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_once(folder: Path) -> None:
    if not (folder / "killed").exists():
        (folder / "killed").touch()
        kill(folder)


ACTS: dict[str, Callable[[Path], Any]] = {
    "work": lambda folder: None,
    "raise": lambda folder: fail(ValueError("no luck")),
    "raise odd": lambda folder: fail(Odd("un", "sendable")),
    "exit": lambda folder: sys.exit(3),
    "twice": lambda folder: None,
    "nothing": lambda folder: "not a number",
    "first kill": kill,
    "first kill once": kill_once,
    "slow": lambda folder: time.sleep(1.5),
    "minute": lambda folder: time.sleep(60),
}


class Diary:
    """A progress that writes down what it is told."""

    def __init__(self, on_finish: Callable[[], None] = lambda: None) -> None:
        self.started: tuple[int, int, int] | None = None
        self.steps = 0
        self.finished: list[str] = []
        self.failed: dict[str, str] = {}
        self.retried: list[str] = []
        self.on_finish = on_finish

    def start(self, total_steps: int, finished_arms: int, num_arms: int) -> None:
        assert self.started is None
        self.started = total_steps, finished_arms, num_arms

    def advance(self, steps: int) -> None:
        self.steps += steps
        assert 0 <= self.steps <= self.started[0]

    def finish_arm(self, result: ArmResult) -> None:
        self.finished.append(result.arm.mechanism)
        self.on_finish()

    def retry_arm(self, arm: Arm, reason: str) -> None:
        assert "ended from outside" in reason
        self.retried.append(arm.mechanism)

    def fail_arm(self, arm: Arm, reason: str) -> None:
        self.failed[arm.mechanism] = reason


def light_start(queue: Any) -> None:
    """What a worker begins with, without loading torch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    workers._report = queue.put


def die(queue: Any) -> None:
    """A worker that does not come up."""
    os._exit(3)


@pytest.fixture(autouse=True)
def _light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_start", light_start)


def drill(folder: Path, *acts: str, num_workers: int = 2, diary: Diary | None = None) -> tuple[Outcome, Diary]:
    """Run a study of these acts in ``folder``, or go on with it."""
    study = Study(name="drill", version=1, question="?", orders=Drill(acts=acts))
    diary = diary or Diary()
    with Store.open(folder, study=study.record()) as store:
        arms = study.arms(folder)
        outcome = run(study, store, arms, folder=folder, workers=num_workers, progress=diary)
    return outcome, diary


def stored(folder: Path) -> dict[str, ArmResult]:
    with Store.open_existing(folder) as store:
        return {each.arm.mechanism: each for each in store.results()}


def began(folder: Path) -> list[str]:
    file = folder / "began"
    return sorted(file.read_text().split("\n")[:-1]) if file.exists() else []


def test_every_arm_once_and_none_at_the_next_call(tmp_path: Path) -> None:
    acts = ("work", "slow", "first kill once")
    (tmp_path / "first kill once").touch()
    outcome, diary = drill(tmp_path, *acts)
    assert outcome.failures == {}
    assert diary.started == (4 * STEPS, 0, 3)
    assert diary.steps == 4 * STEPS
    assert sorted(diary.finished) == sorted(stored(tmp_path)) == began(tmp_path) == sorted(acts)
    assert "first kill once" in (tmp_path / "began").read_text().splitlines()[:2]  # the longest, whichever worker is up
    values = [stored(tmp_path)[name].measurements[0].value for name in acts]
    assert values == [random.Random(seed).random() for seed in range(3)]  # each its own, wherever it ran
    assert all(each.seconds > 0 for each in stored(tmp_path).values())
    assert stored(tmp_path)["slow"].seconds >= 1.5
    assert stored(tmp_path)["slow"].notes == {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

    outcome, diary = drill(tmp_path, *acts)
    assert (outcome.failures, diary.started, diary.finished) == ({}, (0, 3, 3), [])
    assert began(tmp_path) == sorted(acts)
    assert multiprocessing.active_children() == []


def test_failing_arms_are_told_with_their_reasons_and_tried_again_at_the_next_call(tmp_path: Path) -> None:
    bad = ("raise", "raise odd", "exit", "twice", "nothing")
    outcome, diary = drill(tmp_path, *bad, "work", "slow")
    reasons = {
        "raise": "ValueError: no luck",
        "raise odd": "Odd: un sendable",
        "exit": "SystemExit: 3",
        "twice": "AssertionError: a metric twice",
        "nothing": "TypeError: must be real number, not str",
    }
    assert diary.failed == reasons
    assert sorted(outcome.failures.values()) == sorted(reasons.values())
    assert sorted(diary.finished) == sorted(stored(tmp_path)) == ["slow", "work"]
    assert diary.steps == diary.started[0] == 7 * STEPS  # a failed arm is done with too
    assert diary.retried == []

    for name in bad[:3]:
        (tmp_path / name).touch()
    outcome, diary = drill(tmp_path, *bad, "work", "slow", num_workers=1)
    assert diary.started == (5 * STEPS, 2, 7)
    assert sorted(diary.finished) == ["exit", "raise", "raise odd"]
    assert sorted(diary.failed) == ["nothing", "twice"]
    assert began(tmp_path) == sorted([*bad, *bad, "work", "slow"])


def test_a_killed_worker_takes_no_arm_with_it(tmp_path: Path) -> None:
    """One arm loses its worker once, one always: the first gets through, the second is told, the others never know."""
    acts = ("first kill", "first kill once", "work", "raise")
    outcome, diary = drill(tmp_path, *acts)
    assert sorted(diary.finished) == sorted(stored(tmp_path)) == ["first kill once", "work"]
    assert diary.failed == {
        "first kill": "its worker process was ended from outside (out of memory?), twice",
        "raise": "ValueError: no luck",
    }
    assert sorted(outcome.failures.values()) == sorted(diary.failed.values())
    assert "first kill" in diary.retried
    assert set(diary.retried) <= {"first kill", "first kill once", "work"}  # what had begun beside it
    assert began(tmp_path).count("first kill") == 2
    assert diary.steps == diary.started[0]

    (tmp_path / "first kill").touch()
    outcome, diary = drill(tmp_path, *acts, num_workers=1)
    assert diary.finished == ["first kill"]
    assert diary.failed == {"raise": "ValueError: no luck"}
    assert multiprocessing.active_children() == []


def test_workers_that_do_not_come_up_are_tried_twice_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_start", die)
    outcome, diary = drill(tmp_path, "work", "slow", num_workers=1)
    assert set(diary.failed) == {"work", "slow"}
    assert all(reason.endswith("(out of memory?), before an arm began") for reason in outcome.failures.values())
    assert began(tmp_path) == []
    assert stored(tmp_path) == {}


def no_workers_left() -> bool:
    deadline = time.monotonic() + 10
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    return not multiprocessing.active_children()


def test_ctrl_c_stops_the_workers_and_keeps_what_was_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    before = dict(os.environ)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        drill(tmp_path, "work", "minute", "slow", num_workers=1, diary=Diary(on_finish=stop))
    assert dict(os.environ) == before
    assert list(stored(tmp_path)) == ["work"]
    assert no_workers_left()  # long before the minute is over


def test_a_result_that_cannot_be_stored_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is no failure of an arm: going on would compute what cannot be kept."""

    def full(self: Store, result: ArmResult) -> bool:
        raise StoreError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(Store, "record", full)
        with pytest.raises(StoreError, match="the disk is full"):
            drill(tmp_path, "work", "slow", num_workers=1)
    assert stored(tmp_path) == {}
    assert no_workers_left()
