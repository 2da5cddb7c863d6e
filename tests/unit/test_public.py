"""The public face: importing costs nothing, every name resolves, every example in a docstring is true."""

from __future__ import annotations

import ast
import doctest
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import maclaurin

PACKAGE = Path(maclaurin.__file__).parent
REPOSITORY = PACKAGE.parent.parent
MODULES = sorted(
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)

#: Prints what an import brought in and every audited event that reaches for the network.
WATCH = """
import importlib, json, sys
before, events = set(sys.modules), []
sys.addaudithook(lambda event, args: events.append(event) if event.startswith("socket.") else None)
for name in sys.argv[1:]:
    importlib.import_module(name)
after = set(sys.modules) - before
brought = {name.split(".")[0] for name in after} - set(sys.stdlib_module_names)
print(json.dumps({"brought": sorted(brought), "modules": sorted(after), "sockets": events}))
"""


def watch(*modules: str) -> dict[str, list[str]]:
    """Import modules in a fresh process; it must print nothing of its own."""
    done = subprocess.run([sys.executable, "-c", WATCH, *modules], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1, done.stdout
    return json.loads(done.stdout)


def test_import_brings_nothing_in() -> None:
    seen = watch("maclaurin")
    assert seen["brought"] == ["maclaurin"]
    assert [name for name in seen["modules"] if name.startswith("maclaurin.")] == []
    assert seen["sockets"] == []


@pytest.mark.parametrize("room", ["errors", "tasks", "store", "cli"])
def test_light_rooms_come_without_torch(room: str) -> None:
    assert "torch" not in watch(f"maclaurin.{room}")["brought"]


def test_no_import_prints_or_opens_a_socket() -> None:
    assert watch(*MODULES)["sockets"] == []


def test_all_is_the_table() -> None:
    assert sorted(maclaurin.__all__) == sorted([*maclaurin._PUBLIC, "__version__"])
    assert set(maclaurin.__all__) <= set(dir(maclaurin))


@pytest.mark.parametrize("name", maclaurin.__all__)
def test_every_public_name_resolves(name: str) -> None:
    value = getattr(maclaurin, name)
    if name != "__version__":
        assert value is getattr(importlib.import_module(maclaurin._PUBLIC[name]), name)


def test_type_checkers_see_the_same_table() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(each for each in tree.body if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING")
    seen = {alias.name: each.module for each in block.body for alias in each.names if isinstance(each, ast.ImportFrom)}
    assert seen == maclaurin._PUBLIC


def test_a_name_that_does_not_exist() -> None:
    with pytest.raises(AttributeError, match="'maclaurin' has no attribute 'attendd'"):
        _ = maclaurin.attendd


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS, verbose=False)
    assert failed == 0


def test_there_are_docstring_examples() -> None:
    finder = doctest.DocTestFinder()
    counts = [len(test.examples) for name in MODULES for test in finder.find(importlib.import_module(name))]
    assert sum(counts) >= 20


def test_the_locks_pin_every_dependency() -> None:
    """Every package that pyproject.toml asks for has one exact version, in the lock that its make target installs."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    core, extra = pins("requirements.lock"), pins("requirements-dev.lock")
    assert core["torch"] == "2.13.0"
    assert {canonical(each) for each in project["dependencies"]} <= set(core)
    asked = {canonical(each) for group in ("test", "peers", "dev") for each in project["optional-dependencies"][group]}
    assert asked - {"maclaurin"} <= set(extra)
    assert set(core) & set(extra) == set()


def pins(lock: str) -> dict[str, str]:
    """Package -> version; every line of a lock is a comment, a reference to another lock, or an exact pin, perhaps for
    some systems alone."""
    found = {}
    for line in (REPOSITORY / lock).read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text and not text.startswith("-r "):
            name, version = re.fullmatch(r"([A-Za-z0-9._-]+)==([^\s;]+)(?: ; .+)?", text).groups()
            found[canonical(name)] = version
    return found


def canonical(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9._-]+", requirement)[0]).lower()
