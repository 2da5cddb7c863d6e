"""What an error says to the person at the terminal, and the exit code it leaves with.

Code 2: asked for something that cannot be done, the message says what to do. Code 1: our fault.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import textwrap
from typing import Any

import typer

from maclaurin.errors import MaclaurinError, nearest

#: What the machine refuses rather than the program: room, or permission.
_MACHINE_REFUSES = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}

# typer's parser errors: click's classes, wherever the installed typer keeps them
_UsageError: Any = typer.BadParameter.__base__
_ClickException: Any = _UsageError.__base__


def explain(error: Exception) -> int:
    """Say on standard error what went wrong and what to do.

    Returns:
        The exit code.
    """
    if isinstance(error, MaclaurinError):
        say(str(error))
    elif isinstance(error, _UsageError):
        say(_usage(error))
    elif isinstance(error, _ClickException):
        say(error.format_message())
    elif isinstance(error, OSError) and error.errno in _MACHINE_REFUSES:
        where = f"{error.filename}: " if error.filename else ""
        say(f"{where}{error.strerror}.\n  Mend that, or choose another place, and run the same command again.")
    else:
        say(
            f"unexpected {type(error).__name__}: {error}\n"
            "  This is a fault of maclaurin. 'maclaurin --traceback VERB ...' or MACLAURIN_TRACEBACK=1 shows where it\n"
            "  arose; please report it with that and the command, as CONTRIBUTING.md says."
        )
        return 1
    return 2


def say(message: str) -> None:
    """``error: message`` on standard error, red where colors are welcome."""
    text = f"error: {message}"
    if sys.stderr.isatty():
        text = _wrapped(text, shutil.get_terminal_size().columns)
        if not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
            text = text.replace("error:", "\033[1;31merror:\033[0m", 1)
    print(text, file=sys.stderr)


def _wrapped(text: str, width: int) -> str:
    """Lines broken between words; what continues a line is indented."""
    lines = (
        textwrap.fill(line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
    return "\n".join(lines)


def _usage(error: Any) -> str:
    """A mistake in the command's words, with the nearest legal ones."""
    context = error.ctx
    path = context.command_path if context else "maclaurin"
    message = error.format_message()
    if context and hasattr(error, "possibilities"):  # an option that the verb does not have
        wrong = error.option_name
        legal = [name for each in context.command.params for name in each.opts if name.startswith("-")]
        before = {name for each in context.find_root().command.params for name in each.opts}
        hint = f"write it before the verb, 'maclaurin {wrong} ...'" if wrong in before else nearest(wrong, legal)
        message = f"{wrong} is not an option of '{path}': {hint}"
    return f"{message}\n  '{path} --help' shows how it is used."
