"""Progress of a study: plain lines in a pipe, a bar on a terminal, and the same facts in both.

Run: pytest tests/cli/test_study_progress.py
"""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from maclaurin.cli.progress import Bar, Lines, progress_of
from maclaurin.store import Arm, ArmResult

ARM = Arm("k", "recall", "softmax", "mqar", 3, {})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that progress sees; change it in place."""
    now = [100.0]
    monkeypatch.setattr("maclaurin.cli.progress.time.monotonic", lambda: now[0])
    return now


def test_lines_come_seconds_apart_and_the_last_always(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Lines("demo") as progress:
        progress.start(200, 1, 3)
        progress.advance(50)  # too soon
        clock[0] += 6
        progress.advance(50)
        clock[0] += 1
        progress.finish_arm(ArmResult(ARM, ()))
        progress.advance(100)
        progress.finish_arm(ArmResult(ARM, ()))
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "demo: 3 arms, 1 stored already",
        "demo: 1/3 arms, 50% of the steps, about 6 s left",
        "demo: 3/3 arms, 100% of the steps, about 0 s left",
    ]


def test_lines_promise_no_end_before_anything_is_done(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    progress = Lines("demo")
    progress.start(200, 0, 2)
    clock[0] += 6
    progress.advance(0)
    clock[0] += 6
    progress.advance(100)
    progress.advance(-100)  # an arm begins again
    clock[0] += 6
    progress.advance(50)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "demo: 0/2 arms, 0% of the steps",
        "demo: 0/2 arms, 50% of the steps, about 12 s left",
        "demo: 0/2 arms, 25% of the steps, about 54 s left",
    ]


def test_lines_with_nothing_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    Lines("demo").start(0, 3, 3)
    assert capsys.readouterr().err == "demo: 3 arms, 3 stored already\n"


@pytest.mark.parametrize("kind", [Lines, Bar])
def test_an_arm_that_fails_or_begins_again_is_named_with_its_reason(
    kind: type[Lines] | type[Bar], capsys: pytest.CaptureFixture[str]
) -> None:
    with kind("demo") as progress:
        progress.start(10, 0, 1)
        progress.retry_arm(ARM, "killed")
        progress.fail_arm(ARM, "ValueError: [bold]no")
    said = capsys.readouterr()
    assert said.out == ""
    assert "recall softmax mqar seed 3 will be run again: killed" in said.err
    assert "recall softmax mqar seed 3 failed: ValueError: [bold]no" in said.err


def test_a_bar_on_a_terminal_shows_share_and_arms() -> None:
    screen = io.StringIO()
    progress = Bar("demo")
    progress.bar.live.console = Console(file=screen, force_terminal=True, width=100, legacy_windows=False)
    with progress:
        progress.start(200, 1, 3)
        progress.advance(50)
        progress.advance(-50)
        progress.advance(100)
        progress.finish_arm(ArmResult(ARM, ()))
        assert progress.bar.tasks[0].percentage == 50
        progress.bar.refresh()
    shown = screen.getvalue()
    assert "demo" in shown
    assert "50 %" in shown
    assert "2/3 arms" in shown


def test_a_bar_with_nothing_to_do_is_full() -> None:
    with Bar("demo") as progress:
        progress.start(0, 3, 3)
        assert progress.bar.tasks[0].percentage == 100


def test_the_stream_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(progress_of("demo"), Lines)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    assert isinstance(progress_of("demo"), Bar)
