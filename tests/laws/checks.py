"""The laws that hang on ``merge``, as functions that raise ``AssertionError``: tests call them, one breaks them.

Dimension key: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from laws.cases import Inputs, is_signed_sum, like
from laws.compare import assert_close
from maclaurin import Accumulator, Mechanism, State, attend
from maclaurin.algebra import Power
from maclaurin.evaluate import parallel, recurrent
from maclaurin.evaluate.block import logits, mean_logit
from maclaurin.evaluate.problem import Options, Problem, pose

#: float64 rounding is 1.1e-16; sums of up to 126 monomials over 37 keys, divided and differentiated, cost up to
#: three digits of it, and the rows of a signed sum that are kept (|Z| >= 1e-3 sum |w|) up to three more.
RTOL = 1e-12

_ACCUMULATE = {"parallel": parallel.accumulate, "recurrent": recurrent.accumulate}


@dataclass(frozen=True)
class Piece:
    """A stretch of queries and keys evaluated by one method, continuing from the state before it."""

    method: str
    queries: slice
    keys: slice


def whole(method: str) -> list[Piece]:
    """Everything at once."""
    return [Piece(method, slice(None), slice(None))]


def pieces(methods: Sequence[str], cuts: Sequence[int], *, is_causal: bool) -> list[Piece]:
    """Stretches between ``cuts``, each by its method. Bidirectional queries come last, when every key is there."""
    edges = [0, *cuts, None]
    keys = [slice(start, stop) for start, stop in pairwise(edges)]
    if is_causal:
        return [Piece(method, each, each) for method, each in zip(methods, keys, strict=True)]
    queries = [*[slice(0, 0)] * len(cuts), slice(None)]
    return [Piece(*each) for each in zip(methods, queries, keys, strict=True)]


def evaluate(
    mechanism: Mechanism, inputs: Inputs, plan: Sequence[Piece], *, is_causal: bool, state: State | None = None
) -> tuple[Tensor, State]:
    """Output and final state of the plan."""
    outputs = []
    for piece in plan:
        part = inputs.part(piece.queries, piece.keys)
        result = attend(
            mechanism,
            *part.qkv,
            **part.learned,
            method=piece.method,
            is_causal=is_causal,
            state=state,
            return_state=True,
        )
        outputs.append(result.output)
        state = result.state
    assert state is not None
    return torch.cat(outputs, dim=2), state


def problem_of(mechanism: Mechanism, inputs: Inputs, *, is_causal: bool, state: State | None = None) -> Problem:
    """The call, checked and brought to one form."""
    given = {"length_exponent": None, "norm_weight": None, "norm_bias": None, **inputs.learned}
    return pose(mechanism, *inputs.qkv, Options(is_causal=is_causal, scale=None, mask=None, state=state, **given))


def accumulate(
    mechanism: Mechanism, inputs: Inputs, plan: Sequence[Piece], *, is_causal: bool
) -> tuple[Tensor, Tensor | None]:
    """Numerator and denominator in true scale, joined over the plan's pieces."""
    state, numerators, denominators = None, [], []
    for piece in plan:
        problem = problem_of(mechanism, inputs.part(piece.queries, piece.keys), is_causal=is_causal, state=state)
        accumulator, state = _ACCUMULATE[piece.method](problem, return_state=True)
        numerators.append(accumulator.numerator * accumulator.log_scale.exp()[..., None])
        if accumulator.denominator is not None:
            denominators.append(accumulator.true_denominator)
    return torch.cat(numerators, dim=3), torch.cat(denominators, dim=3) if denominators else None


def magnitudes(mechanism: Mechanism, inputs: Inputs, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    """(sum |w| |v| ``[B, H, G, T, V]``, sum |w| ``[B, H, G, T]``): what rounding errors of signed sums relate to."""
    problem = problem_of(mechanism, inputs, is_causal=is_causal)
    similarity = mechanism.similarity
    x, visible = logits(problem.query, problem.key, problem.scale), problem.visible
    center = mean_logit(x, visible) if similarity.is_centered else None
    weights, log_scale = similarity.weigh(x, visible, center)
    weights = weights.abs() * log_scale.exp()[..., None]
    return weights @ problem.value.abs()[:, :, None], weights.sum(-1)


def well_conditioned_rows(mechanism: Mechanism, inputs: Inputs, *, is_causal: bool) -> Tensor:
    """``[B, H, T, 1]``, 1 where the output is no quotient by a nearly vanishing sum.

    For signed weights that is |Z| >= 1e-3 sum |w|; weights of one sign are compared on every row. An odd power of
    nearly orthogonal vectors is besides a nearly vanishing sum of monomials: there, |Z| >= 1e-3 sum (scale |q| |k|)^p.
    """
    function = mechanism.similarity.function
    if not is_signed_sum(mechanism):
        return torch.ones_like(inputs.query[..., :1])
    _, denominator = accumulate(mechanism, inputs, whole("parallel"), is_causal=is_causal)
    assert denominator is not None
    _, size = magnitudes(mechanism, inputs, is_causal=is_causal)
    if isinstance(function, Power) and function.exponent > 1:
        problem = problem_of(mechanism, inputs, is_causal=is_causal)
        lengths = problem.query.norm(dim=-1)[..., None] * problem.key.norm(dim=-1)[:, :, None, None]
        size = ((problem.scale * lengths) ** function.exponent * problem.visible).sum(-1)
    return (denominator.abs() >= 1e-3 * size).flatten(1, 2)[..., None].to(inputs.query.dtype)


def gradients(result: Tensor | Sequence[Tensor], leaves: Sequence[Tensor], seed: int) -> list[Tensor]:
    """Gradients of a random combination of ``result``; zeros where it does not depend on a leaf."""
    results = [result] if isinstance(result, Tensor) else list(result)
    total = sum((each * like(each, seed + i)).sum() for i, each in enumerate(results))
    assert isinstance(total, Tensor)
    if not total.requires_grad:
        return [torch.zeros_like(each) for each in leaves]
    found = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]


def differentiable(state: State) -> list[Tensor]:
    """The state's tensors that carry gradients: sums and cached keys and values."""
    fixed = getattr(state, "key_reference", None)
    return [each for each in state.tensors() if each.is_floating_point() and each is not fixed]


def check_plans_agree(
    mechanism: Mechanism,
    inputs: Inputs,
    reference: Sequence[Piece],
    other: Sequence[Piece],
    *,
    is_causal: bool,
    state: State | None = None,
) -> None:
    """Two bracketings of one sum agree in output, final state, and the gradients of both.

    Args:
        mechanism: what is evaluated.
        inputs: the whole call.
        reference: the plan taken as right.
        other: the plan to compare.
        is_causal: direction.
        state: a carried state; gradients are taken for its tensors too.
    """
    keep = well_conditioned_rows(mechanism, inputs, is_causal=is_causal) if state is None else 1.0
    results = []
    for plan in (reference, other):
        leaves = inputs.leaves()
        start, carried = state, []
        if state is not None:
            fixed = getattr(state, "key_reference", None)
            start = state.map_tensors(
                lambda each, fixed=fixed: (
                    each.clone().requires_grad_() if each.is_floating_point() and each is not fixed else each
                )
            )
            carried = differentiable(start)
        output, final = evaluate(mechanism, leaves, plan, is_causal=is_causal, state=start)
        wrt = [*leaves.tensors(), *carried]
        after = differentiable(final)
        results.append((output * keep, final, gradients(output * keep, wrt, 1), gradients(after, wrt, 2)))
    (expected, expected_state, *expected_grads), (actual, actual_state, *actual_grads) = results
    assert_close(actual, expected, rtol=RTOL, what="output")
    for i, pair in enumerate(zip(actual_state.tensors(), expected_state.tensors(), strict=True)):
        assert_close(*pair, rtol=RTOL, what=f"state tensor {i}")
    for of, actual_set, expected_set in zip(("output", "state"), actual_grads, expected_grads, strict=True):
        for i, pair in enumerate(zip(actual_set, expected_set, strict=True)):
            assert_close(*pair, rtol=RTOL, what=f"gradient {i} of the {of}")
    if is_signed_sum(mechanism) and state is None:
        _check_sums_agree(mechanism, inputs, reference, other, is_causal=is_causal)


def _check_sums_agree(
    mechanism: Mechanism, inputs: Inputs, reference: Sequence[Piece], other: Sequence[Piece], *, is_causal: bool
) -> None:
    """Numerator and denominator, on every row, relative to the sums without signs."""
    expected = accumulate(mechanism, inputs, reference, is_causal=is_causal)
    actual = accumulate(mechanism, inputs, other, is_causal=is_causal)
    scales = magnitudes(mechanism, inputs, is_causal=is_causal)
    for name, a, b, scale in zip(("numerator", "denominator"), actual, expected, scales, strict=True):
        assert a is not None and b is not None
        assert_close(a, b, rtol=RTOL, scale=scale.max(), what=name)


def check_accumulators_merge(mechanism: Mechanism, inputs: Inputs, cuts: tuple[int, int]) -> None:
    """Accumulators of three stretches of keys: associative, commutative, and equal to that of all of them."""
    problem = problem_of(mechanism, inputs, is_causal=False)
    similarity = mechanism.similarity
    x = logits(problem.query, problem.key, problem.scale)
    center = mean_logit(x, problem.visible) if similarity.is_centered else None

    def over(start: int | None, stop: int | None) -> Accumulator:
        visible = problem.visible[..., start:stop]
        weights, log_scale = similarity.weigh(x[..., start:stop], visible, center)
        return Accumulator.from_weights(weights, problem.value[:, :, None, start:stop], visible, log_scale)

    a, b, c, everything = over(None, cuts[0]), over(*cuts), over(cuts[1], None), over(None, None)
    nothing = over(0, 0)
    weight, size = magnitudes(mechanism, inputs, is_causal=False)

    def same(actual: Accumulator, expected: Accumulator, what: str) -> None:
        for name, scale in (("numerator", weight), ("denominator", size), ("count", None)):
            pair = [getattr(each, name) for each in (actual, expected)]
            if name != "count":
                pair = [
                    t * (each.log_scale.exp() if t.ndim < 5 else each.log_scale.exp()[..., None])
                    for t, each in zip(pair, (actual, expected), strict=True)
                ]
            assert_close(*pair, rtol=RTOL, scale=None if scale is None else scale.max(), what=f"{what}: {name}")

    same(a.merge(b).merge(c), everything, "left to right")
    same(a.merge(b.merge(c)), everything, "right to left")
    same(c.merge(a).merge(b), everything, "another order")
    same(everything.merge(nothing), everything, "nothing on the right")
    same(nothing.merge(everything), everything, "nothing on the left")


def state_of(mechanism: Mechanism, inputs: Inputs, keys: slice, *, reference: Tensor | None = None) -> State:
    """The state of a stretch of keys alone, about a key reference if given."""
    batch, heads, _, key_dim = inputs.key.shape
    state = State.empty(
        mechanism,
        batch_size=batch,
        num_kv_heads=heads,
        key_dim=key_dim,
        value_dim=inputs.value.shape[-1],
        dtype=inputs.key.dtype,
        key_reference=reference,
    )
    key = mechanism.similarity.map(inputs.key[:, :, keys])
    return state.absorb(key, inputs.value[:, :, keys], None)


def check_states_merge(mechanism: Mechanism, inputs: Inputs, cuts: tuple[int, int], *, own_references: bool) -> None:
    """States of three stretches of keys: associative, commutative, and equal to that of all of them.

    Args:
        mechanism: what the states belong to.
        inputs: whose keys and values are absorbed.
        cuts: where the stretches end.
        own_references: give each stretch its own first key as key reference, otherwise all the same one.
    """
    reference = None
    if not own_references and mechanism.similarity.is_centered and mechanism.is_finite_state:
        reference = mechanism.similarity.map(inputs.key[:, :, 3])
    a, b, c, everything, nothing = (
        state_of(mechanism, inputs, slice(start, stop), reference=reference)
        for start, stop in ((None, cuts[0]), cuts, (cuts[1], None), (None, None), (0, 0))
    )

    def same(actual: State, what: str) -> None:
        if getattr(everything, "key_reference", None) is not None:
            actual = actual.rebase(everything.key_reference)
        for i, pair in enumerate(zip(actual.tensors(), everything.tensors(), strict=True)):
            assert_close(*pair, rtol=RTOL, what=f"{what}: tensor {i}")

    same(a.merge(b).merge(c), "left to right")
    same(a.merge(b.merge(c)), "right to left")
    same(everything.merge(nothing), "nothing on the right")
    same(nothing.merge(everything), "nothing on the left")
    if mechanism.is_finite_state:
        same(c.merge(a).merge(b), "another order")
    else:  # a cache keeps the order in which keys came; what it answers does not depend on it
        query = problem_of(mechanism, inputs, is_causal=False).query
        one, other = (each.read(query, 0.5) for each in (c.merge(a).merge(b), everything))
        assert_close(one.numerator, other.numerator, rtol=RTOL, what="another order: numerator")
