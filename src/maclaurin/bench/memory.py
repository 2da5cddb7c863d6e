"""Memory: what a call holds, what it keeps for its gradient, and what the machine has left."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from maclaurin.bench.subject import Dims, Subject
from maclaurin.errors import ConfigError

_SHARE = 0.8  # of what is free: the rest is the machine's own
_OF_TRAINING = 2  # gradients of what a forward pass holds


def saved_bytes(call: Callable[[], object]) -> int:
    """Bytes that a call keeps for its gradient: every storage once, its inputs among them.

    >>> x = torch.ones(256, requires_grad=True)
    >>> saved_bytes(lambda: x * x)
    1024
    """
    kept: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = call()
    total = sum(each.untyped_storage().nbytes() for each in kept.values())
    del result
    return total


def peak_bytes(call: Callable[[], object], device: str) -> int | None:
    """The most memory that a call adds at once; None where the system does not tell.

    On CUDA what torch's allocator handed out; on Linux what the process had resident, whose high-water mark is set
    back before the call, so that buffers inside of libraries count and pages never touched do not.
    """
    call()
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    try:
        _give_back()
        Path("/proc/self/clear_refs").write_text("5")
        resident = _status("VmRSS")
        call()
        return max(_status("VmHWM") - resident, 0)
    except (OSError, KeyError):
        return None


def available_bytes(device: str) -> int | None:
    """Free memory of the device, of the machine for ``cpu``; None where the system does not tell."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
        table = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith("kB")}
        return table["MemAvailable"]
    except (OSError, KeyError, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def needed_bytes(subject: Subject, shape: Dims, dtype: torch.dtype, work: str) -> int:
    """An estimate from above of what one call holds, from its sizes alone."""
    item_size = torch.empty((), dtype=dtype).element_size()
    times = 1 if work in ("forward", "decode") else 1 + _OF_TRAINING
    return item_size * (4 * shape.numbers + subject.held(shape)) * times


def refuse_too_large(subject: Subject, shape: Dims, dtype: torch.dtype, work: str, free_bytes: int | None) -> None:
    """Refuse a call that would not fit, before anything is allocated.

    Raises:
        ConfigError: with the bytes needed and free.
    """
    needed = needed_bytes(subject, shape, dtype, work)
    if free_bytes is None or needed <= _SHARE * free_bytes:
        return
    raise ConfigError(
        f"bench: {subject.name} at length {shape.length:,} (batch {shape.batch}, {shape.heads} heads of "
        f"{shape.head_size}, {str(dtype).removeprefix('torch.')}, {work}) needs about {needed / 2**30:,.1f} GiB; "
        f"{free_bytes / 2**30:,.1f} GiB are free, of which bench takes no more than {_SHARE:.0%}.\n"
        "  Give a smaller --length, --batch or --heads, or leave the quadratic forms out: --without "
        f"{subject.name!r}."
    )


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text("utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def _give_back() -> None:
    """Let glibc return free pages, so that the call has to ask for its own."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
