"""The law matrix: which compositions there are, which cells they make, and which parts go with which.

A cell is a composition, a method and a direction. The plain matrix is full over similarity x normalizer; the second
one gives every such pair gates and a window, chosen so that any two values of any two axes meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, product

from maclaurin.evaluate import methods

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
WINDOWS = ("", "window:1:1", "window:3:2", "window:5", "window:64:4")
#: Every method of the package's own table: a new one is in the matrix from its first day.
METHODS = tuple(methods("exp/sum"))
DIRECTIONS = (True, False)

#: Two words, each with the number of its axis.
Pair = tuple[tuple[int, str], tuple[int, str]]


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
    def pairs(self) -> list[Pair]:
        """Every two of its words."""
        return list(combinations(enumerate(self.axes), 2))


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


def gated(is_built: Callable[[Composition], bool]) -> list[Composition]:
    """Every similarity with every normalizer, each with the gates and window that have met its parts least so far.

    Args:
        is_built: whether the parts of a composition go together; those that do not are left out.
    """
    choices = [each for each in product(VALUE_GATES, DECAYS, OUTPUT_GATES, WINDOWS) if any(each)]
    met: Counter[Pair] = Counter()
    found = []
    for number, (similarity, normalizer) in enumerate(product(SIMILARITIES, NORMALIZERS)):
        start = 7 * number % len(choices)  # among equals, another one every time
        turned = choices[start:] + choices[:start]
        able = [each for each in (Composition(similarity, normalizer, *parts) for parts in turned) if is_built(each)]
        if able:
            best = max(able, key=lambda each: sum(1.0 / (1 + met[pair]) for pair in each.pairs))
            met.update(best.pairs)
            found.append(best)
    return found


def unbuilt(is_built: Callable[[Composition], bool]) -> list[Composition]:
    """Similarities that go with no window; with a normalizer that goes with each."""
    windows = [Composition(similarity, "l2", window="window:3:2") for similarity in SIMILARITIES]
    return [each for each in windows if not is_built(each)]


def everything(is_built: Callable[[Composition], bool]) -> list[Composition]:
    """The whole matrix."""
    return [*plain(), *gated(is_built), *unbuilt(is_built)]


def pairs_of_axes() -> list[Pair]:
    """Any two values of any two axes."""
    axes = (SIMILARITIES, NORMALIZERS, VALUE_GATES, DECAYS, OUTPUT_GATES, WINDOWS)
    return [
        ((i, one), (j, other))
        for (i, first), (j, second) in combinations(enumerate(axes), 2)
        for one, other in product(first, second)
    ]
