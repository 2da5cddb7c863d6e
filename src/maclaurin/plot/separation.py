"""What two networks make of the constructed data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from maclaurin.plot.labels import parse_setting
from maclaurin.plot.style import PAPER, intervals, key, label_ends, look, new_figure, no_data, style
from maclaurin.store import ResultRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def separation_figure(rows: Iterable[ResultRow]) -> Figure:
    """How often each network finds the spike, and how well a statistic separates noisy data.

    Args:
        rows: of section ``separation``; tasks ``self-attention a=0.70`` with metrics ``detection_rate``,
            ``detection_rate_predicted`` and ``false_alarm_rate``, tasks ``noisy n=400`` with ``auc``, ``d_prime`` and
            ``d_prime_predicted``.
    """
    kept = list(rows)
    sweep = [(row, x) for row in kept if (x := parse_setting(row.task, "self-attention", "a")) is not None]
    noisy = [(row, x) for row in kept if (x := parse_setting(row.task, "noisy", "n")) is not None]
    if not sweep and not noisy:
        return no_data()
    with style():
        figure = new_figure(2.9)
        distances = [(row, x) for row, x in noisy if row.metric.startswith("d_prime")]
        axes = figure.subplots(1, 3 if distances else 2, squeeze=False)[0]
        ends = [
            _series_panel(
                axes[0], sweep, "detection_rate", hollow="false_alarm_rate", dashed="detection_rate_predicted"
            )
        ]
        axes[0].set(xlabel="size of the spike, a", ylabel="share of trials with output > 0", ylim=(-0.04, 1.04))
        axes[0].set_title("Spike in the input")
        axes[0].locator_params(axis="x", nbins=5)
        ends.append(_series_panel(axes[1], noisy, "auc"))
        axes[1].set(xlabel="tokens, n", ylabel="area under the ROC curve", ylim=(_lowest(noisy, "auc", 0.48), 1.02))
        axes[1].set_title("Noisy input")
        if distances:
            ends.append(_series_panel(axes[2], noisy, "d_prime", dashed="d_prime_predicted"))
            axes[2].set(
                xlabel="tokens, n", ylabel="d′, standard deviations", ylim=(_lowest(noisy, "d_prime", 0.0), None)
            )
            axes[2].set_title("Noisy input, distance")
        for panel in axes[1:]:
            if noisy:
                _token_axis(panel, sorted({x for _, x in noisy}))
        for panel, heights in zip(axes, ends, strict=True):
            label_ends(panel, heights, limit=12)
        predicted = any(row.metric.endswith("_predicted") for row, _ in sweep + noisy)
        key(figure, ["with spike", "without spike", *(["predicted"] if predicted else [])])
    return figure


def _series_panel(
    axes: Axes, points: Sequence[tuple[ResultRow, float]], solid: str, *, hollow: str = "", dashed: str = ""
) -> dict[str, float]:
    """Draw one line per mechanism; the last height of each solid one."""
    ends = {}
    for name in sorted({row.mechanism for row, _ in points}, reverse=True):
        color, marker = look(name)
        for metric_name in filter(None, (hollow, dashed, solid)):
            mine = sorted(
                ((x, row) for row, x in points if row.mechanism == name and row.metric == metric_name),
                key=lambda each: each[0],
            )
            if not mine:
                continue
            options: dict[str, Any] = {"marker": marker}
            if metric_name == hollow:
                options = {"marker": marker, "markerfacecolor": PAPER, "linewidth": 0.9, "linestyle": ":"}
            elif metric_name == dashed:
                options = {"linestyle": (0, (4, 2)), "linewidth": 0.9}
            else:
                ends[name] = mine[-1][1].value
            axes.plot([x for x, _ in mine], [row.value for _, row in mine], color=color, **options)
            intervals(axes, mine, color)
    if not points:
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center")
    return ends


def _lowest(points: Sequence[tuple[ResultRow, float]], metric_name: str, usual: float) -> float:
    """A lower limit of the panel: ``usual``, or less where a value lies below it."""
    return min([usual, *(row.value - 0.04 for row, _ in points if row.metric == metric_name)])


def _token_axis(axes: Axes, counts: Sequence[float]) -> None:
    axes.set_xscale("log")
    axes.minorticks_off()
    counts = counts[:: -(-len(counts) // 4)]  # at most four labels fit
    axes.set_xticks(counts, [f"{count:,.0f}" for count in counts])
