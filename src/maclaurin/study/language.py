"""Language: byte-level modeling of text, scored on documents that training never read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import Field

from maclaurin.errors import DataError
from maclaurin.store import Arm, ArmResult, Measurement, ResultRow, Verdict
from maclaurin.study.section import Section, check_mechanisms, find
from maclaurin.study.sizes import size_measurements
from maclaurin.tasks import Batch, Corpus
from maclaurin.train.config import TrainConfig

#: Bits per byte of a model that knows nothing.
CHANCE_BITS = math.log2(Corpus.vocab_size)


class LanguageSection(Section):
    """Bits per byte of small decoders that differ in their mechanism only.

    Args:
        mechanisms: catalogue names or texts.
        corpus: a file or folder of UTF-8 text; None: the running Python's standard-library sources.
        model_dim: width.
        num_layers: blocks.
        num_heads: heads.
        mlp_dim: inner width of the SwiGLU.
        length: bytes per sequence.
        training: how each is trained.
        num_seeds: seeds per mechanism, of weights and data.
        num_windows: held-out windows of ``length`` bytes that are scored, spread evenly.
    """

    name: ClassVar[str] = "language"

    mechanisms: tuple[str, ...] = Field(min_length=1)
    corpus: str | None = None
    model_dim: int = Field(default=128, ge=1)
    num_layers: int = Field(default=2, ge=1)
    num_heads: int = Field(default=4, ge=1)
    mlp_dim: int | None = Field(default=None, ge=1)
    length: int = Field(default=256, ge=2)
    training: TrainConfig
    num_seeds: int = Field(default=1, ge=1)
    num_windows: int = Field(default=128, ge=1)

    def check(self) -> None:
        from maclaurin.algebra import recipe

        check_mechanisms(self.mechanisms, recipe, model_dim=self.model_dim, num_heads=self.num_heads)

    def arms(self, *, seed: int, folder: Path) -> list[Arm]:
        corpus = self._open(folder, self.corpus)
        corpus.heldout(self.length, self.num_windows)  # refuses a text that is too short
        model = {
            "vocab_size": Corpus.vocab_size,
            "model_dim": self.model_dim,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp_dim,
        }
        return [
            self.arm(
                mechanism=mechanism,
                task="bytes",
                seed=seed + each,
                corpus=self.corpus,
                corpus_digest=corpus.digest,
                model=model,
                length=self.length,
                training=self.training.model_dump(),
                num_windows=self.num_windows,
            )
            for mechanism in self.mechanisms
            for each in range(self.num_seeds)
        ]

    def num_steps(self, arm: Arm) -> int:
        return int(arm.config["training"]["steps"])

    def run(self, arm: Arm, *, folder: Path, on_step: Callable[[int], None]) -> ArmResult:
        from maclaurin.nn import DecoderConfig, DecoderLM
        from maclaurin.train import fit, mean_loss_nats

        config = arm.config
        corpus = self._open(folder, config["corpus"])
        if corpus.digest != config["corpus_digest"]:
            raise DataError("the corpus has changed since the study was started. Run the same command again.")
        training = TrainConfig(**config["training"])
        model = DecoderLM(DecoderConfig(arm.mechanism, **config["model"]), seed=arm.seed)
        batches = _windows(corpus, arm.seed, training.batch_size, config["length"])
        curve = fit(model, batches, training, on_step=on_step)
        held_out = corpus.heldout(config["length"], config["num_windows"], batch_size=training.batch_size)
        loss, num_bytes = mean_loss_nats(model, held_out)
        tokens = training.steps * training.batch_size * config["length"]
        notes = {"held_out_bytes": num_bytes, "training_tokens": tokens, "corpus_digest": corpus.digest}
        head_dim = config["model"]["model_dim"] // config["model"]["num_heads"]
        return ArmResult(
            arm,
            (
                Measurement("bits_per_byte", loss / math.log(2)),
                Measurement("parameters", float(model.num_parameters)),
                *size_measurements(arm.mechanism, key_dim=head_dim, value_dim=head_dim, length=config["length"]),
            ),
            (curve,),
            notes=notes,
        )

    def verdict(self, rows: Sequence[ResultRow]) -> Verdict:
        found = find(rows, metric="bits_per_byte")  # in the order of the plan: sorting them would claim one
        if not found:
            return Verdict(self.name, "No model has been trained yet.", "Nothing has run.")
        values = ", ".join(f"{row.mechanism} {row.value:.2f}" for row in found)
        learned = sum(row.value < CHANCE_BITS for row in found)
        who = "Every model learns" if learned == len(found) else f"{learned} of {len(found)} models learn"
        tokens = self.training.steps * self.training.batch_size * self.length
        return Verdict(
            self.name,
            f"{who} to predict the text, in bits per held-out byte ({CHANCE_BITS:.0f} by chance): {values}. "
            "At this budget the order of the mechanisms means nothing, and none is claimed.",
            f"{found[0].n} seed{'s' if found[0].n > 1 else ''} and {tokens:,} bytes per model, one learning rate "
            "for all: differences of this size change with the seed. It takes a hundred times the data to compare.",
        )

    @staticmethod
    def _open(folder: Path, corpus: str | None) -> Corpus:
        cache = folder / "corpus"
        return Corpus.standard_library(cache) if corpus is None else Corpus.open(corpus, cache)


def _windows(corpus: Corpus, seed: int, batch_size: int, length: int) -> Iterator[Batch]:
    """Training windows without end; the same for every mechanism of a seed."""
    rng = np.random.default_rng([seed, 1])
    while True:
        yield corpus.sample(rng, batch_size, length)
