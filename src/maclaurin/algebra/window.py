"""Window: the last keys and the first ones exactly, everything between them through the finite state.

Dimension key: ... leading dims, T queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from maclaurin.errors import MechanismError


@dataclass(frozen=True)
class Window:
    """Exact softmax weights on the last W visible keys and the first S, one denominator with all others.

    A key that is both counts once; hidden keys are skipped when counting.

    Args:
        width: W, number of last visible keys, >= 1.
        sinks: S, number of first visible keys, >= 0.

    Raises:
        MechanismError: a number out of range.
    """

    width: int = field(metadata={"positional": True})
    sinks: int = field(default=0, metadata={"positional": True})

    name: ClassVar[str] = "window"

    def __post_init__(self) -> None:
        for name, value, least in (("width", self.width, 1), ("number of sinks", self.sinks, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise MechanismError(
                    f"window:{self.width}:{self.sinks} asks for the {name} {value!r}.\n"
                    f"  It must be a whole number >= {least}, for instance window:64:4."
                )

    @property
    def num_slots(self) -> int:
        """Keys that are kept as they are: W + S."""
        return self.width + self.sinks

    def near(self, visible: Tensor) -> Tensor:
        """Which visible keys each query weighs exactly: bool ``[..., T, S]`` from the same."""
        rank = visible.long().cumsum(-1)
        return visible & ((rank <= self.sinks) | (rank[..., -1:] - rank < self.width))

    @property
    def formula(self) -> str:
        """Which keys are in it, as text."""
        sinks = f" and the first {self.sinks}" if self.sinks else ""
        return f"the last {self.width}{sinks} keys"
