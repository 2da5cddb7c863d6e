"""The report: one HTML file that needs nothing but itself.

No script, no request, no outside link; the content-security policy forbids them, and Jinja escapes every text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import yaml
from markupsafe import Markup

from maclaurin.plot.labels import shown
from maclaurin.report.sections import ANSWER, QUESTION, illustrations, in_reading_order, prose
from maclaurin.report.tables import (
    Table,
    curve_table,
    evidence_table,
    missing_table,
    section_tables,
)
from maclaurin.store import ArmResult, Curve, Missing, ResultRow, StudyRecord, Verdict, write_atomically

SectionCurves = Mapping[str, Mapping[str, Sequence[Curve]]]

_GENERAL_LIMITS = (
    "The numbers hold for the sizes, budgets and data of the resolved study below, and no further.",
    "An interval says how far the seeds or trials carry a mean. It covers neither the choice of task nor that of "
    "the settings, and comparing many pairs by eye finds differences that are chance.",
    "Nothing here measures speed, or the memory of a running system.",
)


def write_report(
    path: str | Path,
    *,
    study: StudyRecord,
    rows: Sequence[ResultRow],
    missing: Sequence[Missing],
    verdicts: Sequence[Verdict],
    curves: SectionCurves,
    environment: Sequence[Mapping[str, Any]],
    references: Sequence[str],
) -> Path:
    """Write the report of a study as one self-contained HTML file; the old one stays until the new is complete.

    Args:
        path: the file, usually ``report.html`` in the study's folder.
        study: its resolved settings are printed; ``config["limits"]``, a list of sentences, is added to what the
            report does not show.
        rows: the result table.
        missing: what has no finite value, and why.
        verdicts: one per section; that of section ``answer`` heads the page, else all of them do.
        curves: section -> mechanism -> the curves of its seeds (:func:`section_curves`).
        environment: what each start ran on, oldest first (``Store.environment()``); of the last one ``command``
            is printed as the command that reproduces the report, the rest as facts.
        references: papers, as plain text.

    Returns:
        The absolute path of the file.

    Raises:
        StoreError: if the file cannot be written, for instance on a full disk.
    """
    path = Path(path).absolute()
    page = render(
        study=study,
        rows=rows,
        missing=missing,
        verdicts=verdicts,
        curves=curves,
        environment=environment,
        references=references,
    )
    write_atomically(path, page)
    return path


def render(
    *,
    study: StudyRecord,
    rows: Sequence[ResultRow],
    missing: Sequence[Missing],
    verdicts: Sequence[Verdict],
    curves: SectionCurves,
    environment: Sequence[Mapping[str, Any]],
    references: Sequence[str],
) -> str:
    """The text of the report; :func:`write_report` says what goes in. The same input gives the same text."""
    names = in_reading_order([row.section for row in rows] + [each.section for each in missing])
    sections = [
        _section(name, number, rows, verdicts, curves.get(name, {})) for number, name in enumerate(names, start=1)
    ]
    answers = [each for each in verdicts if each.section == ANSWER]
    latest = dict(environment[-1]) if environment else {}
    command = str(latest.pop("command", f"maclaurin study {study.name}"))
    return _template().render(
        question=QUESTION,
        study=study,
        answers=answers or [each for each in verdicts if each.section != ANSWER],
        findings=[each for each in sections if each["verdicts"]] if answers else [],
        sections=sections,
        limits=[
            *_GENERAL_LIMITS,
            *(limit for name in names for limit in prose(name).limits),
            *map(str, study.config.get("limits", ())),
        ],
        missing=missing_table(missing) if missing else None,
        evidence=evidence_table(sorted(rows, key=lambda row: names.index(row.section))),
        command=command,
        facts=[(str(name).replace("_", " "), _flat(value)) for name, value in latest.items()],
        starts=len(environment),
        resolved=_yaml(study.config),
        environment=_yaml(list(environment)),
        references=references,
    )


def section_curves(results: Iterable[ArmResult]) -> dict[str, dict[str, list[Curve]]]:
    """The curves of stored arms, by section and mechanism, as :func:`write_report` takes them."""
    curves: dict[str, dict[str, list[Curve]]] = {}
    for result in results:
        for curve in result.curves:
            curves.setdefault(result.arm.section, {}).setdefault(result.arm.mechanism, []).append(curve)
    return curves


def _section(
    name: str,
    number: int,
    rows: Sequence[ResultRow],
    verdicts: Sequence[Verdict],
    curves: Mapping[str, Sequence[Curve]],
) -> dict[str, Any]:
    mine = [row for row in rows if row.section == name]
    words = prose(name)
    metrics = dict.fromkeys(curve.metric for each in curves.values() for curve in each)
    return {
        "id": f"section-{number}",
        "number": number,
        "name": name,
        "title": words.title,
        "asked": words.asked,
        "verdicts": [each for each in verdicts if each.section == name],
        "figures": [(Markup(each.svg), each.caption) for each in illustrations(name, mine, curves)],
        "tables": section_tables(mine),
        "curve_tables": [curve_table(curves, metric_name) for metric_name in metrics],
    }


def _template() -> jinja2.Template:
    """The page's template, strict and escaping, with its style sheet inside."""
    folder = resources.files("maclaurin.report")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals["style"] = Markup(folder.joinpath("report.css").read_text(encoding="utf-8"))
    environment.filters["shown"] = shown
    environment.filters["tight"] = _tight
    environment.filters["open_table"] = _is_short
    return environment.from_string(folder.joinpath("report.html.j2").read_text(encoding="utf-8"))


def _tight(text: str) -> str:
    """Keep a percent sign with its number."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def _is_short(table: Table) -> bool:
    return len(table.rows) <= 10


def _flat(value: Any) -> str:
    """A nested fact on one line.

    >>> _flat({"torch": "2.13.0", "threads": [1, 1]})
    'torch 2.13.0 · threads 1, 1'
    """
    if isinstance(value, Mapping):
        return " · ".join(f"{str(key).replace('_', ' ')} {_flat(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_flat, value))
    return str(value)


def _yaml(value: Any) -> str:
    plain = json.loads(json.dumps(value, default=str))
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=88)
