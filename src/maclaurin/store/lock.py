"""One process per output folder: a lock that the operating system holds and drops with the process.

A killed process leaves no stale lock behind, and a stopped one keeps its own: there is no timeout to guess.
The lock file stays in the folder, since removing it would let two processes lock two files of one name.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path
from typing import IO

from maclaurin.errors import StoreError
from maclaurin.store.files import storage_failure

LOCK_NAME = "results.lock"

if sys.platform == "win32":
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


_HELD_BY_ANOTHER = {errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK}
_CANNOT_LOCK = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


class FolderLock:
    """Holds ``folder`` for this process until :meth:`release` or until the process ends.

    ``flock`` where there is one, ``msvcrt.locking`` on Windows.

    Raises:
        StoreError: if another process (or another open store of this one) holds the folder, or the file
            system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / LOCK_NAME
        try:
            self._file: IO[bytes] | None = path.open("ab")
        except OSError as error:
            raise storage_failure(error, folder) from error
        try:
            _lock(self._file)
        except OSError as error:
            self._file.close()
            if error.errno in _CANNOT_LOCK:
                raise StoreError(
                    f"{folder}: this file system cannot lock files, so two processes could run one study "
                    "at once. Choose another --out on a local disk."
                ) from error
            if error.errno not in _HELD_BY_ANOTHER:
                raise storage_failure(error, folder) from error
            raise StoreError(
                f"{folder}: another process is running this study here. Wait for it to end, or choose another --out."
            ) from error

    def release(self) -> None:
        """Let the next process in; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None
