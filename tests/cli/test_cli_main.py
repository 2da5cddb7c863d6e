"""The door of the command line: help at once, errors as messages, exit codes 0, 1 and 2."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cli.process import in_a_pipe, on_a_terminal
from maclaurin import __version__
from maclaurin.cli import failure, main
from maclaurin.errors import StoreError

VERBS = ["study", "list", "show", "verify", "bench"]


@pytest.mark.parametrize("words", [["--help"], ["-h"], *([verb, "--help"] for verb in VERBS)])
def test_help_has_examples_and_fits(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    seen = capsys.readouterr()
    assert seen.err == ""
    assert "Examples:\n    maclaurin " in seen.out
    assert max(map(len, seen.out.splitlines())) <= 80


def test_main_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    commands = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in commands] == VERBS
    assert not [line for line in commands if line.endswith("...")]


@pytest.mark.parametrize("words", [["--help"], *([verb, "--help"] for verb in VERBS)])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys; from maclaurin.cli import main; code = main(sys.argv[1:]); "
        "print({'torch', 'numpy', 'scipy', 'matplotlib', 'jinja2'} & set(sys.modules), code, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    assert done.stderr == "set() 0\n"


@pytest.mark.parametrize("words", [[], ["--traceback"]])
def test_nothing_asked_shows_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("Usage: maclaurin")
    assert "Examples:" in seen.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"maclaurin {__version__}\n"


def test_console_script_and_module_are_one() -> None:
    script = Path(sys.executable).with_name("maclaurin")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == in_a_pipe("--version").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shwo"], "'shwo' is not a verb of maclaurin: did you mean 'show'?"),
        (["zzzz"], "'zzzz' is not a verb of maclaurin: legal: study, list, show, verify, bench"),
        (["list", "--jsn"], "--jsn is not an option of 'maclaurin list': did you mean '--json'?"),
        (["--vers"], "--vers is not an option of 'maclaurin': did you mean '--version'?"),
        (
            ["show", "softmax", "--keydim", "3"],
            "--keydim is not an option of 'maclaurin show': did you mean '--key-dim",
        ),
        (["list", "--traceback"], "write it before the verb, 'maclaurin --traceback ...'"),
        (["show"], "Missing argument 'MECHANISM'"),
        (["list", "softmax"], "Got unexpected extra argument"),
        (["show", "softmax", "--key-dim", "0"], "Invalid value for '--key-dim'"),
        (["show", "softmax", "--key-dim", "wide"], "Invalid value for '--key-dim'"),
    ],
)
def test_mistaken_words(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("error: ")
    assert message in seen.err
    assert "--help' shows how it is used." in seen.err
    assert len(seen.err.splitlines()) <= 3


def raising(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make ``maclaurin list`` fail with ``error``."""

    def fail(recipe: object) -> None:
        raise error

    monkeypatch.setattr("maclaurin.cli.list.describe", fail)


def test_an_error_of_ours_is_a_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raising(StoreError("the folder holds another study.\n  Choose another --out."), monkeypatch)
    assert main(["list"]) == 2
    assert capsys.readouterr().err == "error: the folder holds another study.\n  Choose another --out.\n"


def test_a_fault_says_where_to_go(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raising(ZeroDivisionError("division by zero"), monkeypatch)
    assert main(["list"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: unexpected ZeroDivisionError: division by zero\n")
    assert "MACLAURIN_TRACEBACK=1" in said
    assert "CONTRIBUTING.md" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("asked", ["option", "environment"])
def test_a_traceback_is_shown_when_asked_for(
    asked: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    raising(ZeroDivisionError("division by zero"), monkeypatch)
    if asked == "environment":
        monkeypatch.setenv("MACLAURIN_TRACEBACK", "1")
    assert main(["--traceback", "list"] if asked == "option" else ["list"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Traceback (most recent call last)")
    assert "error: unexpected ZeroDivisionError" in said


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    raising(KeyboardInterrupt(), monkeypatch)
    assert main(["list"]) == 1
    seen = capsys.readouterr()
    assert (seen.out, seen.err) == ("", "interrupted\n")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS])
def test_what_the_machine_refuses(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert failure.explain(OSError(number, os.strerror(number), "/results/study.db")) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: /results/study.db: {os.strerror(number)}.\n")
    assert "run the same command again" in said


def test_another_system_error_is_a_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert failure.explain(OSError(errno.ENOENT, "No such file", "x")) == 1
    assert "unexpected FileNotFoundError" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["list", "--json"]])
def test_a_full_disk_under_stdout(words: list[str]) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        done = in_a_pipe(*words, stdout=full)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == "error: No space left on device."
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["list", "--json"]])
def test_a_reader_who_leaves_is_no_error(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = in_a_pipe(*words, stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_errors_are_red_and_wrapped_on_a_terminal_only() -> None:
    wrong = "verb-of-forty-letters-that-does-not-exist"
    plain = f"error: '{wrong}' is not a verb of maclaurin: legal: study, list, show, verify, bench"
    code, lines = on_a_terminal(wrong)
    assert code == 2
    assert lines[0].startswith("\033[1;31merror:\033[0m ")
    lines[0] = lines[0].replace("\033[1;31m", "").replace("\033[0m", "")
    assert lines[0] + lines[1].replace("  ", " ", 1) == plain
    assert max(map(len, lines)) <= 80
    _, without = on_a_terminal(wrong, NO_COLOR="1")
    assert without == lines
    assert in_a_pipe(wrong).stderr.splitlines()[0] == plain
