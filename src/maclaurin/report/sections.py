"""What each section asks, in words for a reader who is new, and the figures that answer it.

A section that is not named here is a study's own: it gets its name, its figures and its tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from maclaurin import plot
from maclaurin.plot.labels import shown
from maclaurin.report.numbers import measured
from maclaurin.report.tables import count_phrase
from maclaurin.store import Curve, ResultRow, metric

QUESTION = "What does softmax attention give a model that linear attention does not?"
ANSWER = "answer"  # the section name of the verdict that answers the whole question

_DOTS = (
    "Large marker: mean over seeds. Small dots: the seeds. Line: 95 % interval of the mean (Student t, cut off at "
    "the metric's own limits); where some seeds solve a task and others do not, read the dots, not the line."
)


@dataclass(frozen=True)
class Prose:
    """The words of a section.

    Args:
        title: the section's question.
        asked: what was asked, and how, in one to three sentences.
        metrics: the metrics that are drawn, one figure each; empty for figures of a section's own.
        limits: what its numbers do not show.
    """

    title: str
    asked: str
    metrics: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Illustration:
    """An SVG element and the words below it."""

    svg: str
    caption: str


SECTIONS: dict[str, Prose] = {
    "orders": Prose(
        title="How many terms of the series are needed?",
        asked=(
            "Softmax attention weighs every earlier token by the exponential of a match score, its logit. The "
            "exponential is an infinite sum of powers. Keep the powers up to order N, and attention becomes a "
            "recurrent network with a state of fixed size; order 1 is linear attention with a constant added. "
            "How far is its output from that of softmax, for logits of small and of large spread?"
        ),
        limits=(
            "A small error at a high order is accuracy of the expansion, not memory saved: the state of order N "
            "grows like the key width to the power N.",
            "A small output error on one layer is not yet a good language model, and a large one not yet a bad one.",
        ),
    ),
    "separation": Prose(
        title="Is there something that softmax sees and linear attention cannot?",
        asked=(
            "Two kinds of input differ in the size of one entry, a spike at one token. The same small network reads "
            "them once with softmax attention and once with linear attention (the exponential left out, the "
            "normalization kept), and should respond to the spike only. Construction after Deng, Song, Yuan and "
            "Zhou, reconstructed."
        ),
        limits=(
            "The separation holds for constructed data, random readout weights and one kind of linear attention; "
            "trained networks and other feature maps may do better.",
        ),
    ),
    "recall": Prose(
        title="Can it look up what it has read?",
        asked=(
            "Multi-query associative recall: a sequence lists keys with their values, then asks for the values of "
            "keys it has shown. A small model is trained for each mechanism and seed. The score is the share of "
            "right answers on sequences that were not trained on."
        ),
        metrics=("accuracy",),
        limits=(
            "Recall was measured at one size of model, sequence and vocabulary. A mechanism that fails here may "
            "succeed with a larger state, more steps or another learning rate.",
        ),
    ),
    "language": Prose(
        title="Does it matter for predicting text?",
        asked=(
            "Language models of the same shape read the same bytes in the same order and are scored on files that "
            "were held out. Bits per byte says how many bits they need on average for the next byte: "
            "8 is no knowledge at all, lower is better."
        ),
        metrics=("bits_per_byte",),
        limits=(
            "The language models are small, read little text once, and are far from converged; an order among "
            "them at this budget says little about larger ones.",
        ),
    ),
}


def prose(section: str) -> Prose:
    """The words of ``section``; its bare name where it has none of its own."""
    return SECTIONS.get(section) or Prose(title=shown(section, 80).capitalize(), asked="")


def in_reading_order(sections: Sequence[str]) -> list[str]:
    """Known sections as above, then the others as they come, each once.

    >>> in_reading_order(["mine", "recall", "orders", "mine"])
    ['orders', 'recall', 'mine']
    """
    known = [name for name in SECTIONS if name in sections]
    return known + [name for name in dict.fromkeys(sections) if name not in SECTIONS]


def illustrations(section: str, rows: Sequence[ResultRow], curves: Mapping[str, Sequence[Curve]]) -> list[Illustration]:
    """The figures of a section: its results, then its training curves."""
    figures = []
    if section == "orders":
        figures.append(_orders(rows))
    elif section == "separation":
        figures.append(_separation(rows))
    else:
        drawn = {row.metric: None for row in rows if not metric(row.metric).exact and (row.points or row.interval)}
        figures += [_dots(rows, name) for name in prose(section).metrics or drawn]
    names = dict.fromkeys(curve.metric for each in curves.values() for curve in each)
    return figures + [_curves(section, curves, name) for name in names]


def _orders(rows: Sequence[ResultRow]) -> Illustration:
    label = "Line charts, one per logit scale: relative output error of plain and centered Taylor orders."
    caption = (
        "Distance from the output of softmax attention, relative to its size; the scale is logarithmic, lower is "
        "closer. Filled: even orders, whose weights are never negative. Hollow: odd orders, whose denominator Z can "
        "turn negative (small panels: in which share of rows it did). Centered: the series is expanded around the "
        "mean logit of each query instead of around zero. Dashed: a bound that the error provably does not exceed, "
        "cut off where it leaves the panel. Vertical bars: 95 % intervals; "
        + count_phrase([row for row in rows if row.metric == "relative_error"])
        + "."
    )
    return Illustration(plot.to_svg(plot.order_figure(rows), label=label), caption)


def _separation(rows: Sequence[ResultRow]) -> Illustration:
    label = "Line charts: share of spikes found against spike size, and separation of noisy data against length."
    caption = (
        "Left: share of trials in which the network responds, with the spike in the input (filled: found; dashed: "
        "predicted) and without it (hollow: false alarm), with 95 % Wilson intervals. Right of it: how well a "
        "statistic of the attention output tells noisy inputs apart as they grow longer; an area of 0.5 is "
        "guessing, 1 is perfect, and d′ is the distance of the two kinds in standard deviations (dashed: predicted). "
        "Each point rests on " + count_phrase(rows) + "."
    )
    return Illustration(plot.to_svg(plot.separation_figure(rows), label=label), caption)


def _dots(rows: Sequence[ResultRow], name: str) -> Illustration:
    what = metric(name)
    mine = [row for row in rows if row.metric == name]
    means = ", ".join(f"{shown(row.mechanism)} {measured(row.value, what)}" for row in mine)
    label = f"Dot plot of {what.axis}. Means: {means or 'none'}."
    caption = f"{what.label.capitalize()} by mechanism, best on top. {_DOTS}"
    return Illustration(plot.to_svg(plot.dots_figure(mine, name), label=label), caption)


def _curves(section: str, curves: Mapping[str, Sequence[Curve]], name: str) -> Illustration:
    what = metric(name)
    label = f"Training curves of section {shown(section)}: {what.axis}, one line per seed."
    caption = f"Training: {what.axis}. One thin line per seed; values in the table of training curves."
    return Illustration(plot.to_svg(plot.curves_figure(curves, name), label=label), caption)
