"""A study that is killed again and again ends with every arm once and the values of an undisturbed run.

Run: pytest tests/crash/test_kill.py
"""

from __future__ import annotations

import random
import signal
import time
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

#: (a kill comes once so many arms are stored, it takes the workers too): a machine's end, or that of the parent alone.
KILLS = [(0, True), (2, False), (8, True)]


def test_kills_lose_nothing_and_change_nothing(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    out = prepare(tmp_path) / "out"
    rng = random.Random(7)
    kept = 0
    for num_arms, is_whole_group in KILLS:
        process = start(tmp_path, "tiny.yaml", "--out", "out")
        wait_until(lambda least=num_arms: (out / "results.sqlite").exists() and stored(out) >= least, process)
        time.sleep(rng.uniform(0, 0.1))
        send(signal.SIGKILL, process, to_workers=is_whole_group)
        assert group_is_gone(process.pid), "a worker outlives the command"
        assert "Traceback" not in finish(process).err
        check_store(out)
        assert stored(out) >= max(kept, num_arms)
        kept = stored(out)

    finished = run(tmp_path, "tiny.yaml", "--out", "out", "--json")
    assert finished.code == 0
    assert f"{NUM_ARMS} arms, {kept} stored already" in finished.err
    check_store(out, num_arms=NUM_ARMS)
    _, other = undisturbed(tmp_path_factory)
    assert values(finished.answer) == values(other.answer)
    assert finished.answer["missing"] == other.answer["missing"]

    assert sorted(each.name for each in out.iterdir()) == ["corpus", "report.html", "results.lock", "results.sqlite"]
    assert sorted(each.suffix for each in (out / "corpus").iterdir()) == [".bin", ".json"]
