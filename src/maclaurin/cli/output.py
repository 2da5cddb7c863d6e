"""What the verbs print: JSON for programs, tables and fields for people, on a terminal and in a pipe.

A terminal gets rich's tables at its width; a pipe gets plain aligned text without any control code.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

#: Width of running text in a pipe; tables there are as wide as they need to be.
PIPE_WIDTH = 80
_UNBOUNDED = 10_000


@dataclass(frozen=True)
class Column:
    """One column of :func:`print_table`.

    Args:
        title: its heading.
        is_number: align to the right.
        is_note: longer words about the row; where the terminal is too narrow they go beneath it.
    """

    title: str
    is_number: bool = False
    is_note: bool = False


def print_json(value: Any) -> None:
    """One JSON document on standard output, in the order given; a number that is not finite is our mistake."""
    print(json.dumps(value, indent=2, allow_nan=False))


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output, one line per row.

    Args:
        columns: the last one may be a note.
        rows: as many cells each as there are columns.
    """
    from rich.measure import Measurement
    from rich.padding import Padding
    from rich.text import Text

    is_terminal = sys.stdout.isatty()
    console = _console(width=None if is_terminal else _UNBOUNDED)
    table = _table(columns, rows)
    natural = Measurement.get(console, console.options.update(max_width=_UNBOUNDED), table).maximum
    if not is_terminal or natural <= console.width or not columns[-1].is_note:
        _print(console, table)
        return
    header, *lines = _rendered(console, _table(columns[:-1], [row[:-1] for row in rows]))
    indent = 2 + max(len(cell) for cell in [columns[0].title, *(row[0] for row in rows)])
    print(header)
    for line, row in zip(lines, rows, strict=True):
        print(line)
        console.print(Padding(Text(row[-1], style="dim"), (0, 0, 0, indent), expand=False))


def print_fields(groups: Iterable[Sequence[tuple[str, str]]]) -> None:
    """Labelled lines on standard output, a blank line between groups; an empty label continues the one above."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for index, group in enumerate(groups):
        if index:
            table.add_row()
        for label, text in group:
            table.add_row(label, Text(text))
    _print(_console(width=None if sys.stdout.isatty() else PIPE_WIDTH), table)


def hint(text: str) -> None:
    """The next command worth knowing, on standard error, for a person only: silent where either stream is a pipe."""
    if sys.stdout.isatty() and sys.stderr.isatty():
        print(text, file=sys.stderr)


def integer(value: int) -> str:
    """A whole number with its thousands apart; from 10^15 in powers of ten.

    >>> integer(139425), integer(10**400)
    ('139,425', '1.00e+400')
    """
    return f"{value:,}" if abs(value) < 10**15 else f"{Decimal(value):.2e}"


def decimal(value: float, digits: int = 4) -> str:
    """A number to so many significant digits, positional where that is short; ``-`` if it is not finite.

    >>> decimal(0.98765, 3), decimal(1.5e-7), decimal(2178.0), decimal(float("nan"))
    ('0.988', '1.500e-07', '2178', '-')
    """
    if not math.isfinite(value):
        return "-"
    if value and not 1e-4 <= abs(value) < 1e6:
        return f"{value:.{digits - 1}e}"
    rounded = Decimal(f"{value:.{digits - 1}e}")
    return f"{rounded:f}"


def byte_size(value: int) -> str:
    """A number of bytes in binary units.

    >>> byte_size(512), byte_size(557_700), byte_size(3 * 2**30)
    ('512 B', '544.6 KiB', '3.0 GiB')
    """
    if value < 1024:
        return f"{value} B"
    for power, unit in enumerate(("KiB", "MiB", "GiB", "TiB"), start=1):
        if value < 1024 ** (power + 1):
            return f"{value / 1024**power:.1f} {unit}"
    return f"{integer(value // 1024**4)} TiB"


def _console(width: int | None) -> Console:
    from rich.console import Console

    plain: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False}
    is_colored = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return Console(file=sys.stdout, width=width, color_system="auto" if is_colored else None, **plain)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for each in columns:
        table.add_column(each.title, justify="right" if each.is_number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _rendered(console: Console, what: RenderableType) -> list[str]:
    with console.capture() as capture:
        console.print(what)
    return [line.rstrip() for line in capture.get().splitlines()]


def _print(console: Console, what: RenderableType) -> None:
    print("\n".join(_rendered(console, what)))
