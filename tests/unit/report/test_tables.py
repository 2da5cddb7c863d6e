"""Tables carry every number of their figure, and leave as Markdown and LaTeX with every name escaped."""

from __future__ import annotations

import pytest

from maclaurin.report import Cell, Column, Table, section_tables, to_latex, to_markdown
from maclaurin.report.tables import curve_table, evidence_table, missing_table
from maclaurin.store import Curve, Missing


def lines(table):
    return [[str(cell) for cell in row] for row in table.rows]


def heads(table):
    return [f"{column.group}|{column.label}" for column in table.columns]


# -- builders ------------------------------------------------------------------------------------------------


def test_mechanisms_stand_best_first_with_interval_count_and_seeds(make_row):
    rows = [
        make_row("linear-elu", "mqar", "accuracy", 0.6, n=1, points=(0.6,)),
        make_row("softmax", "mqar", "accuracy", 0.99, n=2, interval=(0.9, 1.08), points=(0.985, 0.995)),
        make_row("softmax", "mqar", "state_bytes", 32768, n=2, interval=(32768, 32768), points=(32768, 32768)),
    ]
    (table,) = section_tables(rows)
    right, size = "share of answers that are right", "state per head [bytes]"
    expected = [f"{right}|mean", f"{right}|95 % interval", f"{right}|n", f"{right}|each seed", f"{size}|value"]
    assert heads(table) == ["|mechanism", *expected]
    assert lines(table) == [
        ["softmax", "0.990", "[0.900, 1.080]", "2", "0.985, 0.995", "32,768"],
        ["linear-elu", "0.600", "–", "1", "0.600", "–"],
    ]
    assert table.groups == [(right, 4), (size, 1)]
    assert table.caption == "Task mqar; each number rests on 1 to 2 seeds"


def test_the_lowest_stands_first_where_lower_is_better_and_tasks_stay_together(make_row):
    rows = [
        make_row(name, task, "bits_per_byte", value)
        for task, name, value in (("b", "x", 2.0), ("a", "x", 3.0), ("a", "y", 2.5))
    ]
    (table,) = section_tables(rows)
    assert [line[:2] for line in lines(table)] == [["y", "a"], ["x", "a"], ["x", "b"]]
    assert table.num_headers == 2


def test_orders_are_pivoted_by_scale_and_expansion(make_row):
    def order(mechanism, task, metric, value, **more):
        return make_row(mechanism, task, metric, value, section="orders", **more)

    rows = [
        order("taylor:10/sum", "logits-sd-2", "relative_error", 3.2e-8),
        order("taylor:2/sum", "logits-sd-2", "relative_error", 0.0123, interval=(0.01, 0.02)),
        order("taylor:2@mean/sum", "logits-sd-10", "relative_error", 0.5),
        order("taylor:2/sum", "logits-sd-2", "certificate", 1.5),
        order("taylor:2/sum", "logits-sd-2", "state_bytes", 2448),
        order("taylor:2@mean/sum", "logits-sd-2", "state_bytes", 2512),
        order("softmax", "logits-sd-2", "relative_error", 0.0),
    ]
    errors, bounds, others = section_tables(rows)
    size = "state per head|size"
    assert heads(errors) == ["|order", size, "logits-sd-2|plain", "logits-sd-10|centered"]
    assert lines(errors) == [["2", "2.45 kB", "0.0123 [0.010, 0.020]", "0.500"], ["10", "–", "3.20e-8", "–"]]
    assert heads(bounds) == ["|order", size, "logits-sd-2|plain"]
    assert lines(others)[0][0] == "softmax"


def test_constructed_data_is_pivoted_by_setting(make_row):
    rows = [
        make_row("linear", "self-attention a=0.70", "detection_rate", 0.0, n=400, interval=(0.0, 0.0096)),
        make_row("softmax", "self-attention a=0.70", "detection_rate", 1.0, n=400, interval=(0.9905, 1.0)),
        make_row("softmax", "self-attention a=0.10", "detection_rate", 0.0, n=400),
        make_row("softmax", "noisy n=1600", "auc", 0.9, n=2000),
        make_row("softmax", "noisy n=1600", "d_prime_predicted", 2.0, n=1, points=(2.0,)),
    ]
    spikes, noisy = section_tables(rows)
    assert heads(spikes) == ["|spike size a", "softmax|share of spikes found", "linear|share of spikes found"]
    assert lines(spikes) == [["0.1", "0.000", "–"], ["0.7", "1.000 [0.991, 1.000]", "0.000 [0.000, 0.010]"]]
    assert spikes.caption.endswith("each number rests on 400 trials")
    assert lines(noisy) == [["1,600", "0.900", "2.00"]]
    assert noisy.caption.endswith("each number rests on 2,000 trials")


def test_curves_are_thinned_to_the_last_step():
    steps = tuple(range(10, 1010, 10))
    curves = {
        "softmax": [Curve("loss_nats", steps, tuple(map(float, steps))), Curve("loss_nats", steps, (0.0,) * 100)],
        "taylor-2": [Curve("loss_nats", (1000,), (float("nan"),))],
        "other": [Curve("accuracy", (5,), (0.5,))],
    }
    table = curve_table(curves, "loss_nats")
    assert [column.label for column in table.columns[1:]] == [
        *("90", "220", "350", "480", "610", "740", "870", "1,000"),
    ]
    assert lines(table)[0][:2] == ["softmax", "45.000"]
    assert lines(table)[1] == ["taylor-2", *["–"] * 8]


def test_evidence_counts_the_time_of_an_arm_once(make_row):
    rows = [
        make_row("softmax", "mqar", metric, 0.5, points=(0.5, 0.5, 0.5), seconds=40.0)
        for metric in ("accuracy", "loss_nats")
    ]
    rows.append(make_row("linear", "noisy n=4", "auc", 0.5, n=2000, section="separation", seconds=2.0))
    assert lines(evidence_table(rows)) == [
        ["recall", "1", "0, 1, 2", "3 seeds", "40 s"],
        ["separation", "1", "–", "2,000 trials", "2.0 s"],
    ]


def test_missing_numbers_come_with_their_reason():
    (line,) = lines(missing_table([Missing("recall", "taylor-2", "mqar", "accuracy", "diverged\nat step 3")]))
    assert line == ["taylor-2", "recall", "mqar", "accuracy", "diverged at step 3"]


# -- exports -------------------------------------------------------------------------------------------------

HOSTILE = "<b>&|`*_[x](y)\\ $1 {a} #~^%\n<script>"


@pytest.fixture
def hostile_table():
    columns = (Column("name", is_number=False), Column("value", group="a_b"))
    return Table("50 % of |x|", columns, ((Cell(HOSTILE), Cell("0.5", "[0.4, 0.6]")),))


def test_markdown_escapes_every_character_with_a_meaning(hostile_table):
    text = to_markdown(hostile_table)
    assert text == (
        "**50 % of \\|x\\|**\n\n"
        "| name | a\\_b: value |\n"
        "| :--- | ---: |\n"
        "| &lt;b&gt;&amp;\\|\\`\\*\\_\\[x\\](y)\\\\ \\$1 \\{a\\} \\#\\~^% &lt;script&gt; | 0.5 \\[0.4, 0.6\\] |\n"
    )


def test_latex_escapes_every_character_with_a_meaning(hostile_table):
    text = to_latex(hostile_table)
    assert (
        r"\textless{}b\textgreater{}\&\textbar{}`*\_{[}x{]}(y)\textbackslash{} \$1 \{a\} "
        r"\#\textasciitilde{}\textasciicircum{}\% \textless{}script\textgreater{} & 0.5 {[}0.4, 0.6{]} \\" in text
    )
    assert r" & \multicolumn{1}{c}{a\_b} \\" in text
    assert r"\begin{tabular}{lr}" in text
    assert text.count("{") == text.count("}")
