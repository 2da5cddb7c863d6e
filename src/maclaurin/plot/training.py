"""Trained models: every seed as a dot, and the curves of training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from maclaurin.plot.labels import shown
from maclaurin.plot.style import label_ends, look, new_figure, no_data, style
from maclaurin.store import Curve, ResultRow, metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def dots_figure(rows: Iterable[ResultRow], metric_name: str) -> Figure:
    """One line per mechanism: every seed as a dot, the mean with its 95 % interval, best mean on top.

    Args:
        rows: rows of any metrics; those of ``metric_name`` are drawn.
        metric_name: for instance ``accuracy`` or ``bits_per_byte``.
    """
    kept = [row for row in rows if row.metric == metric_name and math.isfinite(row.value)]
    if not kept:
        return no_data()
    what = metric(metric_name)
    sign = 1.0 if what.better == "lower" else -1.0
    kept.sort(key=lambda row: (sign * row.value, row.mechanism, row.task), reverse=True)  # best last, on top
    tasks = {row.task for row in kept}
    names = [row.mechanism if len(tasks) == 1 else f"{row.mechanism} · {row.task}" for row in kept]
    with style():
        figure = new_figure(0.75 + 0.36 * len(kept))
        axes = figure.subplots()
        for height, row in enumerate(kept):
            _dots_line(axes, height, row, what.decimals)
        axes.set_yticks(range(len(kept)), [shown(name) for name in names])
        axes.set_ylim(-0.7, len(kept) - 0.5)
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(*_bounded_limits(kept, what.low, what.high))
        axes.set_xlabel(what.axis)
    return figure


def curves_figure(curves_by_mechanism: Mapping[str, Sequence[Curve]], metric_name: str) -> Figure:
    """Training curves, one thin line per seed, each mechanism named at the end of its lines.

    Args:
        curves_by_mechanism: for each mechanism the curves of its seeds, of any metrics.
        metric_name: the metric to draw.
    """
    drawn = {
        name: kept
        for name, curves in curves_by_mechanism.items()
        if (kept := [curve for curve in curves if curve.metric == metric_name and curve.steps])
    }
    if not drawn:
        return no_data()
    with style():
        figure = new_figure(2.9)
        axes = figure.subplots()
        for name, curves in drawn.items():
            for curve in curves:
                axes.plot(curve.steps, curve.values, color=look(name).color, linewidth=0.9, alpha=0.85)
        axes.set_xlabel("optimizer steps")
        axes.set_ylabel(metric(metric_name).axis)
        axes.margins(x=0.01)
        ends = {}
        for name, curves in drawn.items():
            last = [curve.values[-1] for curve in curves if math.isfinite(curve.values[-1])]
            if last:
                ends[name] = fmean(last)
        label_ends(axes, ends)
    return figure


def _dots_line(axes: Axes, height: int, row: ResultRow, decimals: int | None) -> None:
    color, marker = look(row.mechanism)
    below = [height - 0.26] * len(row.points)
    axes.plot(row.points, below, "o", color=color, alpha=0.75, markersize=3.5, markeredgewidth=0)
    if row.interval is not None:
        axes.plot(row.interval, [height, height], color=color, linewidth=1.6, solid_capstyle="butt")
    axes.plot(row.value, height, marker, color=color, markersize=6.5)
    value = f"{row.value:.3g}" if decimals is None else f"{row.value:.{decimals}f}"
    note = value if row.n > 1 else f"{value} (one seed)"
    axes.text(1.02, height, note, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5)


def _bounded_limits(rows: Sequence[ResultRow], low: float | None, high: float | None) -> tuple[float, float]:
    """Limits that hold all dots and intervals, no further than the metric goes."""
    values = [value for row in rows for value in (row.value, *row.points, *(row.interval or ()))]
    left, right = min(values), max(values)
    pad = 0.04 * (right - left) or 0.04 * (abs(right) or 1.0)
    left, right = left - pad, right + pad
    edge = 0.01 * (right - left)
    return (
        left if low is None else max(left, low - edge),
        right if high is None else min(right, high + edge),
    )
