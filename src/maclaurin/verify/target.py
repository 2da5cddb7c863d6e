"""What is under test: one or several callables that claim to be one function, and how they want to be called.

Dimension key: B batch, H query heads, Hkv key/value heads, T queries, S keys.
"""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from maclaurin.algebra import Mechanism
from maclaurin.errors import ConfigError, nearest
from maclaurin.verify.inputs import AXES, OPERANDS, Inputs

#: Keywords of ``attend`` that a target may take, besides the operands.
KEYWORDS = ("is_causal", "scale", "mask", "state", "return_state", "cu_seqlens", "chunk_size")
_POSITIONAL = ("query", "key", "value")


def _swapped(tensor: Tensor, axes: str) -> Tensor:
    """Heads and time of a tensor with these axes exchanged."""
    head = next((axes.index(each) for each in "Hh" if each in axes), None)
    time = next((axes.index(each) for each in "TS" if each in axes), None)
    return tensor if head is None or time is None else tensor.transpose(head, time).contiguous()


#: Layout -> what brings a tensor with given axes from bhtd to it, and back.
LAYOUTS: dict[str, Callable[[Tensor, str], Tensor]] = {
    "bhtd": lambda tensor, axes: tensor.contiguous(),
    "bthd": _swapped,
}


def _over_keys(mask: Tensor, num_queries: int, *, is_causal: bool) -> tuple[Tensor, bool]:
    return mask, is_causal


def _over_pairs(mask: Tensor, num_queries: int, *, is_causal: bool) -> tuple[Tensor, bool]:
    pairs = mask[:, None, None].expand(-1, 1, num_queries, -1)
    return pairs.tril(mask.shape[1] - num_queries) if is_causal else pairs.clone(), False


#: Kind of mask -> (mask [B, S], T, is_causal) to the (mask, is_causal) that the target is given.
MASKS: dict[str, Callable[..., tuple[Tensor, bool]]] = {"keys": _over_keys, "pairs": _over_pairs}


class Fault(Exception):
    """What the target returned is no attention output at all; fails the law that asked."""


@dataclass(frozen=True, eq=False)
class Target:
    """Callables ``fn(query, key, value, **keywords)`` that claim to be one function.

    Args:
        forms: name -> callable or module. The first is what the others are compared with.
        like: the mechanism that they claim to be; None: only laws that need no second opinion run.
        layout: ``bhtd`` (as :func:`maclaurin.attend`) or ``bthd``, of query, key, value, output, gates and decays.
        rename: keyword of ``attend`` -> the target's own spelling, ``{"scale": "sm_scale"}``.
        fixed: keywords that every call gets.
        mask_kind: ``keys`` for a bool mask [B, S], ``pairs`` for one [B, 1, T, S] (causality is folded into it).
        is_causal: what a target without the keyword ``is_causal`` does.
        alignment: with T != S and ``is_causal``, whether the last query stands on the last key (``end``) or the first
            on the first (``start``, as torch's ``scaled_dot_product_attention``).
        precision: what the target declares to compute, and perhaps answer, in whatever it is given.
        output: index of the output in a returned tuple.
        given: operands that every call gets; None: those of ``like``, and those without a default.
        has_gradients: False if gradients are not promised.

    Raises:
        ConfigError: a layout, mask kind, alignment or keyword that does not exist.
    """

    forms: Mapping[str, Callable[..., Any]]
    like: Mechanism | None = None
    layout: str = "bhtd"
    rename: Mapping[str, str] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    mask_kind: str = "keys"
    is_causal: bool = True
    alignment: str = "end"
    precision: torch.dtype = torch.float64
    output: int = 0
    given: tuple[str, ...] | None = None
    has_gradients: bool = True

    def __post_init__(self) -> None:
        choices = {"layout": tuple(LAYOUTS), "mask_kind": tuple(MASKS), "alignment": ("end", "start")}
        for name, legal in choices.items():
            asked = getattr(self, name)
            if asked not in legal:
                raise ConfigError(f"verify: {name}={asked!r} does not exist.\n  Use one of {', '.join(legal)}.")
        known = (*AXES, *KEYWORDS)
        for word in self.rename:
            if word not in known:
                raise ConfigError(
                    f"verify: rename of {word!r}, which is not a keyword of attend: {nearest(word, known)}\n"
                    "  Write the keyword of attend first and the target's own second: scale=sm_scale."
                )
        if not self.forms:
            raise ConfigError("verify: no form was given.\n  Give at least one callable.")
        for name, function in self.forms.items():
            if not callable(function):
                raise ConfigError(
                    f"verify: {name} is a {type(function).__name__}, which cannot be called.\n"
                    "  Give a function fn(query, key, value, **keywords), a module, or a mechanism."
                )

    def spelled(self, keyword: str) -> str:
        """The target's own word for a keyword of ``attend``."""
        return self.rename.get(keyword, keyword)


@dataclass(frozen=True, eq=False)
class Result:
    """Output ``[B, H, T, V]`` and whatever the target calls its state."""

    output: Tensor
    state: Any


@dataclass(frozen=True, eq=False)
class Form:
    """One callable of a target, called in the layout and with the keywords of ``attend``.

    Args:
        name: of the form.
        target: what it is a form of.
        accepted: keywords of ``attend``, operands included, that it takes.
        required: operands without a default.
    """

    name: str
    target: Target
    accepted: frozenset[str]
    required: tuple[str, ...]

    @classmethod
    def of(cls, target: Target, name: str) -> Form:
        """Read the callable's signature.

        Raises:
            ConfigError: a required parameter that is no keyword of ``attend``, or a rename to what it does not take.
        """
        function = target.forms[name]
        parameters, takes_any = _parameters(function)
        has_words = any(each in target.rename for each in _POSITIONAL)
        rest = [each for each in parameters if each not in {target.spelled(word) for word in _POSITIONAL}]
        rest = rest if has_words else list(parameters)[3:]
        for word, spelling in target.rename.items():
            if spelling not in parameters and not takes_any:
                raise ConfigError(
                    f"verify: {name} takes no {spelling!r}, to which {word!r} was renamed: "
                    f"{nearest(spelling, rest) if rest else 'it takes no keyword'}"
                )
        free = [each for each in rest if each not in target.fixed]
        words = {target.spelled(word): word for word in (*KEYWORDS, *OPERANDS)}
        accepted = {words[each] for each in free if each in words}
        accepted |= {word for word, spelling in target.rename.items() if takes_any and spelling not in target.fixed}
        missing = [each for each in free if parameters[each] and each not in words]
        if missing:
            raise ConfigError(
                f"verify: {name} needs {', '.join(missing)}, which no law can give.\n"
                "  Give a value for it with fixed, or the keyword of attend that it means with rename."
            )
        required = tuple(words[each] for each in free if parameters[each] and words[each] in OPERANDS)
        return cls(name, target, frozenset(accepted) & {*KEYWORDS, *OPERANDS}, required)

    @functools.cached_property
    def _modules(self) -> dict[torch.dtype, nn.Module]:
        return {}

    def function(self, dtype: torch.dtype) -> Callable[..., Any]:
        """The callable; a module as an own copy in that dtype, in evaluation mode."""
        function = self.target.forms[self.name]
        if not isinstance(function, nn.Module):
            return function
        if dtype not in self._modules:
            self._modules[dtype] = copy.deepcopy(function).to(dtype).eval()
        return self._modules[dtype]

    def arguments(self, inputs: Inputs, **keywords: Any) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
        """(query, key, value) and the keywords as the target spells them, in its layout."""
        target = self.target
        to_layout = LAYOUTS[target.layout]
        given: dict[str, Any] = {name: to_layout(each, AXES[name]) for name, each in inputs.tensors.items()}
        positional = tuple(given.pop(name) for name in _POSITIONAL)
        is_causal = keywords.pop("is_causal", target.is_causal)
        if keywords.get("mask") is not None:
            num_queries = inputs["query"].shape[2]
            keywords["mask"], is_causal = MASKS[target.mask_kind](keywords["mask"], num_queries, is_causal=is_causal)
        if "is_causal" in self.accepted:
            given["is_causal"] = is_causal
        given |= keywords
        if any(name in target.rename for name in _POSITIONAL):
            given |= dict(zip(_POSITIONAL, positional, strict=True))
            positional = ()
        return positional, {**target.fixed, **{target.spelled(name): each for name, each in given.items()}}

    def call(self, inputs: Inputs, *, receive: Callable[[Tensor], Tensor] | None = None, **keywords: Any) -> Result:
        """Output and state for keywords of ``attend``; ``receive`` sees every tensor argument last.

        Raises:
            Fault: what came back is no tensor of shape ``[B, H, T, V]`` in the target's layout.
        """
        if "return_state" not in self.accepted:
            keywords.pop("return_state", None)
        positional, named = self.arguments(inputs, **keywords)
        if receive is not None:
            positional = tuple(receive(each) for each in positional)
            named = {name: receive(each) if isinstance(each, Tensor) else each for name, each in named.items()}
        returned = self.function(inputs["query"].dtype)(*positional, **named)
        state = None
        if not isinstance(returned, Tensor):
            parts = tuple(returned) if isinstance(returned, (tuple, list)) else ()
            returned = parts[self.target.output] if len(parts) > self.target.output else returned
            state = parts[1 - min(self.target.output, 1)] if len(parts) > 1 else None
        if not isinstance(returned, Tensor):
            raise Fault(f"returned a {type(returned).__name__}, not a tensor or (output, state)")
        query, value = inputs["query"], inputs["value"]
        expected = (*query.shape[:3], value.shape[-1])
        in_layout = LAYOUTS[self.target.layout](query.new_empty(expected), "BHTV").shape
        if returned.shape != in_layout:
            raise Fault(f"returned shape {tuple(returned.shape)}, expected {tuple(in_layout)}")
        return Result(LAYOUTS[self.target.layout](returned, "BHTV"), state)


def _parameters(function: Callable[..., Any]) -> tuple[dict[str, bool], bool]:
    """(parameter -> whether it has no default, whether any keyword is taken)."""
    inner = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(inner)
    except (TypeError, ValueError):  # a builtin: the first lines of its documentation tell
        return _documented(inner)
    kinds = inspect.Parameter
    named = {
        name: each.default is kinds.empty
        for name, each in signature.parameters.items()
        if each.kind not in (kinds.VAR_KEYWORD, kinds.VAR_POSITIONAL)
    }
    takes_any = any(each.kind is kinds.VAR_KEYWORD for each in signature.parameters.values())
    return named, takes_any


def _documented(function: Callable[..., Any]) -> tuple[dict[str, bool], bool]:
    """The parameters in ``name(a, b, c=None) -> ...`` at the head of a builtin's docstring."""
    found = re.match(r"\s*\w+\((.*?)\)\s*->", inspect.getdoc(function) or "", re.DOTALL)
    if not found:
        return {}, True
    words = [each.strip() for each in found[1].split(",") if each.strip() not in ("", "*", "/")]
    return {re.split(r"[=:]", each)[0].strip(): "=" not in each for each in words}, False
