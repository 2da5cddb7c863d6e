"""The answer of a study in two sentences, from its rows; and the verdict of every section."""

from __future__ import annotations

from collections.abc import Sequence

from maclaurin.store import ResultRow, Verdict
from maclaurin.study.plan import Study
from maclaurin.study.recall import paired_difference, seeds
from maclaurin.study.section import find

#: The section under which the report looks for the answer.
ANSWER = "answer"


def verdicts(study: Study, rows: Sequence[ResultRow]) -> list[Verdict]:
    """The answer first, then one verdict per section."""
    by_section = [(each, [row for row in rows if row.section == each.name]) for each in study.sections]
    return [_answer(rows), *(section.verdict(mine) for section, mine in by_section if mine)]


def _answer(rows: Sequence[ResultRow]) -> Verdict:
    """Recall is what the mechanisms differ in; how much of it a finite state keeps is the rest of the answer."""
    recall = {row.mechanism: row for row in find(rows, metric="accuracy")}
    exact, linear = recall.get("softmax"), recall.get("linear-elu")
    if exact is None or linear is None:
        return Verdict(
            ANSWER, "Not answered: softmax and linear-elu have no recall accuracy here.", "Nothing to compare."
        )
    gap, interval, n = paired_difference(exact, linear)
    if interval is None or interval[0] <= 0 <= interval[1]:
        seen = "" if interval is None else f" (paired 95 % interval [{interval[0]:.2f}, {interval[1]:.2f}])"
        return Verdict(
            ANSWER,
            f"Not settled: the difference in recall between softmax and linear attention is {gap:+.2f}{seen}.",
            f"{seeds(n)} cannot tell it from chance.",
        )
    others = [row for row in recall.values() if row not in (exact, linear)]
    close = [row.mechanism for row in others if exact.value - row.value <= 0.02]
    sentence = (
        f"Recall: softmax attention answers {exact.value:.0%} of the queries for a value seen before, linear attention "
        f"{linear.value:.0%}."
    )
    if close:
        sentence += f" Within 0.02 of softmax on this task: {', '.join(close)}{_cost(rows, close)}."
    return Verdict(
        ANSWER,
        sentence,
        f"The gap is {gap:.2f}, paired 95 % interval [{interval[0]:.2f}, {interval[1]:.2f}] over {seeds(n)} of "
        "one small task; its size elsewhere is open. The text models are too short-trained to rank.",
    )


def _cost(rows: Sequence[ResultRow], mechanisms: Sequence[str]) -> str:
    """State bytes and break-even length of the mechanisms among these whose state does not grow."""
    parts = []
    recall = [row for row in rows if row.section == "recall"]
    for name in mechanisms:
        sizes = find(recall, metric="state_bytes", mechanism=name)
        even = find(recall, metric="break_even_tokens", mechanism=name)
        if sizes and even:
            parts.append(
                f"{name} in {sizes[0].value:,.0f} bytes per head, as much as {even[0].value:,.0f} cached tokens"
            )
    return f" ({'; '.join(parts)})" if parts else ""
