"""Seconds of one unit of work, by way, dtype and phase: built in, or measured on this machine and kept in a file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from maclaurin.atomic import replace_file
from maclaurin.evaluate.plan.ways import Counted, Way

FORMAT = 1

#: Way -> dtype -> phase -> unit of work -> seconds.
Seconds = Mapping[str, Mapping[str, Mapping[str, Mapping[str, float]]]]

#: Where a dtype has no constants of its own, those of another.
_STANDS_FOR = {"float64": "float32", "float16": "bfloat16", "bfloat16": "float32"}

#: Without any constants: what a graphics card needs to start something, and for a number of some kind.
_ASSUMED = {"calls": 5e-5, "steps": 2e-4, "parts": 5e-5, "pairs": 2e-11, "powers": 1e-11, "products": 1e-13}
_ASSUMED |= {"moments": 1e-13, "states": 1e-11, "features": 1e-11, "fresh": 0.0}


@dataclass(frozen=True)
class Costs:
    """A machine's constants.

    Args:
        source: where they are from, for people.
        seconds: the table; empty: nothing was measured.
    """

    source: str
    seconds: Seconds

    def predict(self, way: Way, counted: Counted) -> float:
        """Seconds that a way will take.

        Args:
            way: serves the call.
            counted: the call.
        """
        constants = self._constants(way, counted)
        return math.fsum(constants.get(name, 0.0) * amount for name, amount in way.work(counted).items())

    def _constants(self, way: Way, counted: Counted) -> Mapping[str, float]:
        rows: Mapping[str, Mapping[str, Mapping[str, float]]] = self.seconds.get(way.name, {})
        name: str | None = dtype_name(way.product_dtype(counted.mechanism, counted.shape))
        while name is not None and name not in rows:
            name = _STANDS_FOR.get(name)
        return _ASSUMED if name is None else rows[name][phase_of(counted)]


def phase_of(counted: Counted) -> str:
    """``training`` if a backward pass follows, otherwise ``forward``."""
    return "training" if counted.shape.wants_gradient else "forward"


def dtype_name(dtype: torch.dtype) -> str:
    """Without the module."""
    return str(dtype).removeprefix("torch.")


def cache_folder() -> Path:
    """``MACLAURIN_CACHE``, or ``maclaurin`` in the user's cache folder."""
    if folder := os.environ.get("MACLAURIN_CACHE"):
        return Path(folder)
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(user) / "maclaurin"


def machine_name(device: str, threads: int) -> str:
    """What the constants depend on, in words."""
    if torch.device(device).type == "cuda":
        name = torch.cuda.get_device_name(device) if torch.cuda.is_available() else "a CUDA device elsewhere"
        return f"{name}, torch {torch.__version__}"
    return f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}, torch {torch.__version__}"


def costs_file(device: str, threads: int) -> Path:
    """Where this machine's constants are kept."""
    digest = hashlib.sha256(machine_name(device, threads).encode()).hexdigest()[:12]
    return cache_folder() / f"costs-{torch.device(device).type}-{digest}.json"


def store_costs(device: str, threads: int, seconds: Seconds, date: str) -> Path | None:
    """Keep constants for later processes; where that is impossible, for this one alone, with a warning.

    Args:
        device: they are of.
        threads: they are for.
        seconds: the table.
        date: of the measurement.

    Returns:
        The file, or None.
    """
    path = costs_file(device, threads)
    content = {"format": FORMAT, "machine": machine_name(device, threads), "date": date, "seconds": seconds}
    load_costs.cache_clear()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(content, indent=1).encode())
    except OSError as error:
        _MEASURED[device, threads] = Costs(f"measured in this process on {date}", seconds)
        warnings.warn(
            f"maclaurin: the measured costs cannot be kept in {path}: {error.strerror or error}. They hold for this "
            "process; set MACLAURIN_CACHE to a folder that can be written to.",
            stacklevel=3,
        )
        return None
    _MEASURED.pop((device, threads), None)
    return path


#: What could not be kept in a file.
_MEASURED: dict[tuple[str, int], Costs] = {}


@lru_cache(maxsize=16)
def load_costs(device: str, threads: int) -> Costs:
    """The constants in use: this machine's own if there are any, otherwise built in. Looks into a file once.

    Args:
        device: its type.
        threads: that torch uses.
    """
    if (measured := _MEASURED.get((device, threads))) is not None:
        return measured
    path = costs_file(device, threads)
    try:
        content = json.loads(path.read_bytes())
        return Costs(f"measured on this machine on {content['date']}", _checked(content))
    except FileNotFoundError:
        return _built_in(device)
    except (OSError, ValueError, KeyError, TypeError) as error:
        warnings.warn(
            f"maclaurin: {path} is ignored, for it holds no costs ({type(error).__name__}: {error}). "
            "The built-in ones are used; maclaurin.calibrate() writes it anew.",
            stacklevel=2,
        )
        return _built_in(device)


def _checked(content: Any) -> Seconds:
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']!r}, not {FORMAT}")
    seconds: Seconds = content["seconds"]
    numbers = [
        each
        for dtypes in seconds.values()
        for phases in dtypes.values()
        for phase in ("forward", "training")
        for each in phases[phase].values()
    ]
    if not numbers or not all(type(each) in (int, float) and 0 <= each < math.inf for each in numbers):
        raise ValueError("its costs are not all numbers >= 0")
    return seconds


def built_in_file() -> Path:
    """Of the built-in constants for this processor: tile registers make products in bfloat16 far cheaper."""
    ask = getattr(torch.cpu, "get_capabilities", None)  # newer than the oldest torch that serves
    has_tiles = ask is not None and ask().get("amx_bf16", False)
    name = "costs-cpu-tiles.json" if has_tiles else "costs-cpu.json"
    return Path(str(resources.files("maclaurin.evaluate.plan").joinpath(name)))


def _built_in(device: str) -> Costs:
    """Of machines that the library was built on; for other devices, none."""
    if device != "cpu":
        return Costs(f"assumed, for nothing was measured on {device}: see maclaurin.calibrate", {})
    content = json.loads(built_in_file().read_text())
    return Costs(f"built in: {content['machine']}", _checked(content))


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
