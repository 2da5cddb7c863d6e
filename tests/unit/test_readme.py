"""The README's example runs as written, and the names and files it lists exist.

Run: pytest tests/unit/test_readme.py -q
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import maclaurin
from maclaurin import CATALOGUE, mechanism

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len(code.strip().splitlines()) == 8
    exec(compile(code, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["taylor-2", "taylor-4", "elu1/sum"]
    assert "2,601 numbers per head" in lines[0]


def test_the_call_that_explains_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (call,) = re.findall(r"`(print\(maclaurin\.explain.*?)`", README)
    exec(call, {"maclaurin": maclaurin})
    assert capsys.readouterr().out.startswith("taylor:2/sum: ")


def test_every_member_stands_in_the_table_with_its_text() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    for name, recipe in CATALOGUE.items():
        assert any(f"`{name}`" in row and f"`{recipe.mechanism}`" in row for row in rows), name


def test_texts_in_the_prose_are_legal() -> None:
    texts = re.findall(r"maclaurin show '?([a-z][^'\s`]+)'?`", README)
    assert [str(mechanism(text)) for text in texts] == ["taylor:2/sum", "relu>taylor:2/rms"]


def test_every_room_has_a_caption() -> None:
    rooms = {each.name for each in (ROOT / "src/maclaurin").iterdir() if (each / "__init__.py").exists()}
    captioned = set(re.findall(r"[├└]─ (\w+)/ ", README))
    assert rooms == captioned


def test_links_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
