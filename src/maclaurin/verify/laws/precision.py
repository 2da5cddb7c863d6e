"""What each dtype promises: the output keeps it, and errors stay at its own rounding however long the sequence."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from maclaurin.verify.compare import Gap, Tolerance, deviation, error_ratio, holds
from maclaurin.verify.inputs import Inputs, Sizes
from maclaurin.verify.law import PRIMES, Law, differentiable
from maclaurin.verify.subject import Case, Subject, Trial, gradients, plain

HALF_REASON = "8 roundings: of inputs to the products, weights, sums and output; a drift with the length is more"
TOLERANCES = {
    torch.float32: Tolerance(2e-5, "float32 rounds to 6e-8; sums and quotients that cancel lose up to two digits"),
    torch.bfloat16: Tolerance(8 * 2.0**-8, HALF_REASON),
    torch.float16: Tolerance(8 * 2.0**-11, HALF_REASON),
}
DTYPES = {str(each).removeprefix("torch."): each for each in TOLERANCES}
LONG = Sizes(batch=1, heads=1, queries=2048, key_dim=4, value_dim=4)


def _exact(trial: Trial, given: Inputs) -> torch.Tensor:
    """The float64 output on the same rounded inputs: of what it claims to be, otherwise of the target itself."""
    exact = given.map(torch.Tensor.double)
    return trial.run(exact).output if trial.subject.like is None else trial.oracle(exact)


def dtypes(trial: Trial) -> Iterator[Gap]:
    """The output has the inputs' dtype and errs by a few roundings of it."""
    dtype = DTYPES[trial.case.detail]
    given = trial.inputs.to(dtype)
    with torch.no_grad():
        output, expected = trial.run(given).output, _exact(trial, given)
    keep = trial.keep(expected, given)
    promised = {dtype, trial.subject.target.precision} - {torch.float64}
    yield holds(f"the output of {dtype} is {output.dtype}", output.dtype in promised)
    yield Gap("error ratio", error_ratio(output * keep, expected * keep), TOLERANCES[dtype])


def gradient_dtypes(trial: Trial) -> Iterator[Gap]:
    """Gradients have the inputs' dtype and err by a few roundings of it."""
    dtype = DTYPES[trial.case.detail]
    leaves = trial.inputs.to(dtype).leaves()
    exact = leaves.map(torch.Tensor.double).leaves()
    expected = _exact(trial, exact) if trial.subject.like is not None else trial.run(exact).output
    output = trial.run(leaves).output
    keep = trial.keep(expected, exact)
    found, wanted = (
        gradients(output, leaves.tensors, 3, keep),
        gradients(expected.to(dtype).double(), exact.tensors, 3, keep),
    )
    tolerance = Tolerance(
        max(8 * TOLERANCES[dtype].value, 2e-4), "eight times that of values: differences of rounded products"
    )
    largest = max(float(each.norm()) for each in wanted.values())
    for name, each in wanted.items():
        yield holds(f"the gradient of {name} is {found[name].dtype}", found[name].dtype == dtype)
        ratio = error_ratio(found[name], each) if float(each.norm()) > 1e-2 * largest else 0.0
        yield Gap(f"error ratio of the gradient of {name}", ratio, tolerance)


def long_sums(trial: Trial) -> Iterator[Gap]:
    """Sums of 2048 positive numbers do not drift in half precision."""
    name, _, kind = trial.case.detail.partition(", ")
    dtype = DTYPES[name]
    inputs = trial.inputs.map(lambda each: 0.5 + each.abs().clamp(max=1.0), ["value"])
    inputs = inputs.map(lambda each: 0.3 * each.abs(), ["query"]).map(torch.abs, ["key"])
    if kind == "repeated":
        inputs = inputs.map(lambda each: each[:, :, :1].expand_as(each).clone(), ["key", "value"])
    if "log_decay" in inputs.operands:
        inputs = inputs.map(lambda each: 1e-3 * each, ["log_decay"])
    given = inputs.to(dtype)
    with torch.no_grad():
        output, expected = trial.run(given).output, _exact(trial, given)
    late = slice(output.shape[2] // 2, None)
    keep = trial.keep(expected, given)[:, :, late]
    yield Gap(
        "error ratio of the later half",
        error_ratio(output[:, :, late] * keep, expected[:, :, late] * keep),
        TOLERANCES[dtype],
    )


def double(trial: Trial) -> Iterator[Gap]:
    """Float64 is not computed in float32."""
    inputs = trial.inputs
    with torch.no_grad():
        output = trial.run(inputs).output
        yield holds(f"the output of float64 is {output.dtype}", output.dtype == torch.float64)
        as_single = deviation(output.float().double(), output)
    yield holds(
        f"the output is {'a' if as_single else 'no'} float64 number beyond float32 "
        "(declare precision='float32' if that is meant)",
        as_single > 0 or not output.any(),
    )
    by_three = inputs.map(lambda each: 3.0 * each, ["value"])
    with torch.no_grad():
        tripled = trial.run(by_three).output
    ratios = [deviation(tripled, factor * output) for factor in (3.0, 1.0)]
    if min(ratios) < 1e-4:  # linear in the values, or blind to their magnitude
        yield Gap("output of three times the values", min(ratios), trial.rtol)


def _double_is_promised(subject: Subject) -> str | None:
    return None if subject.target.precision == torch.float64 else f"declares to compute in {subject.target.precision}"


def _dtypes(subject: Subject) -> Iterator[Case]:
    for case in plain(subject):
        yield from (Case(case.operands, detail=name) for name in DTYPES)


def _long(subject: Subject) -> Iterator[Case]:
    yield from (Case(subject.given, detail=each) for each in ("bfloat16, varied", "float16, repeated"))


LAWS = (
    Law("float64", "float64 is not computed in float32", double, (_double_is_promised,)),
    Law(
        "dtypes",
        "the output has the inputs' dtype, and errs by a few roundings of it",
        dtypes,
        grid=(PRIMES,),
        cases=_dtypes,
    ),
    Law("dtypes: gradients", "so have gradients", gradient_dtypes, (differentiable,), cases=_dtypes),
    Law("dtypes: long", "sums of 2048 positive numbers do not drift", long_sums, grid=(LONG,), cases=_long),
)
