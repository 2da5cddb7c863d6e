r"""Softmax attention's sums from torch's fused CPU kernel, with the log scale that the public function does not return.

The kernel gives the softmax output o and the log-sum-exp l of every row, so e^l o and e^l are numerator and
denominator. Their exact gradient is the kernel's own backward without its row term: for cotangents g of the numerator
and h of the denominator, relative to e^l,

.. math:: \partial x_{ts} = p_{ts} (\langle g_t, v_s\rangle + h_t), \qquad p_{ts} = e^{x_{ts} - l_t}

which is the kernel's backward given zeros in place of its output, with h as one more column of g and ones as one more
column of v. The gradient of a gradient is found pair by pair.

The entry points are private to torch: :func:`is_available` tries them once, forward and backward.

Dimension key: B batch, H heads, T queries, S keys, K key dim, V value dim, D = max(K, V).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE
from maclaurin.algebra.tracing import constant_when_traced, is_traced, is_transformed


def _kernels() -> tuple[Any, Any]:
    aten = torch.ops.aten
    return aten._scaled_dot_product_flash_attention_for_cpu, aten._scaled_dot_product_flash_attention_for_cpu_backward


@constant_when_traced
def is_available() -> bool:
    """Whether this torch has the kernels and they compute what this file needs here. Tried once per process."""
    return not is_transformed() and _try_kernels()


@lru_cache(maxsize=1)
def _try_kernels() -> bool:
    try:
        _kernels()
        generator = torch.Generator().manual_seed(0)
        query, key, value, g = (
            torch.randn(1, 2, 5, 3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(4)
        )
        out, total, log_scale = attend_with_log_scale(query, key, value, is_causal=True)
        x = (query @ key.transpose(-1, -2)).masked_fill(~torch.ones(5, 5).bool().tril(), -math.inf)
        weights = torch.exp(x - log_scale[..., None])
        ours, plain = ((a * g).sum() + b.square().sum() for a, b in ((out, total), (weights @ value, weights.sum(-1))))
        found = torch.autograd.grad(ours, (query, key, value))
        wanted = torch.autograd.grad(plain, (query, key, value))
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    pairs = [(ours, plain), *zip(found, wanted, strict=True)]
    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-12) for a, b in pairs)


def attend_with_log_scale(
    query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """``(numerator [B, H, T, V], denominator [B, H, T], log scale [B, H, T])`` of exp(<q, k>), exact gradients.

    Args:
        query: ``[B, H, T, K]``, scaled.
        key: ``[B, H, S, K]``.
        value: ``[B, H, S, V]``.
        is_causal: query t sees key s only if s <= t; T = S.
        mask: bool, broadcastable to ``[B, H, T, S]``, not together with ``is_causal``.

    Returns:
        Numerator and denominator relative to the log scale, which is a constant for gradients. The denominator is 1
        where a key is visible. Rows without one hold anything finite.

    Cost: one pass of the kernel; backward one more, on one more column where the denominator has a gradient.
    """
    out, total, log_scale = _Sums.apply(query, key, value, is_causal, mask)  # type: ignore[no-untyped-call]
    return out, total, log_scale


def attend_normalized(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    mask: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Softmax's output ``[B, H, T, V]``; on a CPU its gradient has a gradient, which that of the public function lacks.

    Args:
        query: ``[B, H, T, K]``.
        key: ``[B, H, S, K]``.
        value: ``[B, H, S, V]``.
        is_causal: query t sees key s only if s <= t; T = S.
        mask: bool, broadcastable to ``[B, H, T, S]``, not together with ``is_causal``.
        scale: of the logits.
    """
    if not scale > 0:  # kernels multiply what hides a pair by the scale too
        query, scale = query * scale, 1.0
    if query.device.type == "cpu" and not is_traced(query, key, value) and is_available():
        out: Tensor = _Normalized.apply(query, key, value, is_causal, mask, scale)  # type: ignore[no-untyped-call]
        return out
    return attend_publicly(query, key, value, is_causal=is_causal, mask=mask, scale=scale)


def attend_publicly(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    mask: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """:func:`attend_normalized` by torch's public function, on one head size: for two it forms every pair."""
    width = max(query.shape[-1], value.shape[-1])
    query, key, wide_value = (widened(each, width) for each in (query, key, value))
    mask = additive(mask, query)
    out = F.scaled_dot_product_attention(query, key, wide_value, attn_mask=mask, is_causal=is_causal, scale=scale)
    return out[..., : value.shape[-1]]


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, *, is_causal: bool) -> Tensor:
    """Logits pair by pair, those of hidden pairs as small as a mask makes them."""
    logits = query @ key.transpose(-1, -2)
    if is_causal:
        mask = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
    return logits if mask is None else logits.masked_fill(~mask, EMPTY_LOG_SCALE)


def _twice(ctx: Any, outputs: Sequence[Tensor], grads: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Gradients of query, key and value as operations that autograd follows."""
    pairs = [(out, grad) for out, grad in zip(outputs, grads, strict=True) if grad is not None]
    given = [each for each, needed in zip(ctx.saved_tensors[:3], ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad([a for a, _ in pairs], given, [b for _, b in pairs], create_graph=True))
    return (*(next(found) if needed else None for needed in ctx.needs_input_grad[:3]), None, None)


class _Normalized(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool,  # noqa: FBT001 - autograd passes it by position
        mask: Tensor | None,
        scale: float,
    ) -> Tensor:
        forward, _ = _kernels()
        width = max(query.shape[-1], value.shape[-1])
        padded = [widened(each, width) for each in (query, key, value)]
        out, log_scale = forward(*padded, 0.0, is_causal, attn_mask=additive(mask, query), scale=scale)
        ctx.save_for_backward(query, key, value, out, log_scale, mask)
        ctx.is_causal, ctx.scale = is_causal, scale
        return out[..., : value.shape[-1]]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, out, log_scale, mask = ctx.saved_tensors
        if torch.is_grad_enabled():  # someone differentiates the gradient
            weights = _weights(query * ctx.scale, key, mask, is_causal=ctx.is_causal).softmax(-1)
            return *_twice(ctx, [weights @ value], [grad]), None
        _, backward = _kernels()
        grad, *padded = (widened(each, out.shape[-1]) for each in (grad, query, key, value))
        mask = additive(mask, query)
        found = backward(grad, *padded, out, log_scale, 0.0, ctx.is_causal, attn_mask=mask, scale=ctx.scale)
        widths = (query.shape[-1], key.shape[-1], value.shape[-1])
        return (*(each[..., :wide] for each, wide in zip(found, widths, strict=True)), None, None, None)


class _Sums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        is_causal: bool,  # noqa: FBT001 - autograd passes it by position
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        forward, _ = _kernels()
        width = max(query.shape[-1], value.shape[-1])
        padded = [widened(each, width) for each in (query, key, value)]
        out, log_scale = forward(*padded, 0.0, is_causal, attn_mask=additive(mask, query), scale=1.0)
        out, log_scale = out[..., : value.shape[-1]].contiguous(), log_scale.contiguous()
        ctx.save_for_backward(query, key, value, log_scale, mask)
        ctx.is_causal = is_causal
        ctx.mark_non_differentiable(log_scale)
        ctx.set_materialize_grads(False)
        return out, torch.ones_like(log_scale), log_scale

    @staticmethod
    def backward(
        ctx: Any, grad_out: Tensor | None, grad_total: Tensor | None, _: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        query, key, value, log_scale, mask = ctx.saved_tensors
        if grad_out is None and grad_total is None:
            return (None,) * 5
        if torch.is_grad_enabled():  # someone differentiates the gradient
            weights = torch.exp(_weights(query, key, mask, is_causal=ctx.is_causal) - log_scale[..., None])
            return _twice(ctx, [weights @ value, weights.sum(-1)], [grad_out, grad_total])
        _, backward = _kernels()
        grad_out = (
            torch.zeros_like(query[..., :1]).expand(*query.shape[:-1], value.shape[-1])
            if grad_out is None
            else grad_out
        )
        wide_value = value
        if grad_total is not None:
            grad_out = torch.cat([grad_out, grad_total[..., None]], dim=-1)
            wide_value = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
        width = max(query.shape[-1], wide_value.shape[-1])
        grad_out, *padded = (widened(each, width) for each in (grad_out, query, key, wide_value))
        found = backward(
            grad_out,
            *padded,
            torch.zeros_like(grad_out),
            log_scale,
            0.0,
            ctx.is_causal,
            attn_mask=additive(mask, query),
            scale=1.0,
        )
        widths = (query.shape[-1], key.shape[-1], value.shape[-1])
        return (*(each[..., :wide] for each, wide in zip(found, widths, strict=True)), None, None)


def widened(x: Tensor, width: int) -> Tensor:
    """Zeros appended to the last axis, contiguous: the kernels want one head size and read other strides wrong."""
    return (F.pad(x, (0, width - x.shape[-1])) if x.shape[-1] < width else x).contiguous()


def additive(mask: Tensor | None, like: Tensor) -> Tensor | None:
    """Zero where a pair is visible, and a number that leaves no weight where it is not; finite for empty rows."""
    if mask is None:
        return None
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(~mask, EMPTY_LOG_SCALE)
