"""The house's doors: imports point one way only. Reads the AST, runs nothing.   Run: pytest tests/unit/test_imports.py

The rule of DESIGN, section 3: errors <- algebra <- evaluate <- {theory, nn, verify, bench}; errors <- {tasks, store};
{nn, tasks, store} <- train; {train, theory} <- {study, huggingface}; plot imports theory and store; report imports
store, theory and plot; cli imports all. A room may import what the rooms it may import may import.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import maclaurin

ROOT = Path(maclaurin.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
IN_ROOMS = [path for path in FILES if path != ROOT / "__init__.py"]  # that one is the public table: test_public.py

#: Room -> the rooms right below it; the root package and __main__ are the two files outside every room.
BELOW = {
    "errors": [],
    "atomic": [],
    "algebra": ["errors"],
    "evaluate": ["algebra", "atomic"],
    "theory": ["evaluate"],
    "nn": ["evaluate"],
    "verify": ["evaluate"],
    "bench": ["evaluate"],
    "tasks": ["errors"],
    "store": ["errors", "atomic"],
    "train": ["nn", "tasks", "store"],
    "study": ["train", "theory"],
    "huggingface": ["train", "theory"],
    "plot": ["theory", "store"],
    "report": ["store", "theory", "plot"],
}
BELOW["cli"] = [*BELOW]
BELOW["__main__"] = ["cli"]

#: Heavy package -> the rooms that may import it.
ROOMS_OF = {
    "torch": set(BELOW),
    "matplotlib": {"plot", "report"},
    "jinja2": {"report"},
    "transformers": {"huggingface"},
    "tokenizers": {"huggingface"},
    "ray": set(),
    "triton": set(),
    "datasets": set(),
}
#: Heavy package -> those among them that may do so inside a function only.
LAZY = {"torch": {"errors", "tasks", "store", "plot", "report", "cli"}, "matplotlib": {"report"}}

#: What a file of the command line may import before a verb runs: help must come at once.
LIGHT_FOR_CLI = {"typer", "maclaurin.errors", "maclaurin.cli"}

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60  # code, without the docstring
#: Path or path:function -> why it may be longer.
LONGER: dict[str, str] = {}


def room_of(path: Path) -> str:
    """The first word of a path inside the package, without its ending."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def reachable(room: str) -> set[str]:
    """Every room that ``room`` may import, itself included."""
    found, todo = {room}, [room]
    while todo:
        for below in BELOW[todo.pop()]:
            if below not in found:
                found.add(below)
                todo.append(below)
    return found


def imports(tree: ast.AST) -> Iterator[tuple[ast.Import | ast.ImportFrom, str, bool]]:
    """(statement, dotted name, whether it runs when the module is imported) for everything imported in a file."""

    def walk(node: ast.AST, *, runs: bool) -> Iterator[tuple[ast.Import | ast.ImportFrom, str, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                yield from ((child, each.name, runs) for each in child.names)
            elif isinstance(child, ast.ImportFrom):
                yield from ((child, f"{child.module}.{each.name}", runs) for each in child.names)
            is_function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            is_for_types = isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING")
            yield from walk(child, runs=runs and not is_function and not is_for_types)

    yield from walk(tree, runs=True)


def faults(source: str, room: str) -> list[str]:
    """Every import in ``source`` that a file of ``room`` may not have."""
    found = []
    for statement, name, runs in imports(ast.parse(source)):
        at = f"line {statement.lineno}: {ast.unparse(statement)}"
        if isinstance(statement, ast.ImportFrom) and statement.level:
            found.append(f"{at}: relative; write the whole name")
            continue
        top, _, rest = name.partition(".")
        if top == "maclaurin":
            target = rest.split(".")[0]
            if target not in BELOW and target != "__version__":
                found.append(f"{at}: name the room, not the public table")
            elif target in BELOW and target not in reachable(room):
                found.append(f"{at}: {room} may import only {', '.join(sorted(reachable(room)))}")
        elif top in ROOMS_OF and room not in ROOMS_OF[top]:
            found.append(f"{at}: {top} does not belong in {room}")
        elif top in ROOMS_OF and runs and room in LAZY.get(top, ()):
            found.append(f"{at}: import {top} inside the function that needs it")
        is_light = top in sys.stdlib_module_names or any(f"{name}.".startswith(f"{each}.") for each in LIGHT_FOR_CLI)
        if room == "cli" and runs and not is_light:
            found.append(f"{at}: a verb imports it when it runs, so that help comes at once")
    return found


@pytest.mark.parametrize("path", IN_ROOMS, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    assert room in BELOW, f"{room} is a new room: give it its place in BELOW"
    assert faults(path.read_text(), room) == []


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("algebra", "from maclaurin.evaluate import attend"),
        ("algebra", "def f():\n    from maclaurin.nn import rotate"),
        ("evaluate", "import maclaurin.train.loop"),
        ("evaluate", "from maclaurin import nn"),
        ("tasks", "from maclaurin.store import records"),
        ("tasks", "import torch"),
        ("store", "try:\n    from torch import nn\nexcept ImportError:\n    pass"),
        ("nn", "from maclaurin.tasks import mqar"),
        ("theory", "from maclaurin.nn import AttentionLayer"),
        ("theory", "import matplotlib.pyplot as plt"),
        ("train", "from maclaurin.study import run"),
        ("plot", "from maclaurin.report import page"),
        ("store", "from maclaurin.algebra import Mechanism"),
        ("study", "from maclaurin.cli import main"),
        ("study", "from maclaurin import attend"),
        ("nn", "from .attention import AttentionLayer"),
        ("nn", "from . import attention"),
        ("nn", "import transformers"),
        ("report", "import torch"),
        ("cli", "import rich"),
        ("cli", "from maclaurin.algebra import CATALOGUE"),
        ("cli", "if True:\n    import numpy"),
    ],
)
def test_the_rule_refuses(room: str, source: str) -> None:
    assert len(faults(source, room)) >= 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("algebra", "import torch\nfrom maclaurin.errors import nearest"),
        ("nn", "from maclaurin.algebra import Recipe"),
        ("study", "from maclaurin.nn import DecoderLM\nfrom maclaurin.store import records"),
        ("report", "from maclaurin import __version__\ndef f():\n    import matplotlib"),
        ("plot", "import matplotlib"),
        ("cli", "def f():\n    import torch\n    from maclaurin.report import write"),
        ("cli", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from maclaurin.algebra import Recipe"),
    ],
)
def test_the_rule_allows(room: str, source: str) -> None:
    assert faults(source, room) == []


def test_no_room_for_everything() -> None:
    words = {"utils", "util", "common", "helpers", "misc"}
    assert [str(path) for path in FILES if words & set(path.with_suffix("").parts[-2:])] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_functions_are_short(path: Path) -> None:
    name, source = str(path.relative_to(ROOT)), path.read_text()
    too_long = [f"{name} has {n} lines"] if (n := len(source.splitlines())) > MAX_FILE_LINES else []
    too_long = [] if name in LONGER else too_long
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and f"{name}:{node.name}" not in LONGER:
            length = code_lines(node)
            if length > MAX_FUNCTION_LINES:
                too_long.append(f"{name}:{node.name} has {length} lines of code")
    assert too_long == []


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without those of its docstring."""
    first = function.body[0]
    has_docstring = ast.get_docstring(function) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if has_docstring else 0
    return (function.end_lineno or 0) - function.lineno + 1 - docstring


def test_code_lines_leaves_the_docstring_out() -> None:
    tree = ast.parse('def f(\n    x,\n):\n    """One.\n\n    Two.\n    """\n    return x\n')
    assert isinstance(tree.body[0], ast.FunctionDef)
    assert code_lines(tree.body[0]) == 4


def test_every_exception_is_still_needed() -> None:
    for entry in LONGER:
        path = ROOT / entry.partition(":")[0]
        assert path.exists(), entry
