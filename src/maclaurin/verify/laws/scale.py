"""One scale means one thing: on the logits, once, 0 and negative ones included."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from maclaurin.verify.compare import Gap, Tolerance, close
from maclaurin.verify.inputs import Inputs, Sizes
from maclaurin.verify.law import Law, claiming, taking
from maclaurin.verify.laws.agreement import compare
from maclaurin.verify.subject import Case, Subject, Trial

SIZES = (Sizes(batch=2, heads=3, queries=11, key_dim=5, value_dim=7), Sizes(1, 2, 66, 3, 4))
SCALES = (1.0, 0.1, -1.0, 0.0)
CONTINUOUS = Tolerance(1e-6, "a scale of 1e-9 moves the output by about 1e-9 of it")


def like_scaled(trial: Trial) -> Iterator[Gap]:
    """At every scale values and gradients are those of the mechanism it claims to be."""
    yield from compare(trial, trial.inputs)


def default(trial: Trial) -> Iterator[Gap]:
    """Without a scale it is K ** -0.5, or 1 for a map of its own."""
    with torch.no_grad():
        output = trial.run(trial.inputs).output
        keep = trial.keep(output, trial.inputs)
        gaps = [
            close("output without a scale and with K ** -0.5 or 1", output * keep, each * keep, trial.rtol)
            for each in (trial.run(trial.inputs, scale=scale).output for scale in (trial.sizes.key_dim**-0.5, 1.0))
        ]
        yield min(gaps, key=lambda each: each.deviation)
        given = trial.run(trial.inputs, scale=torch.tensor(0.25).item()).output
        yield close("output at 0.25 twice", trial.run(trial.inputs, scale=0.25).output, given, trial.rtol)


def at_zero(trial: Trial) -> Iterator[Gap]:
    """A scale of 0 is the limit of small ones, and not the default; unless scales cancel."""
    with torch.no_grad():
        zero, tiny, small, twice = (trial.run(trial.inputs, scale=each).output for each in (0.0, 1e-9, 1e-3, 2e-3))
    size = float(trial.inputs["value"].abs().max())
    if float((small - twice).abs().max()) > 1e-6 * size:
        yield close("output at scale 0 and 1e-9", zero, tiny, CONTINUOUS, floor=size)


def on_the_query(trial: Trial) -> Iterator[Gap]:
    """If only the products of query and key matter, a scale is a factor of the query."""
    inputs = trial.inputs
    with torch.no_grad():
        output = trial.run(inputs).output
        turned = inputs.map(lambda each: 2.0 * each, ["query"]).map(lambda each: 0.5 * each, ["key"])
        if not torch.allclose(output, trial.run(turned).output, rtol=1e-9, atol=1e-12):
            return
        unit = trial.run(inputs, scale=1.0).output
        if torch.allclose(output, unit, rtol=1e-9, atol=1e-12):
            return  # scales cancel, or are not for the logits of this map
        for scale in (0.3, 2.0):
            one = trial.run(inputs, scale=scale).output
            other = trial.run(_scaled(inputs, scale), scale=1.0).output
            keep = trial.keep(other, inputs)
            yield close(f"output at scale {scale} and of {scale} * query at 1", one * keep, other * keep, trial.rtol)


def _scaled(inputs: Inputs, factor: float) -> Inputs:
    return inputs.map(lambda each: factor * each, ["query"])


def _scales(subject: Subject) -> Iterator[Case]:
    for operands in subject.settings():
        for scale in SCALES:
            yield Case(operands, {"scale": scale})


def scale_and_pieces(trial: Trial) -> Iterator[Gap]:
    """A scale means the same for a carried state."""
    cut = max(1, trial.inputs.length // 2)
    with torch.no_grad():
        whole = trial.run(trial.inputs).output[:, :, cut:]
        state = trial.run(trial.inputs.times(0, cut), return_state=True).state
        rest = trial.run(trial.inputs.times(cut), state=state).output
    keep = trial.keep(whole, trial.inputs)
    yield close("output after a state", rest * keep, whole * keep, trial.rtol)


_NEEDS = (taking("scale"),)
LAWS = (
    Law("like: scale", "a scale multiplies the logits once", like_scaled, (claiming, *_NEEDS), SIZES, _scales),
    Law("scale: default", "no scale means K ** -0.5, or 1", default, _NEEDS, SIZES[:1]),
    Law("scale: zero", "a scale of 0 is a scale", at_zero, _NEEDS, SIZES[:1]),
    Law("scale: query", "a scale is a factor of the query where only products matter", on_the_query, _NEEDS, SIZES[:1]),
    Law(
        "scale: state",
        "a scale means the same after a state",
        scale_and_pieces,
        (taking("scale", "state"),),
        SIZES[:1],
        _scales,
        least_length=2,
    ),
)
