"""One look for every figure: colors, markers, sizes, the key above panels and the names where lines end."""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from maclaurin.plot.labels import shown
from maclaurin.store import ResultRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.6  # inches: a page column; every size below is in points on this width
INK = "#1b1f24"  # becomes the page's text color
PAPER = "#fdfefe"  # becomes the page's background


class Look(NamedTuple):
    """A color with at least 3:1 against white and against near-black, and a marker that tells it without color."""

    color: str
    marker: str


_COLORS = ("#2463d1", "#2e9bd6", "#dd7a14", "#bf2f4a", "#7d8590", "#9a5bd0", "#2b9460", "#cf6f9f")
_MARKERS = "osD^vPX<>ph"
_BLUE, _SKY, _ORANGE, _CRIMSON, _GRAY, _PURPLE, _GREEN, _PINK = _COLORS
LOOKS: dict[str, Look] = {
    "softmax": Look(_BLUE, "o"),
    "exp-l2": Look(_SKY, "s"),
    "taylor-4": Look(_ORANGE, "^"),
    "taylor-2": Look(_CRIMSON, "v"),
    "linear-elu": Look(_GRAY, "D"),
    "linear": Look(_GRAY, "D"),
    "taylor-4-centered": Look(_PURPLE, "P"),
    "taylor-2-centered": Look(_GREEN, "X"),
    "power-2": Look(_PINK, "p"),
    "plain": Look(_ORANGE, "o"),
    "centered": Look(_PURPLE, "s"),
}

_STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "errorbar.capsize": 2.0,
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.0,
    "grid.alpha": 0.14,
    "grid.color": INK,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "maclaurin",
    "text.color": INK,
    "text.parse_math": False,
    "xtick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": INK,
    "ytick.labelsize": 8.5,
}


def look(mechanism: str) -> Look:
    """The color and marker of a mechanism, the same in every figure.

    >>> look("softmax") == look("softmax") != look("linear-elu")
    True
    """
    digest = zlib.crc32(mechanism.encode("utf-8", "replace"))
    other = Look(_COLORS[digest % len(_COLORS)], _MARKERS[digest // len(_COLORS) % len(_MARKERS)])
    return LOOKS.get(mechanism, other)


def new_figure(height: float) -> Figure:
    """An empty figure of a page's width and ``height`` inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, height), layout="constrained")


@contextmanager
def style() -> Iterator[None]:
    """Our settings over matplotlib's own defaults, whatever the user's are; restored afterwards."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the reader's fonts draw the text
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(dict(_STYLE))
        yield


def no_data() -> Figure:
    """A figure that says that there is nothing to draw."""
    with style():
        figure = new_figure(0.6)
        figure.text(0.5, 0.5, "no data", ha="center", va="center")
    return figure


def intervals(axes: Axes, points: Sequence[tuple[float, ResultRow]], color: str) -> None:
    """Draw the interval of each row that has one, upright at its place on the horizontal axis."""
    kept = [(x, row.interval) for x, row in points if row.interval is not None]
    for x, (low, high) in kept:
        axes.plot([x, x], [low, high], color=color, linewidth=0.8, alpha=0.6, solid_capstyle="butt", zorder=2)


def label_ends(axes: Axes, ends: Mapping[str, float], *, gap: float = 0.075, limit: int = 24) -> None:
    """Write each name right of the panel, at its line's last height, moved apart where names would overlap.

    Args:
        axes: the panel, drawn on already.
        ends: for each mechanism the height of its line's end, in data.
        gap: smallest distance of two names, as a share of the panel's height.
        limit: longest name, in characters.
    """
    from matplotlib.transforms import ScaledTranslation

    axes.get_ylim()  # settles the scale that was left to matplotlib
    to_panel = axes.transScale + axes.transLimits
    finite = {name: value for name, value in ends.items() if math.isfinite(value)}
    heights = {name: float(to_panel.transform((1.0, value))[1]) for name, value in finite.items()}
    placed = -gap
    for name in sorted(heights, key=lambda each: heights[each]):
        placed = max(min(max(heights[name], 0.0), 1.0), placed + gap)
        heights[name] = placed
    over = max(0.0, placed - 1.0)
    figure = axes.figure
    beside = axes.transAxes + ScaledTranslation(9 / 72, 0, figure.dpi_scale_trans)
    beyond = axes.transAxes + ScaledTranslation(15 / 72, 0, figure.dpi_scale_trans)
    for name, height in heights.items():
        mark = look(name)
        axes.plot([1], [height - over], mark.marker, color=mark.color, transform=beside, clip_on=False)
        axes.text(1, height - over, shown(name, limit), transform=beyond, va="center", fontsize=8.5)


def key(figure: Figure, names: Sequence[str]) -> None:
    """What line styles and fillings mean, above the panels; colors are named where the lines end."""
    from matplotlib.lines import Line2D

    known: dict[str, dict[str, Any]] = {
        "even order": {"marker": "o"},
        "odd order, signed sum": {"marker": "o", "markerfacecolor": PAPER, "linestyle": "none"},
        "certified bound": {"linestyle": (0, (4, 2)), "linewidth": 0.9},
        "with spike": {"marker": "o"},
        "without spike": {"marker": "o", "markerfacecolor": PAPER, "linestyle": ":", "linewidth": 0.9},
        "predicted": {"linestyle": (0, (4, 2)), "linewidth": 0.9},
    }
    handles = [Line2D([], [], color=INK, label=name, **known[name]) for name in names]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(names), handlelength=2.4)
