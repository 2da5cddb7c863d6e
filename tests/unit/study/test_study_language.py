"""Language: scored on text that training never read, and a verdict that ranks nothing.

Run: pytest tests/unit/study/test_study_language.py
"""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from maclaurin.errors import DataError
from maclaurin.store import ArmResult
from maclaurin.study.language import LanguageSection, _windows
from maclaurin.tasks import Corpus
from maclaurin.train import TrainConfig
from tiny.launch import TINY
from tiny.rows import row

TEXT = TINY.with_name("text.txt")


def section(corpus: Path = TEXT, **changes: Any) -> LanguageSection:
    return LanguageSection(
        **{
            "mechanisms": ("softmax", "linear-elu"),
            "corpus": str(corpus),
            "model_dim": 8,
            "num_layers": 1,
            "num_heads": 2,
            "length": 16,
            "num_windows": 5,
            "training": TrainConfig(steps=3, batch_size=2, learning_rate=0.01),
            **changes,
        }
    )


def run_all(chosen: LanguageSection, folder: Path) -> list[ArmResult]:
    return [chosen.run(arm, folder=folder, on_step=lambda step: None) for arm in chosen.arms(seed=0, folder=folder)]


def test_what_an_arm_gives(tmp_path: Path) -> None:
    first, second = run_all(section(), tmp_path)
    assert (first.arm.mechanism, second.arm.mechanism) == ("softmax", "linear-elu")
    for each in (first, second):
        found = {measurement.metric: measurement.value for measurement in each.measurements}
        assert 4 < found["bits_per_byte"] < 10  # three steps from the uniform 8 bits
        assert each.notes["training_tokens"] == 3 * 2 * 16
        assert each.notes["held_out_bytes"] == 5 * 16
        assert each.notes["corpus_digest"] == each.arm.config["corpus_digest"]
    assert first.measurements[1] == second.measurements[1]  # as many parameters
    assert [(each.measurements, each.curves) for each in run_all(section(), tmp_path / "other")] == [
        (each.measurements, each.curves) for each in (first, second)
    ]


def test_every_mechanism_trains_on_the_same_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []
    real_sample = Corpus.sample

    def sample(self, *arguments: Any, **options: Any):
        batch = real_sample(self, *arguments, **options)
        seen.append(batch.tokens.tobytes())
        assert options.get("split", "train") == "train"
        return batch

    monkeypatch.setattr(Corpus, "sample", sample)
    run_all(section(), tmp_path)
    assert len(seen) == 6
    assert seen[:3] == seen[3:]
    assert len(set(seen)) == 3


def test_a_seed_is_that_of_the_weights_and_of_the_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = section(mechanisms=("softmax",), num_seeds=2)
    windows = []
    for seed in (0, 1):
        batch = next(_windows(Corpus.open(TEXT, tmp_path), seed, 2, 16))
        windows.append(batch.tokens.tobytes())
    assert windows[0] != windows[1]
    monkeypatch.setattr("maclaurin.study.language._windows", lambda corpus, seed, *sizes: _windows(corpus, 0, *sizes))
    first, second = run_all(chosen, tmp_path)
    assert first.curves != second.curves


def test_bits_are_nats_over_log_two_of_the_held_out_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maclaurin.train.mean_loss_nats", lambda model, batches: (math.log(2) * 3, 7))
    result = run_all(section(), tmp_path)[0]
    assert result.measurements[0].value == pytest.approx(3.0, rel=1e-15)


def test_a_text_that_changes_under_way_is_not_scored_as_the_one_that_was_planned(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_bytes(TEXT.read_bytes())
    chosen = section(text)
    (arm, _) = chosen.arms(seed=0, folder=tmp_path)
    text.write_bytes(text.read_bytes() + b"More.\n")
    with pytest.raises(DataError, match=r"changed since the study was started\. Run the same command again"):
        chosen.run(arm, folder=tmp_path, on_step=lambda step: None)


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "no such file"), (b"", "it is empty"), (b"\x00\x01", "is NUL"), (b"\xff\xfe", "is not UTF-8")],
)
def test_a_text_that_is_none_is_refused_at_planning(tmp_path: Path, content: bytes | None, words: str) -> None:
    text = tmp_path / "text.txt"
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        section(text).arms(seed=0, folder=tmp_path / "out")
    assert str(text) in str(caught.value)


def test_a_folder_is_a_corpus_too(tmp_path: Path) -> None:
    for number in range(6):
        (tmp_path / "texts" / str(number)).mkdir(parents=True)
        (tmp_path / "texts" / str(number) / "a.txt").write_text(f"document {number}: " + "words " * 30)
    assert run_all(section(tmp_path / "texts"), tmp_path / "out")[0].notes["held_out_bytes"] > 16


# -- verdict -----------------------------------------------------------------------------------------------------------


def verdict(bits: dict[str, list[float]]):
    return section().verdict([row("language", name, "bytes", "bits_per_byte", points) for name, points in bits.items()])


def test_no_rows_no_claim() -> None:
    assert verdict({}).sentence == "No model has been trained yet."


RANKING = ("best", "worst", "better", "beats", "above", "below", "ahead", "behind", "wins", "lower", "higher", "gap")


@pytest.mark.parametrize("points", [[2.0], [2.0, 2.1, 2.05]])
@pytest.mark.parametrize("names", list(itertools.permutations(["softmax", "exp-l2", "linear-elu"])))
def test_no_order_of_mechanisms_is_ever_claimed(names: tuple[str, ...], points: list[float]) -> None:
    """They are named in the order of the plan, however far their numbers lie apart."""
    found = verdict(
        {name: [place + each for each in points] for name, place in zip(names, (3.0, 0.0, 1.5), strict=True)}
    )
    assert "the order of the mechanisms means nothing, and none is claimed" in found.sentence
    places = [found.sentence.index(name) for name in names]
    assert places == sorted(places)
    words = (found.sentence + found.sureness).replace(",", " ").replace(".", " ").lower().split()
    assert not set(RANKING) & set(words)
    assert found.sureness.startswith(f"{len(points)} seed{'s' if len(points) > 1 else ''} and 96 bytes per model")


def test_learning_is_claimed_only_of_models_that_know_more_than_chance() -> None:
    assert verdict({"a": [3.0], "b": [7.9]}).sentence.startswith("Every model learns to predict the text")
    assert verdict({"a": [3.0], "b": [8.0]}).sentence.startswith("1 of 2 models learn to predict the text")
    assert "(8 by chance): a 9.00." in verdict({"a": [9.0]}).sentence
    assert verdict({"a": [9.0]}).sentence.startswith("0 of 1 models learn")
