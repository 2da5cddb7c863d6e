"""Right attention in plain torch, and the ways in which each can be broken on purpose: ``flaw`` names one.

Dimension key: B batch, H heads, T queries, S keys, K key dim, V value dim.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

#: What a function that remembers more than its state would keep it in.
HISTORY: dict[str, Tensor] = {}


class Output(NamedTuple):
    """What a function with a state returns."""

    output: Tensor
    state: tuple[Tensor, ...]


def softmax(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = True,
    scale: float | None = None,
    mask: Tensor | None = None,
    state: tuple[Tensor, Tensor, Tensor] | None = None,
    return_state: bool = False,
    flaw: str = "",
) -> Tensor | Output:
    """Softmax attention with a cache of keys, values and their mask; shared heads; ``bhtd``."""
    length = key.shape[2]
    visible = torch.ones(key.shape[0], length, dtype=torch.bool) if mask is None else mask
    if flaw == "mask only for batches" and key.shape[0] == 1:
        visible = torch.ones_like(visible)
    if state is not None:
        if flaw == "state changed in place" and length > 1:
            state[1][:, :, 0] *= 0.5
        if flaw == "state changed by a step" and length == 1:
            state[1][:, :, 0] *= 0.5
        key, value = torch.cat([state[0], key], 2), torch.cat([state[1], value], 2)
        visible = torch.cat([state[2], visible], 1)
        if flaw == "state detached":
            key = torch.cat([state[0].detach(), key[:, :, state[0].shape[2] :]], 2)
    hidden = ~visible[:, None, :, None]
    if flaw != "NaN on padding":
        key, value = key.masked_fill(hidden, 0.0), value.masked_fill(hidden, 0.0)
    cache = (key, value, visible)
    group = query.shape[1] // key.shape[1]
    repeat = (
        (lambda x: x.repeat(1, group, 1, 1)) if flaw == "wrong groups" else (lambda x: x.repeat_interleave(group, 1))
    )
    key, value = repeat(key), repeat(value)
    if flaw == "scale zero is none":
        scale = scale or None
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    x = query @ key.transpose(-1, -2) * scale
    rows, columns = x.shape[-2:]
    shift = {"sees one ahead": 1, "misses itself": -1, "aligned to the start": rows - columns}.get(flaw, 0)
    sees = torch.ones(rows, columns, dtype=torch.bool)
    sees = sees.tril(columns - rows + shift) if is_causal or flaw == "always causal" else sees
    sees = sees & visible[:, None, None]
    if flaw == "additive mask":
        x = x + (~sees) * -1e9
        weights = torch.softmax(x, -1)
        return Output(weights @ value, cache) if return_state else weights @ value
    largest = x.masked_fill(~sees, -torch.inf).amax(-1, keepdim=True)
    if flaw == "largest over the future":
        largest = x.amax(-1, keepdim=True)
    if flaw == "largest over the batch":
        largest = largest.amax(0, keepdim=True)
    if flaw == "no largest":
        largest = torch.zeros_like(largest)
    largest = largest.masked_fill(largest == -torch.inf, 0.0).detach()
    weights = torch.exp((x - largest).masked_fill(~sees, -torch.inf))
    if flaw == "clamped logits":
        weights = torch.exp(x.clamp(max=20.0) - largest.clamp(max=20.0)).masked_fill(~sees, 0.0)
    total = weights.sum(-1, keepdim=True)
    if flaw == "weights remembered":  # by their shape, from the first call
        weights = HISTORY.setdefault(str(weights.shape), weights.detach())
    if flaw == "padding in the denominator" and mask is not None:
        total = total + (~visible).sum(-1)[:, None, None, None]
    if flaw == "denominator detached":
        total = total.detach()
    if flaw == "epsilon":
        total = total + 1e-6
    output = weights @ value / (total if flaw == "NaN without keys" else total.masked_fill(total == 0, 1.0))
    if flaw == "noise":
        output = output + 1e-9 * torch.rand_like(output)
    return Output(output, cache) if return_state else output


def linear(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    mask: Tensor | None = None,
    log_decay: Tensor | None = None,
    value_gate: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    chunk_size: int | None = None,
    state: tuple[Tensor, ...] | None = None,
    return_state: bool = False,
    flaw: str = "",
) -> Tensor | Output:
    """Causal linear attention with elu(x) + 1: chunks of pairs, a state between them; ``bhtd``."""
    if cu_seqlens is not None:
        edges = cu_seqlens.tolist()
        options = {"scale": scale, "chunk_size": chunk_size, "return_state": True, "flaw": flaw}
        parts = []
        for i, (a, b) in enumerate(pairwise(edges)):
            start = None if state is None else tuple(each[i : i + 1] for each in state)
            if flaw == "documents leak" and parts:
                start = parts[-1].state
            more = {"log_decay": log_decay, "value_gate": value_gate}
            more = {name: None if each is None else each[:, :, a:b] for name, each in more.items()}
            parts.append(linear(query[:, :, a:b], key[:, :, a:b], value[:, :, a:b], state=start, **more, **options))
        output = torch.cat([each.output for each in parts], 2)
        states = tuple(torch.cat(each) for each in zip(*(part.state for part in parts), strict=True))
        return Output(output, states) if return_state else output
    given, wide = query.dtype, torch.float64 if query.dtype == torch.float64 else torch.float32
    if flaw == "float32 inside":
        wide = torch.float32
    if flaw == "half inside":
        wide = query.dtype
    query, key, value = (each.to(wide) for each in (query, key, value))
    visible = torch.ones(key.shape[0], key.shape[2], dtype=torch.bool) if mask is None else mask
    hidden = ~visible[:, None, :, None]
    phi_q = F.elu(query) + 1
    phi_q = phi_q * (1.0 if scale is None or flaw == "scale ignored" else scale)
    if flaw == "masked by a product":
        phi_k, value = (F.elu(key) + 1) * ~hidden, value * ~hidden
    else:
        phi_k = (F.elu(key.masked_fill(hidden, 0.0)) + 1).masked_fill(hidden, 0.0)
        value = value.masked_fill(hidden, 0.0)
    ones = torch.ones_like(value[..., :1]) * (1.0 if flaw == "gate in the denominator" else ~hidden)
    value = value if value_gate is None else value * value_gate.to(wide)[..., None]
    value = torch.cat([value, ones], -1)  # the denominator is one more value
    if value_gate is not None and flaw == "gate in the denominator":
        value = torch.cat([value[..., :-1], value_gate.to(wide)[..., None]], -1)
    decay = torch.zeros(key.shape[:3], dtype=wide) if log_decay is None else log_decay.to(wide)
    if flaw != "padding decays":
        decay = decay.masked_fill(~visible[:, None], 0.0)
    if flaw == "decays itself":
        decay = torch.cat([decay[..., 1:], torch.zeros_like(decay[..., :1])], -1)
    if flaw == "decay across heads":
        decay = decay.cumsum(1)
    total = state[0].to(wide) if state is not None else wide_zeros(phi_k, value)
    if flaw == "remembers" and state is not None:
        total = HISTORY.get("last", total)
    if flaw == "state in place" and state is not None:
        state[0].mul_(0.9)
    chunk = 64 if chunk_size is None else chunk_size
    outputs = []
    for start in range(0, key.shape[2], chunk):
        here = slice(start, start + chunk)
        q, k, v, a = phi_q[:, :, here], phi_k[:, :, here], value[:, :, here], decay[:, :, here]
        size = k.shape[2]
        if flaw == "drops the last chunk" and start and size < chunk:
            k = torch.zeros_like(k)
        later = torch.ones(size, size, dtype=torch.bool).tril()
        if flaw == "running sums of decay":
            running = a.cumsum(-1)
            pairs = (running[..., :, None] - running[..., None, :]).masked_fill(~later, -torch.inf)
        elif flaw == "grows and shrinks":
            running = a.cumsum(-1)
            weights = (q * running.exp()[..., None]) @ (k * (-running).exp()[..., None]).transpose(-1, -2)
            pairs = None
        else:
            steps = torch.where(torch.ones(size, size).tril(-1).bool(), a[..., :, None], 0.0)
            pairs = steps.cumsum(-2).masked_fill(~later, -torch.inf)
        if pairs is not None:
            weights = (q @ k.transpose(-1, -2)) * pairs.exp()
        weights = weights.masked_fill(~later, 0.0)
        past = a.cumsum(-1).exp()[..., None]
        carried = total.detach() if flaw == "chunks detached" else total
        outputs.append(weights @ v + (q * past) @ carried)
        rest = torch.cat([a.flip(-1).cumsum(-1).flip(-1)[..., 1:], torch.zeros_like(a[..., :1])], -1).exp()[..., None]
        total = total * past[..., -1:, :] + (k * rest).transpose(-1, -2) @ v
    both = torch.cat(outputs, 2) if outputs else value[:, :, :0]
    denominator = both[..., -1:]
    if flaw == "state without denominator":
        total = torch.cat([total[..., :-1], torch.zeros_like(total[..., -1:])], -1)
    if flaw == "state in half":
        total = total.to(given)
    HISTORY["last"] = total.detach()
    if flaw == "clamped denominator":
        denominator = denominator.clamp(min=1.0)
    if flaw == "gradient of the key halved":
        denominator = denominator.detach() * 0.5 + denominator * 0.5
    if flaw == "time must be a multiple" and key.shape[2] % 2:
        raise AssertionError
    output = both[..., :-1] / denominator.masked_fill(denominator == 0, 1.0)
    if flaw == "first value lost":
        output = torch.cat([torch.ones_like(output[..., :1]), output[..., 1:]], -1)
    if flaw == "wide output":
        return Output(output, (total,)) if return_state else output
    output = output.to(given)
    if flaw == "a state too early" and key.shape[2] > 1:
        total = total - phi_k[:, :, -1, :, None] * value[:, :, -1, None]
    states = (total, phi_k) if flaw == "state grows" else (total,)
    return Output(output, states) if return_state else output


def wide_zeros(phi_k: Tensor, value: Tensor) -> Tensor:
    """An empty state."""
    return phi_k.new_zeros(*phi_k.shape[:2], phi_k.shape[-1], value.shape[-1])


#: Flaw -> a law that must find it.
SOFTMAX_FLAWS = {
    "mask only for batches": "padding",
    "state changed in place": "state: untouched",
    "state changed by a step": "state: untouched",
    "weights remembered": "like: shapes",
    "state detached": "state: splits",
    "NaN on padding": "padding",
    "wrong groups": "grouped heads",
    "scale zero is none": "scale: zero",
    "sees one ahead": "future",
    "misses itself": "present",
    "aligned to the start": "like: T != S",
    "always causal": "both directions",
    "additive mask": "padding: all",
    "largest over the future": "future",
    "largest over the batch": "strangers",
    "no largest": "range",
    "clamped logits": "like: large logits",
    "padding in the denominator": "padding",
    "denominator detached": "gradient: elements",
    "epsilon": "like: shapes",
    "NaN without keys": "padding: all",
    "noise": "repeats",
}
LINEAR_FLAWS = {
    "documents leak": "packed",
    "float32 inside": "float64",
    "half inside": "state: precision",
    "scale ignored": "like: scale",
    "masked by a product": "padding",
    "padding decays": "padding",
    "gate in the denominator": "value gate",
    "decays itself": "decay: first",
    "decay across heads": "strangers",
    "remembers": "state: alone",
    "state in place": "state: untouched",
    "drops the last chunk": "chunk size",
    "running sums of decay": "decay: reset",
    "grows and shrinks": "decay: strong",
    "chunks detached": "gradient: long",
    "state without denominator": "state: splits",
    "state in half": "state: precision",
    "clamped denominator": "like: scale",
    "gradient of the key halved": "gradient: elements",
    "time must be a multiple": "lengths",
    "first value lost": "zero values",
    "wide output": "dtypes",
    "a state too early": "state: splits",
    "state grows": "state: size",
}
