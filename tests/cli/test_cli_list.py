"""``maclaurin list``."""

from __future__ import annotations

import json
import re

import pytest

from cli.process import in_a_pipe, on_a_terminal
from maclaurin import CATALOGUE
from maclaurin.cli import main

CONTROL = re.compile(r"\033\[[0-9;]*m")


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "--json"]) == 0
    seen = capsys.readouterr()
    assert seen.err == ""
    printed = json.loads(seen.out)
    assert list(printed) == ["mechanisms"]
    assert [row["name"] for row in printed["mechanisms"]] == list(CATALOGUE)
    kinds = {
        "name": str,
        "mechanism": str,
        "positivity": str,
        "is_finite_state": bool,
        "key_dim": int,
        "value_dim": int,
        "state_size": (int, type(None)),
        "summary": str,
        "literature": list,
        "aliases": list,
    }
    for row in printed["mechanisms"]:
        assert list(row) == list(kinds)
        assert all(isinstance(row[key], kind) for key, kind in kinds.items()), row
        assert row["positivity"] in ("positive", "nonnegative", "signed")
        assert (row["state_size"] is None) is not row["is_finite_state"]


def test_json_numbers_are_the_algebras(capsys: pytest.CaptureFixture[str]) -> None:
    main(["list", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["mechanisms"]}
    assert rows["taylor-2"]["state_size"] == 153 * 17  # 1 + 16 + 136 monomials, 16 values and the denominator
    assert rows["softmax"]["state_size"] is None
    assert rows["linear-cosine"]["mechanism"] == "cosine/length:learned"
    assert rows["linear-cosine"]["positivity"] == "signed"
    assert rows["softmax-window"]["state_size"] == 20 * 32 + 1
    assert rows["exp-length-gate"]["aliases"] == list(CATALOGUE["exp-length-gate"].aliases)


def test_a_pipe_gets_plain_aligned_lines() -> None:
    done = in_a_pipe("list", FORCE_COLOR="1", COLUMNS="40")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\033" not in done.stdout
    header, *rows = done.stdout.splitlines()
    assert header.split("  ")[0] == "name"
    assert [row.split()[0] for row in rows] == list(CATALOGUE)
    summaries = header.index("summary")
    for row, recipe in zip(rows, CATALOGUE.values(), strict=True):
        assert row[summaries:] == recipe.summary
        assert row[summaries - 2 : summaries] == "  "
        assert row.split()[2] == str(recipe.mechanism)
        assert (row.split()[1] == "-") is not recipe.mechanism.is_finite_state


@pytest.mark.parametrize("columns", [80, 160])
def test_a_terminal_gets_what_fits(columns: int) -> None:
    code, lines = on_a_terminal("list", columns=columns)
    plain = [CONTROL.sub("", line).rstrip() for line in lines]
    assert code == 0
    codes = {"\033[1m", "\033[0m"} if columns == 160 else {"\033[1m", "\033[0m", "\033[2m"}
    assert set(CONTROL.findall("".join(lines))) == codes  # a bold heading, dim notes, nothing else
    assert max(map(len, plain)) <= columns
    assert plain[-1] == "'maclaurin show NAME' explains one; state: numbers per head at K = V = 16."
    assert not any("…" in line for line in plain)  # nothing is cut off
    body = plain[1:-1]
    assert len(body) == len(CATALOGUE) * (2 if columns == 80 else 1)
    for recipe in CATALOGUE.values():
        at = next(i for i, line in enumerate(body) if line.split()[0] == recipe.name)
        assert str(recipe.mechanism) in body[at]
        assert recipe.summary in body[at + (1 if columns == 80 else 0)]


def test_no_color_is_respected() -> None:
    _, lines = on_a_terminal("list", NO_COLOR="1")
    assert "\033" not in "".join(lines)
