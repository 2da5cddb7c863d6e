"""What became of the law matrix in this session: cells run, refused, absent; printed at the end.

Tests report each cell as a property of their own report, which reaches this plugin from every worker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

#: The name under which a test reports a cell: (cell, "run" or "refused").
PROPERTY = "law matrix"
_FILE = Path(__file__).with_name("test_matrix.py")


class Tally:
    """A pytest plugin.

    Args:
        expected: the names of all cells.
    """

    def __init__(self, expected: set[str]) -> None:
        self._expected = expected
        self._outcomes: dict[str, str] = {}
        self._is_whole = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the cells of a test that is done."""
        for name, value in report.user_properties:
            if name == PROPERTY:
                cell, outcome = value
                self._outcomes[cell] = outcome

    def counts(self) -> tuple[int, int, set[str]]:
        """(cells run, cells refused, names of the absent ones)."""
        outcomes = list(self._outcomes.values())
        return outcomes.count("run"), outcomes.count("refused"), self._expected - {*self._outcomes}

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A whole session with an absent cell has failed."""
        config = session.config
        self._is_whole = not hasattr(config, "workerinput") and _is_everything_asked(config)
        if self._is_whole and self.counts()[2] and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line, and the absent cells."""
        if not self._outcomes and not self._is_whole:
            return
        run, refused, absent = self.counts()
        if not self._is_whole:
            terminalreporter.write_line(f"law matrix: {run} cells run, {refused} refused; only a part was asked for")
            return
        terminalreporter.write_line(f"law matrix: {run} cells run, {refused} refused, {len(absent)} absent")
        for each in sorted(absent)[:20]:
            terminalreporter.write_line(f"  absent: {each}")


def _is_everything_asked(config: pytest.Config) -> bool:
    """Whether the session was to run the whole matrix: no selection, no early end."""
    options = config.option
    if options.keyword or options.maxfail or options.markexpr not in ("", "not nightly"):
        return False
    if options.collectonly or any(getattr(options, each, None) for each in ("lf", "deselect", "ignore")):
        return False
    paths = [(config.invocation_params.dir / each).resolve() for each in config.args if "::" not in each]
    return any(each == _FILE or each in _FILE.parents for each in paths)
