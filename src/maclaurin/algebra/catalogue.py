"""The catalogue: names for compositions. A name is only ever a name; no code branches on it.

A :class:`Recipe` is a mechanism with the layer options its source uses. Adding a member is adding a line here; the
laws of the family cover it from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from maclaurin.algebra.grammar import parse
from maclaurin.algebra.mechanism import Mechanism
from maclaurin.errors import ConfigError, GrammarError, MechanismError, nearest


@dataclass(frozen=True)
class LayerOptions:
    """What a layer does around the mechanism.

    Args:
        rotary: rotate query and key by their position before the feature map; otherwise no positions.
        convolution: width of a short causal convolution over query, key and value; 0 for none.

    Raises:
        ConfigError: a negative width.
    """

    rotary: bool = True
    convolution: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.convolution, bool) or not isinstance(self.convolution, int) or self.convolution < 0:
            raise ConfigError(
                f"convolution={self.convolution!r} asks for a causal convolution of that width.\n"
                "  Give a whole number >= 1, or 0 for none."
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
    """

    name: str
    mechanism: Mechanism
    layer: LayerOptions = field(default_factory=LayerOptions)
    literature: tuple[str, ...] = ()
    summary: str = ""

    def with_layer(self, **options: Any) -> Recipe:
        """The same recipe with some layer options replaced.

        Raises:
            TypeError: an option that does not exist.
        """
        return replace(self, layer=replace(self.layer, **options))


def _entry(name: str, text: str, summary: str, *literature: str) -> tuple[str, Recipe]:
    return name, Recipe(name, parse(text), LayerOptions(), literature, summary)


_FIRST = "Mongaras & Larson, arXiv 2507.23632"

#: Every named member of the family, in the order of ``maclaurin list``.
CATALOGUE: dict[str, Recipe] = dict(
    [
        _entry(
            "softmax",
            "exp/sum",
            "softmax attention",
            "scaled dot-product attention (Vaswani et al., arXiv 1706.03762)",
        ),
        _entry(
            "exp-l2",
            "exp/l2",
            "softmax's numerator, its denominator replaced by an L2 norm",
            f"gated_softmax_no_gate_L2norm_nodivS_noclamp ({_FIRST})",
        ),
        _entry(
            "exp-rms",
            "exp/rms:weight",
            "softmax's numerator under RMSNorm",
            f"RMSNorm in place of the denominator ({_FIRST})",
        ),
        _entry(
            "exp-layer",
            "exp/layer:weight:bias",
            "softmax's numerator under LayerNorm",
            f"LayerNorm in place of the denominator ({_FIRST})",
        ),
        _entry(
            "exp-length",
            "exp/length",
            "softmax's numerator divided by the number of keys",
            f"division by the sequence length ({_FIRST})",
        ),
        _entry(
            "linear-elu",
            "elu1/sum",
            "linear attention with elu(x) + 1",
            "linear transformer (Katharopoulos et al., arXiv 2006.16236)",
            f"linear_elu ({_FIRST})",
        ),
        _entry(
            "linear-relu",
            "relu/sum",
            "linear attention with max(x, 0)",
            f"linear_relu without its epsilon ({_FIRST})",
        ),
        _entry(
            "linear-cosine",
            "cosine/length:learned",
            "cosine attention, divided by a learned power of the length",
            "Cottention (Mongaras et al., arXiv 2409.18747)",
            f"linear_cosine as intended ({_FIRST})",
        ),
        _entry(
            "taylor-1",
            "taylor:1/sum:signed",
            "the first two orders of exp; weights may be negative",
            "first-order linear attention",
        ),
        _entry(
            "taylor-2",
            "taylor:2/sum",
            "orders 0 to 2 of exp",
            "Based's feature map (Arora et al., arXiv 2402.18668)",
            "second-order Taylor attention",
        ),
        _entry("taylor-4", "taylor:4/sum", "orders 0 to 4 of exp", f"powers up to n = 4 ({_FIRST})"),
        _entry("taylor-2-centered", "taylor:2@mean/sum", "orders 0 to 2 around the mean logit"),
        _entry("taylor-4-centered", "taylor:4@mean/sum", "orders 0 to 4 around the mean logit"),
        _entry(
            "power-2",
            "power:2/sum",
            "the squared inner product",
            "2Mamba's kernel without decay (arXiv 2602.17363)",
            "quadratic (power) attention",
        ),
        _entry(
            "elu-taylor-2",
            "elu1>taylor:2/sum",
            "linear attention with an added second power",
            f"added powers, section 4.4 ({_FIRST})",
        ),
    ]
)


def recipe(name: str) -> Recipe:
    """A recipe by catalogue name, or made from the text of a mechanism.

    Raises:
        GrammarError: neither a name of the catalogue (the nearest are given) nor a text of the grammar.

    Example:
        >>> recipe("exp-l2").mechanism == recipe("exp/l2").mechanism
        True
    """
    if name in CATALOGUE:
        return CATALOGUE[name]
    if "/" not in name:
        raise GrammarError(
            f"{name!r} asks for a mechanism that is not in the catalogue: {nearest(name, CATALOGUE)}\n"
            "  A text of the grammar has the form similarity/normalizer, for instance exp/sum."
        )
    return Recipe(name, parse(name))


def mechanism(name: str) -> Mechanism:
    """The mechanism of :func:`recipe`.

    Example:
        >>> str(mechanism("taylor-2-centered"))
        'taylor:2@mean/sum'
    """
    return recipe(name).mechanism


def mechanism_of(value: Mechanism | str) -> Mechanism:
    """A mechanism given as itself, or as its text or catalogue name.

    Raises:
        MechanismError: anything else.
    """
    if isinstance(value, Mechanism):
        return value
    if isinstance(value, str):
        return mechanism(value)
    raise MechanismError(
        f"{value!r} asks for a mechanism.\n  Give a Mechanism, its text such as 'exp/sum', or a name of the catalogue."
    )
