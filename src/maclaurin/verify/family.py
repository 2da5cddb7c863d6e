"""A mechanism of the family as a target: every method that serves is a form, all with the keywords of ``attend``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from maclaurin.algebra import Mechanism
from maclaurin.evaluate import attend, methods
from maclaurin.verify.inputs import OPERANDS, operand_names
from maclaurin.verify.target import KEYWORDS, Target

#: Keywords that only some methods take.
_OF_METHOD = {"chunk_size": ("chunked", "fused")}


def family(mechanism: Mechanism) -> Target:
    """The target of a mechanism: its methods as forms, the parallel reference first."""
    serving = [name for name, refused in methods(mechanism).items() if refused is None]
    known = inspect.signature(attend).parameters
    words = [each for each in KEYWORDS if each in known]
    forms = {
        name: _form(mechanism, name, [each for each in words if name in _OF_METHOD.get(each, (name,))])
        for name in sorted(serving, key=lambda each: each != "parallel")
    }
    return Target(forms, mechanism, given=operand_names(mechanism))


def _form(mechanism: Mechanism, method: str, keywords: list[str]) -> Callable[..., Any]:
    """``attend`` by one method, with exactly the keywords that this mechanism takes in its signature."""

    def form(query: Any, key: Any, value: Any, **given: Any) -> Any:
        return attend(mechanism, query, key, value, method=method, **given)

    names = [*keywords, *(each for each in OPERANDS if each in operand_names(mechanism))]
    kinds = inspect.Parameter
    parameters = [kinds(each, kinds.POSITIONAL_OR_KEYWORD) for each in ("query", "key", "value")]
    parameters += [kinds(each, kinds.KEYWORD_ONLY, default=None) for each in names]
    form.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return form
