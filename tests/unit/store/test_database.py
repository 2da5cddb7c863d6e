"""The store keeps whole arms, in order, and refuses what is not its own."""

from __future__ import annotations

import math
import os
import sqlite3
from dataclasses import replace

import pytest

from maclaurin.errors import StoreError
from maclaurin.store import Arm, ArmResult, Curve, Measurement, Store
from maclaurin.store.schema import SCHEMA_VERSION


def test_round_trip_and_resume(tmp_path, study, make_result):
    with Store.open(tmp_path / "new" / "out", study=study) as store:
        assert store.record(make_result("k0"))
    with Store.open(tmp_path / "new" / "out", study=study) as store:
        assert store.study == study
        assert store.study.config == study.config
        assert store.finished() == {"k0"}
        assert store.record(make_result("k1", seed=1))
        assert store.results() == [make_result("k0"), make_result("k1", seed=1)]


def test_results_come_sorted(tmp_path, study, make_result):
    with Store.open(tmp_path, study=study) as store:
        store.record(make_result("a", mechanism="taylor-2", seed=1))
        store.record(make_result("c", mechanism="softmax", seed=1))
        store.record(make_result("b", mechanism="softmax", seed=1))
        store.record(make_result("e", mechanism="softmax", seed=0))
        store.record(make_result("d", mechanism="taylor-2", section="language"))
        assert [result.arm.key for result in store.results()] == ["d", "e", "b", "c", "a"]


def test_first_record_of_a_key_stays(tmp_path, study, make_result):
    with Store.open(tmp_path, study=study) as store:
        assert store.record(make_result(accuracy=0.75))
        assert not store.record(make_result(accuracy=0.25))
        assert store.results() == [make_result(accuracy=0.75)]


def test_nonfinite_numbers_are_kept_as_missing(tmp_path, study):
    arm = Arm("k", "recall", "softmax", "mqar", 0, {"limit": math.inf})
    curve = Curve("loss_nats", (1, 2), (math.nan, 3.0))
    with Store.open(tmp_path, study=study) as store:
        unbounded = Measurement("loss_nats", 1.0, interval=(0.5, math.inf))
        store.record(ArmResult(arm, (Measurement("accuracy", math.inf), unbounded), (curve,)))
        (result,) = store.results()
        nulls = store._rows("SELECT metric FROM measurement WHERE value IS NULL")
    assert math.isnan(result.measurements[0].value)
    assert result.measurements[1] == Measurement("loss_nats", 1.0)
    assert math.isnan(result.curves[0].values[0])
    assert result.curves[0].values[1] == 3.0
    assert result.arm.config == {"limit": None}
    assert nulls == [("accuracy",)]


def test_an_arm_is_stored_whole_or_not_at_all(tmp_path, study, make_result):
    unserializable = replace(make_result("bad"), curves=(Curve("loss_nats", (object(),), (1.0,)),))  # type: ignore[arg-type]
    with Store.open(tmp_path, study=study) as store:
        store.record(make_result("good"))
        with pytest.raises(TypeError):
            store.record(unserializable)
        assert store.finished() == {"good"}
        assert store._rows("SELECT count(*) FROM measurement") == [(2,)]


def test_environment_is_appended_with_its_time(tmp_path, study):
    for threads in (1, 2):
        with Store.open(tmp_path, study=study) as store:
            store.add_environment({"versions": {"torch": "2.13.0"}, "threads": threads})
    with Store.open_existing(tmp_path) as store:
        first, second = store.environment()
    assert (first["threads"], second["threads"]) == (1, 2)
    assert first["versions"] == {"torch": "2.13.0"}
    assert first["time"].endswith("+00:00")


def test_reading_beside_a_writer(tmp_path, study, make_result):
    with Store.open(tmp_path, study=study) as writer, Store.open_existing(tmp_path) as reader:
        writer.record(make_result())
        assert reader.results() == [make_result()]
        with pytest.raises(StoreError):
            reader.record(make_result("k1"))


def test_reading_leaves_no_file_behind(tmp_path, study, make_result):
    with Store.open(tmp_path, study=study) as store:
        store.record(make_result())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with Store.open_existing(tmp_path) as store:
        assert store.study == study
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert set(before) == {"results.sqlite", "results.lock"}


def test_reading_in_a_folder_without_write_permission(tmp_path, study, make_result, monkeypatch):
    with Store.open(tmp_path, study=study) as store:
        store.record(make_result())
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with Store.open_existing(tmp_path) as store:
        assert store.finished() == {"k0"}
        assert not (tmp_path / "results.sqlite-wal").exists()


def test_a_leftover_log_never_reaches_a_new_store(tmp_path, study, make_result):
    """results.sqlite was removed and its write-ahead log left: SQLite would replay it into the new file."""
    old = Store.open(tmp_path, study=study)
    old.record(make_result("old"))
    log = (tmp_path / "results.sqlite-wal").read_bytes()
    old.close()
    (tmp_path / "results.sqlite").unlink()
    (tmp_path / "results.sqlite-wal").write_bytes(log)
    with Store.open(tmp_path, study=study) as store:
        assert store.finished() == set()


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"name": "other"}, {"digest": "fedcba9876543210"}])
def test_another_study_is_refused(tmp_path, study, make_result, change):
    with Store.open(tmp_path, study=study) as store:
        store.record(make_result())
    other = replace(study, **change)
    with pytest.raises(StoreError, match="holds another study") as caught:
        Store.open(tmp_path, study=other)
    message = str(caught.value)
    for part in (study.name, study.digest[:12], other.name, other.digest[:12], "Choose another --out"):
        assert part in message
    with Store.open(tmp_path, study=study) as store:
        assert store.finished() == {"k0"}


@pytest.mark.parametrize(
    "content",
    [b"", b"a,b\n1,2\n", b"SQLite format 3\x00" + bytes(200)],
    ids=["empty", "csv", "foreign database"],
)
def test_a_file_that_is_no_store_is_refused_unchanged(tmp_path, study, content):
    path = tmp_path / "results.sqlite"
    path.write_bytes(content)
    for attempt in (lambda: Store.open(tmp_path, study=study), lambda: Store.open_existing(tmp_path)):
        with pytest.raises(StoreError, match="is not a store of maclaurin"):
            attempt()
    assert path.read_bytes() == content
    assert [each.name for each in tmp_path.iterdir()] == ["results.sqlite"]


@pytest.mark.parametrize("damage", ["truncated", "overwritten", "last page"])
def test_a_damaged_store_is_refused_unchanged(tmp_path, study, make_result, damage):
    with Store.open(tmp_path, study=study) as store:
        for number in range(20):
            store.record(make_result(f"k{number}"))
    path = tmp_path / "results.sqlite"
    content = path.read_bytes()
    kept = {"truncated": len(content) // 2, "overwritten": 4096, "last page": len(content) - 4096}[damage]
    broken = content[:kept] + (b"" if damage == "truncated" else b"\xff" * (len(content) - kept))
    path.write_bytes(broken)
    for attempt in (lambda: Store.open(tmp_path, study=study), lambda: Store.open_existing(tmp_path)):
        with pytest.raises(StoreError, match="damaged"):
            attempt()
    assert path.read_bytes() == broken


def test_a_newer_layout_is_refused_unchanged(tmp_path, study):
    Store.open(tmp_path, study=study).close()
    path = tmp_path / "results.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    connection.close()
    content = path.read_bytes()
    with pytest.raises(StoreError, match=f"layout version {SCHEMA_VERSION + 1}.*upgrade maclaurin"):
        Store.open(tmp_path, study=study)
    assert path.read_bytes() == content


def test_a_store_without_a_study_is_refused(tmp_path, study):
    Store.open(tmp_path, study=study).close()
    connection = sqlite3.connect(tmp_path / "results.sqlite", isolation_level=None)
    connection.execute("DELETE FROM study")
    connection.close()
    with pytest.raises(StoreError, match="damaged"):
        Store.open_existing(tmp_path)


def test_a_folder_without_a_store_cannot_be_read(tmp_path):
    with pytest.raises(StoreError, match=r"no results.sqlite here.*maclaurin study --out"):
        Store.open_existing(tmp_path)


def test_a_file_in_the_place_of_the_folder(tmp_path, study):
    (tmp_path / "out").write_text("not a folder")
    for folder in (tmp_path / "out", tmp_path / "out" / "deeper"):
        with pytest.raises(StoreError, match="a file is in its place"):
            Store.open(folder, study=study)
    assert (tmp_path / "out").read_text() == "not a folder"
