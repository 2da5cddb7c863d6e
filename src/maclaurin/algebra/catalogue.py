"""The catalogue: names for compositions. A name is only ever a name; no code branches on it.

A :class:`Recipe` is a mechanism with the layer options its source uses. Adding a member is adding a line here; the
laws of the family cover it from then on.
"""

from __future__ import annotations

from typing import Any

import torch

from maclaurin.algebra.grammar import parse
from maclaurin.algebra.mechanism import Mechanism
from maclaurin.algebra.recipe import LayerOptions, Recipe
from maclaurin.algebra.tracing import constant_when_traced
from maclaurin.errors import GrammarError, MechanismError, nearest

_FIRST = "Mongaras & Larson, arXiv 2507.23632"


def _entry(
    name: str,
    text: str,
    summary: str,
    *literature: str,
    official: tuple[str, ...] = (),
    also: tuple[str, ...] = (),
    **layer: Any,
) -> Recipe:
    """One member.

    Args:
        name: its name here.
        text: the mechanism.
        summary: one line.
        literature: what papers call it, with the source.
        official: option strings of the first paper's code, each perhaps followed by how its formula differs.
        also: further names.
        layer: options of the layer that are not the defaults.
    """
    options = tuple(each.split()[0].rstrip(",") for each in official)
    told = (*literature, *(f"{each} ({_FIRST})" for each in official))
    aliases = tuple(each for each in (*options, *also) if each != name)
    return Recipe(name, parse(text), LayerOptions(**layer), told, summary, aliases)


_MEMBERS = (
    _entry(
        "softmax",
        "exp/sum",
        "softmax attention",
        "scaled dot-product attention (Vaswani et al., arXiv 1706.03762)",
        official=("softmax",),
    ),
    _entry(
        "exp-l2",
        "exp/l2",
        "softmax's numerator, its denominator replaced by an L2 norm",
        official=("gated_softmax_no_gate_L2norm_nodivS_noclamp without its floor of 1e-12 under the norm",),
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
        official=("linear_elu",),
    ),
    _entry("linear-relu", "relu/sum", "linear attention with max(x, 0)", official=("linear_relu without its epsilon",)),
    _entry(
        "linear-cosine",
        "cosine/length:learned",
        "cosine attention, divided by a learned power of the length",
        "Cottention (Mongaras et al., arXiv 2409.18747)",
        official=("linear_cosine as intended",),
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
    # ------------------------------------------------------------------------------------- decay and windows
    _entry(
        "forgetting",
        "exp/sum+decay",
        "softmax attention whose keys fade by a learned gate",
        "Forgetting Transformer (Lin et al., arXiv 2503.02130)",
        also=("fox",),
        rotary=False,
    ),
    _entry(
        "retention",
        "power:1/rms+decay+outgate:after",
        "inner products that fade at a fixed rate per head, gated",
        "multi-scale retention (Sun et al., arXiv 2307.08621), whose gate is a swish",
        also=("retnet",),
        decay="fixed",
        vector_gate=True,
    ),
    _entry(
        "power-2-decay",
        "power:2/sum+decay",
        "the squared inner product, fading by a learned gate",
        "2Mamba (arXiv 2602.17363), whose decay has no bias",
        also=("2mamba", "squared__sm_norm__A_mask_type_neg_softplus__in_conv_k_2"),
        rotary=False,
        convolution=2,
        decay="minus_softplus",
    ),
    _entry(
        # short enough that the laws, at 37 keys, see beyond it
        "softmax-window",
        "exp/sum+window:16:4",
        "softmax attention to the last 16 keys and the first 4",
        "sliding window with attention sinks (Xiao et al., arXiv 2309.17453)",
    ),
    _entry(
        "taylor-2-window",
        "taylor:2/sum+window:16:4",
        "the same, and orders 0 to 2 of exp on all keys between",
    ),
    # --------------------------------------------------------------- the rest of the first paper's option table
    _entry(
        "softmax-clamp",
        "exp:clamp=5/sum:clamp=1",
        "softmax attention, logits at most 5, denominator at least 1",
        official=("softmax_clamp_denom",),
    ),
    _entry(
        "softmax-detached",
        "exp:clamp=5/sum:clamp=1:detach",
        "the same without a gradient through the denominator",
        official=("softmax_detach_denom",),
    ),
    _entry(
        "softmax-gated",
        "exp:clamp=5/sum:eps=1e-4:detach+outgate",
        "softmax attention, its denominator without a gradient, gated",
        official=("softmax_detach_denom_gate",),
    ),
    _entry(
        "exp-outgate",
        "exp:clamp=5/none+outgate",
        "softmax's numerator under an output gate alone",
        official=("softmax_gate",),
    ),
    _entry(
        "exp-cumgate",
        "exp:clamp=5/cumgate",
        "softmax's numerator over a denominator that no query enters",
        official=(
            "gated_softmax_cumgate",
            "cumulative_gated_softmax as intended, without its division by the number of keys, with a floor of 1",
        ),
    ),
    _entry(
        "exp-length-clamp",
        "exp:clamp=5/length",
        "exp-length with logits at most 5",
        official=("softmax_divs", "gated_softmax_no_gate_no_norm"),
    ),
    _entry(
        "exp-length-ingate",
        "exp:clamp=5/length+valuegate",
        "exp-length-clamp with gated values",
        official=("gated_softmax_no_out_gate_no_norm",),
    ),
    _entry(
        "exp-length-gate",
        "exp:clamp=5/length+outgate",
        "exp-length-clamp with a gated output",
        official=("softmax_divS_gate", "softmax_divS_gatev2", "gated_softmax_no_in_gate_no_norm"),
    ),
    _entry(
        "exp-length-gates",
        "exp:clamp=5/length+valuegate+outgate",
        "exp-length-clamp with gated values and output",
        official=("gated_softmax_no_norm",),
    ),
    _entry(
        "exp-l2-clamp",
        "exp:clamp=5/l2",
        "exp-l2 with logits at most 5",
        official=("gated_softmax_no_gate_L2norm_nodivS without its floor of 1e-12 under the norm",),
    ),
    _entry(
        "exp-l2-gain",
        "exp:clamp=5/l2:gain=64",
        "exp-l2-clamp times 64, the paper's head width",
        official=("gated_softmax_no_gate_customnorm without its floor of 1e-12 under the norm",),
    ),
    _entry(
        "exp-l2-outgate",
        "exp/l2+outgate:after",
        "exp-l2 with a gated output",
        official=(
            "gated_softmax_post_out_gate_L2norm_nodivS_noclamp without its gate before the norm, which has no effect",
        ),
    ),
    _entry(
        "exp-l2-dead",
        "exp/l2+outgate",
        "exp-l2 with a gate that the norm undoes",
        official=(
            "gated_softmax_out_gate_L2norm_nodivS_noclamp without its division by the count, which has no effect",
        ),
    ),
    _entry(
        "exp-rms-clamp",
        "exp:clamp=5/rms:weight",
        "exp-rms with logits at most 5",
        official=(
            "softmax_divS_norm without its epsilon",
            "gated_softmax_no_gate_rmsnorm without its epsilon",
            "gated_softmax_no_gate_rmsnorm_nodivS without its epsilon",
        ),
    ),
    _entry(
        "exp-layer-clamp",
        "exp:clamp=5/layer:weight:bias",
        "exp-layer with logits at most 5",
        official=("gated_softmax_no_gate without its epsilon",),
    ),
    _entry(
        "exp-layer-ingate",
        "exp:clamp=5/layer:weight:bias+valuegate",
        "exp-layer-clamp with gated values",
        official=("gated_softmax_no_out_gate without its epsilon",),
    ),
    _entry(
        "exp-layer-dead",
        "exp:clamp=5/layer:weight:bias+outgate",
        "exp-layer-clamp with a gate that the norm undoes",
        official=("gated_softmax_no_in_gate without its epsilon",),
    ),
    _entry(
        "exp-layer-gates",
        "exp:clamp=5/layer:weight:bias+valuegate+outgate",
        "exp-layer-ingate with a gate that the norm undoes",
        official=("gated_softmax without its epsilon",),
    ),
    _entry(
        "exp-layer-decay",
        "exp:clamp=5/layer:weight:bias+valuegate+decay+outgate",
        "exp-layer-gates whose keys fade by a learned gate",
        official=("gated_softmax_decay without its epsilon and its factor 1/1024, its log decays held <= 0",),
        rotary=False,
    ),
    _entry(
        "relu-l2",
        "relu/l2",
        "linear attention under an L2 norm",
        official=("gated_ReLU_no_gate_L2norm_nodivS_noclamp without its floor of 1e-12 under the norm",),
    ),
    _entry(
        "relu-outgate",
        "relu>power:1:clamp=5/length+outgate",
        "linear attention divided by the number of keys, gated output",
        official=("gated_relu_no_in_gate_no_norm without its logit scale 1/sqrt(K)",),
    ),
)

#: Every named member of the family, in the order of ``maclaurin list``.
CATALOGUE: dict[str, Recipe] = {each.name: each for each in _MEMBERS}

#: The further names of members, each with its recipe.
ALIASES: dict[str, Recipe] = {alias: each for each in _MEMBERS for alias in each.aliases}


def recipe(name: str) -> Recipe:
    """A recipe by catalogue name or alias, or made from the text of a mechanism.

    Raises:
        GrammarError: neither a name of the catalogue (the nearest are given) nor a text of the grammar.

    Example:
        >>> recipe("exp-l2").mechanism == recipe("exp/l2").mechanism
        True
        >>> recipe("gated_softmax_no_gate_L2norm_nodivS_noclamp").name
        'exp-l2'
    """
    named = {**CATALOGUE, **ALIASES}
    if name in named:
        return named[name]
    if "/" not in name:
        alike = ALIASES if "_" in name else CATALOGUE  # option strings have underscores, names of ours never
        raise GrammarError(
            f"{name!r} asks for a mechanism that is not in the catalogue: {nearest(name, alike)}\n"
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
        if not torch.compiler.is_compiling():
            return mechanism(value)
        _read_before_tracing(value)
        return _READ[value]
    raise MechanismError(
        f"{value!r} asks for a mechanism.\n  Give a Mechanism, its text such as 'exp/sum', or a name of the catalogue."
    )


#: Texts met in a graph that is being compiled: a tracer cannot follow the grammar, but finds its result here.
_READ: dict[str, Mechanism] = {}


@constant_when_traced
def _read_before_tracing(text: str) -> bool:
    _READ[text] = mechanism(text)
    return True
