"""The battery raises no alarm on any member of the catalogue: two every day, all others in the nightly run.

Run: pytest tests/verify/test_catalogue_obeys.py -q, and with -m nightly
"""

from __future__ import annotations

import pytest

from maclaurin import CATALOGUE, methods
from maclaurin.verify import verify

#: One on softmax's kernels, and one gated and decaying; ``tests/unit/verify`` runs three compositions more.
DAILY = ("exp-l2", "exp-layer-decay")


def check(name: str) -> None:
    """Every law holds for every method that serves the member."""
    report = verify(name)
    assert report.passed, report.failures
    serving = {method for method, refusal in methods(name).items() if refusal is None}
    assert {each.form for each in report.rows} == serving
    assert report.count("passed") >= 40 * len(serving)


@pytest.mark.parametrize("name", DAILY)
def test_a_member_obeys_every_law(name: str) -> None:
    check(name)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [each for each in CATALOGUE if each not in DAILY])
def test_every_other_member_obeys_every_law(name: str) -> None:
    check(name)
