"""Result rows as tables, and tables as Markdown and LaTeX; the page prints the same ones.

Each builder makes the twin of a figure: every number that the figure draws stands in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from maclaurin.plot.labels import natural, parse_order, parse_setting, shown
from maclaurin.report.numbers import NOTHING, duration, interval, measured, number, size
from maclaurin.store import Curve, Missing, ResultRow, metric

_LONGEST = 200  # characters of a name in a table


@dataclass(frozen=True)
class Column:
    """One column; columns that follow each other with one ``group`` share a heading above theirs."""

    label: str
    group: str = ""
    is_number: bool = True


@dataclass(frozen=True)
class Cell:
    """A text, and what belongs under it in smaller type (an interval)."""

    text: str
    note: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.note}".strip()


@dataclass(frozen=True)
class Table:
    """A caption, columns and rows; the first ``num_headers`` columns name the rows."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    num_headers: int = 1

    @property
    def groups(self) -> list[tuple[str, int]]:
        """The headings above the columns after the row names: (text, how many columns)."""
        spans: list[tuple[str, int]] = []
        for column in self.columns[self.num_headers :]:
            if spans and spans[-1][0] == column.group:
                spans[-1] = (column.group, spans[-1][1] + 1)
            else:
                spans.append((column.group, 1))
        return spans if any(group for group, _ in spans) else []


# -- builders ------------------------------------------------------------------------------------------------


def section_tables(rows: Iterable[ResultRow]) -> list[Table]:
    """The tables of one section: orders by scale, constructed data by setting, everything else by mechanism.

    >>> rows = [ResultRow("recall", "softmax", "mqar", "accuracy", 0.99, 1, None, 3.0, (0.99,), (0,))]
    >>> [table.caption for table in section_tables(rows)]
    ['Task mqar; each number rests on 1 seed']
    """
    rest = list(rows)
    tables = []
    for take in (_order_tables, _sweep_tables):
        made, rest = take(rest)
        tables += made
    return tables + ([mechanism_table(rest)] if rest else [])


def mechanism_table(rows: Sequence[ResultRow]) -> Table:
    """One line per mechanism and task, best first by the first metric: mean, interval, n, each seed, the rest."""
    names = sorted({row.metric for row in rows}, key=lambda name: (not _has_spread(rows, name), name))
    spread = {name: _has_spread(rows, name) for name in names}
    with_seeds = {names[0]} if any(row.points for row in rows if row.metric == names[0]) else set()
    found = {(row.mechanism, row.task, row.metric): row for row in rows}
    tasks = sorted({row.task for row in rows}, key=natural)
    sign = 1.0 if metric(names[0]).better == "lower" else -1.0

    def best_first(key: tuple[str, str]) -> tuple[int, float, str]:
        row = found.get((*key, names[0]))
        return tasks.index(key[1]), math.inf if row is None else sign * row.value, key[0]

    columns = [Column("mechanism", is_number=False), Column("task", is_number=False)][: 1 + (len(tasks) > 1)]
    num_headers = len(columns)
    for name in names:
        labels = ["mean", "95 % interval", "n"] if spread[name] else ["value"]
        labels += ["each seed"] * (name in with_seeds)
        columns += [Column(label, group=_heading(name)) for label in labels]
    lines = []
    for mechanism, task in sorted({(row.mechanism, row.task) for row in rows}, key=best_first):
        line = [_text(mechanism), _text(task)][:num_headers]
        for name in names:
            cells = _value_cells(found.get((mechanism, task, name)), name)
            line += cells[: 3 if spread[name] else 1] + cells[3:] * (name in with_seeds)
        lines.append(tuple(line))
    where = f"Task {shown(tasks[0], _LONGEST)}" if len(tasks) == 1 else f"{len(tasks)} tasks"
    return Table(f"{where}; each number rests on {count_phrase(rows)}", tuple(columns), tuple(lines), num_headers)


def curve_table(curves_by_mechanism: Mapping[str, Sequence[Curve]], metric_name: str, *, num_steps: int = 8) -> Table:
    """Means over seeds of a training curve at about ``num_steps`` steps, the last one included."""
    kept = {
        name: [curve for curve in curves if curve.metric == metric_name] for name, curves in curves_by_mechanism.items()
    }
    kept = {name: curves for name, curves in kept.items() if curves}
    steps = sorted({step for curves in kept.values() for curve in curves for step in curve.steps})
    stride = max(1, -(-len(steps) // num_steps))
    picked = steps[::-1][::stride][::-1]
    what = metric(metric_name)
    lines = []
    for name, curves in kept.items():
        line = [_text(name)]
        for step in picked:
            values = [dict(zip(curve.steps, curve.values, strict=True)).get(step) for curve in curves]
            present = [value for value in values if value is not None and value == value]
            line.append(Cell(measured(fmean(present), what) if present else NOTHING))
        lines.append(tuple(line))
    columns = (Column("mechanism", is_number=False), *(Column(f"{step:,}", group="optimizer steps") for step in picked))
    return Table(f"{what.axis}: mean over seeds", columns, tuple(lines))


def missing_table(missing: Iterable[Missing]) -> Table:
    """What was planned and has no finite value, with the reason."""
    labels = ("mechanism", "section", "task", "metric", "reason")
    rows = [tuple(_text(getattr(each, label)) for label in labels) for each in missing]
    return Table("Missing numbers", tuple(Column(label, is_number=False) for label in labels), tuple(rows))


def evidence_table(rows: Iterable[ResultRow]) -> Table:
    """For each section: its mechanisms, its seeds, how much each number rests on, and the time it took."""
    sections: dict[str, list[ResultRow]] = {}
    for row in rows:
        sections.setdefault(row.section, []).append(row)
    lines = []
    for section, mine in sections.items():
        seeds = sorted({seed for row in mine for seed in row.seeds})
        arms: dict[tuple[str, str], float] = {}
        for row in mine:  # the metrics of one arm share its seconds
            arms[row.mechanism, row.task] = max(row.seconds, arms.get((row.mechanism, row.task), 0.0))
        lines.append(
            (
                _text(section),
                Cell(str(len({row.mechanism for row in mine}))),
                Cell(", ".join(map(str, seeds)) or NOTHING),
                Cell(count_phrase(mine)),
                Cell(duration(sum(arms.values()))),
            )
        )
    labels = ("mechanisms", "seeds", "each number rests on", "computing time")
    columns = (Column("section", is_number=False), *(Column(label, is_number=False) for label in labels))
    return Table("What the numbers rest on", columns, tuple(lines))


def count_phrase(rows: Sequence[ResultRow]) -> str:
    """What the means rest on, in words.

    >>> count_phrase([ResultRow("s", "m", "t", "auc", 0.5, 400, (0.4, 0.6), 1.0)])
    '400 trials'
    """
    drawn = [row for row in rows if not metric(row.metric).exact]
    phrases = []
    for word, chosen in (
        ("seed", {row.n for row in drawn if row.points}),
        ("trial", {row.n for row in drawn if not row.points and row.n > 1}),
    ):
        if chosen:
            low, high = min(chosen), max(chosen)
            count = f"{low:,}" if low == high else f"{low:,} to {high:,}"
            phrases.append(f"{count} {word}{'s' if high > 1 else ''}")
    return " or ".join(phrases) or "a computation without chance"


def _order_tables(rows: list[ResultRow]) -> tuple[list[Table], list[ResultRow]]:
    """One table per metric: a row per order, a column per logit scale and expansion."""
    cells = {
        (row.metric, order, row.task, centered): row
        for row in rows
        if (parsed := parse_order(row.mechanism)) is not None
        for order, centered, _ in [parsed]
    }
    rest = [row for row in rows if parse_order(row.mechanism) is None]
    if not cells:
        return [], rest
    orders = sorted({order for _, order, _, _ in cells})
    costs = {
        name: column
        for name, column in (
            ("state_bytes", Column("size", group=metric("state_bytes").label)),
            ("break_even_tokens", Column("tokens", group=metric("break_even_tokens").label)),
        )
        if any(key[0] == name for key in cells)
    }
    tables = []
    first = ["relative_error", "certificate", "negative_share"]
    names = {key[0] for key in cells} - set(costs)
    for name in sorted(names, key=lambda each: (first.index(each) if each in first else len(first), each)):
        tasks = sorted({task for each, _, task, _ in cells if each == name}, key=natural)
        variants = [
            (task, centered)
            for task in tasks
            for centered in (False, True)
            if any((name, o, task, centered) in cells for o in orders)
        ]
        columns = [
            Column("order"),
            *costs.values(),
            *(Column("centered" if centered else "plain", group=shown(task, 40)) for task, centered in variants),
        ]
        lines = []
        for order in orders:
            line = [Cell(str(order)), *(_cost_cell(cells, cost, order) for cost in costs)]
            line += [_noted(cells.get((name, order, *variant)), name) for variant in variants]
            lines.append(tuple(line))
        mine = [row for key, row in cells.items() if key[0] == name]
        tables.append(
            Table(f"{_heading(name)}; each number rests on {count_phrase(mine)}", tuple(columns), tuple(lines))
        )
    return tables, rest


def _cost_cell(cells: Mapping[tuple[str, int, str, bool], ResultRow], cost: str, order: int) -> Cell:
    """What the state of an order costs, plain if there is a choice."""
    mine = sorted(
        (centered, task, row.value) for (name, o, task, centered), row in cells.items() if (name, o) == (cost, order)
    )
    if not mine:
        return Cell(NOTHING)
    value = mine[0][2]
    return Cell(size(value) if cost == "state_bytes" else number(value))


def _sweep_tables(rows: list[ResultRow]) -> tuple[list[Table], list[ResultRow]]:
    """Constructed data: a row per setting (spike size, number of tokens), a column per mechanism and metric."""
    tables = []
    rest = rows
    families: tuple[tuple[str, str, str], ...] = (
        ("self-attention", "a", "spike size a"),
        ("noisy", "n", "tokens n"),
    )
    captions = ("Spikes found and false alarms", "Separation of noisy inputs")
    for (family, name, label), caption in zip(families, captions, strict=True):
        setting = _setting_reader(family, name)
        mine = [row for row in rest if setting(row) is not None]
        rest = [row for row in rest if setting(row) is None]
        if mine:
            tables.append(_sweep_table(mine, setting, label, f"{caption}; each number rests on {count_phrase(mine)}"))
    return tables, rest


def _setting_reader(family: str, name: str) -> Callable[[ResultRow], float | None]:
    return lambda row: parse_setting(row.task, family, name)


def _sweep_table(
    rows: Sequence[ResultRow], setting: Callable[[ResultRow], float | None], label: str, caption: str
) -> Table:
    found = {(setting(row), row.mechanism, row.metric): row for row in rows}
    settings = sorted({x for x, _, _ in found if x is not None})
    pairs = sorted({(mechanism, name) for _, mechanism, name in found}, key=lambda pair: (pair[0] != "softmax", pair))
    columns = (
        Column(label),
        *(Column(metric(name).label, group=shown(mechanism, _LONGEST)) for mechanism, name in pairs),
    )
    lines = [(Cell(f"{x:,g}"), *(_noted(found.get((x, *pair)), pair[1]) for pair in pairs)) for x in settings]
    return Table(caption, columns, tuple(lines))


def _has_spread(rows: Iterable[ResultRow], name: str) -> bool:
    """Whether the metric varies over seeds or trials (a state's size does not)."""
    return not metric(name).exact and any(row.interval is not None or row.points for row in rows if row.metric == name)


def _heading(name: str) -> str:
    what = metric(name)
    return f"{what.label} [{what.unit}]" if what.unit else what.label


def _text(text: str) -> Cell:
    return Cell(shown(text, _LONGEST))


def _value_cells(row: ResultRow | None, name: str) -> list[Cell]:
    """Mean, interval, n, and the single values."""
    if row is None:
        return [Cell(NOTHING)] * 4
    what = metric(name)
    points = ", ".join(measured(point, what) for point in row.points)
    texts = (measured(row.value, what), interval(row.interval, what), f"{row.n:,}", points or NOTHING)
    return [Cell(text) for text in texts]


def _noted(row: ResultRow | None, name: str) -> Cell:
    if row is None:
        return Cell(NOTHING)
    what = metric(name)
    return Cell(measured(row.value, what), "" if row.interval is None else interval(row.interval, what))
