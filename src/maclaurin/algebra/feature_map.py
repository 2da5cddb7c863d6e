r"""Feature maps: what happens to a query and a key before their inner product.

The logit is ``x = scale * <phi(q), phi(k)>``; phi is one of these, or any callable wrapped in
:class:`CallableMap`. A map whose values are never negative makes every logit non-negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from maclaurin.algebra.direction import unit


@dataclass(frozen=True)
class FeatureMap:
    """Base: ``phi: [..., K] -> [..., num_features(K)]``, applied to queries and keys alike."""

    name: ClassVar[str] = ""
    formula: ClassVar[str] = ""
    is_nonnegative = False  # a plain attribute: an instance of CallableMap makes its own promise
    #: Whether a half-precision result is off by its own rounding and nothing else.
    rounds_once: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        raise AssertionError("a feature map defines __call__")

    def rounded(self, x: Tensor) -> Tensor:
        """``phi(x)`` in the dtype of x, each number rounded once: in float32 before, where phi takes several steps."""
        is_half = x.dtype in (torch.bfloat16, torch.float16)
        return self(x.float()).to(x.dtype) if is_half and not self.rounds_once else self(x)

    def pull(self, x: Tensor, mapped: Tensor, grad: Tensor) -> Tensor:
        """Gradient of x from that of ``mapped``, which is ``phi(x)``."""
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            again = self.rounded(given)
        return torch.autograd.grad(again, given, grad)[0]

    def default_scale(self, key_dim: int) -> float:
        """The scale used when none is given: 1, except for :class:`Identity`."""
        return 1.0

    def num_features(
        self, key_dim: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> int:
        """Width of phi's output for a key of ``key_dim`` numbers, of that dtype and device where phi cares."""
        return key_dim


@dataclass(frozen=True)
class Identity(FeatureMap):
    """phi(x) = x, with the customary default scale ``K ** -0.5``."""

    name: ClassVar[str] = "identity"
    formula: ClassVar[str] = "x"

    def __call__(self, x: Tensor) -> Tensor:
        return x

    def pull(self, x: Tensor, mapped: Tensor, grad: Tensor) -> Tensor:
        return grad

    def default_scale(self, key_dim: int) -> float:
        return float(key_dim**-0.5) if key_dim else 1.0


@dataclass(frozen=True)
class Elu1(FeatureMap):
    """phi(x) = elu(x) + 1 > 0 (Katharopoulos et al., arXiv 2006.16236)."""

    name: ClassVar[str] = "elu1"
    formula: ClassVar[str] = "elu(x) + 1"
    is_nonnegative = True

    def __call__(self, x: Tensor) -> Tensor:
        # one of the two is exact: elu(x) + 1 as it is written loses every digit of exp(x) where x is far below 0
        return F.threshold(x, 0.0, 0.0).add_(x.clamp(max=0.0).exp_())

    def pull(self, x: Tensor, mapped: Tensor, grad: Tensor) -> Tensor:
        return mapped.clamp(max=1.0).mul_(grad)


@dataclass(frozen=True)
class Relu(FeatureMap):
    """phi(x) = max(x, 0)."""

    name: ClassVar[str] = "relu"
    formula: ClassVar[str] = "max(x, 0)"
    is_nonnegative = True

    def __call__(self, x: Tensor) -> Tensor:
        return F.relu(x)


@dataclass(frozen=True)
class Cosine(FeatureMap):
    """phi(x) = x / ||x||, so the logit is the cosine times the scale (Mongaras et al., arXiv 2409.18747)."""

    name: ClassVar[str] = "cosine"
    rounds_once: ClassVar[bool] = False
    formula: ClassVar[str] = "x / |x|"

    def __call__(self, x: Tensor) -> Tensor:
        return unit(x)


@dataclass(frozen=True)
class ExpMap(FeatureMap):
    """phi(x) = exp(x) in every coordinate; infinite where that exceeds the dtype."""

    name: ClassVar[str] = "expmap"
    formula: ClassVar[str] = "exp(x)"
    is_nonnegative = True

    def __call__(self, x: Tensor) -> Tensor:
        return torch.exp(x)


@dataclass(frozen=True)
class Features(FeatureMap):
    """phi(x) = x for queries and keys that are non-negative features already, as a layer may make them.

    That they are non-negative is the caller's promise: checking it would read every value.
    """

    name: ClassVar[str] = "features"
    formula: ClassVar[str] = "x (features made by the layer)"
    is_nonnegative = True

    def __call__(self, x: Tensor) -> Tensor:
        return x


@dataclass(frozen=True)
class CallableMap(FeatureMap):
    """Any function ``[..., K] -> [..., M]`` as a feature map.

    Args:
        function: maps the last axis; must be differentiable and act on each vector alone.
        is_nonnegative: promise that no output is negative; makes the ``sum`` normalizer legal for odd functions.

    It has no text in the grammar: ``str()`` of a mechanism with it raises, ``repr()`` names the function.
    """

    function: Callable[[Tensor], Tensor]
    is_nonnegative: bool = False

    formula: ClassVar[str] = "phi(x)"
    rounds_once: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return self.function(x)

    def num_features(
        self, key_dim: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> int:
        return int(self.function(torch.ones(1, key_dim, dtype=dtype, device=device)).shape[-1])


#: The maps that have a name in the grammar.
MAPS: dict[str, type[FeatureMap]] = {each.name: each for each in (Identity, Elu1, Relu, Cosine, ExpMap, Features)}
