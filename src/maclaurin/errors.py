"""The exceptions of maclaurin, as a tree.

::

    ValueError
    └─ MaclaurinError       everything a user can cause; catch this one
       ├─ GrammarError      a mechanism's text cannot be read, or a name is in no catalogue
       ├─ MechanismError    the parts are legal, their combination is not
       ├─ MethodError       the evaluation that was asked for cannot serve this mechanism or call
       ├─ ShapeError        tensors disagree on a dimension; the message prints all of them
       ├─ DtypeError        dtypes or devices are mixed, or not floating point
       ├─ MaskError         a mask of the wrong kind
       ├─ StateError        a state of another mechanism, shape or dtype
       ├─ ConfigError       a setting out of its range, or a key that does not exist
       ├─ DataError         a corpus or task that cannot be read as asked
       └─ StoreError        a result store or output folder that cannot be used as asked

Each message says what was asked, what is wrong with the values, and what to do. Mistakes of our own are
``AssertionError``; an unknown keyword is Python's ``TypeError``.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class MaclaurinError(ValueError):
    """Base of every error that a user of maclaurin can cause and mend."""


class GrammarError(MaclaurinError):
    """A mechanism's text cannot be read, or a name is in no catalogue."""


class MechanismError(MaclaurinError):
    """The parts are legal each by itself, their combination is not."""


class MethodError(MaclaurinError):
    """The evaluation that was asked for cannot serve this mechanism or this call."""


class ShapeError(MaclaurinError):
    """Tensors disagree on a dimension."""


class DtypeError(MaclaurinError):
    """Dtypes or devices are mixed, or not floating point."""


class MaskError(MaclaurinError):
    """A mask of the wrong kind."""


class StateError(MaclaurinError):
    """A state of another mechanism, shape or dtype."""


class ConfigError(MaclaurinError):
    """A setting out of its range, or a key that does not exist."""


class DataError(MaclaurinError):
    """A corpus or task that cannot be read as asked."""


class StoreError(MaclaurinError):
    """A result store or output folder that cannot be used as asked."""


def nearest(word: str, legal: Iterable[str], *, limit: int = 3) -> str:
    """The legal words closest to ``word``, as the tail of an error message.

    >>> nearest("taylr", ["taylor", "power", "exp"])
    "did you mean 'taylor'?"
    >>> nearest("zzz", ["exp", "power"])
    'legal: exp, power'
    """
    words = list(legal)
    close = difflib.get_close_matches(word, words, n=limit, cutoff=0.5)
    if close:
        return "did you mean " + " or ".join(f"'{each}'" for each in close) + "?"
    return "legal: " + ", ".join(words)
