"""``main``: the verbs under one name, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from maclaurin.cli import failure
from maclaurin.errors import nearest


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after ``maclaurin``; None: those of this process.

    Returns:
        The exit code: 0 done, 1 not done, 2 cannot be done as asked.
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    shows_traceback = False
    try:
        try:
            with _verbs().make_context("maclaurin", words) as context:
                shows_traceback = context.params["traceback"]
                context.command.invoke(context)
            code = 0
        except typer.Exit as done:  # --help and --version end this way
            code = done.exit_code
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader has seen enough
        _abandon_stdout()
        return 1
    except (KeyboardInterrupt, typer.Abort):
        print("interrupted", file=sys.stderr)
        return 1
    except Exception as error:
        if shows_traceback:
            import traceback

            traceback.print_exc()
        if isinstance(error, OSError):
            _abandon_stdout()  # a full disk under stdout would fail once more at exit
        return failure.explain(error)


class _Verbs(TyperGroup):
    """A group that names the nearest verb when it meets one it does not have."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands:
            ctx.fail(f"{args[0]!r} is not a verb of maclaurin: {nearest(args[0], self.commands)}")
        return super().resolve_command(ctx, args)


def _verbs() -> Any:
    """The command with every verb; a verb's file imports what it needs when it runs."""
    from maclaurin.cli.bench import bench
    from maclaurin.cli.list import list_mechanisms
    from maclaurin.cli.show import show_mechanism
    from maclaurin.cli.study import study
    from maclaurin.cli.verify import verify_target

    app = typer.Typer(
        cls=_Verbs,
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    app.command("study", short_help="Run a comparison, or go on with it; write its report.")(study)
    app.command("list", short_help="Every mechanism of the catalogue.")(list_mechanisms)
    app.command("show", short_help="One mechanism: formula, state, cost, methods, names.")(show_mechanism)
    app.command("verify", short_help="The laws of attention, on a mechanism or anyone's function.")(verify_target)
    app.command("bench", short_help="Time and memory beside torch's attention and others'.")(bench)
    return get_command(app)


def _print_version(is_wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the value by position
    if is_wanted:
        from maclaurin import __version__

        print(f"maclaurin {__version__}")
        raise typer.Exit


def _root(
    context: typer.Context,
    traceback: Annotated[
        bool,
        typer.Option("--traceback", envvar="MACLAURIN_TRACEBACK", help="On an error, also show where it arose."),
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Softmax attention, order by order.

    What does softmax attention give a model that linear attention does not, and which part of it can be had at
    linear cost? Answered by measurement.

    \b
    Examples:
      maclaurin study            run the built-in comparison and write its report
      maclaurin list             every mechanism in the catalogue
      maclaurin show taylor-2    one of them: formula, state size, cost
      maclaurin verify exp/l2    the laws of attention, on it or on your function
      maclaurin bench --quick    time and memory beside torch's attention
    """
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(2)


def _abandon_stdout() -> None:
    """Let what is still buffered go nowhere, so that Python's own flush at exit does not complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
