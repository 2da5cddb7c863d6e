"""Error against the order of the series."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from maclaurin.plot.labels import natural, parse_order, shown
from maclaurin.plot.style import PAPER, intervals, key, label_ends, look, new_figure, no_data, style
from maclaurin.store import ResultRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_APART = 0.12  # plain and centered stand this far left and right of their order, else one hides the other


def order_figure(rows: Iterable[ResultRow]) -> Figure:
    """Relative output error against Taylor order, one panel per logit scale, with the certified bound.

    Args:
        rows: of section ``orders``; mechanisms such as ``taylor:4@mean/sum``, tasks such as ``logits-sd-0.5``,
            metrics ``relative_error``, ``certificate`` and ``negative_share``.
    """
    cells = [(row, *parsed) for row in rows if (parsed := parse_order(row.mechanism)) is not None]
    tasks = sorted({row.task for row, *_ in cells if row.metric == "relative_error"}, key=natural)
    if not tasks:
        return no_data()
    signs = any(row.metric == "negative_share" and row.value > 0 for row, *_ in cells)
    with style():
        figure = new_figure(3.9 if signs else 2.9)
        ratios = [3.2, 1] if signs else [1]
        axes = figure.subplots(len(ratios), len(tasks), squeeze=False, sharex=True, sharey="row", height_ratios=ratios)
        for column, task in enumerate(tasks):
            here = [cell for cell in cells if cell[0].task == task]
            ends = _order_panel(axes[0, column], here)
            axes[0, column].set_title(_order_title(task))
            if signs:
                _sign_panel(axes[1, column], here)
            axes[-1, column].set_xlabel("Taylor order N")
        measured = [row.value for row, *_ in cells if row.metric == "relative_error" and row.value > 0]
        bottom, top = min(measured, default=1e-1), max(measured, default=1.0)
        axes[0, 0].set_ylim(bottom / 4, max(top * 10, 2.0))
        _decades(axes[0, 0])
        axes[0, 0].set_ylabel("relative output error,\nmedian over rows")
        if signs:
            axes[1, 0].set_ylabel("share of rows\nwith Z < 0")
            axes[1, 0].set_ylim(bottom=0)
        label_ends(axes[0, -1], ends)
        key(figure, ["even order", "odd order, signed sum", "certified bound"])
    return figure


def _order_panel(axes: Axes, cells: Sequence[tuple[ResultRow, int, bool, bool]]) -> dict[str, float]:
    """Draw one logit scale; the last height of each even series."""
    ends = {}
    axes.set_yscale("log")
    axes.set_xticks(range(0, 1 + max(order for _, order, *_ in cells), 2))
    for name, wanted, shift in (("plain", False, -_APART), ("centered", True, _APART)):
        color, marker = look(name)
        mine = sorted(((o, s, r) for r, o, c, s in cells if c == wanted), key=lambda each: each[:2])
        measured = [(o, s, r) for o, s, r in mine if r.metric == "relative_error" and r.value > 0]
        for signed in (False, True):
            points = [(o + shift, r) for o, s, r in measured if s == signed]
            if not points:
                continue
            style_of: dict[str, Any] = {"linestyle": "none", "markerfacecolor": PAPER} if signed else {}
            heights = [row.value for _, row in points]
            axes.plot([x for x, _ in points], heights, color=color, marker=marker, zorder=3, **style_of)
            intervals(axes, points, color)
            if not signed:
                ends[name] = heights[-1]
        bound = [(o, r.value) for o, _, r in mine if r.metric == "certificate" and r.value > 0]
        axes.plot(
            [o for o, _ in bound],
            [value for _, value in bound],
            color=color,
            linestyle=(0, (4, 2)),
            linewidth=0.9,
            alpha=0.9,
        )
    return ends


def _sign_panel(axes: Axes, cells: Sequence[tuple[ResultRow, int, bool, bool]]) -> None:
    for name, wanted, shift in (("plain", False, -_APART), ("centered", True, _APART)):
        color, marker = look(name)
        for row, order, centered, signed in cells:
            if row.metric == "negative_share" and centered == wanted and signed:
                axes.plot([order + shift] * 2, [0, row.value], color=color, linewidth=0.9)
                axes.plot(order + shift, row.value, color=color, marker=marker, markerfacecolor=PAPER, markersize=3.5)


def _decades(axes: Axes) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.yaxis.set_major_locator(LogLocator(10, numticks=7))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _power_of_ten(value)))


def _power_of_ten(value: float) -> str:
    exponent = round(math.log10(value))
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _order_title(task: str) -> str:
    scale = task.removeprefix("logits-sd-")
    return f"logits with sd {scale}" if scale != task else shown(task, 28)
