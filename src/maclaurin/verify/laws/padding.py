"""What stands on padding reaches nothing; a mask that hides nothing changes nothing; who sees nothing gets zeros."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from maclaurin.verify.compare import Gap, close, close_gradients, finite, zero
from maclaurin.verify.inputs import AXES, Inputs, Sizes, like
from maclaurin.verify.law import Law, taking
from maclaurin.verify.laws.state import pieces
from maclaurin.verify.subject import Case, Subject, Trial, both_directions, gradients
from maclaurin.verify.tree import copied

SIZES = (Sizes(batch=2, heads=3, queries=13, key_dim=5, value_dim=7), Sizes(1, 2, 13, 3, 4), Sizes(3, 2, 70, 3, 2))
#: What stands on padded keys and values: a factor of noise.
CONTENTS = {"other numbers": 3.0, "1e30": 1e30, "NaN": math.nan, "infinity": math.inf}
PLACES = ("left", "right", "interior")


def mask_of(place: str, batch: int, length: int) -> Tensor:
    """bool ``[B, S]``, True for tokens, another number of pads in each batch row."""
    time = torch.arange(length)
    rows = []
    for b in range(batch):
        pads = max(1, length // 3) - b % 2
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


def _where(trial: Trial) -> tuple[str, str]:
    place, _, content = trial.case.detail.partition(", ")
    return place, content


def _tokens(inputs: Inputs, b: int, tokens: Tensor) -> Inputs:
    """Batch row b without its padding."""
    return inputs.row(b).take(T=tokens, S=tokens)


def pads_reach_nothing(trial: Trial) -> Iterator[Gap]:
    """Valid rows and gradients are those of the unpadded run; gradients on pads are exactly zero."""
    place, content = _where(trial)
    clean = trial.inputs
    mask = mask_of(place, trial.sizes.batch, clean.length)
    leaves = padded(trial, clean, mask, content).leaves()
    output = trial.run(leaves, mask=mask).output
    valid = torch.where(mask[:, None, :, None], output, torch.zeros((), dtype=output.dtype))
    yield finite("valid rows", valid)
    keeps = []
    for b, tokens in enumerate(mask):
        alone = trial.run(_tokens(clean, b, tokens)).output
        keep = trial.keep(alone, clean)
        keeps.append((alone, keep))
        yield close(f"valid rows of batch row {b}", output[b : b + 1, :, tokens] * keep, alone * keep, trial.rtol)
    if not trial.subject.target.has_gradients:
        return
    weight = torch.zeros_like(valid)
    for b, tokens in enumerate(mask):
        weight[b : b + 1, :, tokens] = like(keeps[b][0], 40 + b).to(weight.dtype) * keeps[b][1]
    found = _gradients_under(valid, weight, leaves)
    per_time = [name for name in found if AXES[name][0] == "B"]
    for name in per_time:
        letter = next(each for each in "TS" if each in AXES[name])
        pads = found[name].movedim(AXES[name].index(letter), 1)[~mask]
        yield zero(f"gradient of {name} on pads", pads)
    for b, tokens in enumerate(mask):
        fresh = _tokens(clean, b, tokens).leaves()
        expected = _gradients_under(trial.run(fresh).output, weight[b : b + 1, :, tokens], fresh)
        mine = {name: found[name] for name in per_time}
        wanted = {name: expected[name] for name in per_time}
        yield from close_gradients(
            f"gradient in batch row {b}", _tokens(Inputs(mine), b, tokens).tensors, wanted, trial.rtol
        )


def _gradients_under(output: Tensor, weight: Tensor, leaves: Inputs) -> dict[str, Tensor]:
    total = (output * weight).sum()
    if not total.requires_grad:
        return {name: torch.zeros_like(each) for name, each in leaves.tensors.items()}
    found = torch.autograd.grad(total, list(leaves.tensors.values()), allow_unused=True)
    pairs = zip(leaves.tensors.items(), found, strict=True)
    return {name: torch.zeros_like(leaf) if each is None else each for (name, leaf), each in pairs}


def pads_and_states(trial: Trial) -> Iterator[Gap]:
    """States of a padded batch go on as each prompt alone would; a masked sequence may be split anywhere."""
    place, content = _where(trial)
    clean = trial.inputs
    mask = mask_of(place, trial.sizes.batch, clean.length)
    dirty, more = padded(trial, clean, mask, content), trial.another(9).times(0, 3)
    with torch.no_grad():
        whole = trial.run(dirty, mask=mask, return_state=True)
        split, last = pieces(trial, dirty, mask=mask)
        by_split = torch.cat(split, dim=2)
        for name, state in (("the padded prompt", whole.state), ("its pieces", last)):
            after = trial.run(more, state=copied(state)).output
            yield finite(f"output after {name}", after)
            for b, tokens in enumerate(mask):
                joined = _tokens(clean, b, tokens).joined(more.row(b))
                expected = trial.run(joined).output[:, :, int(tokens.sum()) :]
                keep = trial.keep(expected, clean)
                yield close(f"output after {name}, batch row {b}", after[b : b + 1] * keep, expected * keep, trial.rtol)
        for b, tokens in enumerate(mask):
            expected = whole.output[b : b + 1, :, tokens]
            keep = trial.keep(expected, clean)
            yield close(
                f"valid rows of pieces, row {b}", by_split[b : b + 1, :, tokens] * keep, expected * keep, trial.rtol
            )


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


def _contents(subject: Subject, contents: tuple[str, ...], keywords: tuple[dict[str, bool], ...]) -> Iterator[Case]:
    legal = contents if subject.target.mask_kind == "keys" else contents[:2]  # a pair mask says who sees whom only
    is_exponential = subject.like is not None and subject.like.similarity.map.name == "expmap"
    for operands in subject.settings():
        for place in PLACES:
            for content in legal:
                if not (is_exponential and content in ("1e30", "infinity")):
                    yield from (Case(operands, each, f"{place}, {content}") for each in keywords)


def _padding(subject: Subject) -> Iterator[Case]:
    yield from _contents(subject, tuple(CONTENTS), ({},))
    if subject.takes("is_causal"):
        for case in _contents(subject, ("other numbers", "NaN"), ({"is_causal": False},)):
            if "log_decay" not in case.operands:
                yield case


def _padded_states(subject: Subject) -> Iterator[Case]:
    yield from _contents(subject, ("other numbers", "NaN"), ({},))


_NEEDS = (taking("mask"),)
LAWS = (
    Law(
        "padding",
        "what stands on padding reaches no valid row and no gradient",
        pads_reach_nothing,
        _NEEDS,
        SIZES,
        _padding,
    ),
    Law(
        "padding: states",
        "a padded prompt's state goes on as the prompt alone",
        pads_and_states,
        (*_NEEDS, taking("state")),
        SIZES,
        _padded_states,
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
