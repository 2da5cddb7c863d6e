"""From sums to outputs: the normalizer with its learned tensors, and the output gate before or after it.

Dimension key: B batch, H key/value heads, G query heads per key/value head, T queries, V value dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from maclaurin.algebra import Accumulator, Mechanism, NormalizerInputs
from maclaurin.evaluate.tensor_tree import TensorTree


@dataclass(frozen=True, eq=False)
class Finish(TensorTree):
    """What becomes of a query's accumulator.

    Args:
        mechanism: has the normalizer and the place of the gate.
        length_exponent: ``[H, G, 1]``, or None.
        norm_weight: ``[V]`` or ``[H, G, 1, V]``, or None.
        norm_bias: as the weight.
        output_gate: ``[B, H, G, T, 1 or V]``, or None.
        every_query_sees: whether no query can be without a visible key.
    """

    mechanism: Mechanism
    length_exponent: Tensor | None
    norm_weight: Tensor | None
    norm_bias: Tensor | None
    output_gate: Tensor | None
    every_query_sees: bool

    @classmethod
    def of(
        cls,
        mechanism: Mechanism,
        operands: Mapping[str, Tensor | None],
        groups: tuple[int, int],
        *,
        every_query_sees: bool = False,
    ) -> Finish:
        """From the keywords of ``attend``.

        Args:
            mechanism: the composition.
            operands: tensors by keyword, as given but in the dtype of the sums.
            groups: (H, G).
            every_query_sees: whether no query can be without a visible key.
        """

        def per_head(name: str, num_dims: int) -> Tensor | None:
            tensor = operands.get(name)
            return tensor if tensor is None or tensor.ndim < num_dims else grouped(tensor, 0, groups)[:, :, None]

        gate = operands.get("output_gate")
        if gate is not None:
            gate = grouped(gate[..., None] if gate.ndim == 3 else gate, 1, groups)
        return cls(
            mechanism,
            per_head("length_exponent", 1),
            per_head("norm_weight", 2),
            per_head("norm_bias", 2),
            gate,
            every_query_sees,
        )

    def of_heads(self, batch: slice, head: slice) -> Finish:
        """That of some batch rows and key/value heads."""

        def per_head(x: Tensor | None) -> Tensor | None:
            return x if x is None or x.ndim < 3 else x[head]

        return replace(
            self,
            length_exponent=per_head(self.length_exponent),
            norm_weight=per_head(self.norm_weight),
            norm_bias=per_head(self.norm_bias),
            output_gate=None if self.output_gate is None else self.output_gate[batch, head],
        )

    def during(self, time: slice) -> Finish:
        """That of some queries."""
        return self if self.output_gate is None else replace(self, output_gate=self.output_gate[:, :, :, time])

    def __call__(self, sums: Accumulator) -> Tensor:
        """The output of every query, ``[B, H, G, T, V]``."""
        gate = self.mechanism.gates.output
        if gate is None or self.output_gate is None:
            return self._normalized(sums)
        if gate.after:
            return self._normalized(sums) * self.output_gate
        return self._normalized(sums.gated(self.output_gate))

    def of_mean(self, mean_BHGTV: Tensor) -> Tensor:
        """The same from N / Z, where every query sees a key and the normalizer forgets a row's scale; gives it away."""
        gate, normalizer = self.mechanism.gates.output, self.mechanism.normalizer
        if gate is None or self.output_gate is None:
            return normalizer.of_mean(mean_BHGTV, self._inputs)
        if gate.after:
            return normalizer.of_mean(mean_BHGTV, self._inputs) * self.output_gate
        return normalizer.of_mean(mean_BHGTV * self.output_gate, self._inputs)

    def _normalized(self, sums: Accumulator) -> Tensor:
        normalizer = self.mechanism.normalizer
        return normalizer.apply(sums, self._inputs) if self.every_query_sees else normalizer(sums, self._inputs)

    @property
    def _inputs(self) -> NormalizerInputs:
        return NormalizerInputs(self.length_exponent, self.norm_weight, self.norm_bias)


def grouped(x: Tensor, dim: int, sizes: tuple[int, int]) -> Tensor:
    """``x`` with dimension ``dim`` (heads) split into key/value heads and groups."""
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])
