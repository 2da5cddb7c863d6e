"""Runs of the tiny study in processes of their own, for the tests of the command line and of kills."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

TINY = Path(__file__).with_name("tiny.yaml")
NUM_ARMS = 20

#: Seconds after which a run hangs; one takes about 7 on an idle machine.
LIMIT = 240


@dataclass(frozen=True)
class Finished:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def answer(self) -> dict[str, Any]:
        """Standard output as the one JSON object it must be."""
        return json.loads(self.out)


def prepare(folder: Path) -> Path:
    """The tiny study and its text in ``folder``; where to run it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tiny.yaml", "text.txt"):
        shutil.copy(TINY.with_name(name), folder)
    return folder


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """``maclaurin study WORDS`` from ``folder``."""
    return execute(folder, sys.executable, "-m", "maclaurin", "study", *words)


def execute(folder: Path, *command: str) -> subprocess.Popen[str]:
    """A command that leads a process group of its own, with both streams captured."""
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def finish(process: subprocess.Popen[str]) -> Finished:
    """Wait for the end of a command."""
    out, err = process.communicate(timeout=LIMIT)
    return Finished(process.returncode, out, err)


def run(folder: Path, *words: str) -> Finished:
    """:func:`start` and :func:`finish`."""
    return finish(start(folder, *words))


def undisturbed(factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """Where the tiny study ran to its end, and what it said; once for all tests, those of other workers included."""
    base = factory.getbasetemp()
    root = prepare((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "undisturbed")
    said = root / "said.json"
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            finished = run(root, "tiny.yaml", "--json")
            said.write_text(json.dumps([finished.code, finished.out, finished.err]), "utf-8")
    return root, Finished(*json.loads(said.read_text("utf-8")))


def values(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of ``--json`` without what may differ between two runs."""
    return [{key: value for key, value in row.items() if key != "seconds"} for row in answer["results"]]


def stored(folder: Path) -> int:
    """How many arms a store holds now; 0 before it exists."""
    path = folder / "results.sqlite"
    if not path.exists():
        return 0
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)
    try:
        return connection.execute("SELECT count(*) FROM arm").fetchone()[0]
    finally:
        connection.close()


def check_store(folder: Path, *, num_arms: int | None = None) -> None:
    """The store is whole, and holds every arm once."""
    connection = sqlite3.connect(folder / "results.sqlite")
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        keys = [key for (key,) in connection.execute("SELECT key FROM arm")]
    finally:
        connection.close()
    assert len(keys) == len(set(keys))
    assert num_arms is None or len(keys) == num_arms


def wait_until(happened: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait for something in a run, or for the run's end."""
    deadline = time.monotonic() + LIMIT
    while not happened() and process.poll() is None:
        assert time.monotonic() < deadline, "the run hangs"
        time.sleep(0.01)


def group_is_gone(group: int, *, seconds: float = 30.0) -> bool:
    """Whether no process of a group is left alive, after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while _alive(group):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _alive(group: int) -> list[int]:
    """The processes of a group that have not ended; one that nobody has waited for yet has."""
    found = []
    for each in Path("/proc").glob("[0-9]*"):
        try:
            state, _, its_group = (each / "stat").read_text("utf-8").rpartition(")")[2].split()[:3]
        except OSError:  # ended meanwhile
            continue
        if int(its_group) == group and state != "Z":
            found.append(int(each.name))
    return found


def send(sent: signal.Signals, process: subprocess.Popen[str], *, to_workers: bool = True) -> None:
    """Send a signal to a run and its workers, as a terminal or a machine's end does, or to the run alone."""
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        if to_workers:
            os.killpg(process.pid, sent)
        else:
            os.kill(process.pid, sent)
