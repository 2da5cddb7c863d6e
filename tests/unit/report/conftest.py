"""A small study: two sections with words of their own, one without."""

from __future__ import annotations

from typing import Any

import pytest

from maclaurin.report import render
from maclaurin.store import Curve, Missing, ResultRow, StudyRecord, Verdict


def row(mechanism, task, metric, value, *, n=3, interval=None, points=(), section="recall", seconds=1.0):
    seeds = tuple(range(len(points)))
    return ResultRow(section, mechanism, task, metric, value, n, interval, seconds, points, seeds)


@pytest.fixture
def make_row():
    return row


@pytest.fixture(scope="session")
def report_parts() -> dict[str, Any]:
    """Keyword arguments of ``render``; nobody changes them."""
    return {
        "study": StudyRecord("demo", 2, "0123456789abcdef", {"seeds": [0, 1], "limits": ["One seed is no seed."]}),
        "rows": [
            row("mine", "own", "peak_logit", 3.0, interval=(2.0, 4.0), section="extra"),
            row("softmax", "mqar", "accuracy", 0.99, interval=(0.9, 1.0), points=(0.985, 0.995), n=2),
            row("linear-elu", "mqar", "accuracy", 0.6, n=1, points=(0.6,)),
            row("taylor:2/sum", "logits-sd-1", "relative_error", 0.0123, section="orders"),
        ],
        "missing": [Missing("recall", "taylor-2", "mqar", "accuracy", "the loss was not finite after step 41")],
        "verdicts": [
            Verdict("recall", "Softmax recalls.", "high, 2 seeds"),
            Verdict("answer", "It recalls 40 % more.", "fairly sure"),
        ],
        "curves": {"recall": {"softmax": [Curve("loss_nats", (10, 20), (2.0, 1.0))]}},
        "environment": [
            {"time": "2026-01-01T00:00:00+00:00", "command": "maclaurin study old"},
            {
                "time": "2026-01-02T00:00:00+00:00",
                "command": "maclaurin study demo --out out",
                "versions": {"torch": "2.13.0"},
                "data": {"digest": "sha256:abc"},
            },
        ],
        "references": ["A. Author. A paper. arXiv 0000.00000."],
    }


@pytest.fixture(scope="session")
def rendered(report_parts) -> str:
    return render(**report_parts)
