"""The separation: constructed data that a softmax network tells apart and its linear twin does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from maclaurin.errors import ConfigError, MaclaurinError
from maclaurin.store import Arm, ArmResult, Measurement, ResultRow, Verdict
from maclaurin.study.section import Section, find

if TYPE_CHECKING:
    from maclaurin.theory import SelfAttentionProblem

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
    width: int = Field(default=30, ge=1)
    num_draws: int = Field(default=200, ge=1)
    noisy_lengths: tuple[Annotated[int, Field(ge=30)], ...] = (100, 400, 1600, 6400, 25600)
    noisy_draws: int = Field(default=10_000, ge=2)

    def check(self) -> None:
        for index, spike in enumerate(self.spikes):
            try:
                _problem(self._construction, spike)
            except MaclaurinError as error:
                settings = "n: num_tokens, d: num_features, b: block_weight, a0: background_spike"
                raise ConfigError(f"spikes.{index}: {error}\n  Here these are {settings}.") from None

    def arms(self, *, seed: int, folder: Path) -> list[Arm]:
        detection = [
            self.arm(
                mechanism=unit,
                task=f"self-attention a={_label(spike)}",
                seed=seed,
                spike=spike,
                width=self.width,
                num_draws=self.num_draws,
                **self._construction,
            )
            for spike in self.spikes
            for unit in _UNITS
        ]
        noisy = [
            self.arm(mechanism=unit, task=f"noisy n={length}", seed=seed, length=length, num_draws=self.noisy_draws)
            for length in self.noisy_lengths
            for unit in _UNITS
        ]
        return detection + noisy

    @property
    def _construction(self) -> dict[str, Any]:
        """The data sets apart from the spike that is to be found."""
        return {
            "num_tokens": self.num_tokens,
            "num_features": self.num_features,
            "block_weight": self.block_weight,
            "background_spike": self.background_spike,
        }

    def num_steps(self, arm: Arm) -> int:
        return 1

    def run(self, arm: Arm, *, folder: Path, on_step: Callable[[int], None]) -> ArmResult:
        measured = _noisy(arm) if "length" in arm.config else _detection(arm)
        on_step(1)
        return ArmResult(arm, measured)

    def verdict(self, rows: Sequence[ResultRow]) -> Verdict:
        strong = sorted(find(rows, metric="detection_rate", mechanism="softmax"), key=_size)
        weak = sorted(find(rows, metric="detection_rate", mechanism="linear"), key=_size)
        if not strong or not weak:
            return Verdict(self.name, "No rate has been measured yet.", "Nothing has run.")
        most = max(weak, key=lambda row: row.value)
        assert most.interval is not None
        return Verdict(
            self.name,
            f"{_found(strong)}; the linear one finds at most {most.value:.3f} of them up to size {_shown(weak[-1])} "
            f"(95 % interval [{most.interval[0]:.3f}, {most.interval[1]:.3f}])."
            + _under_noise(sorted(find(rows, metric="auc", mechanism="linear"), key=_size)),
            f"{strong[0].n} networks per rate with Wilson intervals, at n = {self.num_tokens} and "
            f"d = {self.num_features}; a construction after Deng et al. 2023 (reconstructed) with a fixed readout "
            "and no training: it shows what one layer can tell apart, not what training finds.",
        )


def _shown(row: ResultRow) -> str:
    """The size of the spike, or the length, that a row belongs to, as its task says it."""
    return row.task.split("=")[1]


def _size(row: ResultRow) -> float:
    return float(_shown(row))


def _found(strong: Sequence[ResultRow]) -> str:
    """The least size from which on the softmax network finds 95 % of the spikes; rows by size."""
    least = None
    for row in reversed(strong):
        if row.value < 0.95:
            break
        least = row
    if least is None:
        return f"The softmax network does not find 95 % of the spikes of size {_shown(strong[-1])}"
    return f"The softmax network finds the spike from size {_shown(least)} on"


def _under_noise(auc: Sequence[ResultRow]) -> str:
    """What noise leaves of the linear unit's statistic; rows by length. It falls only where the intervals part."""
    if not auc:
        return ""
    first, last = auc[0], auc[-1]
    sentence = " With noise, what any readout of the linear unit can use "
    if len(auc) == 1:
        return sentence + f"is AUC {first.value:.2f} at n={_shown(first)}."
    assert first.interval is not None and last.interval is not None
    change = "falls" if last.interval[1] < first.interval[0] else "goes"
    return (
        sentence + f"{change} from AUC {first.value:.2f} at n={_shown(first)} to {last.value:.2f} at n={_shown(last)}."
    )


def _label(spike: float) -> str:
    """Two decimals where they say it all, otherwise as many as it takes.

    >>> _label(0.3), _label(0.125)
    ('0.30', '0.125')
    """
    short = f"{spike:.2f}"
    return short if float(short) == spike else repr(spike)


def _problem(config: Mapping[str, Any], spike: float) -> SelfAttentionProblem:
    """The pair of data sets that differ in ``spike``."""
    from maclaurin.theory import SelfAttentionProblem

    return SelfAttentionProblem(
        config["num_tokens"],
        config["num_features"],
        b=config["block_weight"],
        a0=config["background_spike"],
        a1=spike,
    )


def _detection(arm: Arm) -> tuple[Measurement, ...]:
    from maclaurin.theory import detection_counts, predicted_rates

    config = arm.config
    problem = _problem(config, config["spike"])
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
