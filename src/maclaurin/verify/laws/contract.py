"""How a function behaves: it repeats itself, changes nothing it is given, and refuses what it does not know."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from maclaurin.verify.compare import Gap, close, close_gradients, holds, same
from maclaurin.verify.inputs import Sizes, smaller
from maclaurin.verify.law import PRIMES, Law, differentiable
from maclaurin.verify.laws.agreement import LENGTHS, WIDTHS
from maclaurin.verify.subject import Trial, gradients

#: A keyword that nobody has.
UNKNOWN = "no_such_keyword_exists"


def unknown_keyword(trial: Trial) -> Iterator[Gap]:
    """A keyword that does not exist is a TypeError."""
    form = trial.subject.form
    positional, named = form.arguments(trial.inputs)
    try:
        form.function(trial.inputs["query"].dtype)(*positional, **named, **{UNKNOWN: 1})
        raised = "nothing"
    except Exception as error:
        raised = type(error).__name__ if not isinstance(error, TypeError) else ""
    yield holds(f"a keyword that does not exist raised {raised or 'TypeError'}", not raised)


def in_place(trial: Trial) -> Iterator[Gap]:
    """Nothing that is given is changed."""
    seen: list[tuple[Tensor, Tensor]] = []

    def receive(each: Tensor) -> Tensor:
        seen.append((each, each.clone()))
        return each

    mask = torch.ones(trial.sizes.batch, trial.inputs.length, dtype=torch.bool)
    mask[:, 0] = False
    with torch.no_grad():
        trial.run(trial.inputs.map(torch.clone), receive=receive, mask=mask, return_state=True)
        if trial.subject.takes("cu_seqlens"):
            edges = torch.tensor([0, trial.inputs.length // 2, trial.inputs.length])
            trial.run(trial.inputs.row(0).map(torch.clone), receive=receive, cu_seqlens=edges)
    for i, (each, before) in enumerate(seen):
        yield same(f"tensor argument {i} after the call", each.double(), before.double())


def repeats(trial: Trial) -> Iterator[Gap]:
    """The same call gives the same bits, whatever was called in between, with or without gradients."""
    inputs, other = trial.inputs, trial.another(3)
    first = trial.run(inputs).output.detach()
    yield same("output on repeat", trial.run(inputs).output.detach(), first)
    trial.run(other)
    small = smaller(trial.sizes)
    for sizes in small[len(small) // 2 : len(small) // 2 + 1]:
        fitted = trial.subject.limits.fit(sizes)
        Trial(trial.subject, fitted, trial.case).run(trial.subject.draw(fitted, trial.case.operands, 4))
    yield same("output after other calls", trial.run(inputs).output.detach(), first)
    with torch.no_grad():
        yield close("output without gradients", trial.run(inputs).output, first, trial.rtol)
    with_gradients = trial.run(inputs.leaves()).output
    yield close("output with gradients", with_gradients, first, trial.rtol)


def strides(trial: Trial) -> Iterator[Gap]:
    """The layout of the memory does not matter."""
    inputs = trial.inputs
    mine, theirs = inputs.leaves(), inputs.leaves()

    def strided(each: Tensor) -> Tensor:
        wide = torch.stack([each, torch.full_like(each, 7.0)], dim=-1)  # every second number in memory
        return wide.transpose(0, -2).contiguous().transpose(0, -2)[..., 0] if each.ndim > 1 else wide[..., 0]

    actual, expected = trial.run(mine, receive=strided).output, trial.run(theirs).output
    keep = trial.keep(expected, inputs)
    yield close("output", actual * keep, expected * keep, trial.rtol)
    if trial.subject.target.has_gradients:
        found, wanted = gradients(actual, mine.tensors, 3, keep), gradients(expected, theirs.tensors, 3, keep)
        yield from close_gradients("gradient", found, wanted, trial.rtol)


def shapes(trial: Trial) -> Iterator[Gap]:
    """A legal call of any size returns [B, H, T, V], finite, and its gradients are finite."""
    leaves = trial.inputs.leaves()
    output = trial.run(leaves).output
    yield holds("every number of the output is finite", output.isfinite().all())
    if trial.subject.target.has_gradients:
        for name, each in gradients(output, leaves.tensors, 3).items():
            yield holds(f"every number of the gradient of {name} is finite", each.isfinite().all())


def zeros(trial: Trial) -> Iterator[Gap]:
    """Values of zero give finite outputs and gradients, and zeros unless something is added."""
    inputs = trial.inputs
    leaves = inputs.having(value=torch.zeros_like(inputs["value"])).leaves()
    output = trial.run(leaves).output
    yield holds("the output of zero values is finite", output.isfinite().all())
    if "norm_bias" not in inputs.operands:
        yield holds("the output of zero values is zero", not output.any())
    for name, each in gradients(output, leaves.tensors, 3).items():
        yield holds(f"the gradient of {name} at zero values is finite", each.isfinite().all())


def accumulates(trial: Trial) -> Iterator[Gap]:
    """Gradients for two random cotangents add up to the gradient for their sum."""
    leaves = trial.inputs.leaves()
    output = trial.run(leaves).output
    weights = [
        torch.randn(output.shape, generator=torch.Generator().manual_seed(each), dtype=torch.float64) for each in (1, 2)
    ]
    keep = trial.keep(output, trial.inputs)
    parts = [gradients(output, leaves.tensors, 3, weight * keep) for weight in weights]
    both = gradients(output, leaves.tensors, 3, (weights[0] + weights[1]) * keep)
    summed = {name: parts[0][name] + parts[1][name] for name in both}
    yield from close_gradients("gradient of a sum of cotangents", both, summed, trial.rtol)


def one_at_a_time(trial: Trial) -> Iterator[Gap]:
    """The gradient of one input is the same whether or not the others want one."""
    leaves = trial.inputs.leaves()
    output = trial.run(leaves).output
    keep = trial.keep(output, trial.inputs)
    together = gradients(output, leaves.tensors, 3, keep)
    for name in together:
        leaf = trial.inputs[name].detach().clone().requires_grad_()
        alone = gradients(trial.run(trial.inputs.having(**{name: leaf})).output, {name: leaf}, 3, keep)
        yield from close_gradients("gradient alone", alone, {name: together[name]}, trial.rtol)


EVERY_LENGTH = (
    Sizes(1, 1, 1, 1, 1),
    Sizes(2, 1, 1, 4, 4),
    *(Sizes(each.batch, each.heads, each.queries, 4, 4) for each in LENGTHS),
)
EVERY_WIDTH = tuple(Sizes(each.batch, each.heads, 8, each.key_dim, each.key_dim) for each in WIDTHS)

LAWS = (
    Law("lengths", "every length is legal", shapes, grid=EVERY_LENGTH, is_fitted=False),
    Law("widths", "every width is legal", shapes, grid=EVERY_WIDTH, is_fitted=False),
    Law("unknown keyword", "a keyword that does not exist is a TypeError", unknown_keyword),
    Law("in place", "nothing that is given is changed", in_place),
    Law("repeats", "the same call gives the same bits", repeats, grid=(PRIMES, LENGTHS[-1])),
    Law("strides", "the layout of the memory does not matter", strides),
    Law("zero values", "values of zero give zeros and finite gradients", zeros, needs=(differentiable,)),
    Law("one gradient", "a gradient does not depend on the others", one_at_a_time, needs=(differentiable,)),
    Law("linear gradients", "gradients are linear in the cotangent", accumulates, needs=(differentiable,)),
)
