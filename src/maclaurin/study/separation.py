"""The separation: constructed data that a softmax network tells apart and its linear twin does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from maclaurin.store import Arm, ArmResult, Measurement, ResultRow, Verdict
from maclaurin.study.section import Section, find

#: Name in the tables -> whether it is the pair's strong unit (softmax) or its weak one (normalized identity).
_UNITS = {"softmax": True, "linear": False}


class SeparationSection(Section):
    """Detection rates against the size of the one entry that differs, and the statistic under noise.

    Args:
        num_tokens: n of the construction.
        num_features: d; n must be a multiple of d - 2.
        block_weight: b.
        background_spike: a0, the spike where nothing is to be found.
        spikes: a1, sizes to be found.
        width: neurons of the network.
        num_draws: sign networks per rate.
        noisy_lengths: n of the statistic under noise.
        noisy_draws: draws per class of that statistic.
    """

    name: ClassVar[str] = "separation"

    num_tokens: int = 4000
    num_features: int = 402
    block_weight: float = 0.5
    background_spike: float = 0.05
    spikes: tuple[float, ...] = Field(default=(0.3, 0.4, 0.5, 0.6, 0.7, 1.0, 3.0), min_length=1)
    width: int = 30
    num_draws: int = 200
    noisy_lengths: tuple[int, ...] = (100, 400, 1600, 6400, 25600)
    noisy_draws: int = 10_000

    def arms(self, *, seed: int, folder: Path) -> list[Arm]:
        construction: dict[str, Any] = {
            "num_tokens": self.num_tokens,
            "num_features": self.num_features,
            "block_weight": self.block_weight,
            "background_spike": self.background_spike,
            "width": self.width,
            "num_draws": self.num_draws,
        }
        detection = [
            self.arm(mechanism=unit, task=f"self-attention a={spike:.2f}", seed=seed, spike=spike, **construction)
            for spike in self.spikes
            for unit in _UNITS
        ]
        noisy = [
            self.arm(mechanism=unit, task=f"noisy n={length}", seed=seed, length=length, num_draws=self.noisy_draws)
            for length in self.noisy_lengths
            for unit in _UNITS
        ]
        return detection + noisy

    def num_steps(self, arm: Arm) -> int:
        return 1

    def run(self, arm: Arm, *, folder: Path, on_step: Callable[[int], None]) -> ArmResult:
        measured = _noisy(arm) if "length" in arm.config else _detection(arm)
        on_step(1)
        return ArmResult(arm, measured)

    def verdict(self, rows: Sequence[ResultRow]) -> Verdict:
        strong = find(rows, metric="detection_rate", mechanism="softmax")
        weak = find(rows, metric="detection_rate", mechanism="linear")
        auc = find(rows, metric="auc", mechanism="linear")
        if not strong or not weak:
            return Verdict(self.name, "No rate has been measured yet.", "Nothing has run.")
        found = next((row for row in strong if row.value >= 0.95), None)
        most = max(weak, key=lambda row: row.value)
        assert most.interval is not None
        sentence = (
            f"The softmax network finds the spike from size {found.task.split('=')[1]} on"
            if found is not None
            else "The softmax network never finds the spike in 95 % of draws"
        )
        sentence += (
            f"; the linear one finds at most {most.value:.3f} of them up to size {strong[-1].task.split('=')[1]} "
            f"(95 % interval [{most.interval[0]:.3f}, {most.interval[1]:.3f}])."
        )
        if auc:
            sentence += (
                f" With noise, what any readout of the linear unit can use falls from AUC {auc[0].value:.2f} at "
                f"{auc[0].task.removeprefix('noisy ')} to {auc[-1].value:.2f} at {auc[-1].task.removeprefix('noisy ')}."
            )
        return Verdict(
            self.name,
            sentence,
            f"{strong[0].n} networks per rate with Wilson intervals, at n = {self.num_tokens} and "
            f"d = {self.num_features}; a construction after Deng et al. 2023 (reconstructed) with a fixed readout "
            "and no training: it shows what one layer can tell apart, not what training finds.",
        )


def _detection(arm: Arm) -> tuple[Measurement, ...]:
    from maclaurin.theory import SelfAttentionProblem, detection_counts, predicted_rates

    config = arm.config
    problem = SelfAttentionProblem(
        config["num_tokens"],
        config["num_features"],
        b=config["block_weight"],
        a0=config["background_spike"],
        a1=config["spike"],
    )
    counts = detection_counts(problem, width=config["width"], num_draws=config["num_draws"], seed=arm.seed)
    law = predicted_rates(problem, width=config["width"])
    fires, silent, predicted = (
        (counts.strong_fires_d1, counts.strong_silent_d0, law.strong_fires_d1)
        if _UNITS[arm.mechanism]
        else (counts.weak_fires_d1, counts.weak_silent_d0, law.weak_fires_d1)
    )
    trials = counts.trials
    return (
        Measurement("detection_rate", fires / trials, trials),
        Measurement("false_alarm_rate", (trials - silent) / trials, trials),
        Measurement("detection_rate_predicted", predicted),
    )


def _noisy(arm: Arm) -> tuple[Measurement, ...]:
    from maclaurin.theory import IDENTITY_LINEAR, SOFTMAX, noisy_statistic

    unit = SOFTMAX if _UNITS[arm.mechanism] else IDENTITY_LINEAR
    found = noisy_statistic(unit, arm.config["length"], num_draws=arm.config["num_draws"], seed=arm.seed)
    trials = found.num_draws
    return (
        Measurement("auc", found.auc, trials, found.auc_interval),
        Measurement("d_prime", found.dprime, trials, found.dprime_interval),
        Measurement("d_prime_predicted", found.predicted_dprime),
    )
