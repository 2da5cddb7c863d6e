"""Constants: built in, kept in a file, and what becomes of files that are none.

Run: pytest tests/unit/evaluate/plan/test_costs.py -q
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from maclaurin import Shape, attend, mechanism
from maclaurin.evaluate.plan import costs as module
from maclaurin.evaluate.plan import explain, forget
from maclaurin.evaluate.plan.costs import Costs, costs_file, load_costs, store_costs
from maclaurin.evaluate.plan.ways import WAYS, Counted

TABLE = {each.name: {"float32": {"forward": {"calls": 1.0}, "training": {"calls": 2.0}}} for each in WAYS}
SHAPE = Shape(queries=64, key_dim=8)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, and nothing remembered from or for other tests."""
    monkeypatch.setenv("MACLAURIN_CACHE", str(tmp_path / "cache"))
    load_costs.cache_clear()
    forget()
    yield tmp_path / "cache"
    module._MEASURED.clear()
    load_costs.cache_clear()
    forget()


def test_seconds_are_counts_times_constants() -> None:
    counted = Counted(mechanism("elu1/sum"), SHAPE)
    constants = {"calls": 1e-3, "pairs": 1e-6, "rows": 0.0}
    costs = Costs("here", {"all pairs": {"float32": {"forward": constants, "training": {"calls": 7.0}}}})
    assert costs.predict(WAYS[0], counted) == pytest.approx(1e-3 + 64 * 64 * 1e-6)
    training = Counted(mechanism("elu1/sum"), Shape(queries=64, key_dim=8, wants_gradient=True))
    assert costs.predict(WAYS[0], training) == 7.0


def test_a_dtype_without_constants_takes_those_of_another() -> None:
    costs = Costs("here", TABLE)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        counted = Counted(mechanism("exp/sum"), Shape(queries=64, key_dim=8, dtype=dtype))
        assert [costs.predict(way, counted) for way in WAYS] == [1.0] * len(WAYS)


@pytest.mark.parametrize("has_tiles", [False, True])
def test_the_built_in_constants_are_there_for_every_way(has_tiles: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": has_tiles})
    forget()
    costs = load_costs("cpu", 1)
    assert ("AMX" in costs.source) == has_tiles
    assert costs.source.startswith("built in: ")
    assert set(costs.seconds) == {each.name for each in WAYS}
    for way in WAYS:
        for phases in costs.seconds[way.name].values():
            assert set(phases) == {"forward", "training"}


def test_another_device_has_assumed_ones() -> None:
    costs = load_costs("cuda", 1)  # without a device too: calls are planned where they do not run
    assert "nothing was measured on cuda" in costs.source
    assert costs.predict(WAYS[0], Counted(mechanism("exp/sum"), Shape(queries=64, key_dim=8, device="cuda"))) > 0


def test_stored_constants_are_used(folder: Path) -> None:
    assert explain("elu1/sum", SHAPE).source.startswith("built in")
    path = store_costs("cpu", torch.get_num_threads(), TABLE, "2026-01-02")
    forget()
    assert path is not None
    assert path.parent == folder
    assert json.loads(path.read_text())["machine"]
    found = explain("elu1/sum", SHAPE)
    assert found.source == "measured on this machine on 2026-01-02"
    assert {each.seconds for each in found.costs} == {1.0, None}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"format": 2, "date": "x", "seconds": {}}',
        b'{"format": 1, "date": "x", "seconds": {}}',
        b'{"format": 1, "date": "x", "seconds": {"a": {"b": {"forward": {"c": -1}, "training": {}}}}}',
        b'{"format": 1, "date": "x", "seconds": {"a": {"b": {"forward": {"c": "1"}, "training": {}}}}}',
        b'{"format": 1, "date": "x", "seconds": {"a": {"b": {"forward": {"c": 1}}}}}',
    ],
)
def test_a_file_that_holds_no_costs_is_ignored_with_one_warning(folder: Path, content: bytes) -> None:
    path = costs_file("cpu", torch.get_num_threads())
    folder.mkdir()
    path.write_bytes(content)
    x = torch.randn(1, 1, 8, 4)
    with pytest.warns(UserWarning, match=r"is ignored, for it holds no costs .*maclaurin.calibrate\(\)") as caught:
        attend("elu1/sum", x, x, x)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attend("exp/sum", x, x, x)
        assert explain("elu1/sum", SHAPE).source.startswith("built in")
    assert path.read_bytes() == content


@pytest.mark.parametrize("in_the_way", ["file", "folder"])
def test_what_cannot_be_kept_holds_for_this_process(folder: Path, in_the_way: str) -> None:
    if in_the_way == "file":
        folder.write_text("not a folder")
    else:
        costs_file("cpu", torch.get_num_threads()).mkdir(parents=True)
    with pytest.warns(UserWarning, match=r"cannot be kept in .*MACLAURIN_CACHE") as caught:
        assert store_costs("cpu", torch.get_num_threads(), TABLE, "2026-01-02") is None
    assert len(caught) == 1
    forget()
    assert explain("elu1/sum", SHAPE).source == "measured in this process on 2026-01-02"


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MACLAURIN_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert costs_file("cpu", 1).parent == tmp_path / "maclaurin"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert costs_file("cpu", 1).parent == Path(os.path.expanduser("~/.cache/maclaurin"))
    assert costs_file("cpu", 1) != costs_file("cpu", 2)
