"""Golden digests: a task, its settings and a seed name one data set, on every machine and in every release.

A change here changes published data sets. NumPy may alter how a generator turns bits into numbers in a release that
says so; if these digests fail after an upgrade of NumPy and no file of ``tasks`` has changed, that is the cause.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from maclaurin.tasks import MQAR, Batch, Corpus
from maclaurin.tasks.streams import generator


def digest(batch: Batch) -> str:
    """SHA-256 over the three arrays, little-endian, in the order of the fields."""
    arrays = (batch.tokens.astype("<i8"), batch.targets.astype("<i8"), batch.mask)
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("settings", "train", "test"),
    [
        ({"vocab_size": 256, "length": 64, "num_pairs": 8}, "75189d685801bb15", "c7d17512e093ddb2"),
        ({"vocab_size": 8192, "length": 512, "num_pairs": 64, "power_a": 1.0}, "00f4e2e749fa3b77", "e11816a421b199a9"),
        (
            {"vocab_size": 66, "length": 64, "num_pairs": 16, "random_non_queries": True},
            "4d0dcf33d39a80b5",
            "39c2eafe7af97028",
        ),
    ],
    ids=["small", "large-uniform", "tight-with-fillers"],
)
def test_mqar(settings, train, test):
    task = MQAR(**settings)
    assert (digest(next(task.batches(0, 16))), digest(task.test_set(0, 16))) == (train, test)


def test_corpus(tmp_path: Path):
    for i in range(12):
        (tmp_path / f"{i}.txt").write_bytes(b"".join(b"line %d of %d\n" % (line, i) for line in range(40)))
    corpus = Corpus.open(tmp_path, tmp_path / "cache", held_out=0.5)
    assert corpus.digest[:16] == "1f29c656a78e26e2"
    assert [span.name[:-4] for span in corpus.documents["heldout"]] == ["1", "10", "11", "2", "4", "6", "8", "9"]
    assert digest(corpus.sample(generator(0), 8, 64)) == "f6da13c1ebc6bee1"
    assert hashlib.sha256(corpus.cache_path.read_bytes()).hexdigest()[:16] == "8404fae91111b650"
