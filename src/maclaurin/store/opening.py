"""How ``results.sqlite`` comes into being, is recognized, and is opened."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from maclaurin.atomic import sync_folder
from maclaurin.errors import StoreError
from maclaurin.store import schema
from maclaurin.store.encoding import dump
from maclaurin.store.files import storage_failure
from maclaurin.store.records import StudyRecord

_COMPANIONS = ("", "-journal", "-wal", "-shm")  # a database and the files SQLite keeps beside it


def check_header(path: Path) -> None:
    """Refuse a file that is no store of ours, without a trace: no lock is taken and no file is made.

    SQLite reads the header, since closing a file that Python opened would drop the locks that an open
    connection of this process holds on it.

    Raises:
        StoreError: if the file is none of ours, or of another layout version.
    """
    application = version = 0
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            (version,) = connection.execute("PRAGMA user_version").fetchone()
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        raise storage_failure(error, path) from error
    except sqlite3.DatabaseError:
        application = 0  # not a database at all
    if application != schema.APPLICATION_ID:
        raise StoreError(
            f"{path} is not a store of maclaurin, or it is damaged. It was left unchanged; choose another --out."
        )
    if version != schema.SCHEMA_VERSION:
        raise StoreError(
            f"{path} has layout version {version}; this maclaurin reads version {schema.SCHEMA_VERSION}. "
            "It was left unchanged; upgrade maclaurin, or choose another --out."
        )


def create(path: Path, study: StudyRecord) -> None:
    """Make a complete store beside ``path``, then give it that name: an unfinished one never bears it.

    ``path`` must not exist, and the folder must be locked.

    Raises:
        StoreError: if the storage fails, or the file system cannot hold a store in WAL mode.
    """
    unfinished = path.with_name(f"{path.name}.new")
    try:
        for suffix in _COMPANIONS:  # a leftover log would be replayed into the new file
            unfinished.with_name(unfinished.name + suffix).unlink(missing_ok=True)
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        connection = sqlite3.connect(unfinished, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute(f"PRAGMA application_id={schema.APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={schema.SCHEMA_VERSION}")
            connection.executescript(schema.TABLES)
            connection.execute(
                "INSERT INTO study VALUES (1, ?, ?, ?, ?)",
                (study.name, study.version, study.digest, dump(study.config)),
            )
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
        finally:
            connection.close()
        if mode != "wal":
            raise StoreError(
                f"{path.parent}: this file system cannot share memory between programs, "
                "which the store needs. Choose another --out on a local disk."
            )
        unfinished.replace(path)
        sync_folder(path.parent)
    except (OSError, sqlite3.DatabaseError) as error:
        raise storage_failure(error, path.parent) from error


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open and check a store; reading never changes its content.

    A reader opens for writing with ``query_only`` where it may, since SQLite leaves its companion files
    behind otherwise; in a folder without write permission the file is opened as immutable.

    Raises:
        StoreError: if the file cannot be opened, or is damaged.
    """
    options = "mode=rw"
    if read_only and not os.access(path.parent, os.W_OK):
        wal = path.with_name(f"{path.name}-wal")
        options = "mode=ro" if wal.exists() else "mode=ro&immutable=1"
    connection = None
    try:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?{options}", uri=True, timeout=30.0, isolation_level=None
        )
        connection.execute("PRAGMA foreign_keys=ON")
        connection.execute("PRAGMA synchronous=FULL")
        if read_only:
            connection.execute("PRAGMA query_only=ON")
        (health,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if health != "ok":
            raise sqlite3.DatabaseError(f"database disk image is malformed: {health}")
    except sqlite3.DatabaseError as error:
        if connection is not None:
            connection.close()
        raise storage_failure(error, path) from error
    return connection
