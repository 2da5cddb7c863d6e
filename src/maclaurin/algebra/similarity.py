r"""Similarity = map > function: how much weight a key gets from a query, before anything is normalized.

.. math:: x = \mathrm{scale} \cdot \langle \varphi(q), \varphi(k) \rangle, \qquad w = \kappa(x)

and, centered (``@mean``), :math:`w = e^{c} \kappa(x - c)` with c the mean logit of the query's visible keys.

Dimension key: B batch, H heads, T queries, S keys; ... leading dims.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from maclaurin.algebra.feature_map import FeatureMap, Identity
from maclaurin.algebra.function import Exp, Function, Positivity, Series
from maclaurin.errors import MechanismError


@dataclass(frozen=True)
class Similarity:
    r"""The weight of a key for a query.

    Args:
        function: kappa, for instance ``Exp()`` or ``Taylor(order=2)``.
        map: phi; the identity by default.
        clamp: the logit becomes min(x, clamp) before kappa. A clamped similarity has no finite state.
        is_centered: expand around the mean logit c of the visible keys, w = exp(c) kappa(x - c); only for
            functions that approximate exp. With a clamp, c is the mean of the logits before it.

    Raises:
        MechanismError: a center for a function that has none, or a clamp that is not finite.
    """

    function: Function
    map: FeatureMap = field(default_factory=Identity)
    clamp: float | None = None
    is_centered: bool = False

    def __post_init__(self) -> None:
        if self.clamp is not None:
            object.__setattr__(self, "clamp", float(self.clamp))
            if not math.isfinite(float(self.clamp)):
                raise MechanismError(
                    f"{self.function.name}:clamp={self.clamp} asks for a clamp that is not a finite number.\n"
                    "  Leave the clamp out, or give a number such as clamp=5."
                )
        if self.is_centered and not self.function.can_center:
            raise MechanismError(
                f"{self.function.name}@mean asks to center {self.function.formula}, which gains nothing from it or "
                "becomes another function.\n  Only taylor:N has a centered form: write taylor:N@mean."
            )

    @property
    def is_finite_state(self) -> bool:
        """Whether the sum over keys has a summary whose size does not grow with their number."""
        return isinstance(self.function, Series) and self.clamp is None

    @property
    def shares_exp_scale(self) -> bool:
        """Whether its weights approximate exp of the plain logit, and so share a denominator with exact ones."""
        return self.function.can_center and isinstance(self.map, Identity)

    @property
    def moment_orders(self) -> tuple[int, ...]:
        """The orders of monomials that the finite state must hold."""
        assert isinstance(self.function, Series) and self.is_finite_state
        return tuple(range(self.function.degree + 1)) if self.is_centered else self.function.orders

    @property
    def positivity(self) -> Positivity:
        """The sign of the weights for any query and key, at a scale >= 0."""
        return self.function.positivity(nonnegative_logits=self._has_nonnegative_logits)

    def sign_survives(self, scale: float, *, cancels_sign: bool) -> bool:
        """Whether sum normalization is as safe at a negative ``scale`` as at its absolute value.

        True for weights that are non-negative on all of R; with ``cancels_sign``, when a sign common to numerator and
        denominator leaves the output as it is, also for odd powers.
        """
        if scale >= 0 or self.function.positivity(nonnegative_logits=False) is not Positivity.SIGNED:
            return True
        is_odd_power = isinstance(self.function, Series) and len(self.function.orders) == 1
        return is_odd_power and self.clamp is None and cancels_sign

    def weigh(
        self, logits: Tensor, visible: Tensor, center: Tensor | None = None, log_decay: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Weights of a block of keys relative to a log scale per query.

        Args:
            logits: x, ``[..., T, S]``.
            visible: bool, broadcastable to ``[..., T, S]``.
            center: c, ``[..., T]``; given exactly when the similarity is centered.
            log_decay: log of a factor of every weight, broadcastable to ``[..., T, S]``; None for none.

        Returns:
            ``(weights [..., T, S], log_scale [..., T])``; ``weights * exp(log_scale)`` is w, zero where not visible.
            The log scale carries no gradient: the gradient of exp(c) stays in the weights.
        """
        assert (center is not None) == self.is_centered
        if self.clamp is not None:
            logits = logits.clamp(max=self.clamp)
        if center is None:
            return self.function.weigh(logits, visible, log_decay)
        weights, log_scale = self.function.weigh(logits - center[..., None], visible, log_decay)
        gauge = center.detach()
        return weights * torch.exp(center - gauge)[..., None], log_scale + gauge

    def readout(self, order: int, scale: float, center: Tensor | None = None) -> float | Tensor:
        r"""Factor of <phi_n(q), M_n> when weights are read from moments M_n = sum_s phi_n(k_s) v_s.

        .. math:: \kappa(x - c) = \sum_n x^n \sum_{m \ge n} a_m \tbinom{m}{n} (-c)^{m-n}

        which for Taylor is sum_n x^n/n! T_{N-n}(-c).
        """
        assert isinstance(self.function, Series)
        if center is None:
            return self.function.series[order] * scale**order
        return self.function.shifted(center, order) * scale**order

    @property
    def _has_nonnegative_logits(self) -> bool:
        """Whether kappa only ever sees numbers >= 0; around a center it sees x - c, of either sign."""
        return self.map.is_nonnegative and not self.is_centered and (self.clamp is None or self.clamp >= 0)

    @property
    def formula(self) -> str:
        """The weight as text."""
        phi = self.map.formula
        inner = "<q, k>" if isinstance(self.map, Identity) else f"<phi(q), phi(k)>, phi(x) = {phi}"
        logit = f"x = scale {inner}" if self.clamp is None else f"x = min(scale {inner}, {self.clamp:g})"
        weight = self.function.formula
        if self.is_centered:
            weight = f"exp(c) ({weight.replace('x', 'y')}), y = x - c, c = mean visible logit"
        return f"w = {weight}; {logit}"


#: The weights of softmax attention, and of the keys inside a window.
SOFTMAX = Similarity(Exp())
