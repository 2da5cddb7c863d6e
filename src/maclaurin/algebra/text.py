"""The canonical text of a mechanism's parts; what ``grammar`` reads back.

Options are the fields of a member's class: a flag where the field is a bool, ``key=value`` otherwise, left out at their
default. Numbers print in their shortest form that reads back the same.
"""

from __future__ import annotations

import dataclasses
from decimal import Decimal
from typing import Any

from maclaurin.algebra.feature_map import CallableMap, Identity
from maclaurin.algebra.function import Power
from maclaurin.algebra.normalizer import Normalizer
from maclaurin.algebra.similarity import Similarity


def has_text(similarity: Similarity) -> bool:
    """Whether the similarity has a word for its map; a callable has none."""
    return not isinstance(similarity.map, CallableMap)


def similarity_text(similarity: Similarity) -> str:
    """``[map ">"] function {":" option} ["@mean"]``, or a map alone for ``map>power:1``."""
    is_map_alone = not isinstance(similarity.map, Identity) and similarity.function == Power(1)
    words = [] if isinstance(similarity.map, Identity) else [similarity.map.name]
    if not is_map_alone or similarity.clamp is not None:
        clamp = [] if similarity.clamp is None else [f"clamp={_number_text(similarity.clamp)}"]
        words.append(":".join([similarity.function.name, *_options_text(similarity.function), *clamp]))
    return ">".join(words) + ("@mean" if similarity.is_centered else "")


def normalizer_text(normalizer: Normalizer) -> str:
    """``name {":" option}``."""
    return ":".join([normalizer.name, *_options_text(normalizer)])


def part_text(part: Any) -> str:
    """``name {":" option}`` of a gate or window."""
    return ":".join([part.name, *_options_text(part)])


def option_name(field: dataclasses.Field[Any]) -> str:
    """The word of an option."""
    return str(field.metadata.get("text", field.name))


def _options_text(member: Any) -> list[str]:
    out = []
    for field in dataclasses.fields(member):
        value = getattr(member, field.name)
        if field.metadata.get("positional"):
            if value == field.default:
                continue
            is_whole = isinstance(value, int)  # in full: the grammar reads whole numbers without an exponent
            out.append(str(value) if is_whole else ",".join(_number_text(each) for each in value))
        elif value != field.default:
            name = option_name(field)
            out.append(name if field.type == "bool" else f"{name}={_number_text(value)}")
    return out


def _number_text(value: float) -> str:
    """The shortest text that reads back to the same number; positional on ties."""
    plain = repr(value).removesuffix(".0")
    sign, digits, exponent = Decimal(plain).normalize().as_tuple()
    scientific = ("-" if sign else "") + "".join(map(str, digits)) + f"e{exponent}"
    return plain if len(plain) <= len(scientific) else scientific
