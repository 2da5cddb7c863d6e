"""Packed documents equal the same documents one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import torch
from torch import Tensor

from maclaurin.verify.compare import Gap, close, close_gradients, same, zero
from maclaurin.verify.inputs import AXES, Inputs, Sizes, like
from maclaurin.verify.law import Law, differentiable, taking
from maclaurin.verify.subject import Case, Subject, Trial, gradients
from maclaurin.verify.tree import copied

#: Lengths of the documents; how many tokens the sizes ask for does not matter.
PACKS = {"5,1,0,7,1": (5, 1, 0, 7, 1), "70,1,0,64,65": (70, 1, 0, 64, 65), "0,3,3,0": (0, 3, 3, 0), "9": (9,)}
SIZES = (Sizes(batch=1, heads=3, queries=13, key_dim=5, value_dim=7), Sizes(1, 4, 13, 3, 4, kv_heads=2))


def _packed(trial: Trial) -> tuple[Inputs, Tensor, list[tuple[int, int]]]:
    lengths = PACKS[trial.case.detail]
    edges = torch.tensor([0, *lengths]).cumsum(0)
    inputs = trial.another(2, batch=1, queries=sum(lengths))
    return inputs, edges, [(int(a), int(b)) for a, b in pairwise(edges)]


def _is_repeated(trial: Trial) -> bool:
    """Whether this is a long pack once more, with shared heads."""
    return trial.sizes.of("h") < trial.sizes.heads and max(PACKS[trial.case.detail]) > 10


def looped(trial: Trial) -> Iterator[Gap]:
    """Values and gradients of packed documents are those of each alone."""
    if _is_repeated(trial):
        return
    inputs, edges, documents = _packed(trial)
    mine, theirs = inputs.leaves(), inputs.leaves()
    output = trial.run(mine, cu_seqlens=edges).output
    alone = torch.cat([trial.run(theirs.times(*each)).output for each in documents if each[0] < each[1]], dim=2)
    keep = trial.keep(alone, inputs)
    yield close("output", output * keep, alone * keep, trial.rtol)
    if trial.subject.target.has_gradients:
        found, wanted = gradients(output, mine.tensors, 3, keep), gradients(alone, theirs.tensors, 3, keep)
        yield from close_gradients("gradient", found, wanted, trial.rtol)


def apart(trial: Trial) -> Iterator[Gap]:
    """No bit of a document changes with another, and no gradient crosses."""
    if _is_repeated(trial):
        return
    inputs, edges, documents = _packed(trial)
    start, stop = max(documents, key=lambda each: each[1] - each[0])
    inside = torch.zeros(inputs.length, dtype=torch.bool)
    inside[start:stop] = True
    if inside.all():
        return

    def change(name: str, tensor: Tensor) -> Tensor:
        letter = next((each for each in "TS" if each in AXES[name]), None)
        if letter is None:
            return tensor
        shape = [1] * tensor.ndim
        shape[AXES[name].index(letter)] = inside.numel()
        other = 1e3 * like(tensor, 8) if name in ("query", "key", "value") else 0.5 * tensor
        other = other.abs() if name in ("query", "key") and bool((tensor >= 0).all()) else other
        return torch.where(inside.reshape(shape), tensor, other)

    changed = Inputs({name: change(name, each) for name, each in inputs.tensors.items()})
    leaves = inputs.leaves()
    output = trial.run(leaves, cu_seqlens=edges).output[:, :, start:stop]
    with torch.no_grad():
        after = trial.run(changed, cu_seqlens=edges).output[:, :, start:stop]
    yield same("rows of a document when the others change", after, output.detach())
    if trial.subject.target.has_gradients:
        found = gradients(output, leaves.tensors, 3)
        for name, each in found.items():
            if set("TS") & set(AXES[name]):
                axis = AXES[name].index(next(letter for letter in "TS" if letter in AXES[name]))
                yield zero(f"gradient of {name} in other documents", each.movedim(axis, 0)[~inside])


def states(trial: Trial) -> Iterator[Gap]:
    """A state per document goes on as each document alone would."""
    inputs, edges, documents = _packed(trial)
    more = trial.another(6, batch=1, queries=2 * len(documents))
    steps = 2 * torch.arange(len(documents) + 1)
    with torch.no_grad():
        state = trial.run(inputs, cu_seqlens=edges, return_state=True).state
        output = trial.run(more, cu_seqlens=steps, state=copied(state)).output
        for i, (start, stop) in enumerate(documents):
            new = more.times(2 * i, 2 * i + 2)
            whole = inputs.times(start, stop).joined(new) if start < stop else new
            expected = trial.run(whole).output[:, :, stop - start :]
            keep = trial.keep(expected, inputs)
            actual = output[:, :, 2 * i : 2 * i + 2]
            yield close(f"two tokens after document {i}", actual * keep, expected * keep, trial.rtol)


def _cases(subject: Subject) -> Iterator[Case]:
    for operands in subject.settings():
        for is_causal in subject.directions(operands):
            names = PACKS if is_causal else [*PACKS][:1]
            yield from (Case(operands, {"is_causal": is_causal}, name) for name in names)


def _causal_cases(subject: Subject) -> Iterator[Case]:
    yield from (case for case in _cases(subject) if case.keywords["is_causal"])


_NEEDS = (taking("cu_seqlens"),)
LAWS = (
    Law("packed", "packed documents equal each alone", looped, _NEEDS, SIZES, _cases),
    Law("packed: apart", "no document reaches another", apart, (*_NEEDS, differentiable), SIZES, _cases),
    Law("packed: states", "a state per document", states, (taking("cu_seqlens", "state"),), SIZES, _causal_cases),
)
