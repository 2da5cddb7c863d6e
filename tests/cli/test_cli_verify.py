"""``maclaurin verify``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.process import in_a_pipe, on_a_terminal
from maclaurin.cli import main

#: A right softmax attention, and one that sees a token ahead.
MODULE = """
import torch

NUMBER = 3


class Maker:
    pass


def right(q, k, v, sm_scale=None, mode="slow", dropout=0):
    assert mode in ("slow", "fast")
    x = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if sm_scale is None else sm_scale)
    sees = torch.ones(x.shape[-2:], dtype=torch.bool).tril(x.shape[-1] - x.shape[-2])
    dead = ~sees.any(-1, keepdim=True)
    return torch.softmax(x.masked_fill(~sees & ~dead, -torch.inf), -1).masked_fill(dead, 0.0) @ v


def ahead(q, k, v):
    x = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return torch.softmax(x.masked_fill(torch.ones(x.shape[-2:]).triu(2).bool(), -torch.inf), -1) @ v
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current directory, under a name of its own."""
    name = f"attention_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    return name


def test_a_right_function_passes(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--like", "exp/sum", "--rename", "scale=sm_scale", "--fixed", "mode=fast", "--fixed", "dropout=0.0"]
    assert main(["verify", f"{module}:right", *words]) == 0
    seen = capsys.readouterr()
    assert seen.err == ""
    header, *lines = seen.out.splitlines()
    assert header.split()[:4] == ["law", "forms", "verdict", "deviation"]
    by_law = {line.split("  ")[0]: line for line in lines}
    assert " passed " in by_law["like: scale"]
    assert "takes no mask: " in seen.out
    assert "padding" not in by_law
    assert "right, beside exp/sum: " in lines[-1]
    assert "failed" not in lines[-1]


def test_a_broken_function_fails_with_its_smallest_input(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{module}:ahead", "--law", "future", "--law", "prefix", "--seed", "5"]) == 1
    seen = capsys.readouterr()
    assert seen.err == ""
    future, prefix, _, total = seen.out.splitlines()[1:]
    assert "failed" in future
    assert "seed=5 B=1 H=1 T=2" in future
    assert "failed" in prefix
    assert total.startswith("ahead: 2 failed; seed 5")


def test_forms_of_one_verdict_share_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "taylor-2", "--law", "future", "--law", "chunk size"]) == 0
    _, chunks, future, _, idle, _, total = capsys.readouterr().out.splitlines()
    assert chunks.split()[:4] == ["chunk", "size", "chunked", "passed"]
    assert future.split()[:3] == ["future", "all", "passed"]
    assert "chunk size (parallel, recurrent)" in idle
    assert total.startswith("taylor:2/sum (3 forms): 4 passed, 2 not run; seed 0")


def test_json(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", f"{module}:ahead", "--without", "lengths", "--json"]) == 1
    seen = capsys.readouterr()
    assert seen.err == ""
    values = json.loads(seen.out)
    assert list(values) == ["target", "like", "seed", "passed", "seconds", "counts", "rows"]
    assert values["passed"] is False
    rows = {each["law"]: each for each in values["rows"]}
    assert "lengths" not in rows
    assert rows["future"]["verdict"] == "failed"
    assert rows["future"]["smallest_input"].startswith("seed=0 B=1 H=1 T=2 K=1 V=1")
    assert rows["batch"]["verdict"] == "passed"
    assert rows["packed"]["reason"] == "takes no cu_seqlens"


def test_two_forms(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["verify", f"{module}:right", "--form", f"{module}:ahead", "--law", "forms: agree", "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert code == 1
    assert [each["verdict"] for each in rows] == ["not run", "failed"]
    assert rows[1]["form"] == f"{module}:ahead"


def test_a_mechanism_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "exp-l2", "--law", "future", "--law", "state: splits", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["target"] == "exp/l2"
    assert {each["form"] for each in values["rows"]} >= {"parallel", "recurrent"}
    assert {each["verdict"] for each in values["rows"]} == {"passed"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no_such_module_here:f"], "'no_such_module_here' cannot be imported"),
        (["MODULE:rigth"], "did you mean 'right'?"),
        (["MODULE:NUMBER"], "is a int, which cannot be called"),
        (["MODULE:Maker"], "is a class"),
        (["MODULE:"], "names no callable"),
        (["MODULE:right", "--layout", "bhdt"], "layout='bhdt' does not exist"),
        (["MODULE:right", "--rename", "scale"], "--rename 'scale' is no pair.\n  Write --rename OURS=THEIRS"),
        (["MODULE:right", "--law", "futur"], "'futur' is not a law: did you mean 'future'"),
        (["MODULE:right", "--precision", "float8"], "precision 'float8' does not exist"),
        (["MODULE:right", "--fixed", "mode=neither"], "could be called at no size"),
        (["MODULE:right", "--law", "packed"], "no law could be run"),
        (["no-such-name"], "'no-such-name' asks for a mechanism that is not in the catalogue"),
        (["exp/sum", "--like", "exp/l2"], "'exp/sum' is a mechanism"),
    ],
)
def test_what_cannot_be_run(words: list[str], message: str, module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", *(each.replace("MODULE", module) for each in words)]) == 2
    seen = capsys.readouterr()
    assert message in seen.err
    assert "Traceback" not in seen.err


def test_a_module_that_breaks_while_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "breaks_on_import.py").write_text("1 / 0\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["verify", "breaks_on_import:f"]) == 2
    assert "importing 'breaks_on_import' raised ZeroDivisionError: division by zero" in capsys.readouterr().err


def test_a_pipe_gets_no_progress_and_a_terminal_one_line(module: str) -> None:
    words = ["verify", f"{module}:right", "--law", "future", "--law", "prefix"]
    done = in_a_pipe(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\033" not in done.stdout
    code, lines = on_a_terminal(*words, columns=120)
    assert code == 0
    assert lines[1:3] == ["\033[K0/2 future", "\033[K1/2 prefix"]
    assert lines[3].startswith("\033[K\033[1mlaw")  # cleared before the table


def test_help_shows_how() -> None:
    done = in_a_pipe("verify", "--help")
    assert done.returncode == 0
    assert "maclaurin verify exp/l2" in done.stdout
    assert "--rename" in done.stdout
