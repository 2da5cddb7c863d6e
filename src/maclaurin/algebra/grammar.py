"""The text of a mechanism, read and printed: similarity, normalizer, parts.

``[map ">"] function {":" option} ["@mean"] "/" normalizer {":" option} {"+" part {":" option}}``, where a part is one
of ``valuegate``, ``decay``, ``outgate``, ``outgate:after`` and ``window:W:S``. Options are joined by ``:`` as
``key=value`` or a flag, numbers inside one option by ``,``. A map alone means ``map>power:1``. Printing gives one
canonical text and omits defaults: ``parse(str(m)) == m`` for every mechanism that has a text.

The words are those of the tables in ``feature_map``, ``function``, ``normalizer`` and of ``PARTS``; their options are
the fields of the classes. A new member is legal here by standing in its table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from maclaurin.algebra.feature_map import MAPS
from maclaurin.algebra.function import FUNCTIONS
from maclaurin.algebra.gate import Decay, Gates, OutputGate, ValueGate
from maclaurin.algebra.mechanism import Mechanism
from maclaurin.algebra.normalizer import NORMALIZERS
from maclaurin.algebra.similarity import Similarity
from maclaurin.algebra.text import option_name
from maclaurin.algebra.window import Window
from maclaurin.errors import GrammarError, nearest

#: What may follow the normalizer.
PARTS: dict[str, type[Any]] = {each.name: each for each in (ValueGate, Decay, OutputGate, Window)}


def parse(text: str) -> Mechanism:
    """Read a mechanism.

    Raises:
        GrammarError: a word, option or number that the grammar does not have, with the nearest legal ones.
        MechanismError: the words are legal, their values or their combination are not.

    Example:
        >>> parse("taylor:2@mean/sum").state_size(8, 8)
        413
    """
    parts = text.strip().split("/")
    if len(parts) != 2 or not all(parts):
        raise GrammarError(
            f"{text!r} asks for a mechanism, but is not of the form similarity/normalizer.\n"
            "  Write for instance exp/sum, taylor:2@mean/sum or elu1/sum; 'maclaurin list' names the catalogue."
        )
    similarity = _parse_similarity(parts[0], text)
    last, *extra = parts[1].split("+")
    normalizer = _member(last, NORMALIZERS, "normalizer", text)
    found = [_member(each, PARTS, "part", text) for each in extra]
    for name in (each.name for each in found):
        if sum(each.name == name for each in found) > 1:
            raise GrammarError(f"{text!r} gives the part {name!r} twice.")
    window = next((each for each in found if isinstance(each, Window)), None)
    return Mechanism(similarity, normalizer, Gates.of(found), window)


def text(mechanism: Mechanism) -> str:
    """The canonical text of a mechanism, as ``str(mechanism)``.

    Raises:
        GrammarError: for a callable feature map, which has no text.
    """
    return str(mechanism)


def _parse_similarity(words: str, whole: str) -> Similarity:
    body, at, center = words.partition("@")
    if at and center != "mean":
        raise GrammarError(f"{whole!r} asks for the center {center!r}.\n  The only center is @mean.")
    head, arrow, tail = body.partition(">")
    if not arrow:
        head, tail = ("identity", body) if body.split(":")[0] not in MAPS else (body, "power:1")
    feature_map = _member(head, MAPS, "map", whole)
    word, *options = tail.split(":")
    names = FUNCTIONS if arrow else {**FUNCTIONS, **MAPS}
    function_class = _lookup(word, names, "function", whole)
    clamps = [each for each in options if each.startswith("clamp=")]
    if len(clamps) > 1:
        raise GrammarError(f"{whole!r} gives the option clamp twice.")
    function = _build(function_class, [each for each in options if each not in clamps], whole, also=("clamp",))
    clamp = _number(clamps[0].removeprefix("clamp="), whole) if clamps else None
    return Similarity(function, feature_map, clamp=clamp, is_centered=bool(at))


def _member(words: str, table: Mapping[str, type[Any]], kind: str, whole: str) -> Any:
    """An instance from ``name {":" option}``."""
    word, *options = words.split(":")
    return _build(_lookup(word, table, kind, whole), options, whole)


def _lookup(word: str, table: Mapping[str, type[Any]], kind: str, whole: str) -> type[Any]:
    if word not in table:
        raise GrammarError(f"{whole!r} asks for the {kind} {word!r}, which does not exist: {nearest(word, table)}")
    return table[word]


def _build(cls: type[Any], options: list[str], whole: str, *, also: tuple[str, ...] = ()) -> Any:
    """An instance of a member class from its options; its dataclass fields say which are legal."""
    positional = [each for each in dataclasses.fields(cls) if each.metadata.get("positional")]
    keyed = {option_name(each): each for each in dataclasses.fields(cls) if each not in positional}
    opposites = {each.metadata["opposite"]: each for each in keyed.values() if "opposite" in each.metadata}
    values: dict[str, Any] = {}
    for field in positional:
        if not options and field.default is not dataclasses.MISSING:
            break
        if not options or "=" in options[0]:
            raise GrammarError(f"{whole!r} leaves out the {field.name} of {cls.name!r}: write {cls.name}:2.")
        values[field.name] = _positional_value(field, options[0], whole)
        options = options[1:]
    for option in options:
        key, equals, number = option.partition("=")
        if key in opposites and not equals and opposites[key].name not in values:
            values[opposites[key].name] = False
            continue
        if key not in keyed:
            legal = [*keyed, *opposites, *also]
            hint = nearest(key, legal) if legal else f"{cls.name!r} has no options"
            raise GrammarError(f"{whole!r} gives {cls.name!r} the option {key!r}, which it does not have: {hint}")
        field = keyed[key]
        is_flag = field.type == "bool"
        if is_flag == bool(equals):
            form = key if is_flag else f"{key}=NUMBER"
            raise GrammarError(f"{whole!r} gives the option {option!r} in a form it does not have: write {form}.")
        if field.name in values:
            raise GrammarError(f"{whole!r} gives the option {key!r} twice.")
        values[field.name] = True if is_flag else _number(number, whole)
    return cls(**values)


def _positional_value(field: dataclasses.Field[Any], word: str, whole: str) -> Any:
    if field.type == "int":
        try:
            return int(_plain(word))
        except ValueError:
            raise GrammarError(
                f"{whole!r} gives {word!r} as the {field.name}, which must be a whole number such as 2."
            ) from None
    return tuple(_number(each, whole) for each in word.split(","))


def _plain(word: str) -> str:
    """The word, unless it is a number only by Python's leave: 1_000, or with spaces around it."""
    if "_" in word or word != word.strip():
        raise ValueError(word)
    return word


def _number(word: str, whole: str) -> float:
    try:
        return float(_plain(word))
    except ValueError:
        raise GrammarError(f"{whole!r} gives {word!r} where a number belongs, such as 5 or 1e-4.") from None
