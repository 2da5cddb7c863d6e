"""``maclaurin bench``, on shapes that take no time.   Run: pytest tests/cli/test_cli_bench.py"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cli.process import in_a_pipe
from maclaurin.cli import main

TINY = ["bench", "power:2/sum", "--length", "8", "--length", "16", "--head-size", "4", "--heads", "1", "--rounds", "1"]
TINY += ["--without", "attn-gym flex", "--work", "forward"]


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 2
    seen = capsys.readouterr()
    assert seen.out == "" and "Traceback" not in seen.err
    return seen.err


def test_json_csv_and_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, figure = tmp_path / "speed.csv", tmp_path / "speed.svg"
    assert main([*TINY, "--json", "--csv", str(table), "--figure", str(figure)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {each["subject"] for each in document["timings"]} == {"sdpa", "eager", "power:2/sum"}
    assert table.read_text().startswith("work,subject,mechanism,")
    assert figure.read_text().startswith("<svg") and "power:2/sum" in figure.read_text()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["speed.csv", "speed.svg"]


def test_a_pipe_gets_plain_tables_that_are_not_too_wide() -> None:
    done = in_a_pipe(*TINY, "--work", "memory")
    assert done.returncode == 0, done.stderr
    for words in (
        "machine",
        "roofline",
        "forward, float32, head size 4",
        "x sdpa",
        "faster than sdpa",
        "memory, float32",
    ):
        assert words in done.stdout
    assert "\033" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert done.stderr.splitlines()[-1].startswith("bench: 4/4")


def test_bad_input_is_said_with_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "taylor" in refused(capsys, "bench", "taylr:2/sum")
    assert "--work 'fly' does not exist" in refused(capsys, "bench", "--work", "fly")
    assert "--length 0" in refused(capsys, "bench", "--length", "0")
    assert "--rounds -3" in refused(capsys, "bench", "--rounds", "-3")
    assert "given twice" in refused(capsys, "bench", "--length", "8", "--length", "8")
    assert "no folder" in refused(capsys, "bench", "--csv", str(tmp_path / "none" / "a.csv"))
    assert "is a folder" in refused(capsys, "bench", "--figure", str(tmp_path))
    assert "GiB are free" in refused(capsys, "bench", "--length", str(1 << 22))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert "finds no CUDA device" in refused(capsys, "bench", "--device", "cuda")


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    assert "maclaurin bench --quick" in capsys.readouterr().out
