"""``attend``: one door to every evaluation of every mechanism."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from maclaurin.algebra import Accumulator, Mechanism
from maclaurin.algebra.catalogue import mechanism_of
from maclaurin.errors import MethodError, nearest
from maclaurin.evaluate import parallel, recurrent
from maclaurin.evaluate.pairs import largest_logit
from maclaurin.evaluate.problem import Options, Problem, pose
from maclaurin.evaluate.state import State

_ACCUMULATE = {"parallel": parallel.accumulate, "recurrent": recurrent.accumulate}
_REFUSAL = {"parallel": lambda mechanism: None, "recurrent": recurrent.refusal}


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


def methods(mechanism: Mechanism | str) -> dict[str, str | None]:
    """Every evaluation, with None if it serves the mechanism and the reason if it does not.

    Example:
        >>> methods("taylor:2/sum")
        {'parallel': None, 'recurrent': None}
    """
    mechanism = mechanism_of(mechanism)
    return {name: refuse(mechanism) for name, refuse in _REFUSAL.items()}


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
        method: ``parallel`` (the reference, O(T S)), ``recurrent`` (token by token), or ``auto``: recurrent for one
            query on a given state, otherwise parallel. An explicit method that cannot serve raises.
        is_causal: query t sees key s only if s <= t + S - T (aligned to the end); keys of ``state`` always.
        scale: of the logits; None: K ** -0.5 for the identity map (and inside a window), 1 for others. 0 is a scale.
        mask: bool, True where a key may be seen: ``[B, S]`` over keys, or ``[B, 1 or H, T, S]`` (parallel only, and
            without returned state). Applied together with ``is_causal``. Hidden keys and values may hold anything,
            NaN included. Queries standing on hidden positions lose what is not finite in them.
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
    with torch.autocast(query.device.type, enabled=False):
        problem = pose(mechanism, query, key, value, options)
        chosen = _choose(problem, method, return_diagnostics=return_diagnostics)
        _check_returns(problem, chosen, return_state=return_state, return_diagnostics=return_diagnostics)
        accumulator, new_state = _ACCUMULATE[chosen](problem, return_state=return_state)
        out = _normalize(problem, accumulator)
        diagnostics = _diagnose(problem, accumulator) if return_diagnostics else None
    return AttentionOutput(out.flatten(1, 2).to(problem.dtype), new_state, diagnostics)


def _choose(problem: Problem, method: str, *, return_diagnostics: bool) -> str:
    if method == "auto":
        is_step = problem.state is not None and problem.num_queries == 1 and problem.pair_mask is None
        is_able = recurrent.refusal(problem.mechanism) is None and not return_diagnostics
        return "recurrent" if is_step and is_able else "parallel"
    if method not in _ACCUMULATE:
        raise MethodError(f"attend: method={method!r} does not exist: {nearest(method, [*_ACCUMULATE, 'auto'])}")
    reason = _REFUSAL[method](problem.mechanism)
    if reason:
        able = [name for name, why in methods(problem.mechanism).items() if why is None]
        raise MethodError(
            f"attend: method={method!r} cannot serve {problem.mechanism.describe()}: {reason}.\n"
            f"  Methods that can: {', '.join(able)}."
        )
    return method


def _normalize(problem: Problem, accumulator: Accumulator) -> Tensor:
    """The normalizer, and the output gate before or after it; ``[B, H, G, T, V]``."""
    normalizer, gate = problem.mechanism.normalizer, problem.mechanism.gates.output
    if gate is None or problem.output_gate is None:
        return normalizer(accumulator, problem.inputs)
    if gate.after:
        return normalizer(accumulator, problem.inputs) * problem.output_gate
    return normalizer(accumulator.gated(problem.output_gate), problem.inputs)


def _check_returns(problem: Problem, method: str, *, return_state: bool, return_diagnostics: bool) -> None:
    if return_state and problem.pair_mask is not None:
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
