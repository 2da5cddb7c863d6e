"""Calibration: what is fitted, and that a machine's own constants take over.

Run: pytest tests/unit/bench/test_bench_calibration.py -q
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import maclaurin
from maclaurin import Shape, explain, mechanism
from maclaurin.bench.calibration import _SAMPLES, _fitted, _Sample, _samples
from maclaurin.evaluate.plan import forget
from maclaurin.evaluate.plan.costs import Costs, load_costs
from maclaurin.evaluate.plan.ways import WAYS, Counted


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path))
    load_costs.cache_clear()
    forget()
    yield tmp_path
    load_costs.cache_clear()
    forget()


def test_the_fit_finds_the_constants_that_made_the_times() -> None:
    constants = {"calls": 2e-4, "pairs": 3e-9, "products": 2e-11, "rows": 1e-9}
    shapes = [Shape(queries=t, key_dim=k) for t, k in ((64, 8), (128, 64), (512, 16), (1024, 32), (2048, 64), (300, 8))]
    samples = []
    for shape in shapes:
        sample = _Sample(WAYS[0], Counted(mechanism("exp/sum"), shape))
        work = sample.way.work(sample.counted)
        samples.append((sample, sum(constants[name] * work[name] for name in constants)))
    found = _fitted(samples)
    costs = Costs("", {"all pairs": {"float32": {"forward": found, "training": found}}})
    for sample, seconds in samples:
        assert costs.predict(sample.way, sample.counted) == pytest.approx(seconds, rel=1e-6)
    assert all(each > 0 for each in found.values())


def test_every_way_has_samples_in_both_phases() -> None:
    rows = {each.row for each in _samples("cpu")}
    assert {(way, phase) for way, _, phase in rows} == {
        (way.name, phase) for way in WAYS for phase in ("forward", "training")
    }
    assert ("blocks of exp", "bfloat16", "forward") in rows


def test_calibration_is_kept_and_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few calls of every way instead of all."""
    few = {name: (texts[:2], sizes[:2]) for name, (texts, sizes) in _SAMPLES.items()}
    monkeypatch.setattr("maclaurin.bench.calibration._SAMPLES", few)
    monkeypatch.setattr("maclaurin.bench.calibration._LEAST_SECONDS", 0.0)
    before = torch.get_num_threads()
    path = maclaurin.calibrate(rounds=1)
    assert torch.get_num_threads() == before
    assert path is not None
    assert path.parent == folder
    assert set(json.loads(path.read_text())["seconds"]) == {way.name for way in WAYS}
    assert explain("exp/sum", Shape(queries=64, key_dim=8)).source.startswith("measured on this machine on ")
