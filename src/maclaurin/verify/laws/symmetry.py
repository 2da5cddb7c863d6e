"""Batch rows and heads do not know of each other."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from maclaurin.verify.compare import Gap, close, same
from maclaurin.verify.inputs import AXES, Inputs, Sizes
from maclaurin.verify.law import GROUPED, PRIMES, Law, capable, claiming
from maclaurin.verify.subject import Case, Subject, Trial, both_directions, plain

SIZES = (
    PRIMES,
    Sizes(batch=3, heads=5, queries=5, key_dim=3, value_dim=4),
    Sizes(4, 4, 4, 4, 4),
    Sizes(2, 2, 70, 3, 4),
)


def batch(trial: Trial) -> Iterator[Gap]:
    """A batch row alone equals the row in the batch; rows in another order give the outputs in that order."""
    inputs = trial.inputs
    rows = torch.arange(trial.sizes.batch).flip(0)
    with torch.no_grad():
        output = trial.run(inputs).output
        keep = trial.keep(output, inputs)
        for b in range(trial.sizes.batch):
            alone = trial.run(inputs.row(b)).output
            yield close(f"batch row {b} alone", alone * keep[b], output[b : b + 1] * keep[b], trial.rtol)
        swapped = trial.run(inputs.take(B=rows)).output
    yield close("batch rows in reverse", swapped * keep[rows], output[rows] * keep[rows], trial.rtol)


def strangers(trial: Trial) -> Iterator[Gap]:
    """No bit of a row changes when another batch row or another head becomes a thousand, or 1e30, times as large."""
    inputs, factor = trial.inputs, FACTORS[trial.case.detail]
    kv_heads = trial.sizes.of("h")
    group = trial.sizes.heads // kv_heads
    with torch.no_grad():
        output = trial.run(inputs).output
        for letter, axis, size, width in (("B", 0, trial.sizes.batch, 1), ("h", 1, kv_heads, group)):
            for place in (0, size - 1) if size > 1 else ():
                changed = trial.run(_changed(inputs, letter, place, factor)).output
                others = torch.tensor([i for i in range(size * width) if i // width != place])
                what = f"the others when number {place} of {letter} changes"
                yield same(what, changed.index_select(axis, others), output.index_select(axis, others))


FACTORS = {"a thousand times": -1e3, "1e30 times": 1e30}


def _changed(inputs: Inputs, letter: str, place: int, factor: float) -> Inputs:
    """Key and value changed at one place of an axis; decays made stronger there."""

    def change(name: str) -> torch.Tensor:
        tensor = inputs[name].clone()
        if name in ("key", "value", "log_decay") and letter in AXES[name]:
            chosen = tensor.select(AXES[name].index(letter), place)
            chosen.mul_(3.0 if name == "log_decay" else factor)
        return tensor

    return Inputs({name: change(name) for name in inputs.tensors})


def heads(trial: Trial) -> Iterator[Gap]:
    """Heads in another order give the outputs in that order."""
    inputs = trial.inputs
    kv_heads, group = trial.sizes.of("h"), trial.sizes.heads // trial.sizes.of("h")
    order = torch.arange(kv_heads).roll(1)
    queries = (order[:, None] * group + torch.arange(group)).flatten()
    with torch.no_grad():
        output = trial.run(inputs).output
        keep = trial.keep(output, inputs)[:, queries]
        rolled = trial.run(inputs.take(H=queries, h=order)).output
    yield close("heads in another order", rolled * keep, output[:, queries] * keep, trial.rtol)


def grouped(trial: Trial) -> Iterator[Gap]:
    """Key/value heads that serve several query heads give what their copies would."""
    inputs = trial.inputs
    copies = torch.arange(trial.sizes.of("h")).repeat_interleave(trial.sizes.heads // trial.sizes.of("h"))
    with torch.no_grad():
        repeated = trial.run(inputs.take(h=copies)).output
        keep = trial.keep(repeated, inputs)
        yield close("output", trial.run(inputs).output * keep, repeated * keep, trial.rtol)


def _factors(subject: Subject) -> Iterator[Case]:
    for case in plain(subject):
        is_exponential = subject.like is not None and subject.like.similarity.map.name == "expmap"
        names = [name for name, factor in FACTORS.items() if not (is_exponential and factor > 1e3)]
        yield from (Case(case.operands, detail=name) for name in names)


LAWS = (
    Law("batch", "a batch row does not know of the others", batch, grid=(*SIZES, GROUPED), cases=both_directions),
    Law("strangers", "no bit changes when other rows or heads grow", strangers, grid=SIZES, cases=_factors),
    Law("heads", "heads do not know their place", heads, needs=(claiming,), grid=SIZES),
    Law(
        "grouped heads",
        "a shared key/value head gives what its copies would",
        grouped,
        needs=(capable("grouped heads"),),
        grid=(GROUPED, Sizes(2, 6, 9, 3, 4, kv_heads=2)),
        cases=both_directions,
    ),
)
