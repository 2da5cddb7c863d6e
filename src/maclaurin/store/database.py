"""The store of a study: ``results.sqlite`` in an output folder, written arm by arm, never half an arm.

Every write is one transaction in WAL mode with ``synchronous=FULL``: once :meth:`Store.record` returns, a
kill or a power cut loses nothing of that arm, and before it returns nothing of it is there.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from maclaurin.errors import StoreError
from maclaurin.store.encoding import dump, finite, number
from maclaurin.store.files import make_folder, storage_failure
from maclaurin.store.lock import FolderLock
from maclaurin.store.opening import check_header, connect, create
from maclaurin.store.records import Arm, ArmResult, Curve, Measurement, StudyRecord

DATABASE_NAME = "results.sqlite"


class Store:
    """An open store. Make one with :meth:`open` (to write) or :meth:`open_existing` (to read).

    Example:
        >>> import tempfile
        >>> study = StudyRecord("demo", 1, "d1", {"seeds": [0]})
        >>> arm = Arm("k1", "recall", "softmax", "mqar", 0, {"lr": 0.01})
        >>> with tempfile.TemporaryDirectory() as folder, Store.open(folder, study=study) as store:
        ...     store.record(ArmResult(arm, (Measurement("accuracy", 0.75),)))
        ...     store.finished()
        True
        {'k1'}
    """

    def __init__(self, folder: Path, connection: sqlite3.Connection, lock: FolderLock | None) -> None:
        self.folder = folder
        self.path = folder / DATABASE_NAME
        self._connection = connection
        self._lock = lock
        self.study = self._read_study()

    @classmethod
    def open(cls, folder: str | Path, *, study: StudyRecord) -> Self:
        """Create the store of ``study`` in ``folder``, or resume it.

        The folder is held for this process until :meth:`close` or the process's end.

        Raises:
            StoreError: if the folder holds another study or a file that is no usable store (left unchanged),
                is in use by another process, or cannot be written; if the disk is full.
        """
        folder = Path(folder)
        make_folder(folder)
        path = folder / DATABASE_NAME
        if path.exists():
            with cls.open_existing(folder) as present:
                present._refuse_other(study)
        lock = FolderLock(folder)
        try:
            if not path.exists():
                create(path, study)
            store = cls(folder, connect(path, read_only=False), lock)
            store._refuse_other(study)
            return store
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open_existing(cls, folder: str | Path) -> Self:
        """Open the store in ``folder`` for reading, also while a study is being run there.

        Raises:
            StoreError: if there is no store, or the file is none that this version can read.
        """
        folder = Path(folder)
        path = folder / DATABASE_NAME
        if not path.is_file():
            raise StoreError(
                f"{folder}: no {DATABASE_NAME} here. Name a folder that a study has written, "
                "or run one first: maclaurin study --out FOLDER."
            )
        check_header(path)
        return cls(folder, connect(path, read_only=True), None)

    def record(self, result: ArmResult) -> bool:
        """Keep what an arm produced, all of it or nothing; False if it was there before (the first stays).

        Raises:
            StoreError: if the storage fails, for instance on a full disk; nothing of the arm is kept then.
        """
        arm = result.arm
        assert len({each.metric for each in result.measurements}) == len(result.measurements), "a metric twice"
        with self._transaction() as connection:
            cursor = connection.execute(
                "INSERT INTO arm VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (key) DO NOTHING",
                (
                    *(arm.key, arm.section, arm.mechanism, arm.task, arm.seed, dump(arm.config)),
                    *(result.seconds, dump(result.notes)),
                ),
            )
            if cursor.rowcount == 0:
                return False
            connection.executemany(
                "INSERT INTO measurement VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (arm.key, position, each.metric, finite(each.value), each.trials, *_bounds(each))
                    for position, each in enumerate(result.measurements)
                ],
            )
            connection.executemany(
                "INSERT INTO curve VALUES (?, ?, ?, ?, ?)",
                [
                    (arm.key, position, each.metric, dump(each.steps), dump(each.values))
                    for position, each in enumerate(result.curves)
                ],
            )
        return True

    def finished(self) -> set[str]:
        """The keys of all arms that are stored."""
        return {key for (key,) in self._rows("SELECT key FROM arm")}

    def results(self) -> list[ArmResult]:
        """All stored arms, sorted by section, mechanism, task, seed and key.

        Numbers that were not finite come back as nan.
        """
        measurements: dict[str, list[Measurement]] = defaultdict(list)
        curves: dict[str, list[Curve]] = defaultdict(list)
        with self._transaction(begin="BEGIN"):  # one snapshot for all three tables
            arms = self._rows("SELECT * FROM arm ORDER BY section, mechanism, task, seed, key")
            for key, name, value, trials, low, high in self._rows(
                "SELECT arm_key, metric, value, trials, low, high FROM measurement ORDER BY arm_key, position"
            ):
                interval = None if low is None or high is None else (low, high)
                measurements[key].append(Measurement(name, number(value), trials, interval))
            for key, name, steps, readings in self._rows(
                "SELECT arm_key, metric, steps, readings FROM curve ORDER BY arm_key, position"
            ):
                values = tuple(number(value) for value in json.loads(readings))
                curves[key].append(Curve(name, tuple(json.loads(steps)), values))
        return [
            ArmResult(
                arm=Arm(key, section, mechanism, task, seed, json.loads(config)),
                measurements=tuple(measurements[key]),
                curves=tuple(curves[key]),
                seconds=seconds,
                notes=json.loads(notes),
            )
            for key, section, mechanism, task, seed, config, seconds, notes in arms
        ]

    def add_environment(self, facts: dict[str, Any]) -> None:
        """Append what this start of the study ran on (versions, hardware, command), with the time.

        Args:
            facts: JSON values under any names but ``time``.

        Raises:
            StoreError: if the storage fails.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        with self._transaction() as connection:
            connection.execute("INSERT INTO environment (time, facts) VALUES (?, ?)", (time, dump(facts)))

    def environment(self) -> list[dict[str, Any]]:
        """What each start of the study ran on, oldest first; ``time`` is UTC in ISO 8601."""
        rows = self._rows("SELECT time, facts FROM environment ORDER BY id")
        return [{"time": time, **json.loads(facts)} for time, facts in rows]

    def close(self) -> None:
        """Close the file and let other processes in; a second call does nothing."""
        self._connection.close()
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read_study(self) -> StudyRecord:
        try:
            rows = self._rows("SELECT name, version, digest, config FROM study")
            if len(rows) != 1:
                raise storage_failure(sqlite3.DatabaseError("malformed: no study"), self.path)
        except StoreError:
            self._connection.close()
            raise
        name, version, digest, config = rows[0]
        return StudyRecord(name, version, digest, json.loads(config))

    def _refuse_other(self, study: StudyRecord) -> None:
        if (self.study.name, self.study.digest) == (study.name, study.digest):
            return
        self._connection.close()
        raise StoreError(
            f"{self.folder} holds another study.\n"
            f"  there: {_describe(self.study)}\n"
            f"  asked: {_describe(study)}\n"
            "  Nothing was changed. Choose another --out."
        )

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """All of the block or nothing of it."""
        connection = self._connection
        try:
            connection.execute(begin)
            yield connection
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError):
                raise storage_failure(error, self.path) from error
            raise

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(query).fetchall()
        except sqlite3.DatabaseError as error:
            raise storage_failure(error, self.path) from error


def _bounds(measurement: Measurement) -> tuple[float | None, float | None]:
    low, high = measurement.interval or (math.nan, math.nan)
    return finite(low), finite(high)


def _describe(study: StudyRecord) -> str:
    return f"{study.name!r}, version {study.version}, digest {study.digest[:12]}"
