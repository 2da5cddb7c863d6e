"""The future cannot matter, in no bit; the present must."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from maclaurin.verify.compare import Gap, close, holds, same, zero
from maclaurin.verify.inputs import AXES, Inputs, Sizes, like
from maclaurin.verify.law import PRIMES, Law, causal, differentiable, taking
from maclaurin.verify.subject import Case, Subject, Trial, gradients, plain

SIZES = (PRIMES, Sizes(batch=1, heads=2, queries=67, key_dim=3, value_dim=4), Sizes(1, 1, 130, 2, 4))
#: Factors of what changes in keys and values.
FACTORS = {"a thousand times": -1e3, "1e30 times": 1e30}


def changed(inputs: Inputs, start: int, factor: float) -> Inputs:
    """Everything from a time on made other: keys and values by a factor, the rest drawn anew or halved."""

    def change(name: str, tensor: Tensor) -> Tensor:
        letters = [each for each in "TS" if each in AXES[name]]
        if not letters:
            return tensor
        axis = AXES[name].index(letters[0])
        before, after = tensor.narrow(axis, 0, start), tensor.narrow(axis, start, tensor.shape[axis] - start)
        by_name = {"key": after * factor, "value": after * factor, "query": -3.0 * after}
        return torch.cat([before, by_name.get(name, 0.5 * after)], dim=axis)

    return Inputs({name: change(name, each) for name, each in inputs.tensors.items()})


def future(trial: Trial) -> Iterator[Gap]:
    """Earlier rows keep their very bits when later keys, values, queries and gates change."""
    inputs = trial.inputs
    factor = FACTORS[trial.case.detail]
    with torch.no_grad():
        before = trial.run(inputs).output
        for cut in sorted({1, inputs.length // 2, inputs.length - 1} - {0, inputs.length}):
            after = trial.run(changed(inputs, cut, factor)).output
            yield same(
                f"rows before {cut}, everything later {trial.case.detail} as large",
                after[:, :, :cut],
                before[:, :, :cut],
            )


def no_gradient_to_the_future(trial: Trial) -> Iterator[Gap]:
    """Gradients of earlier rows are exactly zero for everything later."""
    leaves = trial.inputs.leaves()
    cut = leaves.length // 2
    output = trial.run(leaves).output[:, :, :cut]
    found = gradients(output, leaves.tensors, 1)
    later = Inputs(found).times(cut)
    for name in found:
        if set("TS") & set(AXES[name]):
            yield zero(f"gradient of later {name}", later[name])


def prefix(trial: Trial) -> Iterator[Gap]:
    """f(x)[:n] = f(x[:n])."""
    inputs = trial.inputs
    with torch.no_grad():
        whole = trial.run(inputs).output
        step = trial.subject.limits.lengths
        for cut in sorted({each // step * step for each in (1, inputs.length // 3, inputs.length - 1)} - {0}):
            alone = trial.run(inputs.times(0, cut)).output
            keep = trial.keep(alone, inputs)
            yield close(f"the first {cut} rows", whole[:, :, :cut] * keep, alone * keep, trial.rtol)


def present(trial: Trial) -> Iterator[Gap]:
    """A query sees its own key and the one before it: its row changes with their values."""
    inputs = trial.inputs
    if trial.sizes.batch * trial.sizes.heads * trial.sizes.value_dim < 8:
        return
    with torch.no_grad():
        before = trial.run(inputs).output
        for time in sorted({0, inputs.length // 2, inputs.length - 1}):
            value = inputs["value"].clone()
            value[:, :, time] += 1.0 + like(value[:, :, time], 5).abs()
            after = trial.run(inputs.having(value=value)).output
            for row in (time, time + 1):
                if row < inputs.length:
                    is_seen = (after[:, :, row] != before[:, :, row]).any()
                    yield holds(f"row {row} changes with value {time}", is_seen)


def both_ways(trial: Trial) -> Iterator[Gap]:
    """Without ``is_causal`` the first row sees the last key, with it it does not."""
    inputs = trial.inputs
    if trial.sizes.batch * trial.sizes.heads * trial.sizes.value_dim < 8 or inputs.length < 2:
        return
    value = inputs["value"].clone()
    value[:, :, -1] += 1.0 + like(value[:, :, -1], 5).abs()
    with torch.no_grad():
        before, after = (trial.run(each).output[:, :, 0] for each in (inputs, inputs.having(value=value)))
    yield holds("row 0 changes with the last value", (before != after).any())


def _bidirectional(subject: Subject) -> Iterator[Case]:
    for operands in subject.settings():
        if False in subject.directions(operands):
            yield Case(operands, {"is_causal": False})


def _factors(subject: Subject) -> Iterator[Case]:
    for case in plain(subject):
        for detail in FACTORS:
            is_exponential = subject.like is not None and subject.like.similarity.map.name == "expmap"
            if not (is_exponential and FACTORS[detail] > 1e3):  # exp(1e30) is no feature
                yield Case(case.operands, detail=detail)


LAWS = (
    Law("future", "later tokens change no bit of earlier rows", future, needs=(causal,), grid=SIZES, cases=_factors),
    Law(
        "future gradients",
        "no gradient reaches a later token",
        no_gradient_to_the_future,
        needs=(causal, differentiable),
        grid=SIZES[:2],
    ),
    Law("prefix", "a prefix alone gives the same rows", prefix, needs=(causal,), grid=SIZES),
    Law("present", "a query sees its own key and the one before", present, needs=(causal,), grid=(PRIMES, SIZES[1])),
    Law(
        "both directions",
        "is_causal=False shows every key to every query",
        both_ways,
        needs=(taking("is_causal"),),
        cases=_bidirectional,
    ),
)
