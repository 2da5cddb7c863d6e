"""One function: a target agrees with the mechanism it claims to be, and its forms with each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from maclaurin.verify.compare import Gap, Tolerance, close, close_gradients
from maclaurin.verify.inputs import Inputs, Sizes
from maclaurin.verify.law import GROUPED, PRIMES, Law, another_form, capable, claiming, differentiable, taking
from maclaurin.verify.subject import Case, Subject, Trial, both_directions, gradients, plain
from maclaurin.verify.tree import as_leaves, copied

LENGTHS = tuple(Sizes(batch=1, heads=2, queries=each, key_dim=3, value_dim=4) for each in (1, 2, 63, 64, 65, 127, 130))
WIDTHS = tuple(Sizes(batch=1, heads=2, queries=9, key_dim=each, value_dim=3) for each in (1, 3, 8, 17))
SHAPES = (
    PRIMES,
    Sizes(batch=3, heads=5, queries=11, key_dim=2, value_dim=1),
    Sizes(batch=2, heads=5, queries=5, key_dim=3, value_dim=4),  # T == H
    Sizes(batch=4, heads=4, queries=4, key_dim=4, value_dim=4),  # nothing to tell the axes apart by
    Sizes(batch=1, heads=1, queries=7, key_dim=4, value_dim=4),
)
OTHER_LENGTHS = (
    Sizes(batch=2, heads=3, queries=5, keys=12, key_dim=3, value_dim=4),
    Sizes(batch=2, heads=3, queries=12, keys=5, key_dim=3, value_dim=4),
    Sizes(batch=1, heads=2, queries=1, keys=9, key_dim=3, value_dim=4),
    Sizes(batch=1, heads=2, queries=40, keys=90, key_dim=3, value_dim=4),
)
GROUPS = (GROUPED, Sizes(batch=1, heads=8, queries=9, key_dim=3, value_dim=4, kv_heads=1), replace(GROUPED, queries=66))
LONG = (
    *(Sizes(batch=2, heads=1, queries=each, key_dim=4, value_dim=3) for each in (16, 32, 128, 256)),
    Sizes(batch=1, heads=2, queries=257, key_dim=3, value_dim=4),
    Sizes(batch=1, heads=1, queries=1025, key_dim=2, value_dim=4),
)
#: Logits of about 50 are known to 50 * 1.1e-16, which exp and high powers multiply.
LARGE = Tolerance(1e-9, "float64; a logit of 50 is known to 50 * 1.1e-16, and its exp or power to so much more")


def agrees(trial: Trial) -> Iterator[Gap]:
    """Values and gradients are those of ``attend(like, method="parallel")``."""
    yield from compare(trial, trial.inputs)
    other = trial.another(1)
    with torch.no_grad():  # the same sizes once more: nothing of an earlier call is remembered
        expected = trial.oracle(other)
        keep = trial.keep(expected, other)
        yield close("output of other inputs", trial.run(other).output * keep, expected * keep, trial.rtol)


def compare(trial: Trial, inputs: Inputs, *, tolerance: Tolerance | None = None, floor: float = 1e-3) -> Iterator[Gap]:
    """The two comparisons of ``agrees`` on given inputs; ``floor`` of :func:`close_gradients`."""
    tolerance = tolerance or trial.rtol
    tolerance = trial.rtol if trial.rtol.value > tolerance.value else tolerance
    mine, theirs = inputs.leaves(), inputs.leaves()
    expected = trial.oracle(theirs)
    actual = trial.run(mine).output
    keep = trial.keep(expected, inputs)
    yield close("output", actual * keep, expected * keep, tolerance)
    if trial.subject.target.has_gradients:
        found, wanted = (
            gradients(out, leaves.tensors, 3, keep) for out, leaves in ((actual, mine), (expected, theirs))
        )
        yield from close_gradients("gradient", found, wanted, tolerance, floor=floor)


def values_agree(trial: Trial) -> Iterator[Gap]:
    """Values alone, where sequences are long."""
    with torch.no_grad():
        expected = trial.oracle(trial.inputs)
        keep = trial.keep(expected, trial.inputs)
        yield close("output", trial.run(trial.inputs).output * keep, expected * keep, trial.rtol)


def large_logits_agree(trial: Trial) -> Iterator[Gap]:
    """Values at large logits, where a silent clamp or a missing stabilizer shows."""
    inputs = trial.inputs
    logit = inputs["query"].norm(dim=-1).amax() * inputs["key"].norm(dim=-1).amax() * trial.sizes.key_dim**-0.5
    factor = float(trial.case.detail) / float(logit)
    inputs = inputs.map(lambda each: each * factor, ["query"])
    with torch.no_grad():
        expected = trial.oracle(inputs)
        if not bool(expected.isfinite().all()):
            return  # without a denominator the value itself is beyond float64
        keep = trial.keep(expected, inputs)
        tolerance = trial.rtol if trial.rtol.value > LARGE.value else LARGE
        yield close("output", trial.run(inputs).output * keep, expected * keep, tolerance)


def zeros_agree(trial: Trial) -> Iterator[Gap]:
    """Values where a query or a key is the zero vector."""
    query, key = trial.inputs["query"].clone(), trial.inputs["key"].clone()
    query[:, :, -1] = 0.0
    key[:, :, 0] = 0.0
    inputs = trial.inputs.having(query=query, key=key)
    with torch.no_grad():
        expected = trial.oracle(inputs)
        keep = trial.keep(expected, inputs)
        yield close("output", trial.run(inputs).output * keep, expected * keep, trial.rtol)


def forms_agree(trial: Trial) -> Iterator[Gap]:
    """Values and gradients of two forms are equal, whatever the direction, mask and scale."""
    first = trial.subject.forms[0]
    if trial.sizes.queries > 40 and "scale" in trial.case.keywords:
        return  # scales are the same at every length
    mine, theirs = trial.inputs.leaves(), trial.inputs.leaves()
    expected = trial.run(theirs, form=first).output
    actual = trial.run(mine).output
    keep = trial.keep(expected, trial.inputs)
    yield close("output", actual * keep, expected * keep, trial.rtol)
    if trial.subject.target.has_gradients:
        found, wanted = (
            gradients(out, leaves.tensors, 3, keep) for out, leaves in ((actual, mine), (expected, theirs))
        )
        yield from close_gradients("gradient", found, wanted, trial.rtol)


def forms_continue(trial: Trial) -> Iterator[Gap]:
    """A state made by either form continues in the other: output, next state, gradient of the carried state."""
    subject, inputs, first = trial.subject, trial.inputs, trial.subject.forms[0]
    cut = max(1, inputs.length // 3)
    past, rest = inputs.times(0, cut), inputs.times(cut)
    states = {each.name: copied(trial.run(past, form=each, return_state=True).state) for each in (first, subject.form)}
    for name, state in states.items():
        outcomes: list[tuple[Tensor, dict[str, Tensor], Tensor]] = []
        for form in (first, subject.form):
            carried, leaves = as_leaves(state)
            fresh = rest.leaves()
            result = trial.run(fresh, form=form, state=carried, return_state=True)
            named = {**fresh.tensors, **{f"state tensor {i}": each for i, each in enumerate(leaves)}}
            after = trial.run(past, form=first, state=copied(result.state)).output
            found = gradients(result.output, named, 4) if subject.target.has_gradients else {}
            outcomes.append((result.output, found, after))
        (expected, wanted, last), (actual, found, after) = outcomes
        yield close(f"output from the state of {name}", actual, expected, trial.rtol)
        yield close(f"output after the state of {name} went on", after, last, trial.rtol)
        yield from close_gradients(f"gradient from the state of {name}", found, wanted, trial.rtol)


def _shared(subject: Subject) -> Iterator[Case]:
    """Both directions, and scales, as far as the first form takes them too."""
    cases = [*both_directions(subject)]
    if subject.takes("scale"):
        cases += [Case(subject.given, {"scale": each}) for each in (1.0, 0.1, 0.0, -1.0)]
    first = subject.forms[0]
    for case in cases:
        defaults = {} if "is_causal" in first.accepted else {"is_causal": subject.target.is_causal}
        shared = {name: each for name, each in case.keywords.items() if name not in defaults or defaults[name] != each}
        if {*case.operands, *shared} <= first.accepted:
            yield case


def _shared_states(subject: Subject) -> Iterator[Case]:
    if "state" in subject.forms[0].accepted:
        yield from (case for case in plain(subject) if {*case.operands} <= subject.forms[0].accepted)


def _large(subject: Subject) -> Iterator[Case]:
    """Logits of 50; for exp, which no state of moments cancels in, also of 800."""
    is_exponential = subject.like is not None and not subject.like.similarity.is_finite_state
    for operands in subject.settings():
        yield from (Case(operands, detail=each) for each in (("50", "800") if is_exponential else ("50",)))


def _chunks(subject: Subject) -> Iterator[Case]:
    for operands in subject.settings():
        for size in (1, 16, 64, 200):
            yield Case(operands, {"chunk_size": size})


def chunks_agree(trial: Trial) -> Iterator[Gap]:
    """Every chunk size gives the output and gradients of the default one."""
    if trial.sizes.queries > 40 and trial.case.keywords["chunk_size"] == 1:
        return  # slow
    mine, theirs = trial.inputs.leaves(), trial.inputs.leaves()
    expected, actual = trial.run(theirs, chunk_size=None).output, trial.run(mine).output
    keep = trial.keep(expected, trial.inputs)
    yield close("output", actual * keep, expected * keep, trial.rtol)
    if trial.subject.target.has_gradients:
        found, wanted = (
            gradients(out, leaves.tensors, 3, keep) for out, leaves in ((actual, mine), (expected, theirs))
        )
        yield from close_gradients("gradient", found, wanted, trial.rtol)


LAWS = (
    Law(
        "like: shapes",
        "values and gradients are those of the mechanism it claims to be",
        agrees,
        needs=(claiming,),
        grid=SHAPES,
        cases=both_directions,
    ),
    Law("like: lengths", "so at every length", agrees, needs=(claiming,), grid=LENGTHS, cases=plain, is_fitted=False),
    Law("like: widths", "so at every key dim", agrees, needs=(claiming,), grid=WIDTHS, is_fitted=False),
    Law(
        "like: T != S",
        "so with more keys than queries, and fewer",
        agrees,
        needs=(claiming, capable("T != S")),
        grid=OTHER_LENGTHS,
        cases=both_directions,
    ),
    Law(
        "like: grouped heads",
        "query head h reads key/value head h // (H / Hkv)",
        agrees,
        needs=(claiming, capable("grouped heads")),
        grid=GROUPS,
        cases=both_directions,
    ),
    Law("like: long", "so on long sequences", values_agree, needs=(claiming,), grid=LONG),
    Law("like: large logits", "so at logits of 50, exp at 800", large_logits_agree, (claiming,), (PRIMES,), _large),
    Law("like: zero vectors", "so where a query or key is zero", zeros_agree, (claiming,), SHAPES[1:2]),
    Law(
        "forms: agree",
        "every form gives the values and gradients of the first",
        forms_agree,
        needs=(another_form,),
        grid=(PRIMES, LENGTHS[-1]),
        cases=_shared,
    ),
    Law(
        "forms: continue",
        "a state made by one form goes on in another",
        forms_continue,
        needs=(another_form, taking("state"), differentiable),
        grid=(PRIMES,),
        cases=_shared_states,
        least_length=2,
    ),
    Law(
        "chunk size",
        "a chunk size changes nothing",
        chunks_agree,
        needs=(taking("chunk_size"),),
        grid=(PRIMES, LENGTHS[-1]),
        cases=_chunks,
    ),
)
