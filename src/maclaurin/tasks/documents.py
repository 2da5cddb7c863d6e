"""The documents of a corpus: which files they are, and that each is UTF-8 text."""

from __future__ import annotations

import codecs
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import NoReturn

from maclaurin.errors import ConfigError, DataError

CHUNK_BYTES = 1 << 20
CACHE_PREFIX = "maclaurin-corpus-"
"""How the names of token files begin. They are no documents, even if a cache lies inside its own corpus."""

IGNORED_FOLDERS = frozenset({"__pycache__", "site-packages", "dist-packages"})


@dataclass(frozen=True)
class Document:
    """One file of text.

    Args:
        name: its path below the corpus, with forward slashes; the file name where the corpus is one file.
        path: where it lies.
        num_bytes: its size, >= 1.
        sha256: digest of its content, 32 bytes.
    """

    name: str
    path: Path
    num_bytes: int
    sha256: bytes


@dataclass(frozen=True)
class Collection:
    """The documents below a path, sorted by name, and how many files were left out.

    Args:
        documents: non-empty files with different contents.
        num_skipped: files that are not UTF-8 text or cannot be read; 0 unless leaving them out was allowed.
        num_copies: files whose content an earlier document already has.
    """

    documents: tuple[Document, ...]
    num_skipped: int
    num_copies: int

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 over the name and content of every document."""
        digest = hashlib.sha256()
        for document in self.documents:
            digest.update(os.fsencode(document.name) + b"\0" + document.sha256)
        return digest.hexdigest()


def collect(
    root: Path,
    patterns: Sequence[str],
    *,
    ignored: frozenset[str] = IGNORED_FOLDERS,
    skip_broken: bool = False,
) -> Collection:
    """Find and check the documents at ``root``, a file or a folder.

    Empty files hold nothing to predict and are passed over. A copy is left out, whatever its name, so that no
    text can be in two splits.

    Args:
        root: a file, which is one document whatever its name, or a folder, in which every file that matches
            is one.
        patterns: which files of a folder, as ``pathlib`` matches them from the right: ``*.py``,
            ``docs/*.md``.
        ignored: names of folders that are not entered; hidden ones never are.
        skip_broken: count a file that is not UTF-8 text, or cannot be read, instead of refusing the corpus.

    Raises:
        ConfigError: if ``patterns`` is not a list of patterns.
        DataError: if there is nothing at ``root``, a file is not text or cannot be read, or no text is found.
    """
    if isinstance(patterns, str) or not patterns or not all(PurePosixPath(each).parts for each in patterns):
        raise ConfigError(f"patterns={patterns!r}: give a list of file patterns, for instance ('*.py', '*.md').")
    if root.is_file():
        files = [(root.name, root)]
    elif root.is_dir():
        files = sorted(_files_below(root, patterns, ignored))
    else:
        raise DataError(f"Corpus '{root}': there is no such file or folder. Give the path of a text file or folder.")
    documents: dict[bytes, Document] = {}
    num_skipped = num_copies = 0
    for name, path in files:
        try:
            num_bytes, sha256 = _check_text(path)
        except DataError:
            if not skip_broken:
                raise
            num_skipped += 1
            continue
        if sha256 in documents:
            num_copies += 1
        elif num_bytes:
            documents[sha256] = Document(name, path, num_bytes, sha256)
    if not documents:
        where = "it is empty" if root.is_file() else f"no text in files like {', '.join(patterns)}"
        raise DataError(f"Corpus '{root}': {where}. Give another path or other patterns.")
    return Collection(tuple(documents.values()), num_skipped, num_copies)


def read_chunks(path: Path, start: int = 0, stop: int | None = None) -> Iterator[bytes]:
    """The bytes [start, stop) of a file in pieces of at most ``CHUNK_BYTES``; fewer if the file is shorter.

    Args:
        path: the file.
        start: offset of the first byte.
        stop: offset behind the last byte; None reads to the end.

    Raises:
        DataError: if the file cannot be read.
    """
    left = float("inf") if stop is None else stop - start
    try:
        with path.open("rb") as file:
            file.seek(start)
            while chunk := file.read(int(min(left, CHUNK_BYTES))):
                left -= len(chunk)
                yield chunk
    except OSError as error:
        raise _unreadable(error, path) from error


def _unreadable(error: OSError, path: object) -> DataError:
    return DataError(f"Corpus: '{path}' cannot be read ({error.strerror}). Mend it, or give another path.")


def _files_below(root: Path, patterns: Sequence[str], ignored: frozenset[str]) -> Iterator[tuple[str, Path]]:
    """Name and path of every regular file that matches; nothing hidden, no link that leads outside."""

    def refuse(error: OSError) -> NoReturn:
        raise _unreadable(error, error.filename) from error

    inside = root.resolve()
    for folder, subfolders, file_names in os.walk(root, onerror=refuse):
        subfolders[:] = [each for each in subfolders if each not in ignored and not each.startswith(".")]
        for file_name in file_names:
            path = Path(folder, file_name)
            name = path.relative_to(root).as_posix()
            if file_name.startswith((".", CACHE_PREFIX)) or not any(
                PurePosixPath(name).match(each) for each in patterns
            ):
                continue
            if path.is_file() and path.resolve().is_relative_to(inside):
                yield name, path


def _check_text(path: Path) -> tuple[int, bytes]:
    """Size and SHA-256 of a file that is UTF-8 text without NUL; refuses any other, with the byte offset."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    digest = hashlib.sha256()
    size = 0
    for chunk in read_chunks(path):
        _check_chunk(path, chunk, decoder, size)
        digest.update(chunk)
        size += len(chunk)
    _check_chunk(path, b"", decoder, size)
    return size, digest.digest()


def _check_chunk(path: Path, chunk: bytes, decoder: codecs.IncrementalDecoder, offset: int) -> None:
    """Feed the bytes from ``offset`` on to the decoder; an empty chunk ends the file."""
    bad = chunk.find(0)
    if bad >= 0:
        where, what = offset + bad, "is NUL"
    else:
        unread = len(decoder.getstate()[0])
        try:
            decoder.decode(chunk, final=not chunk)
            return
        except UnicodeDecodeError as error:
            where, what = offset - unread + error.start, f"is not UTF-8 ({error.reason})"
    raise DataError(
        f"Corpus: byte {where} of '{path}' {what}, so this is not a text file.\n"
        "  A corpus is UTF-8 text without NUL. Convert the file, or name other files or patterns."
    )
