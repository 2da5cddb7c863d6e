"""``maclaurin study FILE --json``: one JSON object that keeps its contract, the same in every process.

Run: pytest tests/cli/test_study_json.py
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from maclaurin.cli import main
from tiny.launch import NUM_ARMS, Finished, check_store, prepare, run, undisturbed, values

pytestmark = pytest.mark.xdist_group("tiny")

ROW = ["section", "mechanism", "task", "metric", "value", "n", "interval", "seconds"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """Where the tiny study ran to its end, and what it said."""
    return undisturbed(tmp_path_factory)


@pytest.fixture
def again(done: tuple[Path, Finished], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, as the current one."""
    shutil.copytree(done[0], tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def test_stdout_is_one_json_object_and_the_rest_is_on_stderr(done: tuple[Path, Finished]) -> None:
    _, finished = done
    assert (finished.code, list(finished.answer)) == (0, ["study", "results", "missing", "report"])
    assert finished.out.startswith("{")
    assert finished.out.endswith("}\n")
    assert f"tiny: {NUM_ARMS} arms, 0 stored already" in finished.err
    assert f"{NUM_ARMS}/{NUM_ARMS} arms, 100% of the steps" in finished.err.splitlines()[-1]
    assert "\033" not in finished.out + finished.err  # a pipe gets no control codes
    assert "Warning" not in finished.err


def test_a_row_has_these_keys_and_values_that_are_numbers(done: tuple[Path, Finished]) -> None:
    for row in done[1].answer["results"]:
        assert list(row) == ROW
        assert all(isinstance(row[key], str) and row[key] for key in ROW[:4])
        assert math.isfinite(row["value"])
        assert isinstance(row["n"], int)
        assert row["n"] >= 1
        assert row["seconds"] >= 0
        if row["interval"] is not None:
            low, high = row["interval"]
            assert row["n"] >= 2
            assert low <= row["value"] <= high
        elif row["n"] >= 2:
            pytest.fail(f"no interval: {row}")


def test_there_is_one_row_for_each_section_mechanism_task_and_metric(done: tuple[Path, Finished]) -> None:
    answer = done[1].answer
    cells = [tuple(row[key] for key in ROW[:4]) for row in answer["results"]]
    assert len(cells) == len(set(cells))
    assert list(dict.fromkeys(cell[0] for cell in cells)) == ["orders", "separation", "recall", "language"]
    for cell, n in [
        (("recall", "softmax", "mqar", "accuracy"), 2),
        (("recall", "linear-elu", "mqar", "accuracy"), 2),
        (("language", "taylor-2", "bytes", "bits_per_byte"), 1),
        (("separation", "linear", "self-attention a=0.70", "detection_rate"), 20),
        (("orders", "taylor:1/sum:signed", "logits-sd-0.5", "negative_share"), 2),
    ]:
        assert answer["results"][cells.index(cell)]["n"] == n
    assert all(list(each) == ["section", "mechanism", "task", "metric", "reason"] for each in answer["missing"])
    assert not {tuple(each.values())[:4] for each in answer["missing"]} & set(cells)


def test_the_report_is_where_it_says_and_the_folder_is_the_default_one(done: tuple[Path, Finished]) -> None:
    root, finished = done
    assert finished.answer["study"] == "tiny"
    report = Path(finished.answer["report"])
    assert report.is_absolute()
    assert report == root / "maclaurin-runs" / "tiny" / "report.html"
    assert report.read_text("utf-8").lower().startswith("<!doctype html>")
    check_store(report.parent, num_arms=NUM_ARMS)


def test_a_fresh_process_with_another_number_of_workers_gives_the_same_values(
    done: tuple[Path, Finished], tmp_path: Path
) -> None:
    finished = run(prepare(tmp_path), "tiny.yaml", "--out", "deep/other", "--workers", "1", "--json")
    assert finished.code == 0
    assert values(finished.answer) == values(done[1].answer)
    assert finished.answer["missing"] == done[1].answer["missing"]
    assert finished.answer["report"] == str(tmp_path / "deep" / "other" / "report.html")


def here(capsys: pytest.CaptureFixture[str], words: Sequence[str]) -> Finished:
    """Run the command in this process, which has torch loaded."""
    code = main(words)
    said = capsys.readouterr()
    return Finished(code, said.out, said.err)


def without_report(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "report"}


def test_the_same_command_runs_no_arm_again(
    done: tuple[Path, Finished], again: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maclaurin.study.runner.open_pool", lambda workers: pytest.fail("a worker is started"))
    (again / "maclaurin-runs" / "tiny" / "report.html").unlink()
    finished = here(capsys, ["study", "tiny.yaml", "--json"])
    assert finished.code == 0
    assert f"{NUM_ARMS} arms, {NUM_ARMS} stored already" in finished.err
    assert without_report(finished.answer) == without_report(done[1].answer)  # the seconds too: they were stored
    assert (again / "maclaurin-runs" / "tiny" / "report.html").exists()


def test_without_json_a_person_reads_a_table_the_verdicts_and_the_reports_path(
    again: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = here(capsys, ["study", "tiny.yaml"])
    assert finished.code == 0
    for words in ("accuracy", "bits_per_byte", "softmax", "linear-elu", "answer", "orders", "separation", "language"):
        assert words in finished.out
    assert finished.out.endswith(f"report: {again / 'maclaurin-runs' / 'tiny' / 'report.html'}\n")
    assert "\033" not in finished.out


def test_results_of_an_older_text_are_kept_and_no_longer_shown(
    again: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the arms of the text that is there now are planned; those of another are in the store, not in the report."""
    reported: dict[str, Any] = {}

    def write(path: Path, **given: Any) -> Path:
        reported.update(given)
        return path

    monkeypatch.setattr("maclaurin.report.write_report", write)
    with (again / "text.txt").open("a", encoding="utf-8") as file:
        file.write("One line more.\n")
    finished = here(capsys, ["study", "tiny.yaml", "--json", "--workers", "1"])
    assert finished.code == 0
    assert f"{NUM_ARMS} arms, {NUM_ARMS - 2} stored already" in finished.err
    language = [row for row in finished.answer["results"] if row["metric"] == "bits_per_byte"]
    assert [(row["mechanism"], row["n"]) for row in language] == [("softmax", 1), ("taylor-2", 1)]
    assert {name: len(curves) for name, curves in reported["curves"]["language"].items()} == {
        "softmax": 1,
        "taylor-2": 1,
    }
    assert len(reported["environment"]) == 2  # both starts
    check_store(again / "maclaurin-runs" / "tiny", num_arms=NUM_ARMS + 2)
