"""What every task hands to a model: tokens, the targets at the same positions, and which of them count."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from maclaurin.errors import ConfigError, DataError, ShapeError

_DTYPES = {"tokens": np.dtype(np.int64), "targets": np.dtype(np.int64), "mask": np.dtype(np.bool_)}


@dataclass(frozen=True, eq=False)
class Batch:
    """Sequences of token ids with the answers a model is asked for.

    ``targets[b, t]`` is the right answer to everything up to and including ``tokens[b, t]``; nothing is left
    to shift. The arrays are held as given, not copied, and two batches are equal only if they are one object.

    Dimension key: B sequences, T positions.

    Args:
        tokens: int64 [B, T], ids in [0, vocabulary).
        targets: int64 [B, T], ids in [0, vocabulary) also where ``mask`` is False; the task sees to that.
        mask: bool [B, T], True where the target counts.

    Raises:
        DataError: if one of them is not a numpy array, or has another dtype.
        ShapeError: if the shapes differ or are not [B, T].

    Example:
        >>> import numpy as np
        >>> ids = np.array([[5, 7, 5]])
        >>> counts = np.array([[False, False, True]])
        >>> Batch(tokens=ids, targets=np.array([[0, 0, 7]]), mask=counts).tokens.shape
        (1, 3)
    """

    tokens: np.ndarray
    targets: np.ndarray
    mask: np.ndarray

    def __post_init__(self) -> None:
        arrays = {name: getattr(self, name) for name in _DTYPES}
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise DataError(
                    f"Batch({name}=...): this is a {type(array).__name__}, not a numpy array.\n"
                    f"  Give numpy.asarray({name}, dtype='{_DTYPES[name]}')."
                )
            if array.dtype != _DTYPES[name]:
                raise DataError(
                    f"Batch({name}=...): the dtype is {array.dtype}, not {_DTYPES[name]}.\n"
                    f"  Give {name}.astype('{_DTYPES[name]}')."
                )
        shapes = [array.shape for array in arrays.values()]
        if len(set(shapes)) > 1 or len(shapes[0]) != 2:
            raise ShapeError(
                "Batch: tokens, targets and mask need one shape [B, T].\n  "
                + " · ".join(f"{name} {array.shape}" for name, array in arrays.items())
                + "\n  A shifted target is the usual cause: all three have the length of the tokens."
            )


def check_sizes(call: str, **sizes: int) -> None:
    """Refuse a size that is not a whole number of at least one.

    Args:
        call: what the user called, the head of the message.
        **sizes: the sizes by the name the user knows them under.

    Raises:
        ConfigError: naming the first size that is not an integer >= 1.

    Example:
        >>> check_sizes("MQAR.sample", num_sequences=4)
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
            raise ConfigError(f"{call}({name}={size!r}): {name} needs to be a whole number >= 1.")
