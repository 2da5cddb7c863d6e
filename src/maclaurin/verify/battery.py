"""``verify``: every law on every form, and the smallest input at which a broken one still breaks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from maclaurin.algebra import Mechanism
from maclaurin.algebra.catalogue import mechanism_of
from maclaurin.errors import ConfigError, nearest
from maclaurin.verify.compare import Gap, Tolerance
from maclaurin.verify.family import family
from maclaurin.verify.inputs import Sizes, smaller
from maclaurin.verify.law import Law
from maclaurin.verify.laws import LAWS
from maclaurin.verify.probe import first_line, probe, refusal
from maclaurin.verify.report import Report, Row
from maclaurin.verify.subject import Case, Subject, Trial
from maclaurin.verify.target import Form, Target

#: Seconds after which a failing input is not made smaller any more.
SHRINKING_SECONDS = 2.0

#: Called with (laws done, laws to do, name of the next law).
Progress = Callable[[int, int, str], None]


def verify(
    target: Mechanism | str | Target | Callable[..., Any],
    *,
    like: Mechanism | str | None = None,
    layout: str = "bhtd",
    forms: Mapping[str, Callable[..., Any]] | None = None,
    rename: Mapping[str, str] | None = None,
    fixed: Mapping[str, Any] | None = None,
    mask_kind: str = "keys",
    is_causal: bool = True,
    precision: torch.dtype = torch.float64,
    seed: int = 0,
    laws: Iterable[str] | None = None,
    without: Iterable[str] = (),
    progress: Progress | None = None,
) -> Report:
    r"""The laws of attention on one of our mechanisms, or on anyone's function or module.

    .. math:: f(q, k, v) \text{ is causal, keeps a state, ignores padding, } \ldots,
              \quad f = \mathrm{attend}(\mathtt{like}, \cdot)

    What a target can do is read from its signature: it may take ``is_causal``, ``scale``, ``mask`` (bool ``[B, S]``),
    ``log_decay``, ``value_gate``, ``output_gate``, ``cu_seqlens``, ``chunk_size``, ``state`` and ``return_state``
    (then it returns output and state), as :func:`maclaurin.attend` does. A law about a keyword that it does not take
    is not run. A call that it declines with a ``ValueError`` or ``NotImplementedError`` that says why is refused,
    never failed; any other error on a legal call fails the law.

    Args:
        target: a mechanism, its text or catalogue name; a function ``fn(query, key, value, **keywords)``; a module;
            or a :class:`Target`, which leaves the arguments up to ``precision`` out.
        like: the mechanism that a function claims to be. Values, gradients and states are then also compared with
            ``attend(like, method="parallel")``.
        layout: ``bhtd`` for ``[B, H, T, K]``, ``bthd`` for ``[B, T, H, K]``; gates and decays likewise.
        forms: more callables that claim to be the same function, by name.
        rename: keyword of ``attend`` -> the target's word for it.
        fixed: keywords for every call.
        mask_kind: ``keys``, or ``pairs`` for a target whose mask is bool ``[B, 1, T, S]``.
        is_causal: what a target does that takes no such keyword.
        precision: ``torch.float32`` for a target that declares to compute in it whatever it is given.
        seed: of every input; the global generator is left as it was.
        laws: names of the laws to run; None: all.
        without: names of laws to leave out.
        progress: called before every law.

    Returns:
        :class:`Report`, one row for each law and form.

    Raises:
        ConfigError: a law or keyword that does not exist, or a target that cannot be called at any size.
        GrammarError: a mechanism that does not exist.

    Example:
        >>> def uniform(query, key, value):
        ...     return value.cumsum(2) / torch.arange(1, value.shape[2] + 1)[:, None]
        >>> verify(uniform, like="taylor:0/sum", laws=["like: shapes", "future", "padding"]).count("passed")
        2
    """
    chosen = _chosen(laws, without)
    began = time.monotonic()
    if isinstance(target, Target):
        name, made = ", ".join(target.forms), target
    elif isinstance(target, (str, Mechanism)):
        mechanism = mechanism_of(target)
        name, made = mechanism.describe(), family(mechanism)
    else:
        name = _name(target)
        claimed = None if like is None else mechanism_of(like)
        every = {name: target, **(forms or {})}
        options = (layout, rename or {}, fixed or {}, mask_kind, is_causal)
        made = Target(every, claimed, *options, precision=precision)
    rows = []
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            torch.set_num_threads(1)  # sums in one order
            for row in _rows(made, chosen, seed, progress):
                rows.append(row)
        finally:
            torch.set_num_threads(threads)
    text = None if made.like is None else made.like.describe()
    return Report(name, text, seed, tuple(rows), time.monotonic() - began)


def _name(target: Any) -> str:
    """What to call a target in a report."""
    return (
        type(target).__name__ if isinstance(target, nn.Module) else getattr(target, "__name__", type(target).__name__)
    )


def _chosen(laws: Iterable[str] | None, without: Iterable[str]) -> dict[str, Law]:
    asked = list(LAWS) if laws is None else list(laws)
    left_out = list(without)
    for word in (*asked, *left_out):
        if word not in LAWS:
            raise ConfigError(f"verify: {word!r} is not a law: {nearest(word, LAWS)}")
    return {name: LAWS[name] for name in LAWS if name in asked and name not in left_out}


def _rows(target: Target, laws: Mapping[str, Law], seed: int, progress: Progress | None) -> Iterator[Row]:
    forms = tuple(Form.of(target, name) for name in target.forms)
    subjects = [probe(form, forms, seed) for form in forms]
    total = len(laws) * len(subjects)
    for i, (law, subject) in enumerate((law, subject) for law in laws.values() for subject in subjects):
        if progress is not None:
            progress(i, total, law.name)
        yield judge(law, subject)


def judge(law: Law, subject: Subject) -> Row:
    """One law on one form."""
    head: dict[str, Any] = {"law": law.name, "form": subject.form.name, "statement": law.statement}
    reason = law.reason_not_to_run(subject)
    if reason is not None:
        return Row(**head, verdict="not run", reason=reason)
    worst: Gap | None = None
    refusals: list[str] = []
    fit = subject.limits.fit if law.is_fitted else _legal(subject)
    for sizes in dict.fromkeys(fit(each) for each in law.grid):
        for case in law.cases(subject):
            gap, refused = _ask(law, subject, sizes, case)
            refusals += [refused] if refused else []
            if gap is not None and gap.is_failure:
                return _failed(head, law, Trial(subject, sizes, case), gap)
            if gap is not None and (worst is None or gap.ratio > worst.ratio):
                worst = gap
    refused = "; ".join(dict.fromkeys(refusals))[:300]
    if worst is None:
        return Row(**head, verdict="refused" if refusals else "not run", reason=refused or "no case applies")
    return Row(**head, verdict="passed", **_numbers(worst), reason=refused and f"declined: {refused}")


def _legal(subject: Subject) -> Callable[[Sizes], Sizes]:
    """What fits sizes of a law about sizes: only what probing found refused is given up."""
    return replace(subject.limits, lengths=1, widths=1).fit


def _numbers(gap: Gap) -> dict[str, Any]:
    return {
        "deviation": gap.deviation,
        "tolerance": gap.tolerance.value,
        "tolerance_reason": gap.tolerance.reason,
        "comparison": gap.what,
    }


def _ask(law: Law, subject: Subject, sizes: Sizes, case: Case) -> tuple[Gap | None, str | None]:
    """(the first failing or else the worst comparison, what was refused)."""
    worst: Gap | None = None
    try:
        for gap in law.check(Trial(subject, sizes, case)):
            if gap.is_failure:
                return gap, None
            if worst is None or gap.ratio > worst.ratio:
                worst = gap
    except Exception as error:
        said = refusal(error)
        if said is not None:
            return worst, said
        raised = f"raised {type(error).__name__}: {first_line(error)}"[:200]
        return Gap(raised, float("inf"), Tolerance(0.0, "a legal call raises nothing")), None
    return worst, None


def _failed(head: dict[str, Any], law: Law, trial: Trial, gap: Gap) -> Row:
    """The row of a failure, at the smallest sizes that still fail."""
    subject, case = trial.subject, trial.case
    sizes, found = trial.sizes, gap
    fit = subject.limits.fit if law.is_fitted else _legal(subject)
    began = time.monotonic()
    for each in smaller(trial.sizes):
        if time.monotonic() - began > SHRINKING_SECONDS:
            break
        fitted = fit(each)
        if fitted.volume >= sizes.volume or fitted.queries < law.least_length:
            continue
        smaller_gap, _ = _ask(law, subject, fitted, case)
        if smaller_gap is not None and smaller_gap.is_failure:
            sizes, found = fitted, smaller_gap
            break
    words = [f"seed={subject.seed}", str(sizes), *([str(case)] if str(case) else []), f": {found.what}"]
    text = " ".join(words).replace(" : ", ": ")
    return Row(**head, verdict="failed", **_numbers(found), smallest_input=text)
