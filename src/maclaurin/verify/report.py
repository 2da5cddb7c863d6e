"""What was found: one row for each law and form."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

#: In the order of severity.
VERDICTS = ("failed", "refused", "not run", "passed")


@dataclass(frozen=True)
class Row:
    """One law on one form.

    Args:
        law: its name.
        form: the form's name.
        verdict: ``passed``, ``failed``, ``not run`` (``reason`` says why) or ``refused`` (every call was declined).
        deviation: the worst found, relative as its comparison says; infinite where a number is not finite; None
            where nothing was compared.
        tolerance: allowed in that comparison.
        tolerance_reason: where its size comes from.
        comparison: what was compared there.
        smallest_input: seed, sizes, keywords and comparison of the smallest failing call, in one line.
        reason: why it was not run, or what was refused.
        statement: what the law says.
    """

    law: str
    form: str
    verdict: str
    deviation: float | None = None
    tolerance: float | None = None
    tolerance_reason: str = ""
    comparison: str = ""
    smallest_input: str = ""
    reason: str = ""
    statement: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain values; a deviation that is not finite becomes None, ``comparison`` and ``verdict`` tell."""
        values = asdict(self)
        if self.deviation is not None and not math.isfinite(self.deviation):
            values["deviation"] = None
        return values


@dataclass(frozen=True)
class Report:
    """Every law on every form of one target.

    Args:
        target: its name.
        like: text of the mechanism it was compared with, or None.
        seed: of all inputs.
        rows: one for each law and form.
        seconds: it took.
    """

    target: str
    like: str | None
    seed: int
    rows: tuple[Row, ...]
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether no law failed, and some law was run."""
        return not self.failures and any(each.verdict == "passed" for each in self.rows)

    @property
    def failures(self) -> tuple[Row, ...]:
        """The rows that failed."""
        return tuple(each for each in self.rows if each.verdict == "failed")

    def count(self, verdict: str) -> int:
        """How many rows have a verdict."""
        return sum(each.verdict == verdict for each in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Plain values for one JSON document."""
        return {
            "target": self.target,
            "like": self.like,
            "seed": self.seed,
            "passed": self.passed,
            "seconds": round(self.seconds, 2),
            "counts": {each: self.count(each) for each in VERDICTS},
            "rows": [each.to_json() for each in self.rows],
        }

    def __str__(self) -> str:
        """The failures in words, or that there are none."""
        counts = ", ".join(f"{n} {each}" for each in reversed(VERDICTS) if (n := self.count(each)))
        lines = [f"{self.target}: {counts}"]
        lines += [f"  {each.law} ({each.form}): {each.smallest_input}" for each in self.failures]
        return "\n".join(lines)
