"""One form under test: what it takes, what it refused when it was probed, and one call of it for a law."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from maclaurin.algebra import Mechanism
from maclaurin.evaluate import attend
from maclaurin.verify.compare import DOUBLE, SINGLE, Tolerance
from maclaurin.verify.inputs import AXES, GATES, Inputs, Sizes, draw, like, operand_names, takes_features
from maclaurin.verify.target import Form, Result, Target

#: A signed denominator may nearly vanish; rows whose output is so much larger than the values are left out there.
LARGEST_QUOTIENT = 30.0
#: Added to queries and keys where weights may vanish: nearly orthogonal ones leave a sum that cancels, whose rounding
#: errors say nothing about a law.
OFFSET = 1.5


@dataclass(frozen=True)
class Limits:
    """What probing found.

    Args:
        lengths: every length is rounded up to a multiple of this one in laws that are not about lengths.
        widths: likewise K and V.
        refused: ``grouped heads``, ``K != V``, ``T != S`` -> why such a call is not made.
        alignment: see :class:`Target`.
        is_single: float64 inputs are computed in float32.
    """

    lengths: int = 1
    widths: int = 1
    refused: Mapping[str, str] = field(default_factory=dict)
    alignment: str = "end"
    is_single: bool = False

    def fit(self, sizes: Sizes) -> Sizes:
        """The nearest sizes that the target can be called with."""

        def up(size: int, multiple: int) -> int:
            return -(-size // multiple) * multiple

        queries, key_dim = up(sizes.queries, self.lengths), up(sizes.key_dim, self.widths)
        return replace(
            sizes,
            queries=queries,
            keys=None if "T != S" in self.refused or sizes.keys is None else up(sizes.keys, self.lengths),
            kv_heads=None if "grouped heads" in self.refused else sizes.kv_heads,
            key_dim=key_dim,
            value_dim=key_dim if "K != V" in self.refused else up(sizes.value_dim, self.widths),
        )


@dataclass(frozen=True)
class Case:
    """One way to call: which operands, which keywords, and what the law itself varies.

    Args:
        operands: names.
        keywords: of every call that the law makes.
        detail: the law's own choice, a name it looks up.
    """

    operands: tuple[str, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""

    def __str__(self) -> str:
        words = [f"{name}={each}" for name, each in self.keywords.items()]
        words += [f"with {','.join(self.operands)}"] if self.operands else []
        return " ".join([*words, *([f"[{self.detail}]"] if self.detail else [])])


@dataclass(frozen=True, eq=False)
class Subject:
    """A form with everything a law may ask about it."""

    form: Form
    forms: tuple[Form, ...]
    limits: Limits
    seed: int

    @property
    def target(self) -> Target:
        """What it is a form of."""
        return self.form.target

    @property
    def like(self) -> Mechanism | None:
        """What it claims to be."""
        return self.target.like

    def takes(self, *keywords: str) -> bool:
        """Whether it accepts every one of these keywords of ``attend``."""
        return set(keywords) <= self.form.accepted

    @property
    def is_causal(self) -> bool:
        """Whether it can be called causally."""
        return self.takes("is_causal") or self.target.is_causal

    @property
    def continues(self) -> bool:
        """Whether a state goes in and comes out."""
        return self.takes("state")

    @property
    def given(self) -> tuple[str, ...]:
        """Operands of every call."""
        if self.target.given is not None:
            return self.target.given
        named = () if self.like is None else operand_names(self.like)
        return tuple(each for each in dict.fromkeys((*named, *self.form.required)) if each in self.form.accepted)

    @property
    def optional(self) -> tuple[str, ...]:
        """Gates that a call may also have; an output gate only where its place is known."""
        legal = GATES if self.like is None else GATES[:2]
        return tuple(each for each in legal if each in self.form.accepted and each not in self.given)

    def settings(self) -> list[tuple[str, ...]]:
        """Sets of operands to call with: those of every call, and every gate besides."""
        return [self.given, (*self.given, *self.optional)] if self.optional else [self.given]

    def directions(self, operands: Iterable[str] = ()) -> list[bool]:
        """Causal and bidirectional, as far as it can; with decay or a window only causal."""
        if not self.takes("is_causal"):
            return [self.target.is_causal]
        is_ordered = "log_decay" in operands or (self.like is not None and self.like.window is not None)
        return [True] if is_ordered else [True, False]

    @property
    def rtol(self) -> Tolerance:
        """Of values and gradients."""
        return SINGLE if self.limits.is_single else DOUBLE

    @property
    def is_signed_quotient(self) -> bool:
        """Whether the output divides by a sum that may nearly vanish."""
        normalizer = None if self.like is None else self.like.normalizer
        return normalizer is not None and normalizer.uses_denominator and not normalizer.needs_nonnegative

    def draw(self, sizes: Sizes, operands: Iterable[str], seed: int) -> Inputs:
        """Float64 inputs."""
        drawn = draw(sizes, operands, self.seed * 101 + seed, is_nonnegative=takes_features(self.like))
        if self.like is None or self.like.positivity == "positive":
            return drawn
        return drawn.map(lambda each: each + OFFSET, ["query", "key"])


@dataclass(frozen=True, eq=False)
class Trial:
    """A subject at one size in one case: what a law sees.

    Args:
        subject: the form.
        sizes: already fitted to its limits.
        case: operands, keywords, detail.
    """

    subject: Subject
    sizes: Sizes
    case: Case

    @cached_property
    def inputs(self) -> Inputs:
        """Fresh inputs of these sizes."""
        return self.subject.draw(self.sizes, self.case.operands, 0)

    def another(self, seed: int, **sizes: Any) -> Inputs:
        """More inputs, perhaps of other sizes, under the same learned numbers."""
        asked = replace(self.sizes, **sizes) if sizes else self.sizes
        learned = {name: each for name, each in self.inputs.operands.items() if not set("TS") & set(AXES[name])}
        return self.subject.draw(asked, self.case.operands, seed).having(**learned)

    @property
    def rtol(self) -> Tolerance:
        """Of values and gradients."""
        return self.subject.rtol

    @property
    def is_causal(self) -> bool:
        """Of this case."""
        default = True if self.subject.is_causal else self.subject.target.is_causal
        return bool(self.case.keywords.get("is_causal", default))

    def run(self, inputs: Inputs, *, form: Form | None = None, **keywords: Any) -> Result:
        """The form's output and state, with the case's keywords unless given others; None leaves one out."""
        form = form or self.subject.form
        merged = {"is_causal": self.is_causal, **self.case.keywords, **keywords}
        merged = {name: each for name, each in merged.items() if each is not None}
        known = {*form.accepted, "is_causal", "return_state", "receive"}
        merged = {name: each for name, each in merged.items() if name in known}
        return form.call(inputs, **merged)

    def oracle(self, inputs: Inputs, **keywords: Any) -> Tensor:
        """The output of the mechanism that the target claims to be, by the parallel reference."""
        assert self.subject.like is not None
        merged = {"is_causal": self.is_causal, **self.case.keywords, **keywords}
        merged = {name: merged[name] for name in ("is_causal", "scale", "mask") if merged.get(name) is not None}
        rows, columns = inputs["query"].shape[2], inputs.length
        if merged["is_causal"] and rows != columns and self.subject.limits.alignment == "start":
            pairs = torch.ones(rows, columns, dtype=torch.bool).tril()[None, None]
            merged |= {"is_causal": False, "mask": pairs.expand(inputs["query"].shape[0], 1, -1, -1)}
        mechanism = gated(self.subject.like, inputs.operands)
        known: dict[str, Any] = {name: each for name, each in inputs.operands.items() if name in mechanism.operands}
        query, key, value = (inputs[name] for name in ("query", "key", "value"))
        return attend(mechanism, query, key, value, method="parallel", **known, **merged).output

    def keep(self, expected: Tensor, inputs: Inputs) -> Tensor:
        """``[B, H, T, 1]``, 1 for rows that are compared: where the quotient is no quotient by nearly nothing."""
        if not self.subject.is_signed_quotient:
            return torch.ones_like(expected[..., :1])
        largest = LARGEST_QUOTIENT * inputs["value"].detach().abs().max()
        return (expected.detach().abs().amax(-1, keepdim=True) <= largest).to(expected.dtype)


def gated(mechanism: Mechanism, operands: Iterable[str]) -> Mechanism:
    """The mechanism with the gates whose tensors are there."""
    names, gates = set(operands), mechanism.gates
    value, decay = gates.value or "value_gate" in names, gates.decay or "log_decay" in names
    if (value, decay) == (gates.value, gates.decay):
        return mechanism
    return replace(mechanism, gates=replace(gates, value=value, decay=decay))


def gradients(
    output: Tensor, leaves: Mapping[str, Tensor], seed: int, weight: Tensor | float = 1.0
) -> dict[str, Tensor]:
    """Gradients of a random combination of the output; zeros where it does not depend on a leaf."""
    total = (output.double() * like(output, seed).double() * weight).sum()
    if not total.requires_grad:
        return {name: torch.zeros_like(each) for name, each in leaves.items()}
    found = torch.autograd.grad(total, list(leaves.values()), retain_graph=True, allow_unused=True)
    return {
        name: torch.zeros_like(leaf) if each is None else each
        for (name, leaf), each in zip(leaves.items(), found, strict=True)
    }


def plain(subject: Subject) -> Iterator[Case]:
    """Every set of operands, by default keywords."""
    yield from (Case(each) for each in subject.settings())


def both_directions(subject: Subject) -> Iterator[Case]:
    """Every set of operands, causal and bidirectional."""
    for operands in subject.settings():
        for is_causal in subject.directions(operands):
            yield Case(operands, {"is_causal": is_causal})
