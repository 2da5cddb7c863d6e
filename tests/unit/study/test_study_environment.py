"""What a run ran on.   Run: pytest tests/unit/study/test_study_environment.py"""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch

import maclaurin
from maclaurin.study import environment


def test_it_is_json_and_names_what_decides_numbers() -> None:
    facts = environment()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["python"] == platform.python_version()
    assert facts["packages"]["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert facts["packages"]["numpy"] == np.__version__
    assert facts["packages"]["maclaurin"] == maclaurin.__version__
    assert facts["cores"] == os.cpu_count()
    assert facts["memory_gib"] > 0.1
    assert facts["processor"]
    assert environment() == facts


def test_it_says_nothing_of_the_person_or_the_place() -> None:
    said = json.dumps(environment())
    for private in (platform.node(), str(Path.home()), os.getcwd()):
        assert private not in said


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> str:
        raise OSError

    monkeypatch.setattr(metadata, "version", lambda name: "1")  # it reads files too
    monkeypatch.setattr(os, "sysconf", refuse)
    monkeypatch.setattr(platform, "processor", lambda: "aarch64")
    for read in (refuse, lambda *arguments: "flags : fpu\n"):  # no table; ARM's, which has no model name
        monkeypatch.setattr(Path, "read_text", read)
        assert environment()["processor"] == "aarch64"
        assert environment()["memory_gib"] is None
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert environment()["processor"] == "unknown"
