"""A recipe: a mechanism and what the layer around it does, under a name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from maclaurin.algebra.mechanism import Mechanism
from maclaurin.errors import ConfigError


@dataclass(frozen=True)
class LayerOptions:
    """What a layer does around the mechanism.

    Args:
        rotary: rotate query and key by their position before the feature map; otherwise no positions.
        convolution: width of a short causal convolution over query, key and value; 0 for none.
        decay: how the layer makes the log decays of a mechanism with ``+decay``: a name of
            ``maclaurin.nn.gates.DECAYS``; others read nothing of it.
        vector_gate: an output gate has one number per channel instead of one per head.

    Raises:
        ConfigError: a negative width, a decay that is not a name, a vector gate that is not a bool.
    """

    rotary: bool = True
    convolution: int = 0
    decay: str = "log_sigmoid"
    vector_gate: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.convolution, bool) or not isinstance(self.convolution, int) or self.convolution < 0:
            raise ConfigError(
                f"convolution={self.convolution!r} asks for a causal convolution of that width.\n"
                "  Give a whole number >= 1, or 0 for none."
            )
        if not isinstance(self.decay, str) or not self.decay:
            raise ConfigError(
                f"decay={self.decay!r} asks for a way to make log decays, and is not a name.\n"
                "  Give one of maclaurin.nn.gates.DECAYS, for instance 'log_sigmoid' or 'fixed'."
            )
        if not isinstance(self.vector_gate, bool):
            raise ConfigError(
                f"vector_gate={self.vector_gate!r} is not a bool.\n"
                "  Give True for an output gate per channel, False for one per head."
            )


@dataclass(frozen=True)
class Recipe:
    """A mechanism with layer options, under a name.

    Args:
        name: the catalogue's name, or the mechanism's text for a recipe made from one.
        mechanism: the composition.
        layer: options of the layer around it.
        literature: what the literature calls it, with the source.
        summary: one line on what it is.
        aliases: other names that :func:`maclaurin.recipe` takes for it, for instance a paper's option strings.
    """

    name: str
    mechanism: Mechanism
    layer: LayerOptions = field(default_factory=LayerOptions)
    literature: tuple[str, ...] = ()
    summary: str = ""
    aliases: tuple[str, ...] = ()

    def with_layer(self, **options: Any) -> Recipe:
        """The same recipe with some layer options replaced.

        Raises:
            TypeError: an option that does not exist.
        """
        return replace(self, layer=replace(self.layer, **options))
