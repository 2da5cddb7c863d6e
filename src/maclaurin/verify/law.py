"""A law: what is asked, of whom, at which sizes; and the reasons why it may not be run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from maclaurin.verify.compare import Gap
from maclaurin.verify.inputs import Sizes
from maclaurin.verify.subject import Case, Subject, Trial, plain

#: Sizes that are all distinct, with a prime length.
PRIMES = Sizes(batch=2, heads=3, queries=37, key_dim=5, value_dim=7)
GROUPED = Sizes(batch=2, heads=6, queries=37, key_dim=5, value_dim=7, kv_heads=3)

#: Why a law is not run on a subject, or None if it is.
Condition = Callable[[Subject], str | None]


@dataclass(frozen=True)
class Law:
    """One law of attention.

    Args:
        name: in reports, and for choosing laws.
        statement: what must hold.
        check: yields every comparison of one trial.
        needs: conditions; the first reason is why it is not run.
        grid: sizes; each is fitted to what the subject can be called with, unless ``is_fitted`` is False.
        cases: ways to call.
        is_fitted: see ``grid``.
        least_length: T at which it first says something.
    """

    name: str
    statement: str
    check: Callable[[Trial], Iterator[Gap]]
    needs: tuple[Condition, ...] = ()
    grid: tuple[Sizes, ...] = (PRIMES,)
    cases: Callable[[Subject], Iterable[Case]] = plain
    is_fitted: bool = True
    least_length: int = 1

    def reason_not_to_run(self, subject: Subject) -> str | None:
        """The first reason, or None."""
        return next((reason for each in self.needs if (reason := each(subject)) is not None), None)


def taking(*keywords: str) -> Condition:
    """The subject accepts every keyword."""

    def condition(subject: Subject) -> str | None:
        missing = [each for each in keywords if not subject.takes(each)]
        return f"takes no {', '.join(missing)}" if missing else None

    return condition


def claiming(subject: Subject) -> str | None:
    """It claims to be a mechanism."""
    return None if subject.like is not None else "no mechanism was named that it should be like"


def causal(subject: Subject) -> str | None:
    """It can be called causally."""
    return None if subject.is_causal else "is bidirectional only"


def differentiable(subject: Subject) -> str | None:
    """It promises gradients."""
    return None if subject.target.has_gradients else "promises no gradients"


def exact_gradients(subject: Subject) -> str | None:
    """Its gradient is that of its value."""
    if subject.like is not None and getattr(subject.like.normalizer, "detach", False):
        return "stops the gradient of its denominator by definition"
    return differentiable(subject)


def another_form(subject: Subject) -> str | None:
    """It is not the form that the others are compared with."""
    if len(subject.forms) == 1:
        return "has one form only"
    return "is the form that the others are compared with" if subject.form is subject.forms[0] else None


def capable(name: str) -> Condition:
    """Probing found no refusal of ``name``."""

    def condition(subject: Subject) -> str | None:
        return subject.limits.refused.get(name)

    return condition
