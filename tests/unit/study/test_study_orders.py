"""Order against error: the certificate holds, high orders are exact, and the verdict says what the rows say.

Run: pytest tests/unit/study/test_study_orders.py
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from maclaurin.store import ArmResult
from maclaurin.study import summarize
from maclaurin.study.orders import OrdersSection
from tiny.rows import row

SECTION = OrdersSection(logit_scales=(0.5, 2.0), num_seeds=2, length=13, num_heads=2, head_dim=5)


def run_all(section: OrdersSection, seed: int = 0) -> list[ArmResult]:
    steps: list[int] = []
    found = [
        section.run(arm, folder=Path("unused"), on_step=steps.append)
        for arm in section.arms(seed=seed, folder=Path("unused"))
    ]
    assert steps == [1] * len(found)  # one step each, as num_steps says
    return found


@pytest.fixture(scope="module")
def results() -> list[ArmResult]:
    return run_all(SECTION)


def metrics(result: ArmResult) -> dict[str, float]:
    return {each.metric: each.value for each in result.measurements}


def error(results: list[ArmResult], mechanism: str, task: str) -> list[float]:
    return [
        metrics(each)["relative_error"] for each in results if (each.arm.mechanism, each.arm.task) == (mechanism, task)
    ]


def test_the_certificate_holds_for_every_arm(results: list[ArmResult]) -> None:
    """Rounding of float64 sums is the only thing the bound does not count: 1e-13 covers it here."""
    assert len(results) == 2 * 2 * 13 * 2
    for each in results:
        found = metrics(each)
        assert found["relative_error"] <= found["certificate"] + 1e-13, each.arm
    finite = [each for each in results if math.isfinite(metrics(each)["certificate"])]
    assert len(finite) > len(results) / 2  # a bound that is infinite says nothing


def test_order_twelve_is_softmax_where_logits_are_small(results: list[ArmResult]) -> None:
    """The largest logit here is 2.1: the first term left out is 2.1^13 / 13! = 2.5e-6 of weights near 1."""
    for mechanism in ("taylor:12/sum", "taylor:12@mean/sum"):
        assert max(error(results, mechanism, "logits-sd-0.5")) < 2.5e-6
    assert min(error(results, "taylor:0/sum", "logits-sd-0.5")) > 0.05  # the mean of the values is not softmax


def test_errors_fall_with_the_even_order_and_rise_with_the_logits(results: list[ArmResult]) -> None:
    means = [np.mean(error(results, f"taylor:{order}/sum", "logits-sd-0.5")) for order in range(0, 13, 2)]
    assert means == sorted(means, reverse=True)
    for order in (2, 4):
        small, large = (np.mean(error(results, f"taylor:{order}/sum", f"logits-sd-{sd}")) for sd in ("0.5", "2"))
        assert large > 5 * small


def test_only_odd_orders_can_have_negative_denominators(results: list[ArmResult]) -> None:
    shares = {}
    for each in results:
        found = metrics(each)
        assert ("negative_share" in found) == (each.arm.config["order"] % 2 == 1)
        assert each.arm.mechanism.endswith("signed") == (each.arm.config["order"] % 2 == 1)
        shares[each.arm.mechanism, each.arm.task] = found.get("negative_share", 0.0)
    assert all(0 <= share <= 1 for share in shares.values())
    assert shares["taylor:1/sum:signed", "logits-sd-2"] > 0


def test_an_infinite_certificate_is_missing_with_its_reason() -> None:
    results = run_all(OrdersSection(max_order=3, logit_scales=(8.0,), num_seeds=2, length=13, num_heads=2, head_dim=5))
    infinite = [each for each in results if not math.isfinite(metrics(each)["certificate"])]
    assert 0 < len(infinite) < len(results)
    assert all("no certificate" in each.notes["certificate"] for each in infinite)
    assert all("certificate" not in each.notes for each in results if each not in infinite)
    rows, missing = summarize([each.arm for each in results], results)
    listed = {each.mechanism: each.reason for each in missing}
    assert listed == {each.arm.mechanism: each.notes["certificate"] for each in infinite}
    assert all(each.metric == "certificate" for each in missing)
    assert all(math.isfinite(each.value) for each in rows)


def test_a_run_depends_on_its_seed_alone(results: list[ArmResult]) -> None:
    assert [each.measurements for each in run_all(SECTION)] == [each.measurements for each in results]
    other = run_all(SECTION.model_copy(update={"max_order": 0}), seed=5)
    assert not set(error(other, "taylor:0/sum", "logits-sd-2")) & set(error(results, "taylor:0/sum", "logits-sd-2"))


def test_all_orders_of_a_seed_see_the_same_draw(results: list[ArmResult]) -> None:
    """A centered order 0 has weights that do not depend on the key: it is the plain one."""
    plain, centered = (error(results, f"taylor:0{center}/sum", "logits-sd-2") for center in ("", "@mean"))
    assert plain == pytest.approx(centered, rel=1e-12)


# -- verdict -----------------------------------------------------------------------------------------------------------


def rows_of(errors: dict[str, float], *, task: str = "logits-sd-0.5", bound: float = 10.0) -> list:
    found = []
    for mechanism, value in errors.items():
        found.append(row("orders", mechanism, task, "relative_error", [value, value]))
        found.append(row("orders", mechanism, task, "certificate", [bound, bound]))
        found.append(row("orders", mechanism, task, "state_bytes", [4096.0, 4096.0]))
        found.append(row("orders", mechanism, task, "break_even_tokens", [64.0, 64.0]))
    return found


def verdict(rows: list, **changes: object):
    return OrdersSection(**{"max_order": 5, "logit_scales": (0.5,), "num_seeds": 2, **changes}).verdict(rows)


def test_no_rows_no_claim() -> None:
    assert verdict([]).sentence == "No order has been measured yet."


def test_the_order_needed_is_the_least_from_which_on_all_even_ones_hold() -> None:
    errors = {"taylor:0/sum": 0.5, "taylor:1/sum:signed": 1e-9, "taylor:2/sum": 0.009, "taylor:4/sum": 1e-3}
    found = verdict(rows_of(errors))
    assert (
        "order 2 (4,096 bytes per head, the cache of 64 tokens) at logits of standard deviation 0.5" in found.sentence
    )
    assert "the certificate held for every one" in found.sureness
    assert found.sureness.startswith("2 draws")
    assert "order 4 (" in verdict(rows_of(errors | {"taylor:2/sum": 0.011})).sentence
    assert "more than order 5" in verdict(rows_of(errors | {"taylor:4/sum": 0.011})).sentence  # a lucky 2 is no claim


def test_centered_orders_do_not_count_as_plain_ones() -> None:
    errors = {"taylor:0/sum": 0.5, "taylor:2/sum": 0.5, "taylor:4/sum": 0.5, "taylor:2@mean/sum": 0.0}
    assert "more than order 5" in verdict(rows_of(errors)).sentence


def test_every_scale_is_answered_for_itself() -> None:
    rows = rows_of({"taylor:0/sum": 0.0, "taylor:2/sum": 0.0, "taylor:4/sum": 0.0})
    found = verdict(rows, logit_scales=(0.5, 1.0)).sentence
    assert "order 0 (" in found
    assert "more than order 5 at logits of standard deviation 1." in found  # nothing measured, nothing claimed


def test_a_certificate_that_one_seed_breaks_is_called_a_defect() -> None:
    rows = rows_of({"taylor:4/sum": 0.5}, bound=0.6)
    assert "held" in verdict(rows).sureness
    rows[1] = row("orders", "taylor:4/sum", "logits-sd-0.5", "certificate", [0.7, 0.4])
    assert "was EXCEEDED by 1 of them: a defect" in verdict(rows).sureness
