"""Run a plan: every subject at every size, side by side."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from maclaurin.algebra import mechanism
from maclaurin.bench import clock, memory, peer, roofline
from maclaurin.bench.crossover import crossover
from maclaurin.bench.plan import Plan
from maclaurin.bench.result import Crossover, Memory, Result, Timing
from maclaurin.bench.subject import REFERENCE, Dims, Inputs, Subject, cumulative, eager, operands_of, ours, sdpa
from maclaurin.errors import ConfigError, MaclaurinError, nearest
from maclaurin.evaluate import attend

_CHECKED = 256  # tokens on which values are compared
#: Largest error, over the largest value, of one that computes the right thing in this dtype.
_ALLOWED = {"float64": 1e-5, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_FAR = 20.0  # with a time limit, one so many times slower than torch's is not run at longer lengths
_GROWTH = 1.5  # time grows with this power of the length: some subjects are quadratic, others linear

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class _Cell:
    work: str
    dtype: str
    shape: Dims


@dataclass
class _Run:
    """What has been found so far."""

    plan: Plan
    subjects: list[Subject]
    rates: roofline.Roofline
    timer: clock.Timer
    errors: dict[tuple[str, str, int], float | str]
    timings: list[Timing] = field(default_factory=list)
    memories: list[Memory] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


def compare(plan: Plan, *, progress: Progress = lambda done, total, name: None) -> Result:
    """Measure a plan.

    Args:
        plan: what to measure.
        progress: told before each cell how many are done, of how many, and its name.

    Raises:
        ConfigError: a subject that does not exist, or a shape too large for the memory; raised before any is measured.
        GrammarError: a mechanism that does not exist.
    """
    began = time.monotonic()
    subjects, looked_at = _subjects(plan)
    cells = list(_cells(plan))
    _check_memory(plan, subjects, cells)
    timer, words = clock.timer_of(plan.device, plan.threads)
    with clock.torch_threads(plan.threads):
        progress(0, len(cells), "roofline and values")
        dtypes = tuple(getattr(torch, each) for each in plan.dtypes)
        rates = roofline.measure(dtypes, plan.device, timer)
        run = _Run(plan, subjects, rates, timer, _errors(plan, subjects))
        taken: dict[tuple[str, str, int], tuple[int, float]] = {}
        for index, cell in enumerate(cells):
            progress(index, len(cells), f"{cell.work} {cell.dtype} {cell.shape.head_size} x {cell.shape.length}")
            series = cell.work, cell.dtype, cell.shape.head_size
            started = time.monotonic()
            before, seconds = taken.get(series, (cell.shape.length, 0.0))
            slow = _slow(run, cell) if plan.budget_seconds is not None else {}
            kept = 1 - sum(slow.values())
            expected = seconds * kept * (cell.shape.length / before) ** _GROWTH
            if plan.budget_seconds is not None and started - began + expected > plan.budget_seconds:
                run.left_out.append(f"{cell.work} {cell.dtype} length {cell.shape.length}: beyond the time of --quick")
                continue
            if slow:
                where = f"{cell.work} {cell.dtype} length {cell.shape.length}"
                run.left_out.append(f"{where}: too slow for --quick: {', '.join(slow)}")
            _measure(run, cell, {*slow})
            taken[series] = cell.shape.length, time.monotonic() - started
        progress(len(cells), len(cells), "done")
    return Result(
        _machine(plan),
        asdict(plan),
        words,
        rates.flops_per_second,
        rates.copy_bytes_per_second,
        tuple(run.timings),
        tuple(run.memories),
        tuple(_crossovers(run.timings)),
        peer.absent(looked_at),
        tuple(run.left_out),
        time.monotonic() - began,
    )


def _subjects(plan: Plan) -> tuple[list[Subject], list[peer.Peer]]:
    asked = [ours(text, method) for text in plan.mechanisms for method in plan.methods]
    members = [each.claims for each in asked]
    # the eager form and softmax's peers are always worth a line; sums and features where their mechanism is asked for
    wanted = [*members, mechanism("exp/sum")]
    others, looked_at = peer.subjects_of(wanted)
    plain = [each for each in (sdpa(), eager(), cumulative()) if each.claims in wanted]
    subjects = [*plain, *asked, *others]
    names = [each.name for each in subjects]
    for each in plan.without:
        if each not in names:
            raise ConfigError(f"bench: --without {each!r} names no subject: {nearest(each, names, limit=len(names))}")
    return [each for each in subjects if each.name not in plan.without], looked_at


def _cells(plan: Plan) -> Iterator[_Cell]:
    for length in sorted(plan.lengths):  # short ones first, so that a budget cuts the long ones
        for work in plan.works:
            for dtype in plan.dtypes:
                for head_size in plan.head_sizes:
                    yield _Cell(work, dtype, Dims(plan.batch, plan.heads, length, head_size))


def _able(subjects: list[Subject], cell: _Cell) -> list[Subject]:
    able = [each for each in subjects if cell.shape.length % each.multiple == 0]
    return [each for each in able if each.decode is not None] if cell.work == "decode" else able


def _check_memory(plan: Plan, subjects: list[Subject], cells: list[_Cell]) -> None:
    free = memory.available_bytes(plan.device)
    for cell in cells:
        for each in _able(subjects, cell):
            memory.refuse_too_large(each, cell.shape, getattr(torch, cell.dtype), cell.work, free)


def _errors(plan: Plan, subjects: list[Subject]) -> dict[tuple[str, str, int], float | str]:
    """Largest error of every subject's values over the largest value, or why it gives none."""
    found: dict[tuple[str, str, int], float | str] = {}
    for dtype in plan.dtypes:
        for head_size in plan.head_sizes:
            inputs = Inputs.random(Dims(1, 2, _CHECKED, head_size), getattr(torch, dtype), plan.device)
            exact = Inputs(*(each.double() for each in inputs.all))
            for each in subjects:
                operands: dict[str, Any] = {
                    name: tensor.double() for name, tensor in operands_of(each.claims, inputs).items()
                }
                right = attend(each.claims, *exact.all, method="parallel", **operands).output
                out = _tried(_forward(each, inputs))
                failed = isinstance(out, str)
                error = out if failed else float((out.double() - right).abs().max() / right.abs().max())
                found[each.name, dtype, head_size] = error
    return found


def _tried(call: Callable[[], Any]) -> Any:
    """What the call returns, or in a line why it raised."""
    try:
        return call()
    except MaclaurinError as error:
        return str(error).splitlines()[0]
    except Exception as error:  # another's code, whatever it raises
        return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"


def _forward(subject: Subject, inputs: Inputs) -> Callable[[], object]:
    def call() -> Tensor:
        with torch.no_grad():
            return subject.forward(inputs)

    return call


def _training(subject: Subject, inputs: Inputs) -> Callable[[], object]:
    leaves = Inputs(*(each.clone().requires_grad_() for each in inputs.all))
    gradient = torch.ones_like(inputs.query)

    def call() -> object:
        return torch.autograd.grad(subject.forward(leaves), leaves.all, gradient)

    return call


def _decode(subject: Subject, inputs: Inputs) -> Callable[[], object]:
    assert subject.decode is not None
    return subject.decode(inputs)


_CALLS = {"forward": _forward, "training": _training, "decode": _decode}


def _slow(run: _Run, cell: _Cell) -> dict[str, float]:
    """Subjects far slower than torch's attention in the same work before, with their share of that cell's time."""
    size = cell.shape.head_size
    before = [each for each in run.timings if (each.work, each.dtype, each.head_size) == (cell.work, cell.dtype, size)]
    last = [each for each in before if each.length == before[-1].length]
    total = sum(each.seconds_median or 0.0 for each in last)
    return {
        each.subject: (each.seconds_median or 0.0) / total if each in last else 0.0
        for each in before
        if each.ratio_to_sdpa is not None and each.ratio_to_sdpa > _FAR and cell.work != "decode"
    }


def _measure(run: _Run, cell: _Cell, dropped: set[str]) -> None:
    able = [each for each in _able(run.subjects, cell) if each.name not in dropped]
    for each in run.subjects:
        if cell.shape.length % each.multiple:
            line = f"{each.name} at length {cell.shape.length}: takes multiples of {each.multiple}"
            run.left_out += [] if line in run.left_out else [line]
    inputs = Inputs.random(cell.shape, getattr(torch, cell.dtype), run.plan.device)
    if cell.work == "memory":
        run.memories.extend(_memory(each, inputs, cell, run.plan.device) for each in able)
        return
    calls: dict[str, Callable[[], object]] = {}
    failures: dict[str, str] = {}
    for each in able:
        call = _tried(partial(_CALLS[cell.work], each, inputs))
        once = call if isinstance(call, str) else _tried(call)
        if isinstance(once, str):
            failures[each.name] = once
        else:
            calls[each.name] = call
    seconds = clock.interleave(calls, run.plan.rounds, run.timer)
    run.timings.extend(_timing(run, cell, each, seconds, failures.get(each.name, "")) for each in able)


def _timing(run: _Run, cell: _Cell, subject: Subject, seconds: dict[str, list[float]], failure: str) -> Timing:
    size = cell.shape.head_size
    error = run.errors[subject.name, cell.dtype, size]
    claim = (subject.name, str(subject.claims), cell.dtype, size, cell.shape.length)
    known = error if isinstance(error, float) and error == error and error != float("inf") else None
    is_right = known is not None and known <= _ALLOWED[cell.dtype]
    if failure:
        return Timing(cell.work, *claim, None, None, None, None, None, known, is_right, failure)
    mine = seconds[subject.name]
    time_of = clock.spread(mine)
    ratio = clock.ratio(mine, seconds[REFERENCE]) if REFERENCE in seconds else None
    share = roofline.fraction(run.rates, subject.claims, cell.shape, cell.dtype, cell.work, time_of.median)
    return Timing(cell.work, *claim, *time_of, ratio, share, known, is_right)


def _memory(subject: Subject, inputs: Inputs, cell: _Cell, device: str) -> Memory:
    where = subject.name, cell.dtype, cell.shape.head_size, cell.shape.length
    leaves = Inputs(*(each.clone().requires_grad_() for each in inputs.all))
    forward = _tried(lambda: memory.peak_bytes(_forward(subject, inputs), device))
    saved = _tried(lambda: memory.saved_bytes(lambda: subject.forward(leaves)))
    training = _tried(lambda: memory.peak_bytes(_training(subject, inputs), device))
    failure = next((each for each in (forward, saved, training) if isinstance(each, str)), "")
    forward, saved, training = (None if isinstance(each, str) else each for each in (forward, saved, training))
    queries = None if saved is None else saved / inputs.query.untyped_storage().nbytes()
    return Memory(*where, forward, training, saved, queries, failure)


def _crossovers(timings: list[Timing]) -> Iterator[Crossover]:
    series: dict[tuple[str, str, str, int], dict[int, float]] = {}
    for each in timings:
        if each.subject != REFERENCE and each.ratio_to_sdpa is not None:
            key = each.work, each.subject, each.dtype, each.head_size
            series.setdefault(key, {})[each.length] = each.ratio_to_sdpa
    for key, ratios in series.items():
        if len(ratios) > 1:
            yield Crossover(*key, crossover(ratios), all(each < 1 for each in ratios.values()), max(ratios))


def _machine(plan: Plan) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "platform": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "processor": _processor(),
        "device": torch.cuda.get_device_name() if torch.device(plan.device).type == "cuda" else "cpu",
        "cores": os.cpu_count(),
        "threads": plan.threads,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
