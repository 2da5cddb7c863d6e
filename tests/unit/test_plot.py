"""Figures: what is drawn is what the rows say, and the SVG is safe, themed and the same each time."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from maclaurin.plot import curves_figure, dots_figure, look, order_figure, separation_figure, to_svg
from maclaurin.plot.style import _COLORS, INK, PAPER
from maclaurin.store import Curve, ResultRow


def row(mechanism, task, metric, value, *, n=3, interval=None, points=(), section="any"):
    return ResultRow(section, mechanism, task, metric, value, n, interval, 1.0, points, tuple(range(len(points))))


ORDERS = [
    row(f"taylor:{order}{mean}/sum{':signed' if order % 2 else ''}", f"logits-sd-{sd}", metric, value / (order + 1))
    for order in range(5)
    for mean in ("", "@mean")
    for sd in ("10", "2")
    for metric, value in (("relative_error", 0.5), ("certificate", 2.0))
] + [row("taylor:1/sum:signed", "logits-sd-2", "negative_share", 0.25)]
SEPARATION = [
    row(name, task, metric, value, n=400, interval=(value - 0.02, value + 0.02))
    for name, scale in (("softmax", 1.0), ("linear", 0.5))
    for task, metric, value in (
        ("self-attention a=0.70", "detection_rate", scale),
        ("self-attention a=0.10", "detection_rate", 0.25 * scale),
        ("self-attention a=0.70", "detection_rate_predicted", 0.9 * scale),
        ("self-attention a=0.70", "false_alarm_rate", 0.0),
        ("noisy n=400", "auc", 0.9 * scale),
        ("noisy n=1600", "auc", 0.95 * scale),
        ("noisy n=400", "d_prime", 2.0 * scale),
        ("noisy n=400", "d_prime_predicted", 2.1 * scale),
    )
]
RECALL = [
    row("softmax", "mqar", "accuracy", 0.99, interval=(0.9, 1.08), points=(0.98, 0.99, 1.0)),
    row("linear-elu", "mqar", "accuracy", 0.6, n=1, points=(0.6,)),
    row("taylor-2", "mqar", "accuracy", 0.8, interval=(0.7, 0.9), points=(0.75, 0.8, 0.85)),
]
CURVES = {
    "softmax": [Curve("loss_nats", (10, 20), (2.0, 1.0)), Curve("loss_nats", (10, 20), (2.2, 1.1))],
    "taylor-2": [Curve("loss_nats", (10, 20), (2.5, 1.5)), Curve("accuracy", (20,), (0.5,))],
}
FIGURES = {
    "orders": lambda: order_figure(ORDERS),
    "separation": lambda: separation_figure(SEPARATION),
    "dots": lambda: dots_figure(RECALL, "accuracy"),
    "curves": lambda: curves_figure(CURVES, "loss_nats"),
}


def lines(axes, color=None):
    """Every drawn line's (x, y), of one color."""
    drawn = [line for line in axes.get_lines() if color in (None, line.get_color())]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in drawn]


def texts(svg):
    return [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("}text")]


# -- looks ---------------------------------------------------------------------------------------------------


def luminance(color):
    channels = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("paper", ["#ffffff", "#15181c"])
@pytest.mark.parametrize("color", _COLORS)
def test_colors_stand_out_on_light_and_on_dark(color, paper):
    """WCAG 2.2, 1.4.11: at least 3:1 for what a figure is read from."""
    light, dark = sorted((luminance(color), luminance(paper)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3.0


def test_mechanisms_of_one_study_differ_in_color_and_in_marker():
    looks = [look(name) for name in ("softmax", "exp-l2", "taylor-4", "taylor-2", "linear-elu")]
    assert len({each.color for each in looks}) == len({each.marker for each in looks}) == 5
    assert look("somebody's own") == look("somebody's own")


# -- what is drawn -------------------------------------------------------------------------------------------


def test_order_figure_draws_the_rows():
    figure = order_figure(ORDERS)
    top_left = figure.axes[0]
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["logits with sd 2", "logits with sd 10"]
    plain = lines(top_left, look("plain").color)
    assert ([-0.12, 1.88, 3.88], [0.5, 0.5 / 3, 0.1]) in plain
    assert ([0.88, 2.88], [0.25, 0.125]) in plain
    assert ([0, 1, 2, 3, 4], [2.0, 1.0, 2 / 3, 0.5, 0.4]) in plain
    odd = [line for line in top_left.get_lines() if len(line.get_xdata()) == 2]
    assert len(odd) == 2
    assert all(line.get_markerfacecolor() == PAPER and line.get_linestyle() == "None" for line in odd)
    bounds = [line for line in top_left.get_lines() if len(line.get_xdata()) == 5]
    assert len(bounds) == 2
    assert all(line.is_dashed() for line in bounds)
    assert ([1 - 0.12, 1 - 0.12], [0, 0.25]) in lines(figure.axes[2], look("plain").color)
    low, high = top_left.get_ylim()
    assert low < 0.1
    assert high > 0.5


def test_order_figure_without_negative_rows_has_no_second_panel():
    positive = [each for each in ORDERS if each.metric != "negative_share"]
    positive.append(row("taylor:1/sum:signed", "logits-sd-2", "negative_share", 0.0))
    assert len(order_figure(positive).axes) == 2


def test_separation_figure_draws_the_rows():
    rates, area, distance = separation_figure(SEPARATION).axes
    softmax = look("softmax").color
    assert ([0.1, 0.7], [0.25, 1.0]) in lines(rates, softmax)
    assert ([0.7], [0.0]) in lines(rates, softmax)
    assert ([0.7], [0.9]) in lines(rates, softmax)
    assert ([0.7, 0.7], [0.98, 1.02]) in lines(rates, softmax)
    assert ([400.0, 1600.0], [0.45, 0.475]) in lines(area, look("linear").color)
    assert area.get_ylim()[0] < 0.45  # below chance is shown, not cut
    assert ([400.0], [2.1]) in lines(distance, softmax)
    assert len(separation_figure([each for each in SEPARATION if "d_prime" not in each.metric]).axes) == 2


def test_dots_figure_draws_every_seed_and_sorts_by_mean():
    (axes,) = dots_figure(RECALL, "accuracy").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["linear-elu", "taylor-2", "softmax"]
    softmax = lines(axes, look("softmax").color)
    assert ([0.98, 0.99, 1.0], [2 - 0.26] * 3) in softmax
    assert ([0.9, 1.08], [2, 2]) in softmax
    assert len(lines(axes, look("linear-elu").color)) == 2  # its dot and its mean, no interval
    assert [text.get_text() for text in axes.texts] == ["0.600 (one seed)", "0.800", "0.990"]
    assert axes.get_xlim()[1] < 1.01  # an interval beyond a share of 1 is cut


def test_dots_figure_puts_the_lowest_on_top_where_lower_is_better():
    rows = [row(name, "text", "bits_per_byte", value) for name, value in (("a", 2.0), ("b", 3.0), ("c", 2.0))]
    (axes,) = dots_figure(rows, "bits_per_byte").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["b", "c", "a"]  # from below; equals by name


def test_dots_figure_names_tasks_when_there_are_several():
    rows = [row("softmax", task, "accuracy", 0.5) for task in ("mqar", "copying")]
    (axes,) = dots_figure(rows, "accuracy").axes
    assert {label.get_text() for label in axes.get_yticklabels()} == {"softmax · mqar", "softmax · copying"}


def test_curves_figure_draws_one_line_per_seed_and_names_the_ends():
    (axes,) = curves_figure(CURVES, "loss_nats").axes
    assert ([10, 20], [2.2, 1.1]) in lines(axes, look("softmax").color)
    assert ([20], [0.5]) not in lines(axes)
    assert {text.get_text() for text in axes.texts} == {"softmax", "taylor-2"}
    heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
    to_panel = axes.transScale + axes.transLimits
    assert heights["taylor-2"] == pytest.approx(to_panel.transform((20, 1.5))[1])


def test_names_at_one_height_are_moved_apart():
    curves = {f"mechanism {number}": [Curve("loss_nats", (1, 2), (2.0, 1.0))] for number in range(5)}
    (axes,) = curves_figure(curves, "loss_nats").axes
    heights = sorted(text.get_position()[1] for text in axes.texts)
    assert all(upper - lower > 0.07 for lower, upper in pairwise(heights))


@pytest.mark.parametrize(
    "figure",
    [
        order_figure([]),
        separation_figure([]),
        dots_figure([], "accuracy"),
        dots_figure([row("softmax", "mqar", "accuracy", float("nan"))], "accuracy"),
        curves_figure({}, "loss_nats"),
        curves_figure({"softmax": [Curve("loss_nats", (), ())]}, "loss_nats"),
    ],
)
def test_nothing_to_draw_says_no_data(figure):
    assert texts(to_svg(figure, label="empty")) == ["no data"]


def test_half_of_the_rows_still_make_a_figure():
    assert "no data" in texts(to_svg(separation_figure(SEPARATION[:1]), label="half"))
    to_svg(curves_figure({"softmax": [Curve("loss_nats", (1, 2), (1.0, float("nan")))]}, "loss_nats"), label="nan")
    to_svg(order_figure([row("taylor:2/sum", "logits-sd-1", "relative_error", 0.0)]), label="an error of zero")


# -- SVG -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIGURES)
def test_svg_is_the_same_each_time_and_takes_the_page_colors(name):
    svg = to_svg(FIGURES[name](), label="a figure")
    assert svg == to_svg(FIGURES[name](), label="a figure")
    root = ElementTree.fromstring(svg)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "a figure"
    assert "currentColor" in svg
    for leftover in (INK, PAPER, "#000000", "#ffffff;", "DejaVu", "<style", "<metadata", "<image"):
        assert leftover not in svg
    assert set(re.findall(r"https?://[^\"]+", svg)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_ids_of_two_figures_on_one_page_differ():
    ids = [re.findall(r'\bid="([^"]+)"', to_svg(make(), label="a figure")) for make in FIGURES.values()]
    together = [each for one in ids for each in one]
    assert len(together) == len(set(together)) > 100
    svg = to_svg(FIGURES["dots"](), label="a figure")
    used = re.findall(r"(?:url\(#|href=\"#)([^)\"]+)", svg)
    assert used
    assert set(used) <= set(re.findall(r'\bid="([^"]+)"', svg))


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "$x^{2}$ &",
    "a\x00b\x1b[31m\u202e",
    "🦊" * 60,
]


def test_hostile_names_are_only_ever_text():
    """Markup, mathtext, control and direction characters, glyphs that no font here has, long names."""
    figures = [
        dots_figure([row(name, name, "accuracy", 0.5) for name in HOSTILE], "accuracy"),
        curves_figure({name: [Curve("loss_nats", (1, 2), (1.0, 2.0))] for name in HOSTILE}, "loss_nats"),
        order_figure([row("taylor:2/sum", name, "relative_error", 0.5) for name in HOSTILE]),
        separation_figure([row(name, "noisy n=400", "auc", 0.5) for name in HOSTILE]),
    ]
    for figure in figures:
        svg = to_svg(figure, label="<script>alert(1)</script>\"'&")
        tags = {element.tag.split("}")[1] for element in ElementTree.fromstring(svg).iter()}
        assert tags <= {"svg", "g", "path", "text", "tspan", "defs", "use", "clipPath", "rect"}
        assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", svg)
    assert "$x^{2}$ &" in texts(to_svg(figures[1], label="math stays as it is written"))


# -- no global state -----------------------------------------------------------------------------------------


def test_importing_draws_in_no_matplotlib_and_drawing_no_pyplot():
    code = """
import sys
import maclaurin.plot as plot
assert "matplotlib" not in sys.modules
import matplotlib
matplotlib.rcParams["font.size"] = 31
plot.to_svg(plot.curves_figure({}, "loss_nats"), label="x")
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams["font.size"] == 31
assert matplotlib.rcParams["svg.fonttype"] == "path"
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_settings_of_the_user_change_nothing():
    import matplotlib

    svg = to_svg(FIGURES["dots"](), label="a figure")
    with matplotlib.rc_context({"font.size": 31, "xtick.major.size": 9, "svg.fonttype": "path"}):
        assert to_svg(FIGURES["dots"](), label="a figure") == svg
