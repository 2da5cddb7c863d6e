"""Order against error: how many orders of the series softmax attention needs, measured and certified."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from maclaurin.store import Arm, ArmResult, Measurement, ResultRow, Verdict
from maclaurin.study.section import Section, find
from maclaurin.study.sizes import size_measurements


class OrdersSection(Section):
    """Sum-normalized Taylor attention of orders 0 to ``max_order``, plain and centered, against softmax.

    Queries and keys are standard normal, scaled so that their logits have the given standard deviation; float64.

    Args:
        max_order: highest order.
        logit_scales: standard deviations of the logits.
        num_seeds: independent draws of query, key and value.
        length: queries and keys, causal.
        num_heads: heads per draw.
        head_dim: width of query, key and value.
    """

    name: ClassVar[str] = "orders"

    max_order: int = Field(default=12, ge=0, le=40)
    logit_scales: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(0.5, 1.0, 2.0), min_length=1)
    num_seeds: int = Field(default=3, ge=1)
    length: int = Field(default=64, ge=2)
    num_heads: int = Field(default=4, ge=1)
    head_dim: int = Field(default=16, ge=1)

    def arms(self, *, seed: int, folder: Path) -> list[Arm]:
        return [
            self.arm(
                mechanism=f"taylor:{order}{center}/sum{'' if order % 2 == 0 else ':signed'}",
                task=f"logits-sd-{scale:g}",
                seed=seed + each,
                order=order,
                is_centered=bool(center),
                logit_scale=scale,
                length=self.length,
                num_heads=self.num_heads,
                head_dim=self.head_dim,
            )
            for scale in self.logit_scales
            for center in ("", "@mean")
            for order in range(self.max_order + 1)
            for each in range(self.num_seeds)
        ]

    def num_steps(self, arm: Arm) -> int:
        return 1

    def run(self, arm: Arm, *, folder: Path, on_step: Callable[[int], None]) -> ArmResult:
        import torch

        from maclaurin.evaluate import attend
        from maclaurin.theory import certificate

        config = arm.config
        rng = np.random.default_rng([arm.seed, round(config["logit_scale"] * 1000)])
        shape = (1, config["num_heads"], config["length"], config["head_dim"])
        query, key, value = (rng.standard_normal(shape) for _ in range(3))
        query *= config["logit_scale"]
        q, k, v = (torch.from_numpy(each) for each in (query, key, value))
        exact = attend("exp/sum", q, k, v).output.numpy()
        approximate = attend(arm.mechanism, q, k, v, return_diagnostics=True)
        size = np.linalg.norm(exact, axis=-1)
        error = np.linalg.norm(approximate.output.numpy() - exact, axis=-1) / size
        logits = query @ key.swapaxes(-1, -2) * config["head_dim"] ** -0.5
        visible = np.tril(np.ones((config["length"],) * 2, dtype=bool))
        center = None
        if config["is_centered"]:
            center = np.where(visible, logits, 0.0).sum(-1) / visible.sum(-1)
        bound = certificate(logits, visible, value, config["order"], center=center) / size
        measurements = [
            Measurement("relative_error", float(np.median(error))),
            Measurement("certificate", float(np.median(bound))),
            *size_measurements(arm.mechanism, key_dim=shape[-1], value_dim=shape[-1], length=shape[-2]),
        ]
        notes = {}
        if config["order"] % 2:
            assert approximate.diagnostics is not None
            measurements.append(Measurement("negative_share", approximate.diagnostics.negative_share))
        if not math.isfinite(measurements[1].value):
            notes["certificate"] = "no certificate: at most half of the rows keep a denominator that is surely positive"
        on_step(1)
        return ArmResult(arm, tuple(measurements), notes=notes)

    def verdict(self, rows: Sequence[ResultRow]) -> Verdict:
        found = find(rows, metric="relative_error")
        if not found:
            return Verdict(self.name, "No order has been measured yet.", "Nothing has run.")
        parts = []
        for scale in self.logit_scales:
            needed = self._order_needed(found, f"logits-sd-{scale:g}", tolerance=0.01)
            least = f"more than order {self.max_order}" if needed is None else f"order {needed}{_cost(rows, needed)}"
            parts.append(f"{least} at logits of standard deviation {scale:g}")
        broken = self._certificates_broken(rows)
        held = "held for every one of them" if not broken else f"was EXCEEDED by {broken} of them: a defect"
        return Verdict(
            self.name,
            "Softmax attention is its series: for 1 % error of the median output row it takes "
            + ", ".join(parts)
            + ".",
            f"{found[0].n} draws of {self.num_heads} heads x {self.length} rows in float64, normal queries and keys "
            f"without a common offset; the certificate {held}. Trained heads have larger logits and offsets.",
        )

    def _order_needed(self, rows: Sequence[ResultRow], task: str, *, tolerance: float) -> int | None:
        """Least even plain order from which on every even order stays within the tolerance."""
        errors = {row.mechanism: row.value for row in rows if row.task == task}
        needed = None
        for order in range(self.max_order - self.max_order % 2, -1, -2):
            if errors.get(f"taylor:{order}/sum", math.inf) > tolerance:
                break
            needed = order
        return needed

    def _certificates_broken(self, rows: Sequence[ResultRow]) -> int:
        bounds = {(row.mechanism, row.task): row.points for row in find(rows, metric="certificate")}
        measured = find(rows, metric="relative_error")
        rounding = 1e-13  # of the float64 sums that are compared
        return sum(
            error > bound + rounding
            for row in measured
            for error, bound in zip(row.points, bounds.get((row.mechanism, row.task), ()), strict=False)
        )


def _cost(rows: Sequence[ResultRow], order: int) -> str:
    """What the state of an order costs; no order is named without it."""
    sizes = find(rows, metric="state_bytes", mechanism=f"taylor:{order}/sum")
    even = find(rows, metric="break_even_tokens", mechanism=f"taylor:{order}/sum")
    if not sizes or not even:
        return ""
    return f" ({sizes[0].value:,.0f} bytes per head, the cache of {even[0].value:,.0f} tokens)"
