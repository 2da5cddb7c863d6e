"""What a run ran on: versions and hardware, as JSON values."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("maclaurin", "torch", "numpy", "scipy", "matplotlib", "pydantic")


def environment() -> dict[str, Any]:
    """Versions of Python and of the packages that decide numbers, processor, cores and memory.

    >>> sorted(environment())
    ['cores', 'memory_gib', 'packages', 'platform', 'processor', 'python']
    """
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": _memory_gib(),
        "packages": {name: metadata.version(name) for name in _PACKAGES},
    }


def _processor() -> str:
    """The processor's name, from Linux' own table where there is one."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _memory_gib() -> float | None:
    """Physical memory, where the system tells."""
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None
