"""What the mechanism and task columns of result rows say, read for axes, titles and tables."""

from __future__ import annotations

import re
import unicodedata


def parse_order(mechanism: str) -> tuple[int, bool, bool] | None:
    """(order, centered, signed) of a Taylor mechanism under ``sum``, or None for any other.

    >>> parse_order("taylor:3@mean/sum:signed")
    (3, True, True)
    """
    match = re.fullmatch(r"taylor:(\d+)(?::[^@/]+)?(@mean)?/sum(:\S+)?", mechanism)
    if match is None:
        return None
    return int(match[1]), match[2] is not None, "signed" in (match[3] or "").split(":")


def parse_setting(task: str, family: str, name: str) -> float | None:
    """The number after ``name=`` in a task of ``family``, or None.

    >>> parse_setting("self-attention a=0.70", "self-attention", "a")
    0.7
    """
    match = re.fullmatch(rf"{re.escape(family)}\b.*?\b{re.escape(name)}=([0-9.]+(?:e[+-]?\d+)?)\b.*", task)
    return float(match[1]) if match else None


def natural(text: str) -> tuple[tuple[float, str], ...]:
    """A sorting key that reads numbers as numbers.

    >>> sorted(["sd-10", "sd-2.5"], key=natural)
    ['sd-2.5', 'sd-10']
    """
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return tuple((float(part), "") if index % 2 else (0.0, part) for index, part in enumerate(parts))


def shown(text: str, limit: int = 40) -> str:
    """``text`` on one line, without control and direction characters, shortened to ``limit`` characters.

    >>> shown("a\\nb\\x1b[31m")
    'a b�[31m'
    """
    cleaned = "".join(
        " " if each in "\t\n\r" else "�" if unicodedata.category(each)[0] == "C" else each for each in text
    )
    return cleaned if len(cleaned) <= limit else cleaned[: limit - 1] + "…"
