"""Files that hold either what they held before or all of what is written now, whatever happens in between."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path


def replace_file(path: Path, data: bytes) -> None:
    """Write ``data`` beside ``path`` and move it there, through to the disk.

    Raises:
        OSError: as the system says; ``path`` is then as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def sync_folder(folder: Path) -> None:
    """Make a renaming in ``folder`` last through a power cut, where the system has a way to ask for that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network file systems cannot sync a folder; the rename stands
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
