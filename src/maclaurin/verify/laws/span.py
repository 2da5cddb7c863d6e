"""Range: finite at large logits, right at tiny inputs, blind to what only has a magnitude."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from maclaurin.verify.compare import Gap, Tolerance, close, deviation, holds
from maclaurin.verify.inputs import Inputs, Sizes
from maclaurin.verify.law import Law, claiming
from maclaurin.verify.laws.agreement import compare
from maclaurin.verify.subject import Case, Subject, Trial, gradients

SIZES = (Sizes(batch=2, heads=3, queries=19, key_dim=5, value_dim=7), Sizes(1, 1, 70, 3, 4))
LARGEST = {"1": 1.0, "16": 16.0, "200": 200.0}
#: Factors of query, key and value.
TINY = {"all 1e-4": (1e-4, 1e-4, 1e-4), "keys 1e-4": (1.0, 1e-4, 1.0), "values 1e-6": (1.0, 1.0, 1e-6)}
HOMOGENEOUS = Tolerance(1e-9, "float64; numbers of another magnitude round alike")


def _with_largest_logit(trial: Trial, inputs: Inputs, largest: float) -> Inputs:
    group = trial.sizes.heads // trial.sizes.of("h")
    key = inputs["key"].repeat_interleave(group, 1)
    logits = inputs["query"] @ key.transpose(-1, -2) * trial.sizes.key_dim**-0.5
    return inputs.map(lambda each: each * (largest / float(logits.abs().max())), ["query"])


def finite_range(trial: Trial) -> Iterator[Gap]:
    """In float32 nothing is NaN, and nothing infinite that float64 can say."""
    subject = trial.subject
    inputs = _with_largest_logit(trial, trial.inputs, LARGEST[trial.case.detail])
    leaves = inputs.map(torch.Tensor.float).leaves()
    output = trial.run(leaves).output
    with torch.no_grad():
        exact = inputs.map(lambda each: each.float().double())
        expected = trial.oracle(exact) if subject.like is not None else trial.run(exact).output
    inside = ~(expected.abs() >= 0.99 * torch.finfo(torch.float32).max)
    yield holds(f"no NaN at logits of {trial.case.detail}", not output.isnan().any())
    yield holds(f"finite where float32 can say it, at logits of {trial.case.detail}", output[inside].isfinite().all())
    if not subject.target.has_gradients or not bool((expected.abs() < 1e15).all()):
        return
    for name, each in gradients(output, leaves.tensors, 3).items():
        yield holds(f"finite gradient of {name} at logits of {trial.case.detail}", each.isfinite().all())


def tiny(trial: Trial) -> Iterator[Gap]:
    """Tiny inputs are no special case: no epsilon stands where none is named."""
    factors = dict(zip(("query", "key", "value"), TINY[trial.case.detail], strict=True))
    inputs = Inputs({name: each * factors.get(name, 1.0) for name, each in trial.inputs.tensors.items()})
    yield from compare(trial, inputs, tolerance=HOMOGENEOUS, floor=0.0)


def magnitude_of_values(trial: Trial) -> Iterator[Gap]:
    """The output is linear in the values or does not see their magnitude, at every magnitude."""
    inputs = trial.inputs
    with torch.no_grad():
        output = trial.run(inputs).output
        doubled = trial.run(inputs.map(lambda each: 2.0 * each, ["value"])).output
        power = min((0, 1), key=lambda each: deviation(doubled, 2.0**each * output))
        if deviation(doubled, 2.0**power * output) > 1e-4:
            return  # neither, as with a learned bias
        for factor in (1e-14, 1e-4, 1e6, *([-1.0] if power else [])):
            scaled = trial.run(inputs.scaled(factor, "value")).output
            expected = output * factor**power
            keep = trial.keep(output, inputs)
            tolerance = trial.rtol if trial.subject.limits.is_single else HOMOGENEOUS
            yield close(f"output of {factor:g} times the values", scaled * keep, expected * keep, tolerance)


def _largest(subject: Subject) -> Iterator[Case]:
    is_exponential = subject.like is not None and subject.like.similarity.map.name == "expmap"
    for operands in subject.settings():
        for name, factor in LARGEST.items():
            if not (is_exponential and factor > 1):  # exp of a large query is no feature
                yield Case(operands, detail=name)


def _tiny(subject: Subject) -> Iterator[Case]:
    for operands in subject.settings():
        yield from (Case(operands, detail=name) for name in TINY)


LAWS = (
    Law("range", "finite at logits of 200, never NaN", finite_range, grid=SIZES, cases=_largest),
    Law("like: tiny inputs", "right at inputs of 1e-4", tiny, (claiming,), SIZES[:1], _tiny),
    Law("values", "linear in the values, or blind to their magnitude", magnitude_of_values, grid=SIZES[:1]),
)
