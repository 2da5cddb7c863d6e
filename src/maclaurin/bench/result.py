"""What a comparison found, as values and as text."""

from __future__ import annotations

import csv
import io
from dataclasses import asdict, dataclass, fields
from typing import Any

SCHEMA = 1


@dataclass(frozen=True)
class Timing:
    """One subject at one size.

    Args:
        work: ``forward``, ``training`` or ``decode``.
        subject: name.
        mechanism: what the subject claims to compute.
        dtype: of the inputs.
        head_size: numbers per head.
        length: tokens, or tokens absorbed before the step.
        seconds_median: of one call.
        seconds_low: lower quartile.
        seconds_high: upper quartile.
        ratio_to_sdpa: median over rounds of the quotient with torch's attention; None without it.
        roofline_fraction: least time that the machine could take, over ``seconds_median``.
        relative_error: largest error of the forward pass against float64, over the largest value; None if it failed.
        is_right: whether that error is what the dtype allows.
        failure: why there is no time, or empty.
    """

    work: str
    subject: str
    mechanism: str
    dtype: str
    head_size: int
    length: int
    seconds_median: float | None
    seconds_low: float | None
    seconds_high: float | None
    ratio_to_sdpa: float | None
    roofline_fraction: float | None
    relative_error: float | None
    is_right: bool
    failure: str = ""


@dataclass(frozen=True)
class Memory:
    """One subject's memory at one size.

    Args:
        subject: name.
        dtype: of the inputs.
        head_size: numbers per head.
        length: tokens.
        forward_peak_bytes: most that a forward pass without gradient adds at once; None where the system is silent.
        training_peak_bytes: the same with the backward pass.
        saved_bytes: what is kept for backward, inputs included.
        saved_queries: the same as multiples of the query's bytes.
        failure: why there are no numbers, or empty.
    """

    subject: str
    dtype: str
    head_size: int
    length: int
    forward_peak_bytes: int | None
    training_peak_bytes: int | None
    saved_bytes: int | None
    saved_queries: float | None
    failure: str = ""


@dataclass(frozen=True)
class Crossover:
    """The length from which on a subject is faster than torch's attention; None: at no length measured.

    ``is_below_shortest`` says that it is so at every length measured, so that the crossover lies lower.
    """

    work: str
    subject: str
    dtype: str
    head_size: int
    length: float | None
    is_below_shortest: bool
    longest_measured: int


@dataclass(frozen=True)
class Result:
    """A comparison.

    Args:
        machine: device, threads, versions, date.
        plan: as given.
        clock: what the seconds are.
        flops_per_second: of a large matrix product, by dtype.
        copy_bytes_per_second: read and written.
        timings: in the order measured.
        memories: in the order measured.
        crossovers: of every subject with two lengths or more.
        absent: peers that could not be imported, with the reason.
        left_out: cells and subjects that were not run, with the reason.
        seconds: that the comparison took on the wall.
    """

    machine: dict[str, Any]
    plan: dict[str, Any]
    clock: str
    flops_per_second: dict[str, float]
    copy_bytes_per_second: float
    timings: tuple[Timing, ...]
    memories: tuple[Memory, ...]
    crossovers: tuple[Crossover, ...]
    absent: dict[str, str]
    left_out: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Plain values for one JSON document."""
        return {"schema": SCHEMA, **asdict(self)}

    def to_csv(self) -> str:
        """The timings, then the memory, one line each; a column that does not apply is empty."""
        names = [each.name for each in fields(Timing)]
        names += [each.name for each in fields(Memory) if each.name not in names]
        text = io.StringIO()
        writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(each) for each in self.timings)
        writer.writerows({"work": "memory", **asdict(each)} for each in self.memories)
        return text.getvalue()
