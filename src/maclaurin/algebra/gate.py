r"""Gates: what multiplies values, weights and outputs besides the similarity.

.. math:: o_t = g_t\, N\Bigl(\sum_s w_{ts}\, i_s v_s, \ldots\Bigr), \qquad
          w_{ts} = \kappa(x_{ts})\, e^{a_{s+1} + \dots + a_t}

with the value gate i, the log decay a <= 0 and the output gate g. Gates are descriptions: the tensors are keywords of
the evaluation, ``value_gate``, ``log_decay`` and ``output_gate``.

Dimension key: B batch, H key/value heads, T queries, S keys; ... leading dims.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class ValueGate:
    """Multiplies every value, v_s -> i_s v_s; the denominator keeps the ungated weights."""

    name: ClassVar[str] = "valuegate"
    operand: ClassVar[str] = "value_gate"


@dataclass(frozen=True)
class Decay:
    """Multiplies the weight of a key by exp of the log decays of every token after it, up to the query."""

    name: ClassVar[str] = "decay"
    operand: ClassVar[str] = "log_decay"


@dataclass(frozen=True)
class OutputGate:
    """Multiplies the output of a query, or what goes into the normalizer.

    Args:
        after: multiply what the normalizer returns; otherwise the numerator it is given, where a scale-invariant
            normalizer loses a gate of one number per head.
    """

    after: bool = field(default=False, metadata={"opposite": "before"})

    name: ClassVar[str] = "outgate"
    operand: ClassVar[str] = "output_gate"


@dataclass(frozen=True)
class Gates:
    """Which gates a mechanism has.

    Args:
        value: a value gate.
        decay: a scalar decay per key/value head.
        output: an output gate, before or after the normalizer; None for none.
    """

    value: bool = False
    decay: bool = False
    output: OutputGate | None = None

    @classmethod
    def of(cls, parts: Iterable[object]) -> Gates:
        """The gates among the parts of a text."""
        found = {type(each): each for each in parts}
        output = found.get(OutputGate)
        assert output is None or isinstance(output, OutputGate)
        return cls(ValueGate in found, Decay in found, output)

    @property
    def parts(self) -> tuple[ValueGate | Decay | OutputGate, ...]:
        """One object for each gate that is there, in the grammar's order."""
        switched = [part() for part, on in ((ValueGate, self.value), (Decay, self.decay)) if on]
        return (*switched, *([] if self.output is None else [self.output]))


def log_decay_after(log_decay: Tensor) -> Tensor:
    """Sum of the log decays after each token, ``[..., S] -> [..., S]``: a_{s+1} + ... + a_{S-1}.

    A sum of the terms themselves, not a difference of running sums: -inf is an exact reset.

    Example:
        >>> log_decay_after(torch.tensor([-9.0, -1.0, -2.0])).tolist()
        [-3.0, -2.0, 0.0]
    """
    if log_decay.shape[-1] == 0:
        return log_decay
    later = log_decay.flip(-1).cumsum(-1).flip(-1)
    return torch.cat([later[..., 1:], torch.zeros_like(later[..., :1])], dim=-1)


def pairwise_log_decay(log_decay: Tensor, num_queries: int) -> Tensor:
    """Log decay between every key and every query, ``[..., S] -> [..., T, S]``: a_{s+1} + ... + a_{t + S - T}.

    Queries are aligned to the end of the keys; zero where a key stands after the query.

    Args:
        log_decay: a, one number for every key's time.
        num_queries: T.

    Cost: T S additions.

    Example:
        >>> pairwise_log_decay(torch.tensor([-9.0, -1.0, -2.0]), 2).tolist()
        [[-1.0, 0.0, 0.0], [-3.0, -2.0, 0.0]]
    """
    num_keys = log_decay.shape[-1]
    rows = min(num_queries, num_keys)
    early = log_decay.new_zeros(*log_decay.shape[:-1], num_queries - rows, num_keys)
    if rows == 0:
        return early
    first = num_keys - rows  # the key that the first of these queries stands on
    time = torch.arange(num_keys, device=log_decay.device)
    is_later = time[first + 1 :, None] > time  # [rows - 1, S]
    steps = torch.where(is_later, log_decay[..., first + 1 :, None], 0.0)
    start = torch.cat([log_decay_after(log_decay[..., : first + 1]), torch.zeros_like(log_decay[..., first + 1 :])], -1)
    pairs = torch.cat([start[..., None, :], steps], dim=-2).cumsum(-2)
    return torch.cat([early, pairs], dim=-2) if num_queries > rows else pairs
