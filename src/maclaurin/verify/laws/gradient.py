"""The gradient is that of the value: held against central differences, element by element and along directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from maclaurin.verify.compare import COARSE_DIFFERENCES, DIFFERENCES, Gap, Tolerance, deviation
from maclaurin.verify.inputs import Inputs, Sizes, like
from maclaurin.verify.law import Law, causal, exact_gradients, taking
from maclaurin.verify.laws.padding import mask_of
from maclaurin.verify.subject import Case, Subject, Trial
from maclaurin.verify.tree import as_leaves, copied, moved

SMALL = (Sizes(batch=1, heads=2, queries=4, key_dim=2, value_dim=3), Sizes(2, 2, 3, 2, 3, kv_heads=1))
LONG = (Sizes(batch=1, heads=2, queries=70, key_dim=3, value_dim=3), Sizes(1, 1, 131, 2, 3))

_Values = Mapping[str, Tensor]


def _step(trial: Trial) -> tuple[float, Tolerance]:
    return (3e-3, COARSE_DIFFERENCES) if trial.subject.limits.is_single else (1e-5, DIFFERENCES)


def _objective(trial: Trial, keywords: Mapping[str, Any]) -> Callable[[_Values], Tensor]:
    """A random combination of the output, on rows that see something and are well conditioned."""
    base = trial.run(trial.inputs, **keywords).output.detach()
    weight = like(base, 11).double() * trial.keep(base, trial.inputs)
    mask = keywords.get("mask")
    if mask is not None:
        weight = torch.where(mask[:, None, :, None], weight, 0.0)

    def objective(values: _Values) -> Tensor:
        return (trial.run(Inputs(values), **keywords).output.double() * weight).sum()

    return objective


def differences(objective: Callable[[_Values], Tensor], values: _Values, name: str, step: float) -> Tensor:
    """Central differences for every number of one tensor."""
    x = values[name].detach()
    found = torch.zeros_like(x).flatten()
    with torch.no_grad():
        for i in range(x.numel()):
            sides = []
            for sign in (1.0, -1.0):
                moved = x.clone().flatten()
                moved[i] += sign * step
                sides.append(objective({**values, name: moved.reshape(x.shape)}))
            found[i] = (sides[0] - sides[1]) / (2 * step)
    return found.reshape(x.shape)


def _analytic(objective: Callable[[_Values], Tensor], values: _Values) -> dict[str, Tensor]:
    leaves = {name: each.detach().clone().requires_grad_() for name, each in values.items()}
    total = objective(leaves)
    if not total.requires_grad:
        return {name: torch.zeros_like(each) for name, each in leaves.items()}
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if each is None else each for (name, leaf), each in pairs}


def elementwise(trial: Trial) -> Iterator[Gap]:
    """Every number of every input, gates included."""
    if trial.sizes == SMALL[1] and (trial.case.keywords.get("is_causal") is False or trial.case.detail):
        return  # once with shared heads is enough
    step, tolerance = _step(trial)
    objective = _objective(trial, _keywords(trial))
    values = trial.inputs.tensors
    found = _analytic(objective, values)
    expected = {name: differences(objective, values, name, step) for name in values}
    yield from _gaps(found, expected, tolerance)


def _gaps(found: _Values, expected: _Values, tolerance: Tolerance) -> Iterator[Gap]:
    largest = max(float(each.abs().max()) for each in expected.values())
    for name, each in expected.items():
        yield Gap(f"gradient of {name}", deviation(found[name], each, floor=0.1 * largest), tolerance)


def along_directions(trial: Trial) -> Iterator[Gap]:
    """A random direction of every input, on sequences longer than any chunk."""
    if trial.sizes == LONG[1] and (trial.case.keywords.get("is_causal") is False or trial.case.detail):
        return
    step, tolerance = _step(trial)
    objective = _objective(trial, _keywords(trial))
    values = trial.inputs.tensors
    found, expected = {}, {}
    for i, (name, gradient) in enumerate(_analytic(objective, values).items()):
        direction = like(values[name], 20 + i)
        direction = direction / direction.norm() * gradient.shape[-1] ** 0.5
        with torch.no_grad():
            sides = [objective({**values, name: values[name] + sign * step * direction}) for sign in (1.0, -1.0)]
        found[name], expected[name] = (gradient * direction).sum(), (sides[0] - sides[1]) / (2 * step)
    yield from _gaps(found, expected, tolerance)


def of_the_state(trial: Trial) -> Iterator[Gap]:
    """Every tensor of a carried state, and what follows it."""
    step, tolerance = _step(trial)
    cut = max(1, trial.inputs.length // 2)
    past, rest = trial.inputs.times(0, cut), trial.inputs.times(cut)
    with torch.no_grad():
        state = copied(trial.run(past, return_state=True).state)
    carried, leaves = as_leaves(state)
    result = trial.run(rest, state=carried)
    weight = like(result.output, 12).double() * trial.keep(result.output, trial.inputs)
    total = (result.output.double() * weight).sum()
    if not total.requires_grad:
        yield Gap("gradient of the state: the output does not depend on it", float("inf"), tolerance)
        return
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    for i, leaf in enumerate(leaves):
        gradient = torch.zeros_like(leaf) if found[i] is None else found[i]
        if not leaf.numel():
            continue
        direction = like(leaf, 30 + i)
        direction = direction / direction.norm()
        sides = []
        for sign in (1.0, -1.0):
            with torch.no_grad():
                nearby = moved(state, i, sign * step * direction)
                sides.append((trial.run(rest, state=nearby).output.double() * weight).sum())
        expected = (sides[0] - sides[1]) / (2 * step)
        floor = float(weight.abs().max()) * 0.1
        yield Gap(
            f"gradient of state tensor {i}", deviation((gradient * direction).sum(), expected, floor=floor), tolerance
        )


def _keywords(trial: Trial) -> dict[str, Any]:
    if trial.case.detail != "masked":
        return {}
    return {"mask": mask_of("interior", trial.sizes.batch, trial.inputs.length)}


def _cases(subject: Subject) -> Iterator[Case]:
    for operands in subject.settings():
        for is_causal in subject.directions(operands):
            yield Case(operands, {"is_causal": is_causal})
    operands = subject.settings()[-1]
    if subject.takes("mask"):
        yield Case(operands, detail="masked")
    if subject.takes("scale"):
        yield Case(operands, {"scale": 0.7})


def _long_cases(subject: Subject) -> Iterator[Case]:
    yield from _cases(subject)
    if subject.takes("chunk_size"):
        yield Case(subject.settings()[-1], {"chunk_size": 16})


LAWS = (
    Law("gradient: elements", "every gradient is that of the value", elementwise, (exact_gradients,), SMALL, _cases),
    Law("gradient: long", "so across chunks", along_directions, (exact_gradients,), LONG, _long_cases),
    Law(
        "gradient: state",
        "so for a carried state",
        of_the_state,
        (exact_gradients, causal, taking("state")),
        (Sizes(batch=1, heads=2, queries=9, key_dim=3, value_dim=4),),
        least_length=2,
    ),
)
