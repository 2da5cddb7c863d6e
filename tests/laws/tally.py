"""What became of the law matrix in this session: cells run, refused, absent; printed at the end.

Tests report each cell as a property of their own report, which reaches this plugin from every worker.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

#: The name under which a test reports a cell: (cell, "run" or "refused").
PROPERTY = "law matrix"
_FILE = "laws/test_matrix.py"


class Tally:
    """A pytest plugin.

    Args:
        expected: makes the names of all cells; asked only at the end.
    """

    def __init__(self, expected: Callable[[], set[str]]) -> None:
        self._expected = expected
        self._outcomes: dict[str, str] = {}
        self._is_whole = False
        self._has_failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the cells of a test that is done."""
        if _FILE in report.nodeid.replace("\\", "/") and report.failed:
            self._has_failed = True
        for name, value in report.user_properties:
            if name == PROPERTY:
                cell, outcome = value
                self._outcomes[cell] = outcome

    def counts(self) -> tuple[int, int, set[str]]:
        """(cells run, cells refused, names of the absent ones)."""
        outcomes = list(self._outcomes.values())
        return outcomes.count("run"), outcomes.count("refused"), self._expected() - {*self._outcomes}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A whole session with an absent cell has failed."""
        options = session.config.option
        chosen = [*session.config.args, getattr(options, "keyword", "")]
        is_part = any("::" in each for each in chosen) or bool(options.keyword) or bool(options.maxfail)
        is_part = is_part or getattr(options, "lf", False) or options.markexpr not in ("", "not nightly")
        self._is_whole = bool(self._outcomes) and not is_part
        if self._is_whole and self.counts()[2] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line, and the absent cells."""
        if not self._outcomes:
            return
        run, refused, absent = self.counts()
        if not self._is_whole:
            terminalreporter.write_line(f"law matrix: {run} cells run, {refused} refused, of a part of the matrix")
            return
        terminalreporter.write_line(f"law matrix: {run} cells run, {refused} refused, {len(absent)} absent")
        for each in sorted(absent)[:20]:
            terminalreporter.write_line(f"  absent: {each}")
