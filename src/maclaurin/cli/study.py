"""``maclaurin study``: the main job. Run a declared comparison or go on with it, print the table, write the report."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from maclaurin.store import Arm, Missing, ResultRow, Store, Verdict
    from maclaurin.study import Study

#: Papers the report rests on, cited as text.
REFERENCES = (
    "G. Mongaras, E. C. Larson. On the Expressiveness of Softmax Attention: A Recurrent Neural Network Perspective. "
    "arXiv 2507.23632, 2025.",
    "Y. Deng, Z. Song, K. Yuan, T. Zhou. Why Softmax Attention Outperforms Linear Attention. arXiv 2310.11685, 2023. "
    "The construction here is reconstructed after it; every number is our own.",
    "S. Arora et al. Zoology: Measuring and Improving Recall in Efficient Language Models. arXiv 2312.04927, 2023.",
)

#: Sections whose rows are few enough to read in a terminal; the others speak through their verdict and the report.
_SHOWN = {"accuracy", "bits_per_byte"}


def study(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="A built-in study, or a .yaml file.")] = "quickstart",
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where results go; default maclaurin-runs/STUDY.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="First seed; default the study's own.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes, of one thread each.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Run a study, or go on with it: what is stored already is not run again.

    \b
    Examples:
      maclaurin study
      maclaurin study quickstart --out results --workers 4
      maclaurin study quickstart --seed 10 --out results-10 --json
    """
    from maclaurin.cli.progress import progress_of
    from maclaurin.store import Store
    from maclaurin.study import environment, load, run

    declared = load(name, seed=seed)
    folder = (out or Path("maclaurin-runs") / declared.name).absolute()

    arms = _arms(declared, folder)
    with Store.open(folder, study=declared.record()) as store:
        command = _command(name, out=out, seed=seed, workers=workers)
        store.add_environment({"command": command, "workers": workers, **environment()})
        with progress_of(declared.name) as progress:
            try:
                outcome = run(declared, store, arms, folder=folder, workers=workers, progress=progress)
            except KeyboardInterrupt:
                stored = len(store.finished() & {arm.key for arm in arms})
                _say(f"interrupted: {stored} of {len(arms)} arms are stored. To go on: {command}")
                raise typer.Exit(1) from None
        report, rows, missing, found = _report(declared, store, arms, outcome.failures)
    if as_json:
        from maclaurin.cli.output import print_json

        print_json(_as_json(declared.name, rows, missing, report))
    else:
        _print(rows, found, report)
    if outcome.failures:
        _say(f"{len(outcome.failures)} of {len(arms)} arms failed; the others are stored. To try again: {command}")
        raise typer.Exit(1)


def _arms(declared: Study, folder: Path) -> list[Arm]:
    """Every arm, with its data prepared.

    The folder is not this study's until that has gone well: a corpus that cannot be read is mended in the study's file,
    which makes it another study. A folder that already is another's is refused before anything is written to it.
    """
    from maclaurin.store import DATABASE_NAME, Store, make_folder

    make_folder(folder)
    if (folder / DATABASE_NAME).exists():
        Store.open(folder, study=declared.record()).close()
    return declared.arms(folder)


def _report(
    declared: Study, store: Store, arms: list[Arm], failures: dict[str, str]
) -> tuple[Path, list[ResultRow], list[Missing], list[Verdict]]:
    """Write the report; (its path, rows, missing rows, verdicts)."""
    from maclaurin.report import section_curves, write_report
    from maclaurin.study import summarize, verdicts

    planned = {arm.key for arm in arms}
    results = [each for each in store.results() if each.arm.key in planned]  # not those of an older corpus
    rows, missing = summarize(arms, results, failures)
    found = verdicts(declared, rows)
    path = write_report(
        store.folder / "report.html",
        study=declared.record(),
        rows=rows,
        missing=missing,
        verdicts=found,
        curves=section_curves(results),
        environment=store.environment(),
        references=REFERENCES,
    )
    return path, rows, missing, found


def _as_json(name: str, rows: list[ResultRow], missing: list[Missing], report: Path) -> dict[str, Any]:
    """The object of ``--json``."""
    return {
        "study": name,
        "results": [
            {
                "section": row.section,
                "mechanism": row.mechanism,
                "task": row.task,
                "metric": row.metric,
                "value": row.value,
                "n": row.n,
                "interval": None if row.interval is None else list(row.interval),
                "seconds": round(row.seconds, 3),
            }
            for row in rows
        ],
        "missing": [asdict(each) for each in missing],
        "report": str(report),
    }


def _print(rows: list[ResultRow], found: list[Verdict], report: Path) -> None:
    """Table, verdicts and the report's path."""
    from maclaurin.cli.output import Column, print_table

    shown = [row for row in rows if row.metric in _SHOWN]
    columns = [
        Column("section"),
        Column("mechanism"),
        Column("metric"),
        Column("mean", is_number=True),
        Column("95 % interval", is_number=True),
        Column("seeds", is_number=True),
    ]
    lines = []
    for row in sorted(shown, key=lambda row: row.section != "recall"):
        interval = "-" if row.interval is None else f"[{row.interval[0]:.3f}, {row.interval[1]:.3f}]"
        lines.append([row.section, row.mechanism, row.metric, f"{row.value:.3f}", interval, str(row.n)])
    if lines:
        print_table(columns, lines)
    for verdict in found:
        print(f"\n{verdict.section}\n{_filled(verdict.sentence)}\n{_filled(verdict.sureness)}")
    print(f"\nreport: {report}")


def _filled(text: str) -> str:
    import textwrap

    return textwrap.fill(text, 80, initial_indent="  ", subsequent_indent="  ")


def _command(name: str, *, out: Path | None, seed: int | None, workers: int) -> str:
    """The command that does the same again."""
    import shlex

    words = ["maclaurin", "study", name]
    words += [] if out is None else ["--out", str(out)]
    words += [] if seed is None else ["--seed", str(seed)]
    return shlex.join([*words, *([] if workers == 2 else ["--workers", str(workers)])])


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
