"""``maclaurin verify``: the laws of attention, on any mechanism or any function that can be imported."""

from __future__ import annotations

import ast
import importlib
import math
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maclaurin.cli.failure import say
from maclaurin.cli.output import Column, decimal, hint, print_fields, print_json, print_table
from maclaurin.errors import ConfigError, nearest

if TYPE_CHECKING:
    from maclaurin.verify import Report, Row

_MODULE_HELP = "A mechanism, or package.module:callable."
_PRECISIONS = ("float64", "float32")


def verify_target(
    target: Annotated[str, typer.Argument(metavar="TARGET", help=_MODULE_HELP)],
    like: Annotated[
        str | None, typer.Option(metavar="MECHANISM", help="What the callable claims to be; compare with it.")
    ] = None,
    layout: Annotated[str, typer.Option(help="bhtd for [B, H, T, D], bthd for [B, T, H, D].")] = "bhtd",
    form: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:CALLABLE", help="One more callable that claims to be the same function."),
    ] = None,
    rename: Annotated[
        list[str] | None, typer.Option(metavar="OURS=THEIRS", help="The callable's word for a keyword of attend.")
    ] = None,
    fixed: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A keyword for every call, as Python writes it.")
    ] = None,
    mask_kind: Annotated[str, typer.Option(help="keys for a mask [B, S], pairs for one [B, 1, T, S].")] = "keys",
    bidirectional: Annotated[
        bool, typer.Option("--bidirectional", help="A callable without is_causal sees every key.")
    ] = False,
    precision: Annotated[str, typer.Option(help="float32 for a callable that always computes in it.")] = "float64",
    law: Annotated[list[str] | None, typer.Option(metavar="LAW", help="Run this law only; may be repeated.")] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="LAW", help="Leave this law out.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of every input.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Run the laws of attention on a mechanism, or on anyone's function.

    TARGET is a mechanism ('maclaurin list' prints names) or package.module:callable, imported from the current
    directory or the environment and called as fn(query, key, value, **keywords). What it can do is read from its
    signature; a law about a keyword that it does not take is not run. Exit code 0: every law that was run holds;
    1: some law fails, and the smallest input at which it does is shown; 2: it cannot be run as asked.

    \b
    Examples:
      maclaurin verify exp/l2
      maclaurin verify mine.attention:linear --like elu1/sum --layout bthd
      maclaurin verify mine:fast --form mine:slow --rename scale=sm_scale --json
      maclaurin verify mine:cached --fixed window=None --law 'state: splits'
    """
    options: dict[str, Any] = {"seed": seed, "laws": law or None, "without": without or (), "progress": _Line()}
    is_callable = ":" in target and "/" not in target
    if is_callable:
        options |= {
            "like": like,
            "layout": layout,
            "forms": {each: _imported(each) for each in form or []},
            "rename": dict(_pair(each, "--rename", "OURS=THEIRS") for each in rename or []),
            "fixed": {
                name: _value(text) for name, text in (_pair(each, "--fixed", "NAME=VALUE") for each in fixed or [])
            },
            "mask_kind": mask_kind,
            "is_causal": not bidirectional,
            "precision": _precision(precision),
        }
    elif like or form or rename or fixed:
        raise ConfigError(
            f"verify: {target!r} is a mechanism; --like, --form, --rename and --fixed describe a callable.\n"
            "  Leave them out, or name a callable: package.module:callable."
        )
    _finish(target, _run(_imported(target) if is_callable else target, options), as_json=as_json)


def _run(subject: Any, options: dict[str, Any]) -> Report:
    from maclaurin.verify import verify

    try:
        return verify(subject, **options)
    finally:
        options["progress"].clear()


def _finish(target: str, report: Report, *, as_json: bool) -> None:
    """Print the report and leave with its exit code."""
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    if report.failures:
        raise typer.Exit(1)
    if not report.passed:
        say(f"verify: no law could be run on {target}.\n  Say what it takes: --like, --rename, --law.")
        raise typer.Exit(2)


def _imported(text: str) -> Any:
    """The object that ``package.module:name`` stands for; the current directory comes first."""
    module_name, _, path = text.partition(":")
    if not module_name or not path:
        raise ConfigError(f"verify: {text!r} names no callable.\n  Write package.module:callable.")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"verify: {module_name!r} cannot be imported: {error}.\n"
            "  Run from the folder that holds it, or install it in this environment."
        ) from error
    except Exception as error:  # the module's own fault while it runs
        raise ConfigError(f"verify: importing {module_name!r} raised {type(error).__name__}: {error}.") from error
    finally:
        sys.path.remove(os.getcwd())
    for name in path.split("."):
        if not hasattr(found, name):
            public = [each for each in dir(found) if not each.startswith("_")]
            raise ConfigError(f"verify: {module_name!r} has no {name!r}: {nearest(name, public)}")
        found = getattr(found, name)
    if not callable(found):
        raise ConfigError(f"verify: {text} is a {type(found).__name__}, which cannot be called.\n  Name a function.")
    if isinstance(found, type):
        raise ConfigError(
            f"verify: {text} is a class.\n  Name a function or an object made of it: write one line that makes it."
        )
    return found


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise ConfigError(f"verify: {option} {text!r} is no pair.\n  Write {option} {form}.")
    return name, value


def _value(text: str) -> Any:
    """A number, True, False, None, a quoted text as Python reads it; anything else as it stands."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _precision(name: str) -> Any:
    import torch

    if name not in _PRECISIONS:
        raise ConfigError(f"verify: precision {name!r} does not exist.\n  Use one of {', '.join(_PRECISIONS)}.")
    return getattr(torch, name)


def _print(report: Report) -> None:
    """A line for each law that was run, forms of one verdict together; then what was not run; then a sum."""
    columns = [
        Column("law"),
        Column("forms"),
        Column("verdict"),
        Column("deviation", is_number=True),
        Column("allowed", is_number=True),
        Column("smallest failing input, or what was refused", is_note=True),
    ]
    lines, idle = [], dict[str, list[str]]()
    every = {each.form for each in report.rows}
    for rows in _alike(report.rows):
        worst = max(rows, key=lambda each: -1.0 if each.deviation is None else each.deviation)
        if worst.verdict == "not run":
            law = worst.law if len(rows) == len(every) else f"{worst.law} ({', '.join(each.form for each in rows)})"
            idle.setdefault(worst.reason, []).append(law)
            continue
        forms = "all" if len(rows) == len(every) > 1 else ", ".join(each.form for each in rows)
        note = worst.smallest_input or worst.reason
        lines.append((worst.law, forms, worst.verdict, _deviation(worst), _allowed(worst), note))
    print_table(columns, lines)
    if idle:
        print()
        print_fields([[("not run", f"{reason}: {', '.join(laws)}") for reason, laws in idle.items()]])
    verdicts = ("passed", "failed", "refused", "not run")
    counts = ", ".join(f"{count} {each}" for each in verdicts if (count := report.count(each)))
    beside = f", beside {report.like}" if report.like and report.like != report.target else ""
    forms = f" ({len(every)} forms)" if len(every) > 1 else ""
    print(f"\n{report.target}{forms}{beside}: {counts}; seed {report.seed}, {report.seconds:.0f} s")
    if report.failures:
        hint(f"'maclaurin verify ... --law {report.failures[0].law!r}' runs one law alone.")


def _alike(rows: Iterable[Row]) -> list[list[Row]]:
    """Rows of one law and verdict together; a failure stands alone, for its input is its own."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for each in rows:
        own = each.form if each.verdict == "failed" else each.reason
        groups.setdefault((each.law, each.verdict, own), []).append(each)
    return [*groups.values()]


def _deviation(row: Row) -> str:
    if row.deviation is None:
        return "-"
    return decimal(row.deviation, 2) if math.isfinite(row.deviation) else "not finite"


def _allowed(row: Row) -> str:
    return "-" if row.tolerance is None else decimal(row.tolerance, 2)


class _Line:
    """Which law is running, on one line of a terminal's standard error; nothing in a pipe."""

    def __init__(self) -> None:
        self.is_shown = sys.stderr.isatty()

    def __call__(self, done: int, total: int, name: str) -> None:
        if self.is_shown:
            print(f"\r\033[K{done}/{total} {name}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the line empty."""
        if self.is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
