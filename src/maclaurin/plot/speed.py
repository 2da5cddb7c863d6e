"""Time per token against length."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from maclaurin.plot.labels import shown
from maclaurin.plot.style import LOOKS, Look, new_figure, no_data, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class SpeedPoint(NamedTuple):
    """One mark: a subject's seconds for a whole call, in a panel such as ``forward, float32, 64``."""

    panel: str
    subject: str
    length: int
    seconds: float
    low: float
    high: float


def speed_figure(points: Iterable[SpeedPoint], *, is_per_token: bool = True) -> Figure:
    """Microseconds against length on logarithmic axes, a panel for each kind of call, a line for each subject.

    Args:
        points: with quartiles, drawn as a bar.
        is_per_token: divide by the length; not for single steps, whose panels begin with ``decode``.
    """
    kept = [each for each in points if each.seconds > 0]
    panels = [*dict.fromkeys(each.panel for each in kept)]
    if not panels:
        return no_data()
    subjects = [*dict.fromkeys(each.subject for each in kept)]
    looks = dict(zip(subjects, itertools.cycle(_looks()), strict=False))
    with style():
        figure = new_figure(len(panels) * max(2.6, 0.19 * len(subjects) + 0.6))
        for place, panel in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
            mine = [each for each in kept if each.panel == panel]
            _panel(place, panel, mine, looks, is_per_token=is_per_token)
    return figure


def _looks() -> list[Look]:
    """Every color once, then every color again with another marker: no two subjects of a figure look alike."""
    known = [*dict.fromkeys(LOOKS.values())]
    colors = [*dict.fromkeys(each.color for each in known)]
    markers = [*dict.fromkeys(each.marker for each in known)]
    places = range(len(colors) * len(markers))
    return [Look(colors[i % len(colors)], markers[(i + i // len(colors)) % len(markers)]) for i in places]


def _panel(axes: Axes, title: str, points: list[SpeedPoint], looks: dict[str, Look], *, is_per_token: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    divides = is_per_token and not title.startswith("decode")
    axes.set(xscale="log", yscale="log", xlabel="length, tokens", title=title)
    axes.set_ylabel("µs per token" if divides else "µs per step")
    lengths = sorted({each.length for each in points})
    axes.set_xticks(lengths, [f"{each:,}" for each in lengths])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 3.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.minorticks_off()
    lines = []
    for name in dict.fromkeys(each.subject for each in points):
        mine = sorted(each for each in points if each.subject == name)
        heights = [_micros(each, each.seconds, divides=divides) for each in mine]
        line: dict[str, Any] = {"color": looks[name].color, "marker": looks[name].marker, "label": shown(name, 28)}
        lines.append((heights[-1], axes.plot([each.length for each in mine], heights, **line)[0]))
        for each in mine:
            bar = [_micros(each, end, divides=divides) for end in (each.low, each.high)]
            axes.plot([each.length] * 2, bar, color=looks[name].color, linewidth=0.8, alpha=0.6)
    handles = [line for _, line in sorted(lines, key=lambda each: -each[0])]
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.01, 0.5), labelspacing=0.25)


def _micros(point: SpeedPoint, seconds: float, *, divides: bool) -> float:
    return seconds * 1e6 / (point.length if divides else 1)
