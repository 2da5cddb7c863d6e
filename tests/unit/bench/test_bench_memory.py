"""Bytes that are kept, and shapes refused before anything is allocated.   Run: pytest tests/unit/bench"""

from __future__ import annotations

import pytest
import torch

from maclaurin.bench import Dims, Plan, compare
from maclaurin.bench.memory import available_bytes, needed_bytes, peak_bytes, refuse_too_large, saved_bytes
from maclaurin.bench.subject import eager, ours, sdpa
from maclaurin.errors import ConfigError


def test_saved_bytes_counts_a_storage_once_with_its_inputs() -> None:
    x, y = torch.ones(100, requires_grad=True), torch.ones(100, requires_grad=True)
    assert saved_bytes(lambda: x * y) == 800
    assert saved_bytes(lambda: x * x) == 400
    assert saved_bytes(lambda: x[:50] * x[50:]) == 400  # views of one storage
    assert saved_bytes(lambda: x + y) == 0
    assert saved_bytes(lambda: x.exp()) == 400  # its output


def test_peak_is_at_least_a_large_buffer() -> None:
    peak = peak_bytes(lambda: torch.ones(1 << 23).sum(), "cpu")
    assert peak is None or 0.8 * 2**25 <= peak <= 4 * 2**25


def test_the_quadratic_form_needs_its_logits() -> None:
    shape = Dims(1, 2, 1000, 16)
    assert needed_bytes(eager(), shape, torch.float32, "forward") >= 2 * 1000 * 1000 * 4
    assert needed_bytes(sdpa(), shape, torch.float32, "forward") < 2 * 1000 * 1000 * 4
    assert needed_bytes(eager(), shape, torch.float32, "training") > needed_bytes(
        eager(), shape, torch.float32, "forward"
    )
    assert needed_bytes(ours("taylor:2/sum", "chunked"), shape, torch.float32, "forward") < needed_bytes(
        ours("taylor:2/sum", "parallel"), shape, torch.float32, "forward"
    )


def test_too_large_is_refused_and_what_fits_is_not() -> None:
    shape = Dims(1, 8, 65536, 64)
    with pytest.raises(ConfigError, match=r"eager at length 65,536 .* 8\.0 GiB are free") as caught:
        refuse_too_large(eager(), shape, torch.float32, "forward", 8 << 30)
    assert "--length" in str(caught.value)
    refuse_too_large(sdpa(), shape, torch.float32, "forward", 8 << 30)
    refuse_too_large(eager(), shape, torch.float32, "forward", None)  # the system does not tell


def test_compare_refuses_before_it_allocates(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*sizes: object, **keywords: object) -> None:
        raise AssertionError("allocated")

    monkeypatch.setattr(torch, "randn", fail)
    with pytest.raises(ConfigError, match="needs about"):
        compare(Plan(lengths=(1 << 22,)))


def test_available_memory_is_told_here() -> None:
    free = available_bytes("cpu")
    assert free is None or free > 1 << 20
