r"""Normalizers: what turns an accumulator into an output. Each sees the accumulator and nothing else.

With the accumulator's numerator N, denominator Z, count n, log scale l (true values e^l N and e^l Z) and L, the log of
the sum of exp(u) over the visible keys:

=========== ====================================================== =========================================
``sum``     N / (max(Z, clamp) + eps), clamp and eps in true scale softmax's own; needs non-negative weights
``length``  e^l N / n^p, p = 1 or learned per head                 the mean instead of the weighted mean
``l2``      gain * N / |N|                                         the first paper's replacement
``rms``     sqrt(V) N / |N| (* weight)                             RMSNorm without epsilon
``layer``   sqrt(V) (N - mean) / |N - mean| (* weight + bias)      LayerNorm without epsilon
``none``    e^l N                                                  nothing
``cumgate`` e^l N / max(e^L, 1)                                    a learned denominator, blind to the query
=========== ====================================================== =========================================

The scale-invariant ones (``l2``, ``rms``, ``layer``) are exact at any magnitude; a zero row gives zeros and zero
gradient. A row without a visible key is zero after everything, bias included.

Dimension key: B batch, H heads, T queries, V value dim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from maclaurin.algebra.accumulator import Accumulator, unscale
from maclaurin.algebra.direction import unit
from maclaurin.errors import MechanismError


@dataclass(frozen=True)
class NormalizerInputs:
    """Learned tensors that the layer owns; None where the normalizer has none.

    Args:
        length_exponent: ``[H, 1]``-like, broadcastable to the accumulator's count.
        weight: broadcastable to the numerator.
        bias: broadcastable to the numerator.
    """

    length_exponent: Tensor | None = None
    weight: Tensor | None = None
    bias: Tensor | None = None


@dataclass(frozen=True)
class Normalizer:
    """Base: ``normalizer(accumulator, inputs) -> [..., V]``."""

    name: ClassVar[str] = ""
    #: Whether a state must carry the sum of the weights.
    uses_denominator: ClassVar[bool] = False
    #: Whether multiplying a row's weights by any positive number leaves the output as it is.
    is_scale_invariant: ClassVar[bool] = False

    #: Whether the number of keys enters the output.
    uses_count: ClassVar[bool] = False

    #: Whether a state must carry the log of the sum of exp(u) over keys, u = ``denominator_logit``.
    uses_log_denominator: ClassVar[bool] = False

    def __call__(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        is_empty = (accumulator.count <= 0)[..., None]  # such rows may hold anything, and gradients see it
        seen = replace(accumulator, numerator=accumulator.numerator.masked_fill(is_empty, 0.0))
        return self.apply(seen, inputs).masked_fill(is_empty, 0.0)

    def apply(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        """The formula, for rows that see at least one key."""
        raise AssertionError("a normalizer defines apply")

    def of_mean(self, mean: Tensor, inputs: NormalizerInputs) -> Tensor:
        """The formula from N / Z, for normalizers that forget a row's scale; the tensor may be written over."""
        one = torch.ones((), dtype=mean.dtype, device=mean.device)
        return self.apply(Accumulator(mean, one, one, torch.zeros_like(one)), inputs)

    @property
    def rounds_once(self) -> bool:
        """Whether half-precision sums give an output that is off by its own rounding and nothing else."""
        return False

    @property
    def needs_nonnegative(self) -> bool:
        """Whether a signed similarity would make the denominator vanish or change sign."""
        return False

    @property
    def cancels_sign(self) -> bool:
        """Whether a sign common to every weight of a row leaves the output as it is."""
        return False

    @property
    def forgets_row_scale(self) -> bool:
        """Whether a positive factor common to numerator and denominator of a row leaves output and gradient alike."""
        return self.is_scale_invariant

    @property
    def learned(self) -> tuple[str, ...]:
        """Keywords of the tensors it reads: ``length_exponent``, ``norm_weight``, ``norm_bias``, ..."""
        return ()

    @property
    def formula(self) -> str:
        """The output as text."""
        raise AssertionError("a normalizer defines its formula")


@dataclass(frozen=True)
class Sum(Normalizer):
    """out = N / (max(Z, clamp) + eps), in true scale; Z = 0 gives a zero row.

    Args:
        signed: allow weights that change sign; the denominator may then be negative or vanish.
        eps: added to the denominator, >= 0.
        clamp: least value of the denominator, > 0; None for none.
        detach: stop the gradient of the whole denominator.

    Raises:
        MechanismError: eps or clamp out of range.
    """

    signed: bool = False
    eps: float = 0.0
    clamp: float | None = None
    detach: bool = False

    name: ClassVar[str] = "sum"
    uses_denominator: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "eps", _number("sum", "eps", self.eps, least=0.0))
        if self.clamp is not None:
            object.__setattr__(self, "clamp", _number("sum", "clamp", self.clamp, least=0.0, exclusive=True))

    @property
    def needs_nonnegative(self) -> bool:
        return not self.signed

    @property
    def rounds_once(self) -> bool:
        return self.eps == 0 and self.clamp is None

    @property
    def cancels_sign(self) -> bool:
        return self.eps == 0 and self.clamp is None

    @property
    def forgets_row_scale(self) -> bool:
        return self.eps == 0 and self.clamp is None and not self.detach

    @property
    def formula(self) -> str:
        z = "Z" if self.clamp is None else f"max(Z, {self.clamp:g})"
        z = f"({z} + {self.eps:g})" if self.eps else z
        return f"out = N / {z}" + (", no gradient through the denominator" if self.detach else "")

    def apply(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        denominator = accumulator.denominator
        assert denominator is not None
        if self.clamp is not None:
            denominator = torch.maximum(denominator, self.clamp * torch.exp(-accumulator.log_scale))
        if self.eps:
            denominator = denominator + self.eps * torch.exp(-accumulator.log_scale)
        if self.detach:
            denominator = denominator.detach()
        # a finite number over infinity is zero, and so are its derivatives: a pass less over the numerator
        return accumulator.numerator / denominator.masked_fill(denominator == 0, math.inf)[..., None]

    def of_mean(self, mean: Tensor, inputs: NormalizerInputs) -> Tensor:
        return mean


@dataclass(frozen=True)
class Length(Normalizer):
    """out = e^l N / n^p: divided by the number of visible keys.

    Args:
        learned_exponent: p is a tensor per head (``length_exponent``), otherwise 1.
    """

    learned_exponent: bool = field(default=False, metadata={"text": "learned"})

    name: ClassVar[str] = "length"
    uses_count: ClassVar[bool] = True

    @property
    def learned(self) -> tuple[str, ...]:
        return ("length_exponent",) if self.learned_exponent else ()

    @property
    def formula(self) -> str:
        return "out = N / n^p, p learned per head" if self.learned_exponent else "out = N / n"

    def apply(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        count = accumulator.count.masked_fill(accumulator.count <= 0, 1.0)
        if self.learned_exponent:
            assert inputs.length_exponent is not None
            count = torch.exp(inputs.length_exponent * count.log())
        return unscale(accumulator.numerator / count[..., None], accumulator.log_scale[..., None])


@dataclass(frozen=True)
class Unnormalized(Normalizer):
    """out = e^l N: the sum as it is."""

    name: ClassVar[str] = "none"

    @property
    def formula(self) -> str:
        return "out = N"

    def apply(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        return unscale(accumulator.numerator, accumulator.log_scale[..., None])


@dataclass(frozen=True)
class CumulativeGate(Normalizer):
    """out = N / max(sum over visible s of d_s exp(u_s), 1): a learned denominator that no query and no key enters.

    u = ``denominator_logit`` is a number per key and head, d the decay factor of the key. Keys that a window has left
    behind count too.

    Source: gated_softmax_cumgate of Mongaras & Larson, arXiv 2507.23632.
    """

    name: ClassVar[str] = "cumgate"
    uses_log_denominator: ClassVar[bool] = True

    @property
    def learned(self) -> tuple[str, ...]:
        return ("denominator_logit",)

    @property
    def formula(self) -> str:
        return "out = N / max(sum exp(u), 1), u learned per key"

    def apply(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        assert accumulator.log_denominator is not None
        log_divisor = accumulator.log_denominator.clamp(min=0.0)
        gauge = log_divisor.detach()
        numerator = accumulator.numerator * torch.exp(gauge - log_divisor)[..., None]
        return unscale(numerator, (accumulator.log_scale - gauge)[..., None])


@dataclass(frozen=True)
class L2(Normalizer):
    """out = gain * N / |N|. With ``exp`` this is softmax attention followed by an L2 norm of its output, exactly.

    Args:
        gain: length of every output row, > 0.

    Raises:
        MechanismError: gain out of range.
    """

    gain: float = 1.0

    name: ClassVar[str] = "l2"
    is_scale_invariant: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", _number("l2", "gain", self.gain, least=0.0, exclusive=True))

    @property
    def rounds_once(self) -> bool:
        return True

    @property
    def formula(self) -> str:
        return "out = N / |N|" if self.gain == 1 else f"out = {self.gain:g} N / |N|"

    def apply(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        return self._of(accumulator.numerator)

    def of_mean(self, mean: Tensor, inputs: NormalizerInputs) -> Tensor:
        return self._of(mean, may_overwrite=True)

    def _of(self, x: Tensor, *, may_overwrite: bool = False) -> Tensor:
        return unit(x, self.gain, may_overwrite=may_overwrite)


@dataclass(frozen=True)
class RMS(Normalizer):
    """out = N / rms(N) (* weight), rms(N) = |N| / sqrt(V).

    Args:
        weight: multiply by the learned ``norm_weight``.
    """

    weight: bool = False

    name: ClassVar[str] = "rms"
    is_scale_invariant: ClassVar[bool] = True

    @property
    def learned(self) -> tuple[str, ...]:
        return ("norm_weight",) if self.weight else ()

    @property
    def rounds_once(self) -> bool:
        return not self.weight

    @property
    def formula(self) -> str:
        return "out = N / rms(N)" + (" * weight" if self.weight else "")

    def apply(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        return self._of(accumulator.numerator, inputs)

    def of_mean(self, mean: Tensor, inputs: NormalizerInputs) -> Tensor:
        return self._of(mean, inputs, may_overwrite=True)

    def _of(self, x: Tensor, inputs: NormalizerInputs, *, may_overwrite: bool = False) -> Tensor:
        return _affine(_standardized(x, may_overwrite=may_overwrite), inputs)


@dataclass(frozen=True)
class Layer(Normalizer):
    """out = (N - mean(N)) / std(N) (* weight + bias).

    The row is divided by its largest magnitude before its mean is taken, so that a constant row leaves exact zeros.

    Args:
        weight: multiply by the learned ``norm_weight``.
        bias: add the learned ``norm_bias``.
    """

    weight: bool = False
    bias: bool = False

    name: ClassVar[str] = "layer"
    is_scale_invariant: ClassVar[bool] = True

    @property
    def learned(self) -> tuple[str, ...]:
        return tuple(name for name, on in (("norm_weight", self.weight), ("norm_bias", self.bias)) if on)

    @property
    def formula(self) -> str:
        affine = (" * weight" if self.weight else "") + (" + bias" if self.bias else "")
        return "out = (N - mean N) / std N" + affine

    def apply(self, accumulator: Accumulator, inputs: NormalizerInputs) -> Tensor:
        numerator = accumulator.numerator
        if numerator.shape[-1] == 0:
            return numerator
        magnitude = numerator.detach().abs().amax(-1, keepdim=True)
        peeled = numerator / magnitude.masked_fill(magnitude == 0, 1.0)
        return _affine(_standardized(peeled - peeled.mean(-1, keepdim=True)), inputs)


#: The normalizers that have a name in the grammar.
NORMALIZERS: dict[str, type[Normalizer]] = {
    each.name: each for each in (Sum, Length, L2, RMS, Layer, Unnormalized, CumulativeGate)
}


def _standardized(x: Tensor, *, may_overwrite: bool = False) -> Tensor:
    return unit(x, math.sqrt(x.shape[-1]), may_overwrite=may_overwrite)


def _affine(x: Tensor, inputs: NormalizerInputs) -> Tensor:
    x = x if inputs.weight is None else x * inputs.weight
    return x if inputs.bias is None else x + inputs.bias


def _number(name: str, option: str, value: float, *, least: float, exclusive: bool = False) -> float:
    number = float(value)
    if not math.isfinite(number) or number < least or (exclusive and number == least):
        bound = f"{'>' if exclusive else '>='} {least:g}"
        raise MechanismError(
            f"{name}:{option}={value} asks for the {option} {value}.\n  It must be a finite number {bound}."
        )
    return number
