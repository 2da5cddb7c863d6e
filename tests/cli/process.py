"""A command in its own process: in a pipe, or on a terminal of a given width."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

MACLAURIN = (sys.executable, "-m", "maclaurin")


def in_a_pipe(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ``maclaurin words`` with stdout and stderr in pipes."""
    return subprocess.run(
        [*MACLAURIN, *words], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def on_a_terminal(*words: str, columns: int = 80, **environment: str) -> tuple[int, list[str]]:
    """Run ``maclaurin words`` on a terminal; the exit code and the lines that appeared, control codes kept."""
    seen = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    pid, descriptor = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        os.execve(MACLAURIN[0], [*MACLAURIN, *words], {**seen, "TERM": "xterm-256color", **environment})
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
