"""The count of the matrix's cells: what is absent is named, and a whole session without it has failed.

Run: pytest tests/laws/test_tally.py -q
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from laws.tally import PROPERTY, Tally

HERE = Path(__file__).parent


class Terminal:
    """What is written."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write_line(self, line: str) -> None:
        self.lines.append(line)


def session(args: list[str], **options: object) -> SimpleNamespace:
    given = {"keyword": "", "maxfail": 0, "markexpr": "not nightly", "collectonly": False, **options}
    config = SimpleNamespace(
        option=SimpleNamespace(**given), args=args, invocation_params=SimpleNamespace(dir=HERE.parent.parent)
    )
    return SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK)


def told(cells: dict[str, str], asked: SimpleNamespace) -> list[str]:
    """The lines of a session in which three cells are expected."""
    tally, terminal = Tally({"one", "two", "three"}), Terminal()
    for cell, outcome in cells.items():
        tally.pytest_runtest_logreport(SimpleNamespace(user_properties=[(PROPERTY, (cell, outcome)), ("other", 1)]))
    tally.pytest_sessionfinish(asked)
    tally.pytest_terminal_summary(terminal)
    return terminal.lines


def test_all_cells() -> None:
    asked = session(["tests"])
    lines = told({"one": "run", "two": "refused", "three": "run"}, asked)
    assert lines == ["law matrix: 2 cells run, 1 refused, 0 absent"]
    assert asked.exitstatus == pytest.ExitCode.OK


@pytest.mark.parametrize("args", [["tests"], ["tests/laws"], ["tests/laws/test_matrix.py"], ["."]], ids=str)
def test_an_absent_cell_fails_a_whole_session(args: list[str]) -> None:
    asked = session(args)
    assert told({"one": "run", "two": "refused"}, asked) == [
        "law matrix: 1 cells run, 1 refused, 1 absent",
        "  absent: three",
    ]
    assert asked.exitstatus == pytest.ExitCode.TESTS_FAILED


def test_a_matrix_that_is_not_there_at_all_fails_a_whole_session() -> None:
    asked = session(["tests"])
    assert told({}, asked)[0] == "law matrix: 0 cells run, 0 refused, 3 absent"
    assert asked.exitstatus == pytest.ExitCode.TESTS_FAILED


@pytest.mark.parametrize(
    "asked",
    [
        session(["tests"], keyword="window"),
        session(["tests"], maxfail=1),
        session(["tests"], markexpr="nightly"),
        session(["tests/laws/test_matrix.py::test_cells"]),
        session(["tests/unit"]),
        session(["tests/laws/test_merge.py"]),
    ],
    ids=str,
)
def test_a_part_of_the_session_is_no_failure(asked: SimpleNamespace) -> None:
    assert told({"one": "run"}, asked) == ["law matrix: 1 cells run, 0 refused; only a part was asked for"]
    assert told({}, asked) == []
    assert asked.exitstatus == pytest.ExitCode.OK


def test_a_session_that_has_failed_already_keeps_its_status() -> None:
    asked = session(["tests"])
    asked.exitstatus = pytest.ExitCode.INTERRUPTED
    told({}, asked)
    assert asked.exitstatus == pytest.ExitCode.INTERRUPTED


def test_a_session_that_ignores_a_folder_asks_for_a_part() -> None:
    asked = session(["tests"], ignore=["tests/laws"])
    assert told({}, asked) == []
    assert asked.exitstatus == pytest.ExitCode.OK
