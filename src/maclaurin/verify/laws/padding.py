"""What stands on padding reaches nothing; a mask that hides nothing changes nothing; who sees nothing gets zeros."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from maclaurin.verify.compare import Gap, close, close_gradients, finite, zero
from maclaurin.verify.inputs import AXES, Inputs, Sizes, like
from maclaurin.verify.law import Law, causal, taking
from maclaurin.verify.laws.state import pieces
from maclaurin.verify.subject import Case, Subject, Trial, both_directions, gradients
from maclaurin.verify.tree import copied

SIZES = (
    Sizes(batch=2, heads=3, queries=13, key_dim=5, value_dim=7),
    Sizes(1, 2, 13, 3, 4),
    Sizes(2, 1, 70, 3, 4),
    Sizes(2, 4, 9, 3, 4, 2),
)
#: What stands on padded keys and values: a factor of noise.
CONTENTS = {"other numbers": 3.0, "1e30": 1e30, "NaN": math.nan, "infinity": math.inf}
PLACES = ("left", "right", "interior")


def mask_of(place: str, batch: int, length: int) -> Tensor:
    """bool ``[B, S]``, True for tokens, another number of pads in each batch row."""
    time = torch.arange(length)
    rows = []
    for b in range(batch):
        pads = length - 4 if b == 0 and length > 64 else max(1, length // 3) - b % 2  # a whole chunk of pads
        by_place = {"left": time >= pads, "right": time < length - pads, "interior": (time + b) % 3 != 1}
        rows.append(by_place[place])
    return torch.stack(rows)


def padded(trial: Trial, inputs: Inputs, mask: Tensor, content: str) -> Inputs:
    """The call with other content wherever the mask hides; decays of pads become large, gates other."""
    factor = CONTENTS[content]
    is_family = trial.subject.target.forms.keys() <= {"parallel", "recurrent", "chunked", "fused"}

    def dirty(name: str, tensor: Tensor) -> Tensor:
        letter = next((each for each in "TS" if each in AXES[name]), None)
        if letter is None or tensor.shape[AXES[name].index(letter)] != mask.shape[1]:
            return tensor
        shape = [1] * tensor.ndim
        shape[0], shape[AXES[name].index(letter)] = mask.shape
        noise = like(tensor, 77)
        by_name = {"log_decay": -7.0 * noise.abs(), "key": factor * noise, "value": factor * noise}
        by_name["query"] = factor * noise if is_family and factor != 1e30 else 3.0 * noise
        by_name["key"] = by_name["key"].abs() if (inputs["key"] >= 0).all() else by_name["key"]
        return torch.where(mask.reshape(shape), tensor, by_name.get(name, 2.0 * noise))

    return Inputs({name: dirty(name, each) for name, each in inputs.tensors.items()})


def _tokens(inputs: Inputs, b: int, tokens: Tensor) -> Inputs:
    """Batch row b without its padding."""
    return inputs.row(b).take(T=tokens, S=tokens)


def _contents(trial: Trial, names: Iterable[str] = CONTENTS) -> list[str]:
    """What may stand on padding here."""
    subject = trial.subject
    legal = set(CONTENTS) if subject.target.mask_kind == "keys" else {"other numbers", "1e30"}
    if subject.like is not None and subject.like.similarity.map.name == "expmap":  # exp of 1e30 is no feature
        legal -= {"1e30", "infinity"}
    if trial.sizes.queries > 40:
        legal &= {"NaN"} if "NaN" in legal else {"other numbers"}
    elif not trial.is_causal:
        legal &= {"other numbers", "NaN"}
    return [each for each in names if each in legal]


def pads_reach_nothing(trial: Trial) -> Iterator[Gap]:
    """Valid rows and gradients are those of the unpadded run; gradients on pads are exactly zero."""
    clean = trial.inputs
    mask = mask_of(trial.case.detail, trial.sizes.batch, clean.length)
    alone = [_tokens(clean, b, tokens).leaves() for b, tokens in enumerate(mask)]
    expected = [trial.run(each).output for each in alone]
    weights = [like(each, 40 + b).double() * trial.keep(each, clean) for b, each in enumerate(expected)]
    wanted = [_gradients_under(*each) for each in zip(expected, weights, alone, strict=True)]
    for content in _contents(trial):
        leaves = padded(trial, clean, mask, content).leaves()
        output = trial.run(leaves, mask=mask).output
        whole = torch.zeros_like(output, dtype=torch.float64)
        for b, tokens in enumerate(mask):
            whole[b : b + 1, :, tokens] = weights[b]
            keep = (weights[b] != 0).to(output.dtype)
            row = output[b : b + 1, :, tokens]
            yield close(f"row {b} with {content} on its pads", row * keep, expected[b] * keep, trial.rtol)
        if not trial.subject.target.has_gradients:
            continue
        valid = torch.where(mask[:, None, :, None], output, torch.zeros((), dtype=output.dtype))
        found = {name: each for name, each in _gradients_under(valid, whole, leaves).items() if AXES[name][0] == "B"}
        for name, each in found.items():
            axis = AXES[name].index(next(letter for letter in "TS" if letter in AXES[name]))
            yield zero(f"gradient of {name} on pads of {content}", each.movedim(axis, 1)[~mask])
        for b, tokens in enumerate(mask):
            mine = _tokens(Inputs(found), b, tokens).tensors
            theirs = {name: wanted[b][name] for name in mine}
            yield from close_gradients(f"gradient in row {b} with {content} on its pads", mine, theirs, trial.rtol)


def _gradients_under(output: Tensor, weight: Tensor, leaves: Inputs) -> dict[str, Tensor]:
    total = (output.double() * weight).sum()
    if not total.requires_grad:
        return {name: torch.zeros_like(each) for name, each in leaves.tensors.items()}
    found = torch.autograd.grad(total, list(leaves.tensors.values()), allow_unused=True)
    pairs = zip(leaves.tensors.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if each is None else each for (name, leaf), each in pairs}


def pads_and_states(trial: Trial) -> Iterator[Gap]:
    """States of a padded batch go on as each prompt alone would; a masked sequence may be split anywhere."""
    clean = trial.inputs
    mask = mask_of(trial.case.detail, trial.sizes.batch, clean.length)
    more = trial.another(9).times(0, 3 * trial.subject.limits.lengths)
    with torch.no_grad():
        alone = [_tokens(clean, b, tokens).joined(more.row(b)) for b, tokens in enumerate(mask)]
        expected = [trial.run(each).output for each in alone]
        for content in _contents(trial, ("other numbers", "NaN")):
            dirty = padded(trial, clean, mask, content)
            prompt = trial.run(dirty, mask=mask, return_state=True)
            split, last = pieces(trial, dirty, mask=mask)
            answers = {"the padded prompt": (prompt.output, prompt.state), "its pieces": (torch.cat(split, 2), last)}
            for name, (output, state) in answers.items():
                after = trial.run(more, state=copied(state)).output
                for b, tokens in enumerate(mask):
                    actual = torch.cat([output[b : b + 1, :, tokens], after[b : b + 1]], dim=2)
                    keep = trial.keep(expected[b], clean)
                    what = f"row {b} of {name}, and three tokens after it, with {content} on its pads"
                    yield close(what, actual * keep, expected[b] * keep, trial.rtol)


def all_true(trial: Trial) -> Iterator[Gap]:
    """A mask of all True equals no mask, for values and gradients."""
    mine, theirs = trial.inputs.leaves(), trial.inputs.leaves()
    mask = torch.ones(trial.sizes.batch, trial.sizes.of("S"), dtype=torch.bool)
    actual, expected = trial.run(mine, mask=mask).output, trial.run(theirs).output
    keep = trial.keep(expected, trial.inputs)
    yield close("output", actual * keep, expected * keep, trial.rtol)
    if trial.subject.target.has_gradients:
        found, wanted = gradients(actual, mine.tensors, 3, keep), gradients(expected, theirs.tensors, 3, keep)
        yield from close_gradients("gradient", found, wanted, trial.rtol)


def nothing_to_see(trial: Trial) -> Iterator[Gap]:
    """A row that sees no key is zero and gives zero gradients."""
    leaves = trial.inputs.leaves()
    length, batch = leaves.length, trial.sizes.batch
    mask = torch.ones(batch, length, dtype=torch.bool)
    mask[0] = False
    if batch > 1 and length > 1:
        mask[1, : length // 2] = False
    output = trial.run(leaves, mask=mask).output
    yield zero("rows of a batch row that is all padding", output[0])
    if batch > 1 and trial.is_causal and length > 1:
        yield zero("rows before the first token", output[1, :, : length // 2])
    yield finite("every row", output)
    if not trial.subject.target.has_gradients:
        return
    found = gradients(output, leaves.tensors, 3)
    for name, each in found.items():
        yield finite(f"gradient of {name}", each)
        if AXES[name][0] == "B":
            yield zero(f"gradient of {name} in a batch row that is all padding", each[0])


def _places(subject: Subject) -> Iterator[Case]:
    yield from (Case(operands, detail=place) for operands in subject.settings() for place in PLACES)


def _places_in_both_directions(subject: Subject) -> Iterator[Case]:
    for case in both_directions(subject):
        yield from (replace(case, detail=place) for place in PLACES)


_NEEDS = (taking("mask"),)
LAWS = (
    Law(
        "padding",
        "what stands on padding reaches no valid row and no gradient",
        pads_reach_nothing,
        _NEEDS,
        SIZES,
        _places_in_both_directions,
    ),
    Law(
        "padding: states",
        "a padded prompt's state goes on as the prompt alone",
        pads_and_states,
        (*_NEEDS, taking("state"), causal),
        SIZES,
        _places,
    ),
    Law("padding: none", "a mask of all True equals no mask", all_true, _NEEDS, SIZES, both_directions),
    Law(
        "padding: all",
        "a row that sees no key is zero, with zero gradients",
        nothing_to_see,
        _NEEDS,
        SIZES,
        both_directions,
    ),
)
