"""Files that are either the old one or the new one, and storage failures said in one line."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

from maclaurin.atomic import replace_file
from maclaurin.errors import StoreError

_FULL = {errno.ENOSPC, errno.EDQUOT} if hasattr(errno, "EDQUOT") else {errno.ENOSPC}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NOT_A_FOLDER = {errno.ENOTDIR, errno.EEXIST}


def storage_failure(error: OSError | sqlite3.Error, where: Path) -> StoreError:
    """What the operating system or SQLite refused, as one line that says what to do.

    >>> print(storage_failure(OSError(errno.ENOSPC, "No space left on device"), Path("out")))
    out: the disk is full. What was stored before is safe; free some space and run this again.
    """
    text = str(error)
    number = error.errno if isinstance(error, OSError) else None
    if number in _FULL or "disk is full" in text:
        problem = "the disk is full. What was stored before is safe; free some space and run this again."
    elif number in _DENIED or "readonly database" in text or "unable to open database" in text:
        problem = "cannot be written. Choose another --out, or give yourself write permission there."
    elif number == errno.EISDIR:
        problem = "a folder is in the place of this file. Move it away, or choose another --out."
    elif number in _NOT_A_FOLDER:
        problem = "an output folder is needed and a file is in its place. Choose another --out."
    elif "locked" in text or "busy" in text:
        problem = "the store is in use by another program. Close it and run the same command again."
    elif any(sign in text for sign in ("malformed", "not a database", "no such table")):
        problem = "the store is damaged; nothing was changed. Move it away, or choose another --out."
    else:
        problem = f"the storage failed ({text}). What was stored before is safe."
    return StoreError(f"{where}: {problem}")


def make_folder(folder: Path) -> None:
    """Create ``folder`` and its parents; an existing folder is left as it is.

    Raises:
        StoreError: if a file is in the way or the folder cannot be created.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_failure(error, folder) from error


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 so that ``path`` holds either its old content or all of the new one.

    The folder is created when it does not exist.

    Raises:
        StoreError: if the folder or file cannot be written; ``path`` is then as it was.
    """
    make_folder(path.parent)
    try:
        replace_file(path, text.encode("utf-8"))
    except OSError as error:
        raise storage_failure(error, path) from error
