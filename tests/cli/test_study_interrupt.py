"""Ctrl-C in the middle of a study: what is stored stays, nobody is left running, and the same command goes on.

Run: pytest tests/cli/test_study_interrupt.py
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tiny.launch import (
    NUM_ARMS,
    check_store,
    finish,
    group_is_gone,
    prepare,
    run,
    send,
    start,
    stored,
    undisturbed,
    values,
    wait_until,
)

pytestmark = [
    pytest.mark.xdist_group("tiny"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="not run: no /proc here"),
]

COMMAND = ("tiny.yaml", "--out", "out", "--seed", "40")


def interrupt(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
    """Ctrl-C as a terminal sends it, to the workers too; how many arms are said to be stored, and how to go on."""
    send(signal.SIGINT, process)
    finished = finish(process)
    assert finished.code == 1
    assert finished.out == ""
    assert "Traceback" not in finished.err
    assert "KeyboardInterrupt" not in finished.err
    assert group_is_gone(process.pid)
    last = finished.err.splitlines()[-1]
    said = re.fullmatch(rf"interrupted: (\d+) of {NUM_ARMS} arms are stored\. To go on: maclaurin study (.*)", last)
    assert said, finished.err
    return int(said[1]), shlex.split(said[2])


def test_ctrl_c_loses_nothing_and_the_command_it_names_goes_on(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    out = prepare(tmp_path) / "out"

    for seconds in (0.0, 0.4):  # while workers are being started, and while they load torch: they must not cry out
        process = start(tmp_path, *COMMAND)
        assert process.stderr.readline() == f"tiny: {NUM_ARMS} arms, 0 stored already\n"
        wait_until(partial(_has_worker, process), process)
        time.sleep(seconds)
        count, words = interrupt(process)
        assert count == 0
        assert words == list(COMMAND)

    process = start(tmp_path, *words)  # in the middle
    wait_until(lambda: stored(out) >= 1, process)
    count, words = interrupt(process)
    assert 1 <= count < NUM_ARMS
    check_store(out, num_arms=count)
    assert not (out / "report.html").exists()

    finished = run(tmp_path, *words, "--json")
    assert finished.code == 0
    assert f"{NUM_ARMS} arms, {count} stored already" in finished.err
    check_store(out, num_arms=NUM_ARMS)

    _, other = undisturbed(tmp_path_factory)
    cells = [{key: row[key] for key in ("section", "mechanism", "task", "metric", "n")} for row in values(other.answer)]
    assert [{key: row[key] for key in cells[0]} for row in values(finished.answer)] == cells
    for section, metric in [
        ("orders", "relative_error"),
        ("separation", "auc"),
        ("recall", "accuracy"),
        ("language", "bits_per_byte"),
    ]:  # another seed, other values
        mine, theirs = (
            [row["value"] for row in each["results"] if (row["section"], row["metric"]) == (section, metric)]
            for each in (finished.answer, other.answer)
        )
        assert mine != theirs


def _has_worker(process: subprocess.Popen[str]) -> bool:
    """Whether a worker has been started, beside the process that keeps track of semaphores."""
    return len(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()) >= 2
