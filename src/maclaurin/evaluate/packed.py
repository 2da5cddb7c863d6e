"""Packed sequences: documents one after another in one row, evaluated as batches of documents of like length.

Dimension key: H heads, T time (of all documents), N documents, D documents in one batch, L longest of those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from maclaurin.algebra import Mechanism
from maclaurin.errors import ConfigError, DtypeError, MaskError, ShapeError, StateError
from maclaurin.evaluate import checks
from maclaurin.evaluate.call import Options
from maclaurin.evaluate.state import State

#: Evaluates one ordinary batch: query, key, value and what else was given -> output, state, diagnostics.
Evaluate = Callable[[Tensor, Tensor, Tensor, Options], tuple[Tensor, State | None, Any]]

#: Operands that stand on the queries' time; the others stand on the keys', or on none.
_PER_QUERY = frozenset({"output_gate"})
_PER_KEY = frozenset({"log_decay", "value_gate", "denominator_logit"})


@dataclass(frozen=True)
class Documents:
    """Where the documents stand in the packed time.

    Args:
        queries: bounds on the queries' time, N + 1 numbers from 0 to T that never decrease.
        keys: bounds on the keys' time, as many.
    """

    queries: tuple[int, ...]
    keys: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.queries) - 1

    def buckets(self) -> list[list[int]]:
        """The documents, those together whose lengths differ by less than a factor sqrt(2), queries and keys each.

        Padding to the longest of a bucket so costs less than that in either, and less than twice the pairs. At least
        one bucket.

        Example:
            >>> Documents((0, 5, 6, 10, 17), (0, 5, 6, 10, 17)).buckets()
            [[0, 2], [1], [3]]
        """
        found: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for document in range(len(self)):
            lengths = (bounds[document + 1] - bounds[document] for bounds in (self.queries, self.keys))
            found[tuple((length * length).bit_length() for length in lengths)].append(document)
        return list(found.values()) or [[]]


@dataclass(frozen=True, eq=False)
class _Rows:
    """Some documents as the rows of a batch, padded on the left to the longest so that their ends are aligned.

    Args:
        time: packed time of every place in the batch, ``[D, L]``; on padding some time of the same document.
        hidden: bool ``[D, L]``, True on padding; None where there is none.
    """

    time: Tensor
    hidden: Tensor | None

    @classmethod
    def of(cls, bounds: Sequence[int], documents: Sequence[int], device: torch.device) -> _Rows:
        start = torch.tensor([bounds[each] for each in documents], dtype=torch.int64)
        length = torch.tensor([bounds[each + 1] for each in documents], dtype=torch.int64) - start
        longest = int(length.max()) if len(documents) else 0
        place = torch.arange(longest) - (longest - length[:, None])
        hidden = place < 0
        time = start[:, None] + place.clamp(min=0)
        return cls(time.to(device), hidden.to(device) if bool(hidden.any()) else None)

    def batched(self, packed: Tensor) -> Tensor:
        """``[1, H, T, ...] -> [D, H, L, ...]``, ones on padding: every map and function is at ease there."""
        rows = packed[0].index_select(1, self.time.flatten())
        rows = rows.reshape(len(rows), *self.time.shape, *rows.shape[2:]).transpose(0, 1)
        if self.hidden is None:
            return rows
        hidden = self.hidden[:, None]
        return rows.masked_fill(hidden[..., None] if rows.ndim == 4 else hidden, 1.0)


def attend_packed(
    evaluate: Evaluate,
    mechanism: Mechanism,
    inputs: tuple[Tensor, Tensor, Tensor],
    options: Options,
    bounds: tuple[Tensor | None, Tensor | None],
) -> tuple[Tensor, State | None]:
    """Every document attended to by itself, as by one call each.

    Documents of like length become the rows of an ordinary batch, padded on the left under a mask over keys.

    Args:
        evaluate: what evaluates one such batch.
        mechanism: what it evaluates.
        inputs: query ``[1, H, T, K]``, key ``[1, Hkv, S, K]`` and value ``[1, Hkv, S, V]``.
        options: of the whole call; a state has one row a document.
        bounds: ``cu_seqlens`` and ``cu_seqlens_k``, those of the documents on the queries' and the keys' time,
            ``[N + 1]``; None for the second: the same.

    Returns:
        Output ``[1, H, T, V]``, and a state of batch N where ``evaluate`` returns one.

    Raises:
        ShapeError: a batch other than 1, or bounds that are not one row.
        DtypeError: bounds that are not int32 or int64.
        ConfigError: bounds that do not run from 0 to the end, or decrease; as many keys' bounds are needed.
        MaskError: a mask.
        StateError: a state of a batch other than N.

    Cost: under sqrt(2) times the queries and keys and twice their pairs, one copy of inputs and output, one
        synchronization for the bounds.
    """
    documents = _check(mechanism, inputs, options, *bounds)
    query, key, value = inputs
    buckets = documents.buckets()
    outputs, states, times, places, offset = [], [], [], [], 0
    for bucket in buckets:
        queries = _Rows.of(documents.queries, bucket, query.device)
        keys = _Rows.of(documents.keys, bucket, key.device)
        part = _part(options, queries, keys, bucket)
        output, state, _ = evaluate(queries.batched(query), keys.batched(key), keys.batched(value), part)
        outputs.append(output.transpose(0, 1).flatten(1, 2))
        shown = torch.ones_like(queries.time, dtype=torch.bool) if queries.hidden is None else ~queries.hidden
        times.append(queries.time[shown])
        places.append(shown.flatten().nonzero()[:, 0] + offset)
        offset += queries.time.numel()
        states += [] if state is None else [state]
    place = torch.empty(query.shape[2], dtype=torch.int64, device=query.device)
    place[torch.cat(times)] = torch.cat(places)
    whole = torch.cat(outputs, dim=1).index_select(1, place)[None]
    return whole, _in_order(states, [each for bucket in buckets for each in bucket]) if states else None


def _part(options: Options, queries: _Rows, keys: _Rows, documents: Sequence[int]) -> Options:
    """The options of the batch that some documents make."""
    operands = dict(options.operands)
    for names, rows in ((_PER_QUERY, queries), (_PER_KEY, keys)):
        for name in names:
            tensor = operands.get(name)
            operands[name] = None if tensor is None else rows.batched(tensor)
    state = None if options.state is None else _rows(options.state, documents)
    return replace(options, mask=None if keys.hidden is None else ~keys.hidden, state=state, operands=operands)


def _rows(state: State, rows: Sequence[int]) -> State:
    index = torch.tensor(rows, dtype=torch.int64, device=state.device)
    return state.map_tensors(lambda each: each.index_select(0, index))


def _in_order(states: Sequence[State], documents: Sequence[int]) -> State:
    """One state with a row a document, from states whose rows are ``documents``."""
    lengths = [each.cache.num_entries for each in states if each.cache is not None]
    if lengths:
        states = [
            replace(each, cache=None if each.cache is None else each.cache.padded(max(lengths))) for each in states
        ]
    rest = [iter(each.tensors()) for each in states[1:]]
    whole = states[0].map_tensors(lambda each: torch.cat([each, *(next(tensors) for tensors in rest)]))
    row_of = {document: row for row, document in enumerate(documents)}
    return _rows(whole, [row_of[document] for document in range(len(documents))])


def _check(
    mechanism: Mechanism,
    inputs: tuple[Tensor, Tensor, Tensor],
    options: Options,
    cu_seqlens: Tensor | None,
    cu_seqlens_k: Tensor | None,
) -> Documents:
    """Everything that can be wrong with a packed call, before any of its documents is looked at."""
    query, key, value = inputs
    checks.check_shapes(query, key, value)
    if query.shape[0] != 1:
        raise ShapeError(
            f"attend: cu_seqlens was given with a batch of {query.shape[0]}; documents are packed into one row.\n"
            "  Give query, key and value with B = 1, all documents one after another along time."
        )
    if options.mask is not None:
        raise MaskError(
            "attend: a mask was given together with cu_seqlens, whose bounds say which keys a document has.\n"
            "  Leave one of them out; hidden keys inside a document need a padded batch with a mask [B, S]."
        )
    if cu_seqlens is None:
        raise ConfigError("attend: cu_seqlens_k was given without cu_seqlens.\n  Give the bounds of the queries too.")
    if cu_seqlens_k is None and key.shape[2] != query.shape[2]:
        raise ConfigError(
            f"attend: cu_seqlens was given alone, with {query.shape[2]} queries and {key.shape[2]} keys.\n"
            "  Give cu_seqlens_k, the bounds of the same documents on the keys' time."
        )
    queries = _bounds("cu_seqlens", cu_seqlens, query.shape[2], "T")
    keys = queries if cu_seqlens_k is None else _bounds("cu_seqlens_k", cu_seqlens_k, key.shape[2], "S")
    if len(queries) != len(keys):
        raise ConfigError(
            f"attend: cu_seqlens is of {len(queries) - 1} documents, cu_seqlens_k of {len(keys) - 1}.\n"
            "  Give both for the same documents; one without queries or keys has the same bound twice."
        )
    checks.check_dtypes(query, key, value)
    checks.check_operands(mechanism, options.operands, checks.Sizes.of(query, key, value), value)
    log_decay = options.operands.get("log_decay")
    if log_decay is not None:
        checks.check_log_decay(log_decay)
    documents = Documents(queries, keys)
    _check_state(mechanism, options.state, documents, key, value)
    return documents


def _bounds(name: str, bounds: Tensor, length: int, letter: str) -> tuple[int, ...]:
    """The bounds as numbers, if they are legal."""
    want = f"  Give an int32 or int64 tensor [N + 1]: 0, then the end of each of N documents, the last at {letter} = "
    want += f"{length}."
    if not isinstance(bounds, Tensor) or bounds.dtype not in (torch.int32, torch.int64):
        kind = bounds.dtype if isinstance(bounds, Tensor) else f"a {type(bounds).__name__}"
        raise DtypeError(f"attend: {name} is {kind}.\n{want}")
    if bounds.ndim != 1 or len(bounds) == 0:
        raise ShapeError(f"attend: {name} has shape {tuple(bounds.shape)}.\n{want}")
    numbers = tuple(bounds.tolist())
    wrong = ""
    if numbers[0] != 0:
        wrong = f"starts at {numbers[0]}, not at 0"
    elif numbers[-1] != length:
        wrong = f"ends at {numbers[-1]}, but {letter} = {length}"
    for i, (before, after) in enumerate(pairwise(numbers)):
        if after < before and not wrong:
            wrong = f"decreases from {before} to {after} at document {i}"
    if wrong:
        raise ConfigError(f"attend: {name} {wrong}.\n{want}")
    return numbers


def _check_state(mechanism: Mechanism, state: State | None, documents: Documents, key: Tensor, value: Tensor) -> None:
    if state is None:
        return
    if not isinstance(state, State) or state.mechanism != mechanism:
        checks.check_state(mechanism, state, key, value)  # refuses
    if state.layout[0] != len(documents):
        raise StateError(
            f"attend: the state has a batch of {state.layout[0]}, cu_seqlens is of {len(documents)} documents.\n"
            "  Give a state with one row a document, as a packed call returns it; State.reorder picks rows."
        )
