"""Shared fixtures: one thread, one seed, one set of float64 inputs."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch

from laws.cases import Inputs, draw
from laws.matrix import cells, everything
from laws.refusals import is_built
from laws.tally import Tally

torch.set_num_threads(1)
os.environ["MACLAURIN_CACHE"] = tempfile.mkdtemp()  # whatever someone has calibrated here decides no test


def pytest_configure(config: pytest.Config) -> None:
    """Count the cells of the law matrix; a whole session without some of them fails."""
    expected = {str(cell) for each in everything(is_built) for cell in cells(each)}
    config.pluginmanager.register(Tally(expected), "law-matrix")


@pytest.fixture
def seed() -> int:
    """Seed torch's global generator too, for what draws from it unasked (``gradcheck``)."""
    torch.manual_seed(20)
    return 20


@pytest.fixture
def inputs(seed: int) -> Inputs:
    """Float64 query, key and value whose sizes B, H, Hkv, T, K, V are pairwise distinct."""
    return draw(seed)
