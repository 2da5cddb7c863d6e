"""Kills, full disks and second processes: what was stored stays, and stays whole."""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from maclaurin.errors import StoreError
from maclaurin.store import Store, StudyRecord, write_atomically

WRITER = textwrap.dedent(
    """
    import sys
    from maclaurin.store import Arm, ArmResult, Curve, Measurement, Store, StudyRecord

    store = Store.open(sys.argv[1], study=StudyRecord("loop", 1, "d", {}))
    print("open", flush=True)
    number = len(store.finished())
    while True:
        arm = Arm(f"k{number}", "recall", "softmax", "mqar", number, {})
        metrics = tuple(Measurement(f"m{i}", float(number)) for i in range(20))
        store.record(ArmResult(arm, metrics, (Curve("loss_nats", tuple(range(200)), (1.0,) * 200),)))
        print(number, flush=True)
        number += 1
    """
)


def kill_after(folder: Path, *, lines: int) -> int:
    """Run the writer, SIGKILL it once it has printed ``lines`` arms; the last arm it had said was stored."""
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "open\n"
        for _ in range(lines):
            said = process.stdout.readline()
        time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split()[-1:] or [said]
    process.wait()
    return int(said[0])


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="not run: this system has no SIGKILL")
def test_a_kill_loses_nothing_that_was_said_to_be_stored(tmp_path):
    stored = -1
    for lines in (1, 7, 30):
        last_said = kill_after(tmp_path, lines=lines)
        connection = sqlite3.connect(tmp_path / "results.sqlite")
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        connection.close()
        with Store.open(tmp_path, study=StudyRecord("loop", 1, "d", {})) as store:
            results = store.results()
        assert {result.arm.key for result in results} == {f"k{number}" for number in range(len(results))}
        assert len(results) > last_said > stored
        assert all(len(result.measurements) == 20 for result in results)
        assert all(len(result.curves[0].values) == 200 for result in results)
        stored = last_said


def test_a_full_disk_loses_nothing_that_was_stored(tmp_path, study, make_result):
    with Store.open(tmp_path, study=study) as store:
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count={pages + 3}")
        stored: list[str] = []

        def fill():
            for number in range(1000):
                store.record(make_result(f"k{number:04}"))
                stored.append(f"k{number:04}")

        with pytest.raises(StoreError, match=r"disk is full\. What was stored before is safe") as caught:
            fill()
        assert "\n" not in str(caught.value)
        assert stored
        assert [result.arm.key for result in store.results()] == stored
        store._connection.execute("PRAGMA max_page_count=1000000")
        assert store.record(make_result("later"))
    with Store.open(tmp_path, study=study) as store:
        assert store.finished() == {*stored, "later"}
        assert all(len(result.measurements) == 2 and result.curves for result in store.results())


def test_a_creation_that_fails_leaves_no_store(tmp_path, study, monkeypatch):
    def full(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        with pytest.raises(StoreError, match="disk is full"):
            Store.open(tmp_path, study=study)
    assert not (tmp_path / "results.sqlite").exists()
    Store.open(tmp_path, study=study).close()  # and the lock was given back


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="not run: root may write anywhere")
def test_a_folder_without_write_permission(tmp_path, study):
    tmp_path.chmod(0o555)
    with pytest.raises(StoreError, match="cannot be written"):
        Store.open(tmp_path, study=study)


def test_a_second_process_is_refused(tmp_path):
    study = StudyRecord("loop", 1, "d", {})
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "open\n"
        with pytest.raises(StoreError, match="another process is running this study here"):
            Store.open(tmp_path, study=study)
        process.kill()
    process.wait()
    Store.open(tmp_path, study=study).close()


def test_a_second_store_of_one_process_is_refused(tmp_path, study):
    with Store.open(tmp_path, study=study) as store:
        with pytest.raises(StoreError, match="another process is running this study here"):
            Store.open(tmp_path, study=study)
        store.close()
        Store.open(tmp_path, study=study).close()


def test_reading_in_the_writing_process_keeps_its_locks(tmp_path, study, make_result):
    """Closing any descriptor of a file drops a process's POSIX locks on it; SQLite's own closing does not."""
    pytest.importorskip("fcntl", reason="not run: no POSIX locks here")
    probe = (
        "import fcntl, sys; file = open(sys.argv[1], 'rb+')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 510, 0x40000002)"  # SQLite's shared-lock range
    )
    with Store.open(tmp_path, study=study) as store:
        store.record(make_result())
        with Store.open_existing(tmp_path) as reader:
            reader.results()
        arguments = [sys.executable, "-c", probe, str(store.path)]
        attempt = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert "BlockingIOError" in attempt.stderr


def test_a_file_system_without_locks_is_refused(tmp_path, study, monkeypatch):
    def unsupported(file):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("maclaurin.store.lock._lock", unsupported)
    with pytest.raises(StoreError, match=r"cannot lock files.*Choose another --out"):
        Store.open(tmp_path, study=study)


def test_atomic_writing_leaves_the_old_file_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "report.html"
    write_atomically(path, "old")

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    for owner, name in ((os, "fsync"), (Path, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(StoreError, match="disk is full"):
                write_atomically(path, "new")
        assert path.read_text(encoding="utf-8") == "old"
        assert [each.name for each in path.parent.iterdir()] == ["report.html"]
    write_atomically(path, "naïve\n")
    assert path.read_bytes() == "naïve\n".encode()
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreError, match="a folder is in the place of this file"):
        write_atomically(path, "new")
