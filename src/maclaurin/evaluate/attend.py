"""``attend``: one door to every evaluation of every mechanism."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Mechanism
from maclaurin.algebra.catalogue import mechanism_of
from maclaurin.algebra.tracing import is_traced
from maclaurin.errors import ConfigError, MethodError, nearest
from maclaurin.evaluate.call import Call, Options
from maclaurin.evaluate.evaluations import EVALUATIONS, methods
from maclaurin.evaluate.packed import attend_packed
from maclaurin.evaluate.pairs import largest_logit
from maclaurin.evaluate.plan import choose, choose_for_compiler, ways_of
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.shape import Shape
from maclaurin.evaluate.state import State

_KERNELS = ("auto", "torch")


class Diagnostics(NamedTuple):
    """What the sums looked like, over every query that sees a key.

    Args:
        min_denominator: least Z in true scale; NaN for a normalizer that reads no denominator.
        negative_share: share of queries with Z < 0.
        max_logit: largest absolute logit of a new key that is visible.
    """

    min_denominator: float
    negative_share: float
    max_logit: float


class AttentionOutput(NamedTuple):
    """Output ``[B, H, T, V]`` in the inputs' dtype; state and diagnostics, or None where not asked for."""

    output: Tensor
    state: State | None
    diagnostics: Diagnostics | None


def attend(
    mechanism: Mechanism | str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    method: str = "auto",
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    log_decay: Tensor | None = None,
    value_gate: Tensor | None = None,
    output_gate: Tensor | None = None,
    denominator_logit: Tensor | None = None,
    length_exponent: Tensor | None = None,
    far_log_weight: Tensor | None = None,
    norm_weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    state: State | None = None,
    return_state: bool = False,
    return_diagnostics: bool = False,
    chunk_size: int | None = None,
    kernel: str = "auto",
) -> AttentionOutput:
    r"""Attention by any mechanism of the family, by any method, with equal results.

    .. math:: x_{ts} = \mathrm{scale} \langle \varphi(q_t), \varphi(k_s)\rangle, \quad
              w_{ts} = \kappa(x_{ts})\, e^{a_{s+1} + \dots + a_t}, \quad
              o_t = g_t\, N\Bigl(\sum_s w_{ts} i_s v_s, \sum_s w_{ts}, n_t\Bigr)

    Args:
        mechanism: a :class:`Mechanism`, its text such as ``"taylor:2/sum"``, or a catalogue name.
        query: ``[B, H, T, K]``.
        key: ``[B, Hkv, S, K]``, H a multiple of Hkv; query head h reads key/value head h // (H / Hkv).
        value: ``[B, Hkv, S, V]``.
        method: ``parallel`` (the reference, O(T S)), ``recurrent`` (token by token), ``chunked`` (O(T) for finite
            states), ``fused`` (softmax's kernels, for ``exp``), or ``auto``: recurrent for one query on a given state,
            parallel for a mask per pair or diagnostics, otherwise what is predicted to be fastest
            (:func:`maclaurin.explain` says what and why). An explicit method that cannot serve raises. All give equal
            results: float32 and float64 to rounding; where bfloat16 inputs carry no state, fast paths multiply
            bfloat16 factors and sum in float32, as torch's own attention does: off by about 2**-9 (4 + largest
            ``|x|``) of the largest output, and more under a norm of fewer than 8 value columns, where numerators
            cancel (outputs 2.5e-2, gradients 0.2 at V = 3). ``kernel="torch"`` multiplies float32.
        is_causal: query t sees key s only if s <= t + S - T (aligned to the end); keys of ``state`` always.
        scale: of the logits; None: K ** -0.5 for the identity map (and inside a window), 1 for others. 0 is a scale.
        mask: bool, True where a key may be seen: ``[B, S]`` over keys, or ``[B, 1 or H, T, S]`` (parallel and fused,
            without returned state). Applied together with ``is_causal``. Hidden keys and values may hold anything,
            NaN included. Queries standing on hidden positions lose what is not finite, or beyond 1e6, in them.
        cu_seqlens: bounds ``[N + 1]`` (int32 or int64, from 0 to T, never decreasing) of N documents that lie one after
            another in query, key, value and all that has their time; then B = 1, every document is attended to by
            itself, aligned to its own end, and a state has one row a document. Not together with ``mask``. One
            synchronization to read them; ``torch.compile`` breaks the graph there.
        cu_seqlens_k: the same bounds on the keys' time, from 0 to S; None: those of the queries.
        log_decay: ``[B, Hkv, S]``, for ``+decay``: the weight of key s for query t is multiplied by
            exp(a_{s+1} + ... + a_t). All <= 0; -inf is an exact reset. The first one decays a carried state; hidden
            positions decay nothing.
        value_gate: ``[B, Hkv, S]``, for ``+valuegate``: multiplies every value.
        output_gate: ``[B, H, T]`` or ``[B, H, T, V]``, for ``+outgate`` and ``+outgate:after``.
        denominator_logit: ``[B, Hkv, S]``, for ``cumgate``.
        length_exponent: ``[H]``, for ``length:learned``.
        far_log_weight: ``[H]``, for a window before a similarity that does not share its scale: log of a factor of
            every weight beyond the window.
        norm_weight: ``[V]`` or ``[H, V]``, for ``rms:weight`` and ``layer:weight``; None: ones.
        norm_bias: ``[V]`` or ``[H, V]``, for ``layer:bias``; None: zeros.
        state: what an earlier call returned, or ``State.empty``; gradients flow through it.
        return_state: also return the state after every key.
        return_diagnostics: also return :class:`Diagnostics` (parallel only).
        chunk_size: tokens at a time, for ``chunked`` and where ``fused`` goes in stretches; None: by the mechanism.
        kernel: ``auto``, or ``torch`` to keep to torch's public functions and to products as wide as their sums.

    Returns:
        :class:`AttentionOutput`. A query that sees no key gets zeros and gives zero gradients. Half-precision inputs
        are summed, and their states kept, in float32.

    Raises:
        GrammarError: a name or text that does not exist.
        MechanismError: a negative scale where it would make a denominator change sign.
        ShapeError: query, key, value or a learned tensor disagree (all shapes are printed).
        DtypeError: mixed dtypes or devices.
        MaskError: a mask that is not bool or has another shape.
        StateError: a state of another mechanism, shape or dtype.
        ConfigError: a scale that is not finite; a learned tensor that the normalizer does not read, or lacks.
        MethodError: a method that does not exist or cannot serve; those that can are named.

    Example:
        >>> q = k = v = torch.eye(3)[None, None]
        >>> attend("exp/sum", q, k, v, scale=0.0).output[0, 0]
        tensor([[1.0000, 0.0000, 0.0000],
                [0.5000, 0.5000, 0.0000],
                [0.3333, 0.3333, 0.3333]])

    Source: Mongaras & Larson, arXiv 2507.23632, section 3, for the recurrent form.
    """
    mechanism = mechanism_of(mechanism)
    operands = {
        "log_decay": log_decay,
        "value_gate": value_gate,
        "output_gate": output_gate,
        "denominator_logit": denominator_logit,
        "length_exponent": length_exponent,
        "far_log_weight": far_log_weight,
        "norm_weight": norm_weight,
        "norm_bias": norm_bias,
    }
    options = Options(is_causal, scale, mask, state, operands)
    evaluate = partial(_evaluate, mechanism, _How(method, return_state, return_diagnostics, chunk_size, kernel))
    with torch.autocast(query.device.type, enabled=False):
        if cu_seqlens is None and cu_seqlens_k is None:
            return evaluate(query, key, value, options)
        if return_diagnostics:
            raise MethodError(
                "attend: return_diagnostics was asked together with cu_seqlens, whose documents have no one answer.\n"
                "  Leave it out, or call attend once for each document that is of interest."
            )
        bounds = cu_seqlens, cu_seqlens_k
        return AttentionOutput(*attend_packed(evaluate, mechanism, (query, key, value), options, bounds), None)


class _How(NamedTuple):
    """The keywords of ``attend`` that change how a call is computed and what comes with its output."""

    method: str
    return_state: bool
    return_diagnostics: bool
    chunk_size: int | None
    kernel: str


def _evaluate(
    mechanism: Mechanism, how: _How, query: Tensor, key: Tensor, value: Tensor, options: Options
) -> AttentionOutput:
    """One batch."""
    call = Call.of(mechanism, query, key, value, options)
    if is_traced(query, key, value):
        chosen, ways = _choose_when_traced(call, how), []
    else:
        shape = call.shape(return_state=how.return_state)
        chosen = _choose(mechanism, shape, how)
        ways = ways_of(mechanism, shape, chosen, kernel=how.kernel, has_chunk_size=how.chunk_size is not None)
    chunks = _chunks(chosen, how.method, how.chunk_size, how.kernel)
    _check_returns(call, chosen, return_state=how.return_state, return_diagnostics=how.return_diagnostics)
    for way, _ in ways:
        if way.direct is None:
            break
        if (found := way.direct(call, shape, how.chunk_size)) is not None:
            return AttentionOutput(found[0].to(query.dtype), found[1], None)
    problem = Problem.of_call(call)
    accumulator, new_state = EVALUATIONS[chosen].accumulate(problem, return_state=how.return_state, **chunks)
    out = normalize(problem, accumulator)
    diagnostics = _diagnose(problem, accumulator) if how.return_diagnostics else None
    return AttentionOutput(out.flatten(1, 2).to(problem.dtype), new_state, diagnostics)


def _choose(mechanism: Mechanism, shape: Shape, how: _How) -> str:
    if how.method != "auto":
        return _asked(mechanism, how.method)
    return "parallel" if how.return_diagnostics else choose(mechanism, shape, kernel=how.kernel).method


def _choose_when_traced(call: Call, how: _How) -> str:
    if how.method != "auto":
        return _asked(call.mechanism, how.method)
    if call.pair_mask is not None or how.return_diagnostics or not torch.compiler.is_compiling():
        return "parallel"
    sizes = call.sizes
    num_pairs = sizes.batch * sizes.heads * sizes.queries * sizes.keys
    is_step = call.state is not None and sizes.queries == 1
    return choose_for_compiler(call.mechanism, is_step=is_step, num_pairs=num_pairs)


def _asked(mechanism: Mechanism, method: str) -> str:
    """The method, if it exists and serves."""
    if method not in EVALUATIONS:
        raise MethodError(f"attend: method={method!r} does not exist: {nearest(method, [*EVALUATIONS, 'auto'])}")
    if reason := EVALUATIONS[method].refusal(mechanism):
        able = [name for name, why in methods(mechanism).items() if why is None]
        raise MethodError(
            f"attend: method={method!r} cannot serve {mechanism.describe()}: {reason}.\n"
            f"  Methods that can: {', '.join(able)}."
        )
    return method


def _chunks(chosen: str, asked: str, chunk_size: int | None, kernel: str) -> dict[str, Any]:
    """``chunk_size`` and ``kernel`` for an evaluation that takes them."""
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1):
        raise ConfigError(f"attend: chunk_size={chunk_size!r} is no number of tokens.\n  Give a whole number >= 1.")
    if kernel not in _KERNELS:
        raise ConfigError(f"attend: kernel={kernel!r} does not exist: {nearest(kernel, _KERNELS)}")
    if EVALUATIONS[chosen].has_chunks:
        return {"chunk_size": chunk_size, "kernel": kernel}
    if chunk_size is not None and asked != "auto":
        raise ConfigError(
            f"attend: chunk_size={chunk_size} was given to method={asked!r}, which has no chunks.\n"
            "  Leave it out, or use method='chunked'."
        )
    return {}


def normalize(problem: Problem, accumulator: Accumulator) -> Tensor:
    """The normalizer, and the output gate before or after it; ``[B, H, G, T, V]``."""
    return problem.finish(accumulator)


def _check_returns(call: Call, method: str, *, return_state: bool, return_diagnostics: bool) -> None:
    if return_state and call.pair_mask is not None:
        raise MethodError(
            "attend: return_state was asked together with a mask [B, H, T, S], which leaves no one set of keys.\n"
            "  Use a mask [B, S] over keys, or leave return_state out."
        )
    if return_diagnostics and method != "parallel":
        raise MethodError(
            f"attend: return_diagnostics needs every logit, which method={method!r} never forms.\n"
            "  Use method='parallel'."
        )


def _diagnose(problem: Problem, accumulator: Accumulator) -> Diagnostics:
    sees = accumulator.count > 0
    lowest = share = float("nan")
    if accumulator.denominator is not None and problem.mechanism.normalizer.uses_denominator and bool(sees.any()):
        lowest = float(accumulator.true_denominator.detach()[sees].min())
        share = float((accumulator.denominator.detach()[sees] < 0).double().mean())
    return Diagnostics(lowest, share, float(largest_logit(problem)))
