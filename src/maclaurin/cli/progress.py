"""Progress of a study on standard error: a bar on a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from maclaurin.store import Arm, ArmResult


def progress_of(title: str) -> Bar | Lines:
    """The one that fits where standard error goes."""
    return Bar(title) if sys.stderr.isatty() else Lines(title)


def _name(arm: Arm) -> str:
    return f"{arm.section} {arm.mechanism} {arm.task} seed {arm.seed}"


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


class Lines:
    """Progress as plain lines on standard error, at most one every few seconds."""

    seconds_between = 5.0

    def __init__(self, title: str) -> None:
        self.title = title
        self.total, self.done, self.arms, self.num_arms = 1, 0, 0, 0
        self.began = self.last = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def start(self, total_steps: int, finished_arms: int, num_arms: int) -> None:
        self.total, self.arms, self.num_arms = max(total_steps, 1), finished_arms, num_arms
        _say(f"{self.title}: {num_arms} arms, {finished_arms} stored already")

    def advance(self, steps: int) -> None:
        self.done += steps
        self.show()

    def finish_arm(self, result: ArmResult) -> None:
        self.arms += 1
        self.show(is_last=self.arms == self.num_arms)

    def retry_arm(self, arm: Arm, reason: str) -> None:
        _say(f"{self.title}: {_name(arm)} will be run again: {reason}")

    def fail_arm(self, arm: Arm, reason: str) -> None:
        _say(f"{self.title}: {_name(arm)} failed: {reason}")

    def show(self, *, is_last: bool = False) -> None:
        """Print a line if the last is old enough."""
        now = time.monotonic()
        if not is_last and now - self.last < self.seconds_between:
            return
        self.last = now
        share = min(1.0, self.done / self.total)
        left = f", about {(now - self.began) * (1 - share) / share:.0f} s left" if share else ""
        _say(f"{self.title}: {self.arms}/{self.num_arms} arms, {share:.0%} of the steps{left}")


class Bar:
    """Progress as a bar on a terminal."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TextColumn("{task.fields[arms]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.title = title
        self.arms = self.num_arms = 0

    def __enter__(self) -> Bar:
        self.bar.start()
        self.task = self.bar.add_task(self.title, total=None, arms="")
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def start(self, total_steps: int, finished_arms: int, num_arms: int) -> None:
        self.arms, self.num_arms = finished_arms, num_arms
        self.bar.update(self.task, total=max(total_steps, 1), completed=0 if total_steps else 1, arms=self.count)

    def advance(self, steps: int) -> None:
        self.bar.advance(self.task, steps)

    def finish_arm(self, result: ArmResult) -> None:
        self.arms += 1
        self.bar.update(self.task, arms=self.count)

    def retry_arm(self, arm: Arm, reason: str) -> None:
        self.bar.console.print(f"{_name(arm)} will be run again: {reason}", markup=False)

    def fail_arm(self, arm: Arm, reason: str) -> None:
        self.bar.console.print(f"{_name(arm)} failed: {reason}", markup=False)

    @property
    def count(self) -> str:
        """How many arms are stored."""
        return f"{self.arms}/{self.num_arms} arms"
