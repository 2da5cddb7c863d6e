"""Attention by explicit loops over numbers, as the definitions read; shares no formula with the package.

Slow and plain: float64 Python numbers, true scale, no guard against overflow. For a handful of tokens.

Dimension key: B batch, H query heads, T queries, S keys, V value dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from laws.cases import Inputs
from maclaurin.algebra import L2, RMS, Exp, Layer, Length, Mechanism, Polynomial, Power, Sum, Taylor, Unnormalized

Vector = list[float]


def oracle(
    mechanism: Mechanism,
    inputs: Inputs,
    *,
    is_causal: bool,
    scale: float | None = None,
    mask: Sequence[Sequence[bool]] | None = None,
) -> Tensor:
    """The output ``[B, H, T, V]`` in float64. ``mask[b][s]`` says whether key s may be seen."""
    query, key, value = (each.double().tolist() for each in inputs.qkv)
    heads, kv_heads = inputs.query.shape[1], inputs.key.shape[1]
    rows, columns, key_dim = inputs.query.shape[2], inputs.key.shape[2], inputs.key.shape[3]
    if scale is None:
        scale = key_dim**-0.5 if mechanism.similarity.map.name == "identity" and key_dim else 1.0
    out = torch.zeros(*inputs.query.shape[:3], inputs.value.shape[3], dtype=torch.float64)
    for b in range(len(query)):
        for h in range(heads):
            shared = h // (heads // kv_heads)
            learned = {name: _of_head(tensor, h, name) for name, tensor in inputs.learned.items()}
            for t in range(rows):
                seen = [
                    s
                    for s in range(columns)
                    if (not is_causal or s <= t + columns - rows) and (mask is None or mask[b][s])
                ]
                if seen:
                    q, keys, values = query[b][h][t], key[b][shared], value[b][shared]
                    weights = _weights(mechanism, q, [keys[s] for s in seen], scale)
                    row = _normalized(mechanism, weights, [values[s] for s in seen], learned)
                    out[b, h, t] = torch.tensor(row, dtype=torch.float64)
    return out


def _of_head(tensor: Tensor, head: int, name: str) -> Tensor:
    return tensor[head].double() if tensor.ndim == 2 or name == "length_exponent" else tensor.double()


def _weights(mechanism: Mechanism, query: Vector, keys: list[Vector], scale: float) -> Vector:
    similarity = mechanism.similarity
    phi_q = _phi(similarity.map.name, query)
    logits = []
    for key in keys:
        phi_k = _phi(similarity.map.name, key)
        logits.append(scale * math.fsum(a * b for a, b in zip(phi_q, phi_k, strict=True)))
    center = math.fsum(logits) / len(logits)
    if similarity.clamp is not None:
        logits = [min(x, similarity.clamp) for x in logits]
    if similarity.is_centered:
        return [math.exp(center) * _kappa(similarity.function, x - center) for x in logits]
    return [_kappa(similarity.function, x) for x in logits]


def _phi(name: str, x: Vector) -> Vector:
    if name == "elu1":
        return [a + 1.0 if a > 0 else math.exp(a) for a in x]
    if name == "relu":
        return [max(a, 0.0) for a in x]
    if name == "cosine":
        length = math.sqrt(math.fsum(a * a for a in x))
        return [a / length if length else 0.0 for a in x]
    if name == "expmap":
        return [math.exp(a) for a in x]
    assert name in ("identity", "features")
    return x


def _kappa(function: object, x: float) -> float:
    if isinstance(function, Exp):
        return math.exp(x)
    if isinstance(function, Taylor):
        return math.fsum(x**n / math.factorial(n) for n in range(function.order + 1))
    if isinstance(function, Power):
        return x**function.exponent
    assert isinstance(function, Polynomial)
    return math.fsum(a * x**n for n, a in enumerate(function.coefficients))


def _normalized(mechanism: Mechanism, weights: Vector, values: list[Vector], learned: dict[str, Tensor]) -> Vector:
    normalizer, dim, count = mechanism.normalizer, len(values[0]), len(weights)
    numerator = [math.fsum(w * v[i] for w, v in zip(weights, values, strict=True)) for i in range(dim)]
    if isinstance(normalizer, Unnormalized):
        return numerator
    if isinstance(normalizer, Sum):
        total = math.fsum(weights)
        total = total if normalizer.clamp is None else max(total, normalizer.clamp)
        total += normalizer.eps
        return [a / total if total else 0.0 for a in numerator]
    if isinstance(normalizer, Length):
        power = float(learned["length_exponent"]) if normalizer.learned_exponent else 1.0
        return [a / count**power for a in numerator]
    if isinstance(normalizer, L2):
        size = math.sqrt(math.fsum(a * a for a in numerator))
        return [normalizer.gain * a / size if size else 0.0 for a in numerator]
    mean = math.fsum(numerator) / dim if isinstance(normalizer, Layer) else 0.0
    assert isinstance(normalizer, RMS | Layer)
    rms = math.sqrt(math.fsum((a - mean) ** 2 for a in numerator) / dim)
    out = [(a - mean) / rms if rms else 0.0 for a in numerator]
    if "norm_weight" in learned:
        out = [a * w for a, w in zip(out, learned["norm_weight"].tolist(), strict=True)]
    if "norm_bias" in learned:
        out = [a + b for a, b in zip(out, learned["norm_bias"].tolist(), strict=True)]
    return out
