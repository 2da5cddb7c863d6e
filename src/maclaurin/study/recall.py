"""Recall: multi-query associative recall (MQAR), the task where sequence mixers part most clearly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pydantic import Field

from maclaurin.store import Arm, ArmResult, Measurement, ResultRow, Verdict
from maclaurin.study.section import Section, check_mechanisms, find
from maclaurin.study.sizes import size_measurements
from maclaurin.study.statistics import student_interval
from maclaurin.tasks import MQAR
from maclaurin.train.config import TrainConfig

if TYPE_CHECKING:
    from maclaurin.algebra import Recipe


class RecallSection(Section):
    """MQAR accuracy of small decoders that differ in their mechanism only.

    Every mechanism sees the same training sequences for a seed, and all seeds and mechanisms are scored on the same
    test sequences, from a stream that training never reads.

    Args:
        mechanisms: catalogue names or texts.
        task: MQAR's parameters.
        model_dim: width.
        num_layers: blocks.
        num_heads: heads.
        convolution: width of the short causal convolution; there are no positions.
        training: how each is trained.
        num_seeds: seeds per mechanism, of weights and data.
        num_test: test sequences.
        test_seed: of the test sequences, shared by all arms.
    """

    name: ClassVar[str] = "recall"

    mechanisms: tuple[str, ...] = Field(min_length=1)
    task: MQAR
    model_dim: int = Field(default=16, ge=1)
    num_layers: int = Field(default=2, ge=1)
    num_heads: int = Field(default=1, ge=1)
    convolution: int = Field(default=3, ge=0)
    training: TrainConfig
    num_seeds: int = Field(default=3, ge=1)
    num_test: int = Field(default=1024, ge=1)
    test_seed: int = Field(default=0, ge=0, lt=2**53)

    def check(self) -> None:
        def build(mechanism: str) -> Recipe:
            return _recipe(mechanism, self.convolution)

        check_mechanisms(self.mechanisms, build, model_dim=self.model_dim, num_heads=self.num_heads)

    def arms(self, *, seed: int, folder: Path) -> list[Arm]:
        return [
            self.arm(
                mechanism=mechanism,
                task="mqar",
                seed=seed + each,
                task_settings=self.task.model_dump(),
                model={
                    "vocab_size": self.task.vocab_size,
                    "model_dim": self.model_dim,
                    "num_layers": self.num_layers,
                    "num_heads": self.num_heads,
                },
                convolution=self.convolution,
                training=self.training.model_dump(),
                num_test=self.num_test,
                test_seed=self.test_seed,
            )
            for mechanism in self.mechanisms
            for each in range(self.num_seeds)
        ]

    def num_steps(self, arm: Arm) -> int:
        return int(arm.config["training"]["steps"])

    def run(self, arm: Arm, *, folder: Path, on_step: Callable[[int], None]) -> ArmResult:
        from maclaurin.nn import DecoderConfig, DecoderLM
        from maclaurin.train import fit, task_accuracy

        config = arm.config
        task = MQAR(**config["task_settings"])
        training = TrainConfig(**config["training"])
        chosen = _recipe(arm.mechanism, config["convolution"])
        model = DecoderLM(DecoderConfig(chosen, **config["model"]), seed=arm.seed)
        curve = fit(model, task.batches(arm.seed, training.batch_size), training, on_step=on_step)
        accuracy = task_accuracy(model, task.test_set(config["test_seed"], config["num_test"]))
        head_dim = config["model"]["model_dim"] // config["model"]["num_heads"]
        return ArmResult(
            arm,
            (
                Measurement("accuracy", accuracy),
                Measurement("parameters", float(model.num_parameters)),
                *size_measurements(arm.mechanism, key_dim=head_dim, value_dim=head_dim, length=task.length),
            ),
            (curve,),
        )

    def verdict(self, rows: Sequence[ResultRow]) -> Verdict:
        found = {row.mechanism: row for row in find(rows, metric="accuracy")}
        ordered = sorted(found.values(), key=lambda row: -row.value)
        if len(ordered) < 2:
            return Verdict(self.name, "Fewer than two mechanisms have been measured.", "Nothing can be compared yet.")
        ranking = ", ".join(f"{row.mechanism} {row.value:.2f}" for row in ordered)
        best, worst = ordered[0], ordered[-1]
        gap = paired_difference(best, worst)
        shown = f"{gap.mean:.2f}; {seeds(gap.n)} cannot tell it from zero"
        if gap.interval is not None:
            low, high = gap.interval
            verdict = "above zero" if low > 0 else "not told from zero"
            shown = f"{gap.mean:.2f}, paired 95 % interval [{low:.2f}, {high:.2f}]: {verdict}"
        return Verdict(
            self.name,
            f"Mean recall accuracy: {ranking}. The gap between {best.mechanism} and {worst.mechanism} is {shown}.",
            f"{seeds(best.n)} at one learning rate and one size (T = {self.task.length}, {self.task.num_pairs} pairs, "
            f"width {self.model_dim}, {self.training.steps} steps). Recall is often solved or not, so few seeds give "
            "wide intervals; neighbors in the list are undecided unless their intervals part, and the gap is that of "
            f"the two ends, picked after the fact.{_without_width(ordered)}",
        )


def _without_width(rows: Sequence[ResultRow]) -> str:
    """What an interval that is a point does not say, where there is one."""
    if all(row.interval is None or row.interval[0] < row.interval[1] for row in rows):
        return ""
    return " Where an interval has no width these seeds agree; that is no proof that others would."


def _recipe(mechanism: str, convolution: int) -> Recipe:
    """Every mechanism without positions and behind the same convolution."""
    from maclaurin.algebra import recipe

    return recipe(mechanism).with_layer(rotary=False, convolution=convolution)


def seeds(count: int) -> str:
    """A number of seeds in words.

    >>> seeds(1), seeds(3)
    ('1 seed', '3 seeds')
    """
    return f"{count} seed{'' if count == 1 else 's'}"


class Difference(NamedTuple):
    """A mean difference over ``n`` seeds and its interval, None for fewer than two."""

    mean: float
    interval: tuple[float, float] | None
    n: int


def paired_difference(first: ResultRow, second: ResultRow) -> Difference:
    """Over the seeds both rows have, with Student's interval; where they share none, the difference of their means."""
    theirs = dict(zip(second.seeds, second.points, strict=True))
    differences = [x - theirs[seed] for seed, x in zip(first.seeds, first.points, strict=True) if seed in theirs]
    if not differences:
        return Difference(first.value - second.value, None, 0)
    return Difference(sum(differences) / len(differences), student_interval(differences), len(differences))
