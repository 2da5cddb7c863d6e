"""``maclaurin bench``: speed and memory beside torch's attention and others' implementations."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maclaurin.cli.output import Column, byte_size, decimal, integer, print_fields, print_json, print_table
from maclaurin.errors import StoreError

if TYPE_CHECKING:
    from maclaurin.bench import Memory, Result, Timing

_QUICK_LENGTHS = [256, 512, 1024]


def bench(
    mechanisms: Annotated[list[str] | None, typer.Argument(metavar="[MECHANISM]...", help="Names or texts.")] = None,
    length: Annotated[list[int] | None, typer.Option(help="Tokens; may be repeated.")] = None,
    head_size: Annotated[list[int] | None, typer.Option(help="Numbers per head; may be repeated.")] = None,
    heads: Annotated[int, typer.Option(help="Heads per example.")] = 4,
    batch: Annotated[int, typer.Option(help="Examples.")] = 1,
    dtype: Annotated[list[str] | None, typer.Option(help="float32, bfloat16, ...; may be repeated.")] = None,
    work: Annotated[
        list[str] | None, typer.Option(help="forward, training, decode or memory; may be repeated. Default: all.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Of attend: auto, parallel, chunked, ...; may be repeated.")
    ] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Leave this one out.")] = None,
    rounds: Annotated[int, typer.Option(help="Measurements of each; medians and quartiles are shown.")] = 9,
    threads: Annotated[int, typer.Option(help="1: CPU time of one thread. More: wall time.")] = 1,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    quick: Annotated[bool, typer.Option("--quick", help="End within a minute; says what was left out.")] = False,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write every number as CSV.")] = None,
    figure: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw time per token by length.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Time and memory of mechanisms beside torch's attention, plain forms and installed peers.

    All are run in turns in one process. A ratio is the median over rounds of a time divided by that of torch's
    scaled_dot_product_attention (sdpa) in the same round; 'roofline' is the least time that this machine could take,
    by its measured rate of a matrix product (for decode: of a copy), over the time taken. 'error' is the largest
    deviation from float64; one that computes something else is marked.

    \b
    Examples:
      maclaurin bench --quick
      maclaurin bench elu1/sum --length 4096 --head-size 16 --work forward
      maclaurin bench taylor-2 --method chunked --figure speed.svg
    """
    _check_outputs(csv, figure)
    from maclaurin.bench import Plan, compare
    from maclaurin.bench import quick as shortened

    given: dict[str, Any] = {
        "mechanisms": mechanisms,
        "lengths": length or (_QUICK_LENGTHS if quick else None),
        "head_sizes": head_size,
        "dtypes": dtype,
        "works": work,
        "methods": method,
        "without": without,
    }
    several: dict[str, Any] = {name: tuple(values) for name, values in given.items() if values}
    plan = Plan(
        heads=heads,
        batch=batch,
        rounds=rounds,
        threads=threads,
        device=device,
        **several,
    )
    progress = _Progress()
    try:
        result = compare(shortened(plan) if quick else plan, progress=progress)
    finally:
        progress.clear()
    _write(result, csv, figure)
    if as_json:
        print_json(result.to_json())
    else:
        _print(result)


def _check_outputs(*paths: Path | None) -> None:
    """Refuse before hours of timing what could not be written after them."""
    for path in paths:
        if path is None:
            continue
        folder = path.parent
        if path.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            reason = "is a folder" if path.is_dir() else f"{folder} is no folder that can be written to"
            raise StoreError(f"bench: {path} was asked for: {reason}.\n  Make the folder, or choose another place.")


def _write(result: Result, csv: Path | None, figure: Path | None) -> None:
    from maclaurin.atomic import replace_file

    if csv is not None:
        replace_file(csv, result.to_csv().encode())
    if figure is not None:
        from maclaurin.plot import to_svg
        from maclaurin.plot.speed import SpeedPoint, speed_figure

        points = [
            SpeedPoint(
                _panel(each), each.subject, each.length, each.seconds_median, each.seconds_low, each.seconds_high
            )
            for each in result.timings
            if each.seconds_median is not None and each.seconds_low is not None and each.seconds_high is not None
        ]
        label = f"Time of attention by length, {result.clock}."
        replace_file(figure, to_svg(speed_figure(points), label=label).encode())


def _panel(row: Timing) -> str:
    return f"{row.work}, {row.dtype}, head size {row.head_size}"


def _print(result: Result) -> None:
    plan = result.plan
    rates = ", ".join(f"{decimal(each / 1e9, 3)} GFLOP/s {name}" for name, each in result.flops_per_second.items())
    machine = result.machine
    print_fields(
        [
            [
                ("machine", f"{machine['processor']}, {machine['device']}, torch {machine['torch']}"),
                ("roofline", f"{rates}; copy {decimal(result.copy_bytes_per_second / 1e9, 3)} GB/s"),
                ("shape", f"batch {plan['batch']}, {plan['heads']} heads; {plan['rounds']} rounds, {result.clock}"),
            ]
        ]
    )
    for panel in dict.fromkeys(_panel(each) for each in result.timings):
        print(f"\n{panel}")
        _print_timings([each for each in result.timings if _panel(each) == panel])
    for kind in dict.fromkeys((each.dtype, each.head_size) for each in result.memories):
        print(f"\nmemory, {kind[0]}, head size {kind[1]}: the most added at once, and what is kept for backward")
        _print_memories([each for each in result.memories if (each.dtype, each.head_size) == kind])
    _print_crossovers(result)
    notes = [("absent", f"{name}: {reason}") for name, reason in result.absent.items()]
    notes += [("not run", each) for each in result.left_out]
    if notes:
        print()
        print_fields([notes])


def _print_timings(rows: Sequence[Timing]) -> None:
    columns = [
        Column("length", is_number=True),
        Column("subject"),
        Column("ms", is_number=True),
        Column("spread", is_number=True),
        Column("x sdpa", is_number=True),
        Column("roofline", is_number=True),
        Column("error", is_number=True),
        Column("", is_note=True),
    ]
    lines = []
    for index, row in enumerate(rows):
        is_first = index == 0 or rows[index - 1].length != row.length
        wrong = "" if row.is_right or row.failure else "WRONG: not what it claims to be"
        lines.append(
            (
                integer(row.length) if is_first else "",
                row.subject,
                _number(None if row.seconds_median is None else row.seconds_median * 1e3),
                _spread(row),
                _number(row.ratio_to_sdpa),
                "-" if row.roofline_fraction is None else f"{row.roofline_fraction:.1%}",
                "-" if row.relative_error is None else f"{row.relative_error:.0e}",
                row.failure or wrong,
            )
        )
    print_table(columns, lines)


def _spread(row: Timing) -> str:
    if row.seconds_median is None or row.seconds_low is None or row.seconds_high is None:
        return "-"
    return f"±{(row.seconds_high - row.seconds_low) / 2 / row.seconds_median:.0%}"


def _number(value: float | None) -> str:
    return "-" if value is None else decimal(value, 3)


def _print_memories(rows: Sequence[Memory]) -> None:
    columns = [
        Column("length", is_number=True),
        Column("subject"),
        Column("forward", is_number=True),
        Column("training", is_number=True),
        Column("saved", is_number=True),
        Column("x query", is_number=True),
        Column("", is_note=True),
    ]
    lines = []
    for index, row in enumerate(rows):
        is_first = index == 0 or rows[index - 1].length != row.length
        bytes_ = (row.forward_peak_bytes, row.training_peak_bytes, row.saved_bytes)
        sizes = ["-" if each is None else byte_size(each) for each in bytes_]
        where = [integer(row.length) if is_first else "", row.subject]
        lines.append([*where, *sizes, _number(row.saved_queries), row.failure])
    print_table(columns, lines)


def _print_crossovers(result: Result) -> None:
    """A line for each subject, a column for each kind of call."""
    if not result.crossovers:
        return
    works = [*dict.fromkeys(each.work for each in result.crossovers)]
    columns = [Column("faster than sdpa from length"), Column("dtype"), Column("head size", is_number=True)]
    columns += [Column(each, is_number=True) for each in works]
    table: dict[tuple[str, str, int], dict[str, str]] = {}
    for each in result.crossovers:
        at = f"none to {integer(each.longest_measured)}"
        if each.length is not None:
            at = ("<= " if each.is_below_shortest else "") + integer(round(each.length))
        table.setdefault((each.subject, each.dtype, each.head_size), {})[each.work] = at
    print()
    lines = [
        (name, dtype, str(size), *(row.get(work, "-") for work in works)) for (name, dtype, size), row in table.items()
    ]
    print_table(columns, lines)


class _Progress:
    """Which cell is running: one line of a terminal's standard error, plain lines every few seconds in a pipe."""

    seconds_between = 5.0

    def __init__(self) -> None:
        self.is_shown = sys.stderr.isatty()
        self.last = time.monotonic()

    def __call__(self, done: int, total: int, name: str) -> None:
        now = time.monotonic()
        if self.is_shown:
            print(f"\r\033[K{done}/{total} {name}", end="", file=sys.stderr, flush=True)
        elif now - self.last >= self.seconds_between or done == total:
            self.last = now
            print(f"bench: {done}/{total} {name}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the line empty."""
        if self.is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
