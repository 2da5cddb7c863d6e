"""A report's input of the size and shape of the quickstart study; its numbers are made up by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from maclaurin.store import Curve, Missing, ResultRow, StudyRecord, Verdict

HOSTILE_NAME = "<script>alert(1)</script>"
RECALL = {
    "softmax": (0.999, 1.0, 0.998),
    "exp-l2": (0.996, 0.999, 1.0),
    "taylor-4": (0.985, 0.991, 0.994),
    "taylor-2": (0.84, 0.97, 1.0),
    "linear-elu": (0.54, 0.6, 0.65),
    HOSTILE_NAME: (0.31,),
}
BITS_PER_BYTE = {"softmax": 3.31, "exp-l2": 3.36, "taylor-2": 3.33, "linear-elu": 3.42}
T_95 = {2: 12.706, 3: 4.303}  # two-sided 95 % points of Student's t for n values


def seeded(section, mechanism, task, metric, points, seconds=20.0):
    """A row over seeds, with its Student interval."""
    n = len(points)
    mean = sum(points) / n
    interval = None
    if n > 1:
        half = T_95[n] * math.sqrt(sum((point - mean) ** 2 for point in points) / (n - 1) / n)
        interval = (mean - half, mean + half)
    return ResultRow(section, mechanism, task, metric, mean, n, interval, seconds, points, tuple(range(n)))


def rate(mechanism, task, metric, share, trials=400):
    """A row over trials, with its Wilson interval."""
    z = 1.96
    center = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return ResultRow("separation", mechanism, task, metric, share, trials, (center - half, center + half), 0.2)


def order_rows():
    for spread in (0.5, 1.0, 2.0):
        for order in range(13):
            for shrink, mean in ((1.0, ""), (0.75, "@mean")):
                text = f"taylor:{order}{mean}/sum{':signed' if order % 2 else ''}"
                task = f"logits-sd-{spread:g}"
                error = min(2.0, (1.6 * spread * shrink) ** (order + 1) / math.factorial(order + 1))
                negative = 0.02 * spread * shrink * max(0, 9 - order) / 9 if order % 2 else 0.0
                points = (0.95 * error, error, 1.05 * error)
                yield seeded("orders", text, task, "relative_error", points, 0.1)
                yield seeded("orders", text, task, "certificate", tuple(9 * point for point in points), 0.1)
                yield seeded("orders", text, task, "negative_share", (negative,) * 3, 0.1)
                numbers = 17 * math.comb(16 + order, order)  # key and value width 16
                yield ResultRow("orders", text, task, "state_bytes", 4.0 * numbers, 1, None, 0.0)
                yield ResultRow("orders", text, task, "break_even_tokens", numbers / 16, 1, None, 0.0)


def separation_rows():
    for size in (0.1, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 1.5, 3.0):
        task = f"self-attention a={size:.2f}"
        yield rate("softmax", task, "detection_rate", round(1 / (1 + math.exp(22 * (0.48 - size))), 4))
        yield rate("linear", task, "detection_rate", 0.0025)
        yield from (rate(name, task, "false_alarm_rate", 0.0) for name in ("softmax", "linear"))
    for tokens in (100, 400, 1600, 6400):
        for name, slope in (("softmax", 0.5), ("linear", 0.12)):
            distance = slope * math.log(tokens)
            task = f"noisy n={tokens}"
            yield rate(name, task, "auc", 0.5 * (1 + math.erf(distance / 2)), trials=2000)
            yield ResultRow("separation", name, task, "d_prime", distance, 2000, (distance - 0.1, distance + 0.1), 0.2)
            yield ResultRow("separation", name, task, "d_prime_predicted", 1.05 * distance, 1, None, 0.0)


def falling(start, end, pace):
    steps = tuple(range(20, 701, 20))
    return Curve("loss_nats", steps, tuple(end + (start - end) * math.exp(-step / pace) for step in steps))


@pytest.fixture(scope="session")
def report_input() -> dict[str, Any]:
    """Keyword arguments of ``write_report``."""
    recall = [seeded("recall", name, "mqar", "accuracy", points) for name, points in RECALL.items()]
    language = [
        seeded("language", name, "python-stdlib", "bits_per_byte", (bits, bits + 0.04, bits - 0.03))
        for name, bits in BITS_PER_BYTE.items()
    ]
    return {
        "study": StudyRecord(
            "quickstart", 1, "9f2c1d7be0a45c33", {"seeds": [0, 1, 2], "recall": {"steps": 700, "mechanisms": [*RECALL]}}
        ),
        "rows": [*order_rows(), *separation_rows(), *recall, *language],
        "missing": [Missing("recall", HOSTILE_NAME, "mqar", "accuracy", f"seed 1 diverged: {HOSTILE_NAME}")],
        "verdicts": [
            Verdict("answer", "Exact look-up: softmax recalled 99.9 % of the pairs, linear attention 59.7 %.", "high"),
            Verdict("orders", "Four centered terms come within 1 % of softmax at a logit spread of 1.", "high"),
            Verdict("separation", "The softmax network finds a spike of 0.7 always, the linear one never.", "high"),
            Verdict("recall", f"softmax solves the task, linear-elu and {HOSTILE_NAME} do not.", "high"),
            Verdict("language", "No difference shown.", "low: the intervals overlap"),
        ],
        "curves": {
            "recall": {
                name: [falling(5.0, 2.2 * (1 - p), 90 + 200 * (1 - p)) for p in ps] for name, ps in RECALL.items()
            },
            "language": {name: [falling(5.5, 0.69 * bits, 150)] for name, bits in BITS_PER_BYTE.items()},
        },
        "environment": [
            {
                "time": "2026-01-02T03:04:05+00:00",
                "command": "maclaurin study quickstart",
                "versions": {"maclaurin": "0.1.0", "torch": "2.13.0"},
                "hardware": {"cores": 2},
                "data": {"digest": "sha256:ab12cd34"},
            }
        ],
        "references": [
            "G. Mongaras, E. C. Larson. arXiv 2507.23632.",
            "Y. Deng, Z. Song, K. Yuan, T. Zhou. arXiv 2310.11685.",
        ],
    }
