"""A command in its own process: in a pipe, or on a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from typing import IO

MACLAURIN = (sys.executable, "-m", "maclaurin")

#: This process's environment without what would change how a command prints.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name not in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PYTHONUNBUFFERED", "MACLAURIN_TRACEBACK")
}


def in_a_pipe(
    *words: str, stdout: int | IO[str] = subprocess.PIPE, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run ``maclaurin words``; stderr, and by default stdout, in pipes."""
    return subprocess.run(
        [*MACLAURIN, *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **environment},
        check=False,
    )


def on_a_terminal(*words: str, columns: int = 80, **environment: str) -> tuple[int, list[str]]:
    """Run ``maclaurin words`` on a terminal; the exit code and the lines that appeared, control codes kept."""
    pid, descriptor = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        os.execve(MACLAURIN[0], [*MACLAURIN, *words], {**ENVIRONMENT, "TERM": "xterm-256color", **environment})
    received = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # what Linux says when the other end is gone
            break
        if not part:
            break
        received += part
    os.close(descriptor)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, received.decode().replace("\r\n", "\n").splitlines()
