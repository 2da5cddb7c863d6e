"""The law matrix: which compositions there are, which cells they make, and which parts go with which.

A cell is a composition, a method and a direction. The plain matrix is full over similarity x normalizer; the second
one gives every such pair gates and a window, chosen so that any two values of any two axes meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, product

SIMILARITIES = (
    "exp",
    "exp:clamp=5",
    "cosine>exp",
    "taylor:1",
    "taylor:2",
    "taylor:3",
    "taylor:4",
    "taylor:2@mean",
    "taylor:4@mean",
    "taylor:2:clamp=3",
    "taylor:4:clamp=3@mean",
    "taylor:6",
    "power:1",
    "power:2",
    "power:3",
    "poly:1,1,0.5",
    "elu1",
    "relu",
    "cosine",
    "features",
    "expmap",
    "elu1>taylor:2",
)
NORMALIZERS = (
    "sum",
    "sum:signed",
    "sum:eps=0.5:clamp=2:detach",
    "length",
    "length:learned",
    "l2",
    "rms:weight",
    "layer:weight:bias",
    "none",
    "cumgate",
)
VALUE_GATES = ("", "valuegate")
DECAYS = ("", "decay")
OUTPUT_GATES = ("", "outgate", "outgate:after")
WINDOWS = ("", "window:1", "window:3:2", "window:5", "window:64:4")
METHODS = ("parallel", "recurrent", "chunked", "fused")
DIRECTIONS = (True, False)


@dataclass(frozen=True)
class Composition:
    """A member of the family by the words of its parts; an empty word is a part that is not there."""

    similarity: str
    normalizer: str
    value: str = ""
    decay: str = ""
    output: str = ""
    window: str = ""

    @property
    def text(self) -> str:
        """The text of the grammar."""
        parts = (self.value, self.decay, self.output, self.window)
        return "+".join([f"{self.similarity}/{self.normalizer}", *(each for each in parts if each)])

    @property
    def axes(self) -> tuple[str, ...]:
        """Its word on every axis."""
        return (self.similarity, self.normalizer, self.value, self.decay, self.output, self.window)

    @property
    def pairs(self) -> set[tuple[tuple[int, str], tuple[int, str]]]:
        """Every two of its words, each with the number of its axis."""
        return set(combinations(enumerate(self.axes), 2))


@dataclass(frozen=True)
class Cell:
    """One thing that is run, or refused."""

    composition: Composition
    method: str
    is_causal: bool

    def __str__(self) -> str:
        return f"{self.composition.text} {self.method} {'causal' if self.is_causal else 'bidirectional'}"


def cells(composition: Composition) -> list[Cell]:
    """Every method, in both directions."""
    return [Cell(composition, method, is_causal) for is_causal in DIRECTIONS for method in METHODS]


def plain() -> list[Composition]:
    """Every similarity with every normalizer, and nothing else."""
    return [Composition(*each) for each in product(SIMILARITIES, NORMALIZERS)]


def gated() -> list[Composition]:
    """Every similarity with every normalizer, each with the gates and window that meet most others for the first time.

    Compositions that cannot be built are left to :func:`unbuilt`, those with neither gate nor window to
    :func:`plain`.
    """
    from laws.refusals import is_built

    choices = [each for each in product(VALUE_GATES, DECAYS, OUTPUT_GATES, WINDOWS) if any(each)]
    met: dict[tuple[tuple[int, str], tuple[int, str]], int] = {}
    found = []
    for number, (similarity, normalizer) in enumerate(product(SIMILARITIES, NORMALIZERS)):
        turned = choices[7 * number % len(choices) :] + choices[: 7 * number % len(choices)]
        able = [each for each in (Composition(similarity, normalizer, *parts) for parts in turned) if is_built(each)]
        if not able:
            continue
        best = min(able, key=lambda each: sum(1.0 / (1 + met.get(pair, 0)) for pair in each.pairs) * -1.0)
        for pair in best.pairs:
            met[pair] = met.get(pair, 0) + 1
        found.append(best)
    return found


def unbuilt() -> list[Composition]:
    """What the parts alone rule out: one composition of every two axes' values that never go together."""
    from laws.refusals import is_built

    windows = [Composition(similarity, "l2", window="window:3:2") for similarity in SIMILARITIES]
    return [each for each in windows if not is_built(each)]


def everything() -> list[Composition]:
    """The whole matrix."""
    return [*plain(), *gated(), *unbuilt()]


def possible_pairs() -> Iterator[tuple[tuple[int, str], tuple[int, str]]]:
    """Every two values of two axes that are not both of the plain matrix."""
    axes = (SIMILARITIES, NORMALIZERS, VALUE_GATES, DECAYS, OUTPUT_GATES, WINDOWS)
    for (i, one), (j, other) in combinations(enumerate(axes), 2):
        for pair in product(one, other):
            yield (i, pair[0]), (j, pair[1])
