"""Softmax's own kernels: ``exp`` through torch's fused attention, whatever the normalizer.

Where the normalizer forgets a row's scale the public function serves, for it returns N / Z. Elsewhere numerator and
log scale come from the kernel's log-sum-exp (:mod:`flash`), or, without that, block by block under a running maximum.
Hidden keys and decay are one appended column of query and key: one number per key, added to its logits.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from maclaurin.algebra import SOFTMAX, Accumulator, Exp, Mechanism
from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE
from maclaurin.errors import MethodError
from maclaurin.evaluate import flash
from maclaurin.evaluate.cache import Cache
from maclaurin.evaluate.chunked import read_in_blocks
from maclaurin.evaluate.operands import Queries
from maclaurin.evaluate.pairs import Pairs, accumulate_pairs, log_denominator_of
from maclaurin.evaluate.past import accumulate_after_past
from maclaurin.evaluate.problem import Problem
from maclaurin.evaluate.state import State

#: Queries at a time where they must be taken in stretches.
_STRETCH = 256


def refusal(mechanism: Mechanism) -> str | None:
    """Why this evaluation cannot serve the mechanism, or None if it can."""
    if mechanism.window is not None:
        return "softmax kernels have no window"
    if not isinstance(mechanism.similarity.function, Exp) or mechanism.similarity.clamp is not None:
        return f"softmax kernels weigh keys by exp of the logit, not by {mechanism.similarity.formula}"
    return None


def accumulate(
    problem: Problem, *, return_state: bool, chunk_size: int | None, kernel: str
) -> tuple[Accumulator, State | None]:
    """The accumulator of every query, and the state after every key if asked for.

    Args:
        problem: the call.
        return_state: whether the state is wanted.
        chunk_size: queries at a time where they are taken in stretches.
        kernel: ``auto``, or ``torch`` for public functions alone.
    """
    has_log_scale = kernel == "auto" and problem.keys.key.device.type == "cpu" and flash.is_available()
    state = problem.initial_state().absorb(problem.keys) if return_state else None
    if problem.pair_mask is not None and problem.mechanism.gates.decay:
        raise MethodError(
            "attend(method='fused'): a mask [B, H, T, S] together with decay, which is one number per key here.\n"
            "  Use a mask [B, S] over keys, or method='parallel'."
        )
    forgets_scale = problem.mechanism.normalizer.forgets_row_scale
    if _is_one_call(problem) and (forgets_scale or has_log_scale):
        softmax = flash.attend_normalized if kernel == "auto" else flash.attend_publicly
        return _one_call(problem, softmax if forgets_scale else None), state
    if problem.pair_mask is not None:  # no kernel serves: the mask is of the size of the pairs anyway
        return accumulate_pairs(problem), state
    read = _read if has_log_scale else partial(read_in_blocks, problem.mechanism.similarity)
    return accumulate_after_past(problem, read, chunk_size or _STRETCH), state


def _is_one_call(problem: Problem) -> bool:
    """Whether the kernel's own notion of who sees whom is enough: all, a square triangle, or a given mask."""
    if problem.mechanism.gates.decay or _is_empty(problem.queries, problem.keys.value):
        return False
    is_square = problem.num_queries == problem.num_keys and problem.state is None
    return problem.pair_mask is not None or is_square or not problem.is_causal


def _is_empty(queries: Queries, value_BHSV: Tensor) -> bool:
    """Whether there is nothing to compute, which the kernels do not take."""
    return 0 in value_BHSV.shape or 0 in queries.any.shape[:-1]


def _one_call(problem: Problem, softmax: Callable[..., Tensor] | None) -> Accumulator:
    if problem.pair_mask is not None:
        pairs = Pairs.of(problem)
        found = _kernel(
            problem.queries,
            (pairs.key, pairs.value, None),
            is_causal=False,
            mask=pairs.visible,
            softmax=softmax,
        )
        count = pairs.visible.to(found.count.dtype).sum(-1).expand(found.count.shape)
        log_denominator = log_denominator_of(problem, found)
    else:
        cache = _every_key(problem)
        is_plain = problem.keys.visible is None and problem.state is None
        keys = (cache.key, cache.value, None if is_plain else _bias(cache.visible, None))
        found = _kernel(problem.queries, keys, is_causal=problem.is_causal, mask=None, softmax=softmax)
        counted = cache.visible.to(found.count.dtype)
        count = counted.cumsum(-1) if problem.is_causal else counted.sum(-1, keepdim=True)
        count = count[:, None, None].expand(found.count.shape)
        log_denominator = _log_denominator(problem, found.count.shape)
    log_scale = torch.where(count > 0, found.log_scale, EMPTY_LOG_SCALE)
    return replace(found, count=count, log_scale=log_scale, log_denominator=log_denominator)


def _every_key(problem: Problem) -> Cache:
    keys, state = problem.keys, problem.state
    new = Cache(keys.key, keys.value, keys.shown, None)
    return new if state is None or state.cache is None else state.cache.entries.followed_by(new)


def _log_denominator(problem: Problem, shape: torch.Size) -> Tensor | None:
    """log of the sum of exp(u) without decay, for a square triangle or for all keys."""
    u, state = problem.keys.denominator_logit, problem.state
    if u is None:
        return None
    u = torch.where(problem.keys.shown[:, None], u, EMPTY_LOG_SCALE)
    so_far = u.logcumsumexp(-1) if problem.is_causal else u.logsumexp(-1, keepdim=True)
    before = None if state is None or state.log_denominator is None else state.log_denominator[..., None]
    return (so_far if before is None else torch.logaddexp(before, so_far))[:, :, None].expand(shape)


def _read(queries: Queries, past: Sequence[Cache]) -> Accumulator:
    """The accumulator of the queries over cached keys that all of them see."""
    cache = past[0]
    for each in past[1:]:
        cache = cache.followed_by(each)
    if _is_empty(queries, cache.value):
        return read_in_blocks(SOFTMAX, queries, (cache,))
    keys = (cache.key, cache.value, _bias(cache.visible, cache.log_weight))
    found = _kernel(queries, keys, is_causal=False, mask=None, softmax=None)
    weight = cache.visible.to(cache.value.dtype)[:, None]
    weight = weight if cache.log_weight is None else weight * torch.exp(cache.log_weight)
    sees = cache.visible.any(-1)[:, None, None, None].expand(found.count.shape)
    return replace(
        found,
        count=weight.sum(-1)[..., None, None].expand(found.count.shape),
        log_scale=torch.where(sees, found.log_scale, EMPTY_LOG_SCALE),
    )


def _kernel(
    queries: Queries,
    keys: tuple[Tensor, Tensor, Tensor | None],
    *,
    is_causal: bool,
    mask: Tensor | None,
    softmax: Callable[..., Tensor] | None,
) -> Accumulator:
    """One call over ``(key, value, bias)``; the count and empty rows are the caller's.

    With a function for softmax's output that is the numerator, relative to a scale nobody knows; without, the sums.
    """
    key, value, bias = keys
    assert queries.near is not None
    batch, kv_heads, groups, rows, _ = queries.near.shape
    query = queries.near * queries.near_scale
    if bias is not None:
        query = torch.cat([query, torch.ones_like(query[..., :1])], dim=-1)
        key = torch.cat([key, bias.to(key.dtype).expand(key.shape[:3])[..., None]], dim=-1)
    if is_causal or mask is not None:  # every query head beside its own copy of the keys
        query = query.flatten(1, 2)
        key, value = (each.repeat_interleave(groups, dim=1) if groups > 1 else each for each in (key, value))
    else:
        query = query.flatten(2, 3)
    if mask is not None:
        mask = mask.expand(batch, kv_heads, groups, -1, -1).flatten(1, 2)
    if softmax is None:
        out, total, log_scale = flash.attend_with_log_scale(query, key, value, is_causal=is_causal, mask=mask)
    else:
        out = softmax(query, key, value, is_causal=is_causal, mask=mask)
        total, log_scale = torch.ones_like(out[..., 0]), torch.zeros_like(out[..., 0])
    shape = (batch, kv_heads, groups, rows)
    total, log_scale = total.reshape(shape), log_scale.reshape(shape)
    return Accumulator(out.reshape(*shape, -1), total, torch.zeros_like(total), log_scale)


def _bias(visible_BS: Tensor, log_weight: Tensor | None) -> Tensor:
    """What is added to every logit of a key, ``[B, 1 or H, S]``; finite, for zeros times it appear in gradients."""
    if log_weight is None:
        log_weight = torch.zeros(visible_BS.shape, device=visible_BS.device)[:, None]
    return log_weight.masked_fill(~visible_BS[:, None], EMPTY_LOG_SCALE).clamp(min=EMPTY_LOG_SCALE)
