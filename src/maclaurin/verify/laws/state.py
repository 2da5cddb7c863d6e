"""A state is all that is left of the past, and enough."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from maclaurin.evaluate import State
from maclaurin.verify.compare import Gap, close, close_gradients, holds, same
from maclaurin.verify.inputs import Inputs, Sizes
from maclaurin.verify.law import GROUPED, PRIMES, Law, causal, taking
from maclaurin.verify.subject import Case, Subject, Trial, gradients, plain
from maclaurin.verify.tree import copied, nbytes, tensors_of, through_disk

SIZES = (PRIMES, GROUPED, Sizes(batch=1, heads=2, queries=130, key_dim=3, value_dim=4))


def _cuts(length: int) -> list[int]:
    """Prefill, a chunk that is no power of two, three single tokens, another chunk, the rest."""
    wanted = [0, length // 3, length // 3 + 5, *range(length // 2, length // 2 + 4), length - 2, length]
    return sorted({each for each in wanted if 0 <= each <= length})


def pieces(trial: Trial, inputs: Inputs, *, through: Any = None, **keywords: Any) -> tuple[list[Tensor], Any]:
    """Outputs of the pieces of a sequence, each continuing from the state before it, and the last state."""
    state, outputs = None, []
    for start, stop in pairwise(_cuts(inputs.length)):
        more = {"state": state} if state is not None else {}
        if "mask" in keywords:
            more["mask"] = keywords["mask"][:, start:stop]
        result = trial.run(inputs.times(start, stop), return_state=True, **more)
        state = result.state if through is None else through(result.state)
        outputs.append(result.output)
    return outputs, state


def splits(trial: Trial) -> Iterator[Gap]:
    """Prefill, chunks and single tokens give the whole: values, gradients through the states, and the next state."""
    if "chunk_size" in trial.case.keywords and trial.sizes.queries > 40:
        return  # chunks of one token are slow
    mine, theirs = trial.inputs.leaves(), trial.inputs.leaves()
    whole = trial.run(theirs, return_state=True)
    outputs, state = pieces(trial, mine)
    output = torch.cat(outputs, dim=2)
    keep = trial.keep(whole.output, trial.inputs)
    yield close("output of the pieces", output * keep, whole.output * keep, trial.rtol)
    if trial.subject.target.has_gradients:
        found, wanted = gradients(output, mine.tensors, 2, keep), gradients(whole.output, theirs.tensors, 2, keep)
        yield from close_gradients("gradient through the states", found, wanted, trial.rtol)
    more = trial.another(9).times(0, 3 * trial.subject.limits.lengths)
    with torch.no_grad():
        one, other = (trial.run(more, state=copied(each)).output for each in (state, whole.state))
        after = trial.run(trial.inputs.joined(more)).output[:, :, trial.inputs.length :]
    keep = trial.keep(after, more)
    yield close("output after the pieces", one * keep, after * keep, trial.rtol)
    yield close("output after the whole", other * keep, after * keep, trial.rtol)


def only_the_state(trial: Trial) -> Iterator[Gap]:
    """States that went through a file continue, with other calls in between: nothing else is remembered."""
    noise = trial.another(7)

    def through(state: Any) -> Any:
        saved = through_disk(state)
        trial.run(noise)
        trial.run(noise.times(0, 2 * trial.subject.limits.lengths), return_state=True)
        return saved

    with torch.no_grad():
        outputs, _ = pieces(trial, trial.inputs, through=through)
        whole = trial.run(trial.inputs).output
    keep = trial.keep(whole, trial.inputs)
    yield close("output", torch.cat(outputs, dim=2) * keep, whole * keep, trial.rtol)


def both_ways(trial: Trial) -> Iterator[Gap]:
    """Without ``is_causal`` queries see every key of the state and every new one."""
    cut = max(1, trial.inputs.length // 2)
    past, rest = trial.inputs.times(0, cut), trial.inputs.times(cut)
    with torch.no_grad():
        state = trial.run(past, is_causal=True, return_state=True).state
        actual = trial.run(rest, is_causal=False, state=state).output
        expected = trial.run(trial.inputs, is_causal=False).output[:, :, cut:]
    keep = trial.keep(expected, trial.inputs)
    yield close("output", actual * keep, expected * keep, trial.rtol)


def untouched(trial: Trial) -> Iterator[Gap]:
    """A state may be used twice: it is not changed, and the second answer is the first's."""
    cut = max(1, trial.inputs.length // 2)
    past, rest, other = trial.inputs.times(0, cut), trial.inputs.times(cut), trial.another(5).times(cut)
    with torch.no_grad():
        state = trial.run(past, return_state=True).state
        before = [each.clone() for each in tensors_of(state)]
        first = trial.run(rest, state=state, return_state=True).output
        trial.run(other, state=state, return_state=True)
        trial.run(other.times(0, trial.subject.limits.lengths), state=state, return_state=True)
        for i, (kept, each) in enumerate(zip(before, tensors_of(state), strict=True)):
            yield same(f"state tensor {i} after it was used", each.double(), kept.double())
        yield same("output when the state is used again", trial.run(rest, state=state, return_state=True).output, first)
        plain_output = trial.run(past, return_state=False).output
        yield close("output with return_state", trial.run(past, return_state=True).output, plain_output, trial.rtol)


def comes_back(trial: Trial) -> Iterator[Gap]:
    """A state is returned when it is asked for, and holds tensors."""
    with torch.no_grad():
        state = trial.run(trial.inputs, return_state=True).state
    yield holds("a state with tensors came back", bool(tensors_of(state)))


def accounts(trial: Trial) -> Iterator[Gap]:
    """A finite state does not grow with the length, and says its own size truly."""
    like = trial.subject.like
    step = trial.subject.limits.lengths
    lengths = sorted({step * max(1, each // step) for each in (8, 24, 64)})
    with torch.no_grad():
        states = [trial.run(trial.another(1, queries=each), return_state=True).state for each in lengths]
    if like is not None and like.is_finite_state:
        for length, state in zip(lengths, states, strict=True):
            yield holds(
                f"{nbytes(state)} bytes after {length} tokens, {nbytes(states[0])} after {lengths[0]}",
                nbytes(state) == nbytes(states[0]),
            )
    for state in states:
        said = getattr(state, "nbytes", None)
        if isinstance(said, int) and not isinstance(state, Tensor):
            yield holds(f"nbytes says {said}, its tensors are {nbytes(state)}", said == nbytes(state))
        if isinstance(state, State) and state.mechanism.is_finite_state:
            per_head = state.mechanism.state_size(trial.sizes.key_dim, trial.sizes.value_dim)
            wanted = per_head * trial.sizes.batch * trial.sizes.of("h") * 8
            yield holds(f"{nbytes(state)} bytes, state_size says {wanted}", nbytes(state) == wanted)


def keeps_precision(trial: Trial) -> Iterator[Gap]:
    """Half-precision inputs leave sums in float32 or wider; float64 inputs in float64."""
    step = trial.subject.limits.lengths
    with torch.no_grad():
        short, long = (nbytes(trial.run(trial.another(1, queries=n * step), return_state=True).state) for n in (2, 3))
    is_cache = long > short  # of keys and values as they are, not of sums
    for dtype in (torch.bfloat16, torch.float16, torch.float64):
        narrow = {torch.bfloat16, torch.float16} | ({torch.float32} if dtype == torch.float64 else set())
        if is_cache if dtype != torch.float64 else trial.subject.limits.is_single:
            continue  # or said by the law of float64
        with torch.no_grad():
            state = trial.run(trial.inputs.to(dtype), return_state=True).state
        found = {each.dtype for each in tensors_of(state) if each.is_floating_point()} & narrow
        yield holds(f"from {dtype}: {', '.join(sorted(map(str, found))) or 'wide enough'}", not found)


def _chunked(subject: Subject) -> Iterator[Case]:
    yield from plain(subject)
    if subject.takes("chunk_size"):
        yield from (Case(subject.settings()[-1], {"chunk_size": each}) for each in (1, 16))


def _bidirectional(subject: Subject) -> Iterator[Case]:
    yield from (Case(each) for each in subject.settings() if False in subject.directions(each))


_STATE = (taking("state"), causal)
LAWS = (
    Law("state: returned", "a state comes back when asked for", comes_back, needs=_STATE),
    Law("state: splits", "any split of a sequence gives the same", splits, _STATE, SIZES, _chunked, least_length=2),
    Law("state: alone", "nothing but the state carries the past", only_the_state, needs=_STATE, least_length=2),
    Law("state: untouched", "using a state does not change it", untouched, needs=_STATE, least_length=2),
    Law(
        "state: both directions",
        "with is_causal=False queries see the state and every new key",
        both_ways,
        needs=(*_STATE, taking("is_causal")),
        cases=_bidirectional,
        least_length=2,
    ),
    Law("state: size", "a finite state does not grow, and says its size", accounts, needs=_STATE),
    Law("state: precision", "sums are kept in float32 or wider", keeps_precision, needs=_STATE),
)
