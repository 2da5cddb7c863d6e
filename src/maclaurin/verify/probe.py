"""What a target can be called with at all: found by calling it, before any law is asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from maclaurin.errors import ConfigError
from maclaurin.verify.inputs import Sizes
from maclaurin.verify.subject import Case, Limits, Subject, Trial
from maclaurin.verify.target import Fault, Form

#: Multiples that lengths and widths may have to be of.
LENGTHS = (1, 16, 64, 128, 256)
WIDTHS = (1, 16, 64)

_GROUPED = Sizes(batch=2, heads=6, queries=5, key_dim=4, value_dim=4, kv_heads=3)
_WIDER = Sizes(batch=2, heads=3, queries=5, key_dim=4, value_dim=7)


class _SeesFused(TorchFunctionMode):
    """Notes whether torch's attention gets T != S and its own causal mask, which stands on the first key."""

    def __init__(self) -> None:
        super().__init__()
        self.is_seen = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and (kwargs.get("is_causal") or True in args[5:6]):
            query, key = (args[i] if len(args) > i else kwargs[name] for i, name in enumerate(("query", "key")))
            self.is_seen = self.is_seen or query.shape[-2] != key.shape[-2]
        return func(*args, **kwargs)


def _longer(length: int) -> tuple[Sizes, Sizes]:
    """More keys than queries, and fewer."""
    short, long = max(5, length), 2 * max(5, length)
    return Sizes(queries=short, keys=long), Sizes(queries=long, keys=short)


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else ""


def refusal(error: Exception) -> str | None:
    """What an error says, if it is one by which a function declines a call; None for an accident.

    A ``NotImplementedError``, a ``ValueError``, or an exception class of a library's own, with a message.
    """
    is_own = type(error).__module__.partition(".")[0] not in ("builtins", "torch")
    if isinstance(error, (NotImplementedError, ValueError)) or (is_own and not isinstance(error, Fault)):
        return first_line(error) or None
    return None


def probe(form: Form, forms: tuple[Form, ...], seed: int) -> Subject:
    """The subject of a form, with its limits.

    Raises:
        ConfigError: no call at all succeeds, or the mechanism it claims to be needs an operand that it does not take.
    """
    target = form.target
    _check_claim(form)
    found = Subject(form, forms, Limits(alignment=target.alignment), seed)
    lengths, widths = _multiples(found)
    limits = Limits(lengths, widths, alignment=target.alignment)

    def error_at(sizes: Sizes, limits: Limits) -> Exception | None:
        return _error(Subject(form, forms, limits, seed), sizes)

    refused = {}
    for name, sizes in (("K != V", (_WIDER,)), ("grouped heads", (_GROUPED,)), ("T != S", _longer(lengths))):
        square = limits if "K != V" not in refused else Limits(lengths, widths, {"K != V": ""})
        errors = [error for each in sizes if (error := error_at(each, square)) is not None]
        if errors:
            refused[name] = f"{name} raised {type(errors[0]).__name__}: {first_line(errors[0])}"[:160]
    subject = Subject(form, forms, Limits(lengths, widths, refused, target.alignment), seed)
    subject = Subject(form, forms, replace(subject.limits, alignment=_alignment(subject)), seed)
    return Subject(form, forms, _with_precision(subject), seed)


def _check_claim(form: Form) -> None:
    like = form.target.like
    if like is None:
        return
    needed = [each for each in like.operands if not each.startswith("norm_") and each not in form.accepted]
    if needed:
        raise ConfigError(
            f"verify: {form.name} is compared with {like.describe()}, which needs {', '.join(needed)}, but takes no "
            "such keyword.\n  Rename the keyword that it takes for it, or compare with a mechanism without it."
        )


def _error(subject: Subject, sizes: Sizes) -> Exception | None:
    """What a plain call raises at these sizes, or None."""
    trial = Trial(subject, subject.limits.fit(sizes), Case(subject.given))
    try:
        trial.run(trial.inputs)
    except Exception as error:
        return error
    return None


def _multiples(subject: Subject) -> tuple[int, int]:
    """The least multiples of lengths and widths at which a call succeeds."""
    errors = []
    for lengths, widths in sorted(product(LENGTHS, WIDTHS), key=lambda each: each[0] * each[1]):
        size = max(5, lengths) if lengths > 1 else 5
        width = max(4, widths) if widths > 1 else 4
        error = _error(subject, Sizes(batch=2, heads=3, queries=size, key_dim=width, value_dim=width))
        if error is None:
            return lengths, widths
        errors.append(error)
        if isinstance(error, TypeError):
            break
    raise ConfigError(
        f"verify: {subject.form.name} could be called at no size; the first call raised "
        f"{type(errors[0]).__name__}: {first_line(errors[0])}\n"
        "  It is called as fn(query, key, value, **keywords) in float64; say layout, rename or fixed."
    )


def _alignment(subject: Subject) -> str:
    with _SeesFused() as mode:
        for sizes in _longer(subject.limits.lengths):
            _error(subject, sizes)
    return "start" if mode.is_seen else subject.limits.alignment


def _with_precision(subject: Subject) -> Limits:
    """The limits, with whether every number that comes out in float64 fits in float32."""
    trial = Trial(subject, subject.limits.fit(Sizes()), Case(subject.given))
    limits = subject.limits
    try:
        output = trial.run(trial.inputs).output.detach()
    except Exception:
        return limits  # the laws will say so
    is_single = bool((output.float().double() == output.double()).all()) and bool(output.any())
    return replace(limits, is_single=is_single)
