r"""Softmax attention's sums from torch's fused CPU kernel, with the log scale that the public function does not return.

The kernel gives the softmax output o and the log-sum-exp l of every row, so e^l o and e^l are numerator and
denominator. Their exact gradient is the kernel's own backward without its row term: for cotangents g of the numerator
and h of the denominator, relative to e^l,

.. math:: \partial x_{ts} = p_{ts} (\langle g_t, v_s\rangle + h_t), \qquad p_{ts} = e^{x_{ts} - l_t}

which is the kernel's backward given zeros in place of its output, with h as one more column of g and ones as one more
column of v.

The entry points are private to torch: :func:`is_available` tries them once, forward and backward.

Dimension key: B batch, H heads, T queries, S keys, K key dim, V value dim, D = max(K, V).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra.accumulator import EMPTY_LOG_SCALE
from maclaurin.algebra.tracing import constant_when_traced
from maclaurin.errors import MethodError


def _kernels() -> tuple[Any, Any]:
    aten = torch.ops.aten
    return aten._scaled_dot_product_flash_attention_for_cpu, aten._scaled_dot_product_flash_attention_for_cpu_backward


@constant_when_traced
def is_available() -> bool:
    """Whether this torch has the kernels and they compute what this file needs. Tried once per process."""
    return _try_kernels()


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

    Raises:
        MethodError: in backward, if that is to be differentiated again.

    Cost: one pass of the kernel; backward one more, on one more column where the denominator has a gradient.
    """
    out, total, log_scale = _Attention.apply(query, key, value, is_causal, mask)  # type: ignore[no-untyped-call]
    return out, total, log_scale


class _Attention(torch.autograd.Function):
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
        if torch.is_grad_enabled():
            raise MethodError(
                "attend(method='fused'): the gradient of a gradient was asked for (create_graph=True); torch's fused "
                "kernels have none.\n  Use method='chunked' or 'parallel'."
            )
        query, key, value, log_scale, mask = ctx.saved_tensors
        if grad_out is None and grad_total is None:
            return (None,) * 5
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
