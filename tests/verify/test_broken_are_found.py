"""The battery finds the thirty broken functions; any that it did not find would be named here.

Run: pytest tests/verify/test_broken_are_found.py -q
"""

from __future__ import annotations

import pytest

from maclaurin import mechanism
from maclaurin.verify import Target, verify
from verify.broken.case import Broken
from verify.broken.every import BROKEN

LEAST = 28
#: A law that must be among those that fail: what the fault is about, so that nothing is found by accident.
ABOUT = {
    "accepts_anything": "unknown keyword",
    "additive_eps": "like: tiny inputs",
    "bare_exponentials": "range",
    "cache_for_state": "state: size",
    "decay_over_heads": "heads",
    "empty_rows": "padding: all",
    "factored": "decay: strong",
    "fade_severed": "state: splits",
    "future_stabilizer": "future",
    "half_sums": "dtypes: long",
    "leaks_over_edges": "packed",
    "masked_in_place": "in place",
    "numerator_state": "state: alone",
    "pads_counted": "padding",
    "pads_decay": "padding",
    "reset_forgets": "decay: reset",
    "scale_or_default": "scale: zero",
    "severed_denominator": "gradient: elements",
    "shared_maximum": "strangers",
    "single_unmasked": "padding",
    "stale_position": "state: splits",
    "starts_from_nothing": "state: splits",
    "tiled_heads": "grouped heads",
    "zero_times_padding": "padding",
}


#: Names of those that the battery does not find. None now.
MISSED: frozenset[str] = frozenset()


def test_at_least_28_of_30_are_to_be_found() -> None:
    assert len(BROKEN) == 30
    assert len(BROKEN) - len(MISSED) >= LEAST
    assert {*ABOUT} | MISSED <= {each.name for each in BROKEN}


@pytest.mark.parametrize("case", BROKEN, ids=lambda case: case.name)
def test_it_is_found(case: Broken) -> None:
    """By the law that it breaks, where that is one law; each failure names inputs that reproduce it."""
    report = verify(Target(dict(case.forms), mechanism(case.like), layout=case.layout))
    assert report.passed == (case.name in MISSED)
    laws = {each.law for each in report.failures}
    assert ABOUT.get(case.name, next(iter(laws), None)) in laws
    for row in report.failures:
        assert row.form in case.forms
        assert row.smallest_input or row.reason
