"""The token file of a corpus: the bytes of its splits, written once and mapped into memory.

::

    0 document 0 document ... 0 document | 0 document ... 0 document
    '------------- train -------------'   '------- heldout -------'

A zero byte stands before every document; NUL never occurs in a document. Beside the file lies a JSON file of
the same name that says what is in it. It is written last, so a token file without a matching one is not
finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from maclaurin.errors import DataError
from maclaurin.tasks.documents import CACHE_PREFIX, Document, read_chunks

FORMAT = 1
"""To be raised with every change of the layout or of the split; old caches are then written anew."""

_UTF8_CONTINUATION = bytes(range(0x80, 0xC0))  # the bytes of a character behind its first, three at most


@dataclass(frozen=True)
class Piece:
    """The bytes [start, stop) of a document, as one split holds them."""

    document: Document
    start: int
    stop: int


class Span(NamedTuple):
    """Where a document lies in the stream of its split: ``stream[start:stop]``, its separator excluded."""

    name: str
    start: int
    stop: int


def split_documents(documents: tuple[Document, ...], held_out: float) -> dict[str, tuple[Piece, ...]]:
    """Share the documents out between ``train`` and ``heldout``.

    A document is held out if the hash of its name and content, as a number in [0, 1), is below ``held_out``:
    more documents, or another order, move none from one split to the other. Only if that leaves a split empty
    does it get the document with the nearest hash. A single document is cut in two, at a character, and its
    end is held out.

    Args:
        documents: at least one.
        held_out: the share that is held out, in (0, 1).
    """
    if len(documents) == 1:
        (document,) = documents
        cut = document.num_bytes - max(1, round(document.num_bytes * held_out))
        following = b"".join(read_chunks(document.path, cut, cut + 3))
        cut += len(following) - len(following.lstrip(_UTF8_CONTINUATION))
        return {
            "train": (Piece(document, 0, cut),),
            "heldout": (Piece(document, cut, document.num_bytes),),
        }
    by_hash = sorted(documents, key=_hash)
    num_heldout = sum(_hash(document) < held_out for document in documents)
    chosen = {document.name for document in by_hash[: min(max(num_heldout, 1), len(documents) - 1)]}
    whole = [Piece(document, 0, document.num_bytes) for document in documents]
    return {
        "train": tuple(piece for piece in whole if piece.document.name not in chosen),
        "heldout": tuple(piece for piece in whole if piece.document.name in chosen),
    }


@dataclass(frozen=True, eq=False)
class TokenFile:
    """An open token file.

    Args:
        path: the file.
        streams: uint8 [bytes] for each split, read from the file as it is needed.
        spans: the documents of each split, in the order of its stream.
    """

    path: Path
    streams: Mapping[str, np.ndarray]
    spans: Mapping[str, tuple[Span, ...]]


def open_token_file(
    splits: Mapping[str, tuple[Piece, ...]], *, digest: str, held_out: float, cache_dir: Path
) -> TokenFile:
    """Map the token file of these splits into memory; write it first if the cache lacks it or it is damaged.

    Args:
        splits: the pieces of each split.
        digest: digest of the corpus.
        held_out: the share that was held out.
        cache_dir: folder of the token files; it is made if need be.

    Raises:
        DataError: if the folder cannot be written (or is full), or a document changed since it was checked.
    """
    spans = {name: tuple(_spans(pieces)) for name, pieces in splits.items()}
    contents = _contents(spans, digest, held_out)
    path = cache_dir / f"{CACHE_PREFIX}{digest[:16]}-{held_out!r}.bin"
    try:
        if not _is_intact(path, contents):
            cache_dir.mkdir(parents=True, exist_ok=True)
            sha256 = _write(path, _tokens(splits))
            _write(path.with_suffix(".json"), [json.dumps(contents | {"sha256": sha256}, indent=1).encode()])
        tokens = np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise DataError(
            f"Corpus: the cache folder '{cache_dir}' cannot be used ({error.strerror}). "
            "Free space there, make it writable, or give another cache_dir."
        ) from error
    streams, start = {}, 0
    for name, about in contents["splits"].items():
        streams[name] = tokens[start : start + about["num_bytes"]]
        start += about["num_bytes"]
    return TokenFile(path, streams, spans)


def _hash(document: Document) -> float:
    """A number in [0, 1) that depends on the name and content of a document and on nothing else."""
    digest = hashlib.sha256(os.fsencode(document.name) + b"\0" + document.sha256).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _spans(pieces: Iterable[Piece]) -> Iterator[Span]:
    stop = 0
    for piece in pieces:
        start = stop + 1
        stop = start + piece.stop - piece.start
        yield Span(piece.document.name, start, stop)


def _contents(spans: Mapping[str, tuple[Span, ...]], digest: str, held_out: float) -> dict[str, Any]:
    """What the JSON file says, except for the SHA-256 of the token file."""
    about = {
        name: {
            "num_documents": len(each),
            "num_bytes": each[-1].stop,
            "documents": [list(span) for span in each],
        }
        for name, each in spans.items()
    }
    return {"format": FORMAT, "digest": digest, "held_out": held_out, "splits": about}


def _is_intact(path: Path, contents: Mapping[str, Any]) -> bool:
    """Whether the cache holds these contents, to the last byte."""
    try:
        stored = json.loads(path.with_suffix(".json").read_bytes())
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, ValueError):  # ValueError: the JSON file is damaged
        return False
    return bool(stored == {**contents, "sha256": sha256})


def _tokens(splits: Mapping[str, tuple[Piece, ...]]) -> Iterator[bytes]:
    """The bytes of the token file; refuses a document that is no longer what was checked."""
    digests = {piece.document.name: hashlib.sha256() for pieces in splits.values() for piece in pieces}
    for pieces in splits.values():
        for piece in pieces:
            yield b"\0"
            document = piece.document
            for chunk in read_chunks(document.path, piece.start, piece.stop):
                digests[document.name].update(chunk)
                yield chunk
            if piece.stop == document.num_bytes and digests[document.name].digest() != document.sha256:
                raise DataError(f"Corpus: '{document.path}' changed while it was read. Open the corpus again.")


def _write(path: Path, chunks: Iterable[bytes]) -> str:
    """Write a file so that it is there whole or not at all; its hexadecimal SHA-256."""
    unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
    digest = hashlib.sha256()
    try:
        with unfinished.open("xb") as file:
            for chunk in chunks:
                file.write(chunk)
                digest.update(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return digest.hexdigest()
