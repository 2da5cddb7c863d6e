"""Everything the family refuses, in one table: what it applies to, the exception, and words of its message.

Written from the rules of the algebra by the words of a composition; ``test_refusals`` works the same rules out from
numbers. Nothing here asks the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from laws.matrix import Cell, Composition
from maclaurin.errors import ConfigError, MechanismError, MethodError

#: Similarities whose weights may be negative: odd powers of a logit of either sign.
SIGNED = {"taylor:1", "taylor:3", "power:1", "power:3", "cosine"}
#: Without a finite state: exp, and whatever is clamped.
CACHED = {"exp", "exp:clamp=5", "cosine>exp", "taylor:2:clamp=3", "taylor:4:clamp=3@mean"}
#: Weighed by exp, clamped or not.
EXPONENTIAL = {"exp", "exp:clamp=5", "cosine>exp"}
#: Beyond the orders that moments are promised for.
HIGH = {"taylor:6"}
#: What approximates exp of the plain logit, and so shares a denominator with exact weights.
ON_EXP_SCALE = {"taylor:1", "taylor:2", "taylor:3", "taylor:4", "taylor:2@mean", "taylor:4@mean", "taylor:6"}


@dataclass(frozen=True)
class Refusal:
    """One rule.

    Args:
        reason: in words.
        applies: to which cell.
        error: what is raised.
        message: words of the message.
        is_of_parts: raised when the mechanism is built; otherwise when it is called.
    """

    reason: str
    applies: Callable[[Cell], bool]
    error: type[Exception]
    message: str
    is_of_parts: bool = False


def _is_finite(composition: Composition) -> bool:
    return composition.similarity not in CACHED


def _divides(composition: Composition) -> bool:
    return composition.normalizer.startswith("sum") and "signed" not in composition.normalizer


#: In the order in which they are looked at: the first that applies is the one that is raised.
REFUSALS = (
    Refusal(
        "beyond a window only a finite state, or nothing",
        lambda cell: (
            bool(cell.composition.window)
            and not _is_finite(cell.composition)
            and cell.composition.similarity not in EXPONENTIAL
        ),
        MechanismError,
        "which has no finite state",
        is_of_parts=True,
    ),
    Refusal(
        "no sum of weights of both signs as a denominator",
        lambda cell: _divides(cell.composition) and cell.composition.similarity in SIGNED,
        MechanismError,
        "divide by the sum of weights that may be negative",
        is_of_parts=True,
    ),
    Refusal(
        "decay needs a direction of time",
        lambda cell: bool(cell.composition.decay) and not cell.is_causal,
        ConfigError,
        "which decays: it needs a direction of time",
    ),
    Refusal(
        "a window needs a direction of time",
        lambda cell: bool(cell.composition.window) and not cell.is_causal,
        ConfigError,
        "which has a window: it needs a direction of time",
    ),
    Refusal(
        "high orders are not read from moments",
        lambda cell: cell.method in ("recurrent", "chunked") and cell.composition.similarity in HIGH,
        MethodError,
        "reading order 6 from moments loses too many digits",
    ),
    Refusal(
        "a mean over pairs cannot be had chunk by chunk",
        lambda cell: cell.method == "chunked" and cell.composition.similarity == "taylor:4:clamp=3@mean",
        MethodError,
        "the mean logit needs every pair before the first weight",
    ),
    Refusal(
        "softmax kernels have no window",
        lambda cell: cell.method == "fused" and bool(cell.composition.window),
        MethodError,
        "softmax kernels have no window",
    ),
    Refusal(
        "softmax kernels know exp without a clamp",
        lambda cell: cell.method == "fused" and cell.composition.similarity not in ("exp", "cosine>exp"),
        MethodError,
        "softmax kernels weigh keys by exp of the logit",
    ),
)


def refusal(cell: Cell) -> Refusal | None:
    """The first rule that applies, or None where the cell is run."""
    return next((each for each in REFUSALS if each.applies(cell)), None)


def is_built(composition: Composition) -> bool:
    """Whether the parts go together."""
    found = refusal(Cell(composition, "parallel", True))
    return found is None or not found.is_of_parts


def needs_far_weight(composition: Composition) -> bool:
    """Whether the keys beyond its window have a scale of their own."""
    return bool(composition.window) and _is_finite(composition) and composition.similarity not in ON_EXP_SCALE


def has_state(composition: Composition) -> bool:
    """Whether a state can be kept: moments are promised up to order 4."""
    return composition.similarity not in HIGH


def takes_negative_scale(composition: Composition) -> bool:
    """Whether a denominator keeps its sign at a scale < 0.

    Weights that are not negative for any logit; or one power alone, whose sign cancels where nothing else is added.
    """
    if not _divides(composition) or composition.similarity not in NONNEGATIVE_BY_MAP:
        return True
    return composition.normalizer == "sum" and not composition.window


#: Not negative only as long as the logits are not: an odd power on a map of non-negative features.
NONNEGATIVE_BY_MAP = {"elu1", "relu", "features", "expmap"}
