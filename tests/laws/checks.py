"""The laws that hang on ``merge``, as functions that raise ``AssertionError``: tests call them, one breaks them.

Everything goes through ``attend`` and ``State``: what is inside an evaluation is nobody's business here.

Dimension key: B batch, H heads, T queries, S keys, V value dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from laws.cases import Inputs, by, is_signed_sum, like
from laws.compare import assert_close
from maclaurin import Accumulator, Mechanism, State, attend
from maclaurin.algebra import Exp, Gates, NormalizerInputs, Power, Similarity, Sum, Unnormalized
from maclaurin.evaluate.block import accumulate_block, logits, mean_logit

#: float64 rounding is 1.1e-16; sums of up to 126 monomials over 37 keys, divided and differentiated, cost up to
#: three digits of it, and the rows of a signed sum that are kept (|Z| >= 1e-3 sum |w|) up to three more.
RTOL = 1e-12


@dataclass(frozen=True)
class Piece:
    """A stretch of queries and keys evaluated by one method, continuing from the state before it."""

    method: str
    queries: slice
    keys: slice
    chunk_size: int = 5


def whole(method: str, chunk_size: int = 5) -> list[Piece]:
    """Everything at once."""
    return [Piece(method, slice(None), slice(None), chunk_size)]


def pieces(methods: Sequence[str], cuts: Sequence[int], *, is_causal: bool) -> list[Piece]:
    """Stretches between ``cuts``, each by its method. Bidirectional queries come last, when every key is there."""
    edges = [0, *cuts, None]
    keys = [slice(start, stop) for start, stop in pairwise(edges)]
    if is_causal:
        return [Piece(method, each, each) for method, each in zip(methods, keys, strict=True)]
    queries = [*[slice(0, 0)] * len(cuts), slice(None)]
    return [Piece(*each) for each in zip(methods, queries, keys, strict=True)]


def evaluate(
    mechanism: Mechanism,
    inputs: Inputs,
    plan: Sequence[Piece],
    *,
    is_causal: bool,
    state: State | None = None,
    return_state: bool = True,
) -> tuple[Tensor, State | None]:
    """Output and final state of the plan."""
    outputs = []
    for piece in plan:
        part = inputs.part(piece.queries, piece.keys)
        result = attend(
            mechanism,
            *part.qkv,
            **part.operands,
            **by(piece.method, piece.chunk_size),
            is_causal=is_causal,
            state=state,
            return_state=return_state,
        )
        outputs.append(result.output)
        state = result.state
    return torch.cat(outputs, dim=2), state


# ------------------------------------------------------------------------------------------- what cannot be compared


@dataclass(frozen=True)
class Sums(Sum):
    """Not an output but what any output is made of: numerator, then denominator, in true scale, ``[..., V + 1]``."""

    signed: bool = True

    name: ClassVar[str] = "sums"

    def apply(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        assert accumulator.denominator is not None
        both = torch.cat([accumulator.numerator, accumulator.denominator[..., None]], dim=-1)
        return both * accumulator.log_scale.exp()[..., None]


def sums(
    mechanism: Mechanism, inputs: Inputs, plan: Sequence[Piece], *, is_causal: bool, state: State | None = None
) -> tuple[Tensor, Tensor]:
    """Numerator ``[B, H, T, V]`` and denominator ``[B, H, T]`` in true scale, whatever the normalizer."""
    bare = replace(mechanism, normalizer=Sums(), gates=replace(mechanism.gates, output=None))
    both, _ = evaluate(bare, inputs.of(bare), plan, is_causal=is_causal, state=state)
    return both[..., :-1], both[..., -1]


def weights(mechanism: Mechanism, inputs: Inputs, *, is_causal: bool) -> Tensor:
    """Every weight in true scale, ``[B, H, T, S]``, decay and far weight included: the sums over one-hot values."""
    bare = replace(mechanism, normalizer=Unnormalized(), gates=Gates(decay=mechanism.gates.decay))
    batch, heads, columns = inputs.key.shape[:3]
    one_hot = torch.eye(columns, dtype=inputs.value.dtype).expand(batch, heads, -1, -1)
    given = replace(inputs.of(bare), value=one_hot)
    return attend(bare, *given.qkv, **given.operands, method="parallel", is_causal=is_causal).output


def magnitudes(mechanism: Mechanism, inputs: Inputs, *, is_causal: bool) -> tuple[Tensor, Tensor]:
    """(sum |w| |i v| ``[B, H, T, V]``, sum |w| ``[B, H, T]``): what rounding errors of signed sums relate to."""
    size = weights(mechanism, inputs, is_causal=is_causal).abs()
    value = inputs.value if not mechanism.gates.value else inputs.value * inputs.operands["value_gate"][..., None]
    groups = inputs.query.shape[1] // inputs.key.shape[1]
    return size @ value.abs().repeat_interleave(groups, dim=1), size.sum(-1)


def well_conditioned_rows(mechanism: Mechanism, inputs: Inputs, *, is_causal: bool) -> Tensor:
    """``[B, H, T, 1]``, 1 where the output is no quotient by a nearly vanishing sum.

    For signed weights that is |Z| >= 1e-3 sum |w|; weights of one sign are compared on every row. An odd power of
    nearly orthogonal vectors is besides a nearly vanishing sum of monomials: there, |Z| >= 1e-3 sum (scale |q| |k|)^p.
    """
    function = mechanism.similarity.function
    if not is_signed_sum(mechanism):
        return torch.ones_like(inputs.query[..., :1])
    inputs = inputs.map(torch.Tensor.detach)
    _, denominator = sums(mechanism, inputs, whole("parallel"), is_causal=is_causal)
    size = weights(mechanism, inputs, is_causal=is_causal).abs()
    if isinstance(function, Power) and function.exponent > 1:
        aligned = replace(inputs, query=_along_first_axis(inputs.query), key=_along_first_axis(inputs.key))
        largest = weights(mechanism, aligned, is_causal=is_causal).abs()
        if mechanism.window is not None:  # what the window weighs is exp, and no sum of monomials
            near = replace(mechanism, similarity=Similarity(Exp()))
            largest = torch.where(weights(near, inputs, is_causal=is_causal) != 0, size, largest)
        size = largest
    return (denominator.abs() >= 1e-3 * size.sum(-1))[..., None].to(inputs.query.dtype)


def _along_first_axis(x: Tensor) -> Tensor:
    """Vectors of the same lengths, all of one direction."""
    return torch.cat([x.norm(dim=-1, keepdim=True), torch.zeros_like(x[..., 1:])], dim=-1)


# ------------------------------------------------------------------------------------------- states and gradients


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
    """The state's tensors that carry gradients: sums, cached keys and values, their log decays."""
    named = state.named_tensors()
    return [each for path, each in named.items() if each.is_floating_point() and not _is_fixed(path)]


def _is_fixed(path: str) -> bool:
    """A key reference is a constant, the number of filled slots a count."""
    return path.rpartition(".")[2] in ("key_reference", "filled")


def numbers(state: State) -> dict[str, Tensor]:
    """Every tensor of the state by its path, as a number that compares: logs that may be minus infinity as factors."""
    return {
        path: each.exp() if path.rpartition(".")[2] in ("log_weight", "log_denominator") else each
        for path, each in state.named_tensors().items()
    }


def moving_numbers(state: State) -> list[Tensor]:
    """Of those, the ones that may carry a gradient, whether or not they do."""
    return [each for path, each in numbers(state).items() if each.is_floating_point() and not _is_fixed(path)]


def assert_states_close(actual: State, expected: State, *, rtol: float = RTOL, what: str = "state") -> None:
    """Fail unless both hold the same tensors."""
    found, wanted = numbers(actual), numbers(expected)
    assert list(found) == list(wanted), f"{what}: {list(found)}, expected {list(wanted)}"
    for path, each in found.items():
        assert_close(each, wanted[path], rtol=rtol, what=f"{what}: {path}")


def _leaf_state(state: State) -> State:
    """The state with its differentiable tensors as fresh leaves."""
    moving = differentiable(state)
    return state.map_tensors(
        lambda each: each.detach().clone().requires_grad_() if any(each is other for other in moving) else each
    )


def check_plans_agree(
    mechanism: Mechanism,
    inputs: Inputs,
    reference: Sequence[Piece],
    *others: Sequence[Piece],
    is_causal: bool,
    state: State | None = None,
    return_state: bool = True,
) -> None:
    """Bracketings of one sum agree in output, final state, and the gradients of both.

    Args:
        mechanism: what is evaluated.
        inputs: the whole call.
        reference: the plan taken as right.
        others: the plans to compare.
        is_causal: direction.
        state: a carried state; gradients are taken for its tensors too.
        return_state: compare the final states, where the mechanism has one.
    """
    keep = well_conditioned_rows(mechanism, inputs, is_causal=is_causal) if state is None else 1.0
    results = []
    for plan in (reference, *others):
        leaves = inputs.leaves()
        start = None if state is None else _leaf_state(state)
        output, final = evaluate(mechanism, leaves, plan, is_causal=is_causal, state=start, return_state=return_state)
        wrt = [*leaves.tensors(), *([] if start is None else differentiable(start))]
        after = [] if final is None else moving_numbers(final)
        of_output = gradients(output * keep, wrt, 1)
        results.append((output * keep, final, of_output, gradients(after, wrt, 2) if after else []))
    expected, expected_state, *expected_grads = results[0]
    for plan, (actual, actual_state, *actual_grads) in zip(others, results[1:], strict=True):
        name = " ".join(piece.method for piece in plan)
        assert_close(actual, expected, rtol=RTOL, what=f"{name}: output")
        if expected_state is not None:
            assert actual_state is not None
            assert_states_close(actual_state, expected_state, what=f"{name}: state")
        for of, actual_set, expected_set in zip(("output", "state"), actual_grads, expected_grads, strict=True):
            for i, pair in enumerate(zip(actual_set, expected_set, strict=True)):
                assert_close(*pair, rtol=RTOL, what=f"{name}: gradient {i} of the {of}")
    if is_signed_sum(mechanism) and state is None:
        _check_sums_agree(mechanism, inputs, [reference, *others], is_causal=is_causal)


def _check_sums_agree(
    mechanism: Mechanism, inputs: Inputs, plans: Sequence[Sequence[Piece]], *, is_causal: bool
) -> None:
    """Numerator and denominator, on every row, relative to the sums without signs."""
    expected, *found = (sums(mechanism, inputs, plan, is_causal=is_causal) for plan in plans)
    scales = magnitudes(mechanism, inputs, is_causal=is_causal)
    for plan, actual in zip(plans[1:], found, strict=True):
        for name, a, b, scale in zip(("numerator", "denominator"), actual, expected, scales, strict=True):
            assert_close(a, b, rtol=RTOL, scale=scale.max(), what=f"{plan[0].method}: {name}")


# ------------------------------------------------------------------------------------------- merging


def check_accumulators_merge(mechanism: Mechanism, inputs: Inputs, cuts: tuple[int, int]) -> None:
    """Accumulators of three stretches of keys: associative, commutative, and equal to that of all of them."""
    similarity = mechanism.similarity
    groups = inputs.query.shape[1] // inputs.key.shape[1]
    query = similarity.map(inputs.query).unflatten(1, (-1, groups))
    x = logits(query, similarity.map(inputs.key), similarity.map.default_scale(inputs.key.shape[-1]))
    visible = torch.ones_like(x, dtype=torch.bool)
    decay = None
    if "log_decay" in inputs.operands:  # one factor per key, a reset among them
        decay = inputs.operands["log_decay"][:, :, None, None].expand(x.shape)
    center = mean_logit(x, visible, decay) if similarity.is_centered else None

    def over(start: int | None, stop: int | None) -> Accumulator:
        return accumulate_block(
            similarity,
            x[..., start:stop],
            inputs.value[:, :, start:stop],
            visible[..., start:stop],
            center_BHGT=center,
            log_decay=None if decay is None else decay[..., start:stop],
        )

    a, b, c, everything = over(None, cuts[0]), over(*cuts), over(cuts[1], None), over(None, None)
    nothing = over(0, 0)
    size, log_scale = similarity.weigh(x, visible, center, decay)
    size = size.abs() * log_scale.exp()[..., None]

    def same(actual: Accumulator, expected: Accumulator, what: str) -> None:
        scales = {"numerator": size @ inputs.value.abs()[:, :, None], "denominator": size.sum(-1), "count": None}
        for name, scale in scales.items():
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
    part = inputs.part(slice(0, 0), keys)
    after = attend(mechanism, *part.qkv, **part.operands, method="parallel", state=state, return_state=True).state
    assert after is not None
    return after


def total_decay(mechanism: Mechanism, inputs: Inputs, keys: slice) -> Tensor | None:
    """Sum of the log decays of a stretch of keys, ``[B, Hkv]``: what an earlier state decays by; None without decay."""
    return inputs.operands["log_decay"][:, :, keys].sum(-1) if mechanism.gates.decay else None


def answers(mechanism: Mechanism, inputs: Inputs, state: State) -> Tensor:
    """What every query gets from the state alone: no new key."""
    part = inputs.part(slice(None), slice(0, 0))
    return attend(mechanism, *part.qkv, **part.operands, method="parallel", state=state).output


def check_states_merge(mechanism: Mechanism, inputs: Inputs, cuts: tuple[int, int], *, own_references: bool) -> None:
    """States of three stretches of keys: associative and equal to that of all; commutative where time has no arrow.

    Args:
        mechanism: what the states belong to.
        inputs: whose keys and values are absorbed.
        cuts: where the stretches end.
        own_references: give each stretch its own first key as key reference, otherwise all the same one.
    """
    reference = None
    if not own_references and mechanism.far is not None and mechanism.far.is_centered:
        reference = mechanism.similarity.map(inputs.key[:, :, 3])
    parts = [slice(None, cuts[0]), slice(*cuts), slice(cuts[1], None), slice(None), slice(0, 0)]
    a, b, c, everything, nothing = (state_of(mechanism, inputs, each, reference=reference) for each in parts)
    by_b, by_c, by_all, by_nothing = (total_decay(mechanism, inputs, each) for each in parts[1:])
    by_bc = None if by_b is None or by_c is None else by_b + by_c

    def same(actual: State, what: str) -> None:
        if everything.key_reference is not None:
            actual = actual.rebase(everything.key_reference)
        assert_states_close(actual, everything, what=what)

    same(a.merge(b, by_b).merge(c, by_c), "left to right")
    same(a.merge(b.merge(c, by_c), by_bc), "right to left")
    same(everything.merge(nothing, by_nothing), "nothing on the right")
    same(nothing.merge(everything, by_all), "nothing on the left")
    if mechanism.gates.decay or mechanism.window is not None:
        return
    if mechanism.is_finite_state:
        same(c.merge(a).merge(b), "another order")
    else:  # a cache keeps the order in which keys came; what it answers does not depend on it
        one, other = (answers(mechanism, inputs, each) for each in (c.merge(a).merge(b), everything))
        assert_close(one, other, rtol=RTOL, what="another order: output")


#: ``kernel`` of attend: every path that a call may take.
KERNELS = ("torch", "auto")
#: Kernels multiply bfloat16 factors, as torch's own attention does: mapped keys and queries, weights, states and sums
#: are rounded once each, by up to 2^-9 of themselves. Found up to 1.1e-2 in outputs; gradients go through twice as
#: many roundings, up to 1.9e-2 (relu/sum, whose denominators may be small).
NARROW_BOUND = 2.0**-6


def bound_of(strict: float, dtype: torch.dtype, kernel: str, passes: int = 1) -> float:
    """What a result may be off by: ``strict``, but where a kernel may multiply in half precision."""
    return max(strict, passes * NARROW_BOUND) if dtype == torch.bfloat16 and kernel == "auto" else strict
