"""Attention by explicit loops over numbers, as the definitions read; shares no formula with the package.

Slow and plain: float64 Python numbers, true scale, no guard against overflow. For a handful of tokens.

Dimension key: B batch, H query heads, T queries, S keys, V value dim.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from laws.cases import Inputs
from maclaurin.algebra import (
    L2,
    RMS,
    CumulativeGate,
    Exp,
    Layer,
    Length,
    Mechanism,
    Polynomial,
    Power,
    Similarity,
    Sum,
    Taylor,
    Unnormalized,
)

Vector = list[float]


@dataclass(frozen=True)
class Row:
    """One query's view, in the order of time: what it sees and what it reads.

    Args:
        query: q.
        keys: those that may be seen.
        values: theirs, gated.
        decays: the factor that each has decayed by, 1 without decay.
        denominator_logits: u, empty where the mechanism reads none.
        gate: of the output, one number per channel, or None.
        learned: what is learned per head.
    """

    query: Vector
    keys: list[Vector]
    values: list[Vector]
    decays: Vector
    denominator_logits: Vector
    gate: Vector | None
    learned: dict[str, Vector | float]


def oracle(
    mechanism: Mechanism,
    inputs: Inputs,
    *,
    is_causal: bool,
    scale: float | None = None,
    mask: Sequence[Sequence[bool]] | None = None,
) -> Tensor:
    """The output ``[B, H, T, V]`` in float64. ``mask[b][s]`` says whether key s may be seen."""
    given = {name: each.double().tolist() for name, each in inputs.operands.items()}
    query, key, value = (each.double().tolist() for each in inputs.qkv)
    heads, kv_heads = inputs.query.shape[1], inputs.key.shape[1]
    rows, columns = inputs.query.shape[2], inputs.key.shape[2]
    out = torch.zeros(*inputs.query.shape[:3], inputs.value.shape[3], dtype=torch.float64)
    for b in range(len(query)):
        for h in range(heads):
            shared = h // (heads // kv_heads)
            per_key = {
                name: given[name][b][shared]
                for name in ("log_decay", "value_gate", "denominator_logit")
                if name in given
            }
            learned = {name: _of_head(given[name], h, name) for name in given if name in _LEARNED}
            for t in range(rows):
                now = t + columns - rows  # the key that this query stands on
                seen = [s for s in range(columns) if (not is_causal or s <= now) and (mask is None or mask[b][s])]
                if not seen:
                    continue
                decays = [1.0] * len(seen)
                if "log_decay" in per_key:
                    steps = [
                        0.0 if mask is not None and not mask[b][s] else per_key["log_decay"][s] for s in range(columns)
                    ]
                    decays = [math.exp(math.fsum(steps[s + 1 : now + 1])) for s in seen]
                gates = [per_key["value_gate"][s] for s in seen] if "value_gate" in per_key else [1.0] * len(seen)
                row = Row(
                    query[b][h][t],
                    [key[b][shared][s] for s in seen],
                    [[gate * x for x in value[b][shared][s]] for s, gate in zip(seen, gates, strict=True)],
                    decays,
                    [per_key["denominator_logit"][s] for s in seen] if "denominator_logit" in per_key else [],
                    _of_channels(given["output_gate"][b][h][t], inputs.value.shape[3])
                    if "output_gate" in given
                    else None,
                    learned,
                )
                out[b, h, t] = torch.tensor(_answer(mechanism, row, scale), dtype=torch.float64)
    return out


_LEARNED = ("length_exponent", "norm_weight", "norm_bias", "far_log_weight")


def _of_head(numbers: list, head: int, name: str) -> Vector | float:
    return numbers[head] if name in ("length_exponent", "far_log_weight") or isinstance(numbers[0], list) else numbers


def _of_channels(gate: Vector | float, dim: int) -> Vector:
    return gate if isinstance(gate, list) else [gate] * dim


def _answer(mechanism: Mechanism, row: Row, scale: float | None) -> Vector:
    """What one query gets."""
    weights = _weights(mechanism, row, scale)
    dim = len(row.values[0])
    numerator = [
        math.fsum(w * v[i] for w, v in zip(weights.values(), _of(row.values, weights), strict=True)) for i in range(dim)
    ]
    gate = mechanism.gates.output
    if gate is not None and not gate.after:
        numerator = [a * g for a, g in zip(numerator, row.gate, strict=True)]
    out = _normalized(mechanism, numerator, weights, row)
    if gate is not None and gate.after:
        out = [a * g for a, g in zip(out, row.gate, strict=True)]
    return out


def _of(everything: list, chosen: dict[int, float]) -> list:
    return [everything[i] for i in chosen]


def _weights(mechanism: Mechanism, row: Row, scale: float | None) -> dict[int, float]:
    """The weight of each key that has one, decay included, by its place among those that may be seen."""
    places = range(len(row.keys))
    if mechanism.window is None:
        return _weighed(mechanism.similarity, row, list(places), scale)
    width, sinks = mechanism.window.width, mechanism.window.sinks
    near = [i for i in places if i < sinks or i >= len(row.keys) - width]
    far = [i for i in places if i not in near]
    if isinstance(mechanism.similarity.function, Exp):  # a window alone
        return _weighed(mechanism.similarity, row, near, scale)
    inside = _weighed(Similarity(Exp()), row, near, scale)
    beyond = _weighed(mechanism.similarity, row, far, scale)
    factor = math.exp(row.learned["far_log_weight"]) if "far_log_weight" in row.learned else 1.0
    return {**inside, **{i: w * factor for i, w in beyond.items()}}


def _weighed(similarity: Similarity, row: Row, chosen: list[int], scale: float | None) -> dict[int, float]:
    if not chosen:
        return {}
    if scale is None:
        scale = len(row.query) ** -0.5 if similarity.map.name == "identity" and row.query else 1.0
    phi_q = _phi(similarity.map.name, row.query)
    logits = {}
    for i in chosen:
        phi_k = _phi(similarity.map.name, row.keys[i])
        logits[i] = scale * math.fsum(a * b for a, b in zip(phi_q, phi_k, strict=True))
    total = math.fsum(row.decays[i] for i in chosen)
    center = math.fsum(row.decays[i] * logits[i] for i in chosen) / total if total else 0.0
    if similarity.clamp is not None:
        logits = {i: min(x, similarity.clamp) for i, x in logits.items()}
    if similarity.is_centered:
        found = {i: math.exp(center) * _kappa(similarity.function, x - center) for i, x in logits.items()}
    else:
        found = {i: _kappa(similarity.function, x) for i, x in logits.items()}
    return {i: w * row.decays[i] for i, w in found.items()}


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


def _normalized(mechanism: Mechanism, numerator: Vector, weights: dict[int, float], row: Row) -> Vector:
    normalizer, dim = mechanism.normalizer, len(numerator)
    if isinstance(normalizer, Unnormalized):
        return numerator
    if isinstance(normalizer, Sum):
        total = math.fsum(weights.values())
        total = total if normalizer.clamp is None else max(total, normalizer.clamp)
        total += normalizer.eps
        return [a / total if total else 0.0 for a in numerator]
    if isinstance(normalizer, Length):
        count = math.fsum(row.decays[i] for i in weights)
        power = float(row.learned["length_exponent"]) if normalizer.learned_exponent else 1.0
        return [a / count**power if count else 0.0 for a in numerator]
    if isinstance(normalizer, CumulativeGate):  # over every key that may be seen, a window or not
        total = math.fsum(d * math.exp(u) for d, u in zip(row.decays, row.denominator_logits, strict=True))
        return [a / max(total, 1.0) for a in numerator]
    if isinstance(normalizer, L2):
        size = math.sqrt(math.fsum(a * a for a in numerator))
        return [normalizer.gain * a / size if size else 0.0 for a in numerator]
    mean = math.fsum(numerator) / dim if isinstance(normalizer, Layer) else 0.0
    assert isinstance(normalizer, RMS | Layer)
    rms = math.sqrt(math.fsum((a - mean) ** 2 for a in numerator) / dim)
    out = [(a - mean) / rms if rms else 0.0 for a in numerator]
    if "norm_weight" in row.learned:
        out = [a * w for a, w in zip(out, row.learned["norm_weight"], strict=True)]
    if "norm_bias" in row.learned:
        out = [a + b for a, b in zip(out, row.learned["norm_bias"], strict=True)]
    return out
