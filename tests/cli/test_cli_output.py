"""What the verbs share to print."""

from __future__ import annotations

import sys

import pytest

from maclaurin.cli.output import Column, byte_size, decimal, integer, print_fields, print_json, print_table


def test_json_is_stable_and_finite(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"b": 1, "a": [0.1, None]})
    assert capsys.readouterr().out == '{\n  "b": 1,\n  "a": [\n    0.1,\n    null\n  ]\n}\n'
    with pytest.raises(ValueError, match="Out of range float"):
        print_json({"value": float("nan")})


def test_table_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    columns = [Column("name"), Column("n", is_number=True), Column("note", is_note=True)]
    print_table(columns, [("a[b]", "1,000", "x" * 200), ("long name", "2", "")])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["name           n  note", "a[b]       1,000  " + "x" * 200, "long name      2"]


def test_table_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Column("name"), Column("n", is_number=True)], [])
    assert capsys.readouterr().out == "name  n\n"


def test_notes_go_beneath_on_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "24")
    monkeypatch.setenv("NO_COLOR", "1")
    columns = [Column("name"), Column("n", is_number=True), Column("note", is_note=True)]
    print_table(
        columns, [("first", "1,000", "a word or two"), ("second", "2", ""), ("third", "3", "more of it than fits")]
    )
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "name        n",
        "first   1,000",
        "        a word or two",
        "second      2",
        "third       3",
        "        more of it than",
        "        fits",
    ]


def test_fields_continue_and_separate(capsys: pytest.CaptureFixture[str]) -> None:
    print_fields([[("one", "a [bold]b"), ("", "c")], [("longer", "d " * 50)]])
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["one     a [bold]b", "        c", ""]
    assert lines[3].startswith("longer  d d d")
    assert lines[4].startswith("        d")
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1,000"), (10**15 - 1, "999,999,999,999,999"), (10**15, "1.00e+15")],
)
def test_integer(value: int, text: str) -> None:
    assert integer(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.000"),
        (1.0, "1.000"),
        (0.123456, "0.1235"),
        (123.456, "123.5"),
        (-0.5, "-0.5000"),
        (123456.0, "123500"),
        (1e6, "1.000e+06"),
        (9.9e-5, "9.900e-05"),
        (float("inf"), "-"),
    ],
)
def test_decimal(value: float, text: str) -> None:
    assert decimal(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536 * 1024, "1.5 MiB"), (2**50, "1,024 TiB")],
)
def test_byte_size(value: int, text: str) -> None:
    assert byte_size(value) == text
