"""Decay and gates: what they are when they do nothing, when they do everything, and in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import torch
from torch import Tensor

from maclaurin.verify.compare import Gap, close, close_gradients, holds, same
from maclaurin.verify.inputs import Inputs, Sizes
from maclaurin.verify.law import Condition, Law, causal, taking
from maclaurin.verify.laws.agreement import compare
from maclaurin.verify.subject import Case, Subject, Trial, gradients

SIZES = (
    Sizes(batch=2, heads=3, queries=19, key_dim=5, value_dim=7),
    Sizes(1, 2, 130, 3, 4),
    Sizes(2, 6, 9, 3, 4, kv_heads=3),
)
STRONG = Sizes(batch=1, heads=2, queries=64, key_dim=3, value_dim=4)


def _decayed(trial: Trial, log_decay: Tensor | float) -> Inputs:
    sizes = trial.sizes
    shape = (sizes.batch, sizes.of("h"), sizes.of("S"))
    return trial.inputs.having(log_decay=torch.as_tensor(log_decay, dtype=torch.float64).expand(shape).clone())


def no_decay(trial: Trial) -> Iterator[Gap]:
    """A log decay of zero changes nothing."""
    with torch.no_grad():
        expected = trial.run(trial.inputs.without("log_decay")).output
        keep = trial.keep(expected, trial.inputs)
        yield close("output", trial.run(_decayed(trial, 0.0)).output * keep, expected * keep, trial.rtol)


def first_decay(trial: Trial) -> Iterator[Gap]:
    """The first log decay has nothing to decay; the last decays every key but its own."""
    inputs = trial.inputs
    with torch.no_grad():
        output = trial.run(inputs).output
        log_decay = inputs["log_decay"].clone()
        log_decay[..., 0] = -3.0
        changed = trial.run(inputs.having(log_decay=log_decay)).output
        keep = trial.keep(output, inputs)
        yield close("output with another first log decay", changed * keep, output * keep, trial.rtol)
        if inputs.length < 3:
            return
        log_decay = inputs["log_decay"].clone()
        log_decay[..., 1] = -3.0
        later = trial.run(inputs.having(log_decay=log_decay)).output
    yield holds(
        "the second log decay changes row 1", trial.sizes.value_dim < 2 or (later[:, :, 1] != output[:, :, 1]).any()
    )
    yield same("row 0 with another second log decay", later[:, :, 0], output[:, :, 0])


def reset(trial: Trial) -> Iterator[Gap]:
    """A log decay of minus infinity starts anew: values and gradients of separate segments, and no NaN."""
    inputs = trial.inputs
    cuts = [0, inputs.length // 3, inputs.length // 3 + 1, 2 * inputs.length // 3, inputs.length]
    cuts = sorted(set(cuts))
    log_decay = inputs["log_decay"].clone()
    log_decay[..., cuts[1:-1]] = -math.inf
    mine, theirs = inputs.having(log_decay=log_decay).leaves(), inputs.leaves()
    output = trial.run(mine).output
    segments = [trial.run(theirs.times(a, b)).output for a, b in pairwise(cuts)]
    expected = torch.cat(segments, dim=2)
    keep = trial.keep(expected, inputs)
    yield close("output", output * keep, expected * keep, trial.rtol)
    if trial.subject.target.has_gradients:
        found, wanted = gradients(output, mine.tensors, 3, keep), gradients(expected, theirs.tensors, 3, keep)
        yield from close_gradients("gradient", found, wanted, trial.rtol)


def reset_of_a_state(trial: Trial) -> Iterator[Gap]:
    """A reset on the first token forgets a carried state; a decay there decays it."""
    cut = max(1, trial.inputs.length // 2)
    past, rest = trial.inputs.times(0, cut), trial.inputs.times(cut)
    log_decay = rest["log_decay"].clone()
    log_decay[..., 0] = -math.inf
    with torch.no_grad():
        state = trial.run(past, return_state=True).state
        forgotten = trial.run(rest.having(log_decay=log_decay), state=state).output
        expected = trial.run(rest).output
        keep = trial.keep(expected, trial.inputs)
        yield close("output after a reset", forgotten * keep, expected * keep, trial.rtol)


def strong(trial: Trial) -> Iterator[Gap]:
    """Strong decay neither overflows nor underflows into NaN, in float32 and float64."""
    log_decay = {"-4": -4.0, "-40": -40.0, "-0.01 then -1000": -0.01}[trial.case.detail]
    inputs = _decayed(trial, log_decay)
    if log_decay == -0.01:
        inputs["log_decay"][..., inputs.length // 2] = -1000.0
    for dtype in (torch.float64, torch.float32):
        leaves = inputs.to(dtype).leaves()
        output = trial.run(leaves).output
        yield holds(f"finite output in {dtype}", output.isfinite().all())
        if trial.subject.target.has_gradients:
            for name, each in gradients(output, leaves.tensors, 3).items():
                yield holds(f"finite gradient of {name} in {dtype}", each.isfinite().all())
    if trial.subject.like is not None:
        yield from compare(trial, inputs)
    elif log_decay == -40.0:  # a key before the last weighs exp(-40) = 4e-18 of it
        alone = [trial.run(inputs.times(t, t + 1)).output for t in range(inputs.length)]
        yield close("every token alone", trial.run(inputs).output, torch.cat(alone, dim=2), trial.rtol)


def value_gate(trial: Trial) -> Iterator[Gap]:
    """A value gate multiplies the values, and nothing else."""
    inputs = trial.inputs
    gate = inputs["value_gate"]
    ones = torch.ones_like(gate)
    gated_values = inputs.having(value=inputs["value"] * gate[..., None], value_gate=ones)
    without = gated_values if "value_gate" in trial.subject.given else gated_values.without("value_gate")
    with torch.no_grad():
        expected = trial.run(without).output
        keep = trial.keep(expected, inputs)
        yield close("output", trial.run(inputs).output * keep, expected * keep, trial.rtol)
        yield close("output under a gate of ones", trial.run(gated_values).output * keep, expected * keep, trial.rtol)


def output_gate(trial: Trial) -> Iterator[Gap]:
    """An output gate of ones changes nothing, and a gate reaches no other row."""
    inputs = trial.inputs
    ones = inputs.having(output_gate=torch.ones_like(inputs["output_gate"]))
    with torch.no_grad():
        if "output_gate" not in trial.subject.given:
            expected = trial.run(inputs.without("output_gate")).output
            yield close("output under a gate of ones", trial.run(ones).output, expected, trial.rtol)
        gate = inputs["output_gate"].clone()
        gate[:, :, -1] = 3.0
        before, after = trial.run(inputs).output, trial.run(inputs.having(output_gate=gate)).output
        yield same("rows before a changed gate", after[:, :, :-1], before[:, :, :-1])
        gate = inputs["output_gate"].clone()
        gate[:, -1] = 3.0
        after = trial.run(inputs.having(output_gate=gate)).output
        yield same("heads beside a changed gate", after[:, :-1], before[:, :-1])


def _with(name: str, *details: str) -> Callable[[Subject], Iterator[Case]]:
    def cases(subject: Subject) -> Iterator[Case]:
        for detail in details or ("",):
            yield Case(tuple(dict.fromkeys((*subject.given, name))), detail=detail)

    return cases


def _optional(name: str) -> Condition:
    def condition(subject: Subject) -> str | None:
        return f"cannot go without {name}" if name in subject.given else None

    return condition


def _placed(subject: Subject) -> str | None:
    """An output gate before a scale-invariant normalizer is lost in it, one number per head."""
    return None if subject.like is None or subject.like.gates.output is not None else "claims no output gate"


_DECAY = (taking("log_decay"), causal)
LAWS = (
    Law(
        "decay: none",
        "a log decay of zero changes nothing",
        no_decay,
        (*_DECAY, _optional("log_decay")),
        SIZES,
        _with("log_decay"),
    ),
    Law("decay: first", "a key is decayed by the tokens after it", first_decay, _DECAY, SIZES, _with("log_decay")),
    Law("decay: reset", "minus infinity starts anew", reset, _DECAY, SIZES, _with("log_decay")),
    Law(
        "decay: state",
        "a reset forgets a carried state",
        reset_of_a_state,
        (*_DECAY, taking("state")),
        SIZES[:1],
        _with("log_decay"),
        least_length=2,
    ),
    Law(
        "decay: strong",
        "strong decay is finite and right",
        strong,
        _DECAY,
        (STRONG,),
        _with("log_decay", "-4", "-40", "-0.01 then -1000"),
    ),
    Law(
        "value gate",
        "a value gate multiplies the values",
        value_gate,
        (taking("value_gate"),),
        SIZES[::2],
        _with("value_gate"),
    ),
    Law(
        "output gate",
        "an output gate is of its own row",
        output_gate,
        (taking("output_gate"), _placed),
        SIZES[:1],
        _with("output_gate"),
    ),
)
