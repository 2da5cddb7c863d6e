"""``maclaurin show``: one mechanism, its formula, what it keeps and what it costs."""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maclaurin.cli.output import byte_size, integer, print_fields, print_json

if TYPE_CHECKING:
    from maclaurin.algebra import Mechanism, Recipe

#: Cached keys at which the operations of a growing cache are shown.
LENGTH = 1024

# what a finite state is measured by, and what a growing cache is; the other's keys are None
_STATE_KEYS = ("state_size", "state_bytes_float32", "num_moments", "break_even_length", "flops_per_token")
_CACHE_KEYS = ("cache_numbers_per_token", "cache_bytes_per_token_16bit", "flops_per_token_and_cached_key")

_SIGNS = {
    "positive": "positive: every visible key gets a weight above zero",
    "nonnegative": "nonnegative: a visible key may get the weight zero, never less",
    "signed": "signed: a visible key may get a negative weight",
}


def show_mechanism(
    mechanism: Annotated[str, typer.Argument(metavar="MECHANISM", help="A name of the catalogue, or a text.")],
    key_dim: Annotated[int, typer.Option(min=1, help="Width of a query or key, per head.")] = 64,
    value_dim: Annotated[int, typer.Option(min=1, help="Width of a value, per head.")] = 64,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")] = False,
) -> None:
    """Show one mechanism: formula, state, cost, methods, and its names in the literature.

    MECHANISM is a name that 'maclaurin list' prints, or any text of the form similarity/normalizer.

    \b
    Examples:
      maclaurin show taylor-2
      maclaurin show 'elu1>taylor:2/rms' --key-dim 16 --value-dim 64
      maclaurin show softmax --json
    """
    from maclaurin.algebra import recipe

    facts = describe(recipe(mechanism), key_dim=key_dim, value_dim=value_dim)
    if as_json:
        print_json(facts)
    else:
        print_fields([_what(facts), list(facts["terms"].items()), _cost(facts), _use(facts)])


def describe(recipe: Recipe, *, key_dim: int, value_dim: int) -> dict[str, Any]:
    """Everything that is known of a mechanism at a head size; None where a thing does not apply.

    Sizes are per key/value head. ``break_even_length`` is the length at which a 16-bit key/value cache reaches the
    bytes of the float32 moments and of the keys and values in a window; ``cache_numbers_per_token`` what one more token
    adds where no finite state exists; ``operands`` the tensors that ``attend`` needs besides query, key and value.
    """
    from maclaurin.evaluate import methods

    mechanism, named, window = recipe.mechanism, _named(recipe), recipe.mechanism.window
    return {
        "name": recipe.name,
        "mechanism": str(mechanism),
        "catalogue": [each.name for each in named],
        "aliases": [alias for each in named for alias in each.aliases],
        "summary": next((each.summary for each in named), recipe.summary),
        "formula": mechanism.formula.split(";  "),
        "terms": _terms(mechanism),
        "operands": list(mechanism.operands),
        "positivity": mechanism.positivity,
        "is_finite_state": mechanism.is_finite_state,
        "window": None if window is None else {"width": window.width, "sinks": window.sinks},
        "key_dim": key_dim,
        "value_dim": value_dim,
        **(_state if mechanism.is_finite_state else _cache)(mechanism, key_dim, value_dim),
        "methods": methods(mechanism),
        "layer": asdict(recipe.layer),
        "literature": list(dict.fromkeys(name for each in named for name in each.literature)),
    }


def _state(mechanism: Mechanism, key_dim: int, value_dim: int) -> dict[str, Any]:
    size = mechanism.state_size(key_dim, value_dim)
    try:
        length = mechanism.break_even_length(key_dim, value_dim)
    except OverflowError:  # beyond the largest float
        length = None
    return {
        "state_size": size,
        "state_bytes_float32": 4 * size,
        "num_moments": mechanism.num_moments(key_dim),
        "break_even_length": length,
        "flops_per_token": mechanism.flops_per_token(key_dim, value_dim),
        **dict.fromkeys(_CACHE_KEYS),
    }


def _cache(mechanism: Mechanism, key_dim: int, value_dim: int) -> dict[str, Any]:
    growth = mechanism.cache_size(key_dim, value_dim, 1)
    flops = mechanism.flops_per_token(key_dim, value_dim, length=1)
    return {**dict.fromkeys(_STATE_KEYS), **dict(zip(_CACHE_KEYS, (growth, 2 * growth, flops), strict=True))}


def _named(recipe: Recipe) -> list[Recipe]:
    """The entries of the catalogue that are this mechanism."""
    from maclaurin.algebra import CATALOGUE

    return [each for each in CATALOGUE.values() if each.mechanism == recipe.mechanism]


def _terms(mechanism: Mechanism) -> dict[str, str]:
    """Every word of the mechanism's text with what it means, from the classes' own first paragraphs."""
    similarity, normalizer = mechanism.similarity, mechanism.normalizer
    terms = {each.name: _first_paragraph(type(each)) for each in (similarity.map, similarity.function)}
    if similarity.clamp is not None:
        terms["clamp"] = f"a logit above {similarity.clamp:g} counts as {similarity.clamp:g}; no finite state"
    if similarity.is_centered:
        terms["@mean"] = "expanded around c, the mean logit of the query's visible keys, instead of around 0"
    members = [normalizer, *mechanism.gates.parts, *([] if mechanism.window is None else [mechanism.window])]
    return {**terms, **{each.name: _first_paragraph(type(each)) for each in members}}


def _first_paragraph(cls: type) -> str:
    text = " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
    return re.sub(r":\w+:`~?([^`]*)`", r"\1", text).replace("``", "")


def _what(facts: dict[str, Any]) -> list[tuple[str, str]]:
    names = " = ".join(dict.fromkeys([facts["name"], *facts["catalogue"], facts["mechanism"]]))
    fields = [("mechanism", names)]
    if facts["summary"]:
        fields.append(("", facts["summary"]))
    fields += _under("formula", [part for line in facts["formula"] for part in line.split("; ")])
    tensors = ", ".join([*facts["operands"], "query, key, value"])
    return [*fields, ("weights", _SIGNS[facts["positivity"]]), ("reads", tensors)]


def _cost(facts: dict[str, Any]) -> list[tuple[str, str]]:
    head = f"for key dim {facts['key_dim']} and value dim {facts['value_dim']}, per key/value head"
    if not facts["is_finite_state"]:
        flops = facts["flops_per_token_and_cached_key"]
        return [
            ("sizes", head),
            (
                "cache",
                f"grows by {integer(facts['cache_numbers_per_token'])} numbers per token, "
                f"{byte_size(facts['cache_bytes_per_token_16bit'])} in 16 bits",
            ),
            (
                "operations",
                f"{integer(flops)} per token for every cached key: {integer(flops * LENGTH)} at {LENGTH:,} keys",
            ),
        ]
    length = facts["break_even_length"]
    tokens = "more tokens than a float can count" if length is None else f"{integer(math.ceil(length))} tokens"
    kept = ["the moments"] if facts["num_moments"] else []
    kept += [] if facts["window"] is None else ["the keys and values in the window"]
    return [
        ("sizes", head),
        (
            "state",
            f"{integer(facts['state_size'])} numbers, {byte_size(facts['state_bytes_float32'])} in float32, "
            "at any length",
        ),
        ("break-even", f"{tokens}: there a 16-bit key/value cache reaches the bytes of {' and '.join(kept)}"),
        ("operations", f"{integer(facts['flops_per_token'])} per token, at any length"),
    ]


def _use(facts: dict[str, Any]) -> list[tuple[str, str]]:
    able = [f"{name}: " + ("yes" if reason is None else f"no, {reason}") for name, reason in facts["methods"].items()]
    literature = facts["literature"] or [("none" if facts["catalogue"] else "no name") + " in the catalogue"]
    also = _under("also", [", ".join(facts["aliases"])] if facts["aliases"] else [])
    return [*_under("methods", able), ("layer", _layer(facts)), *_under("literature", literature), *also]


def _layer(facts: dict[str, Any]) -> str:
    options, read = facts["layer"], facts["operands"]
    words = ["rotary positions" if options["rotary"] else "no positions"]
    words.append(f"short convolution of width {options['convolution']}" if options["convolution"] else "no convolution")
    if "log_decay" in read:
        words.append(f"log decays by {options['decay']}")
    if "output_gate" in read:
        words.append("one output gate per " + ("channel" if options["vector_gate"] else "head"))
    return ", ".join(words)


def _under(label: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(label if index == 0 else "", line) for index, line in enumerate(lines)]
