"""Text as a task: predict the next byte of any file or folder."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from maclaurin.errors import ConfigError, DataError, nearest
from maclaurin.tasks.batch import Batch, check_sizes
from maclaurin.tasks.documents import IGNORED_FOLDERS, Collection, collect
from maclaurin.tasks.streams import check_generator
from maclaurin.tasks.token_file import Span, open_token_file, split_documents

TEXT_PATTERNS = ("*.py", "*.txt", "*.md", "*.rst")
"""The files of a folder that are documents unless the caller names others."""

_NOT_LIBRARY = frozenset({"test", "tests", "idlelib", "turtledemo", "lib2to3"})


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """UTF-8 text, byte for byte, split by document and mapped into memory.

    ``open`` and ``standard_library`` make one. A token is a byte, so the vocabulary has 256 entries. The
    documents of a split form one stream, in the order of their names, with a zero byte before each; NUL never
    occurs in text. Every byte of a stream but its first is predicted, the zero that ends one document and
    begins the next like any other.

    Args:
        digest: hexadecimal SHA-256 over the name and content of every document.
        cache_path: the token file.
        streams: uint8 [bytes], memory-mapped, for ``train`` and ``heldout``.
        documents: name, start and stop of each document in the stream of its split.
        num_skipped: files left out because they are not UTF-8 text; 0 except for the standard library.
        num_copies: files left out because their content is that of an earlier document.

    Example:
        >>> import tempfile, pathlib
        >>> import numpy as np
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = pathlib.Path(folder.name, "verse.txt")
        >>> _ = file.write_text("the grass is green, the sky is blue\\n" * 20)
        >>> corpus = Corpus.open(file, folder.name)
        >>> corpus
        Corpus(train=1 document, 649 bytes; heldout=1 document, 73 bytes; 0 files skipped, 0 copies)
        >>> corpus.sample(np.random.default_rng(0), batch_size=4, length=32).tokens.shape
        (4, 32)
        >>> folder.cleanup()
    """

    vocab_size: ClassVar[int] = 256

    digest: str
    cache_path: Path
    streams: Mapping[str, np.ndarray]
    documents: Mapping[str, tuple[Span, ...]]
    num_skipped: int
    num_copies: int

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        cache_dir: str | os.PathLike[str],
        *,
        patterns: Sequence[str] | None = None,
        held_out: float = 0.1,
    ) -> Self:
        """A corpus from one file, which is one document, or from a folder with one document per file.

        In a folder hidden files and folders, ``__pycache__``, ``site-packages``, ``dist-packages`` and links
        that lead out of it are passed over, and so are empty files. A document is in one split only: a hash
        of its name and content decides, and of files with equal content the first by name alone is kept. A
        single document is cut in two instead, and its end is held out.

        Args:
            path: the file or folder.
            cache_dir: folder for the token file. It is written once per content and checked at every opening.
            patterns: which files of a folder, for instance ``("*.txt", "docs/*.md")``; None takes Python
                sources, ``.txt``, ``.md`` and ``.rst``. A file is taken whatever its name.
            held_out: the share of the documents that is held out, in (0, 1).

        Raises:
            ConfigError: if ``held_out`` or ``patterns`` is not what it needs to be.
            DataError: if there is no text at ``path``, a document is not UTF-8 text or has a NUL, a file
                cannot be read, or the cache cannot be written.
        """
        _check_share(held_out)
        wanted = TEXT_PATTERNS if patterns is None else patterns
        return cls._build(collect(Path(path), wanted), Path(cache_dir), float(held_out))

    @classmethod
    def standard_library(cls, cache_dir: str | os.PathLike[str], *, held_out: float = 0.1) -> Self:
        """The sources of the running Python's own standard library, without its tests, IDLE and demos.

        It is on every machine, and differs between Python versions; ``digest`` says which one was read. Files
        that are not UTF-8 text are left out and counted in ``num_skipped``.

        Args:
            cache_dir: folder for the token file.
            held_out: the share of the documents that is held out, in (0, 1).

        Raises:
            ConfigError: if ``held_out`` is out of its range.
            DataError: if the sources are not installed, or the cache cannot be written.
        """
        _check_share(held_out)
        root = Path(sysconfig.get_path("stdlib"))
        found = collect(root, ("*.py",), ignored=IGNORED_FOLDERS | _NOT_LIBRARY, skip_broken=True)
        return cls._build(found, Path(cache_dir), float(held_out))

    @classmethod
    def _build(cls, found: Collection, cache_dir: Path, held_out: float) -> Self:
        splits = split_documents(found.documents, held_out)
        tokens = open_token_file(splits, digest=found.digest, held_out=held_out, cache_dir=cache_dir)
        return cls(
            digest=found.digest,
            cache_path=tokens.path,
            streams=tokens.streams,
            documents=tokens.spans,
            num_skipped=found.num_skipped,
            num_copies=found.num_copies,
        )

    def sample(self, rng: np.random.Generator, batch_size: int, length: int, split: str = "train") -> Batch:
        """Windows of a split, their starts drawn uniformly; a window may reach over the end of a document.

        Args:
            rng: the only source of randomness; it is advanced.
            batch_size: B >= 1.
            length: T >= 1; a window takes T + 1 bytes.
            split: ``train`` or ``heldout``.

        Returns:
            A batch of [B, T], ids in [0, 256), in which every target counts.

        Raises:
            ConfigError: if an argument is out of its range.
            DataError: if either split has fewer than T + 1 bytes, whichever is sampled.
        """
        check_generator("Corpus.sample", rng)
        check_sizes("Corpus.sample", batch_size=batch_size, length=length)
        if split not in self.streams:
            raise ConfigError(f"Corpus.sample(split={split!r}): no such split; {nearest(str(split), self.streams)}")
        self._check_room("Corpus.sample", length)
        stream = self.streams[split]
        starts = rng.integers(0, stream.size - length, size=batch_size)
        window = stream[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        mask = np.ones((batch_size, length), dtype=np.bool_)
        return Batch(tokens=window[:, :-1].copy(), targets=window[:, 1:].copy(), mask=mask)

    def heldout(self, length: int, max_windows: int | None = None, *, batch_size: int = 1) -> Iterator[Batch]:
        """The held-out split in consecutive windows that do not overlap, so that no byte is scored twice.

        Over all windows every byte of the stream but its first is scored exactly once. The last window is
        filled up with zeros whose mask is False.

        Args:
            length: T >= 1.
            max_windows: at most so many windows, spread evenly over the split rather than its first
                documents; None takes all.
            batch_size: windows per batch; the last batch may have fewer.

        Returns:
            An iterator of batches of [at most batch_size, T].

        Raises:
            ConfigError: if an argument is out of its range; at the call, not at the first window.
            DataError: if either split has fewer than T + 1 bytes.
        """
        check_sizes("Corpus.heldout", length=length, batch_size=batch_size)
        self._check_room("Corpus.heldout", length)
        num_windows = -(-(self.streams["heldout"].size - 1) // length)
        num_taken = num_windows
        if max_windows is not None:
            check_sizes("Corpus.heldout", max_windows=max_windows)
            num_taken = min(num_windows, max_windows)
        starts = length * (np.arange(num_taken) * num_windows // num_taken)
        return (
            self._heldout_batch(starts[first : first + batch_size], length) for first in range(0, num_taken, batch_size)
        )

    def _heldout_batch(self, starts: np.ndarray, length: int) -> Batch:
        stream = self.streams["heldout"]
        index = starts[:, None] + np.arange(length + 1)
        inside = index < stream.size
        window = np.where(inside, stream[np.minimum(index, stream.size - 1)], 0).astype(np.int64)
        return Batch(tokens=window[:, :-1].copy(), targets=window[:, 1:].copy(), mask=inside[:, 1:].copy())

    def _check_room(self, call: str, length: int) -> None:
        for name, stream in self.streams.items():
            if stream.size < length + 1:
                raise DataError(
                    f"{call}(length={length}): a window needs {length + 1} bytes, "
                    f"the {name} split has {stream.size}.\n"
                    "  Take shorter windows, more text, or another held_out."
                )

    def __repr__(self) -> str:
        splits = []
        for name, stream in self.streams.items():
            count = len(self.documents[name])
            splits.append(f"{name}={count} document{'s' if count > 1 else ''}, {stream.size} bytes")
        return f"Corpus({'; '.join(splits)}; {self.num_skipped} files skipped, {self.num_copies} copies)"


def _check_share(held_out: float) -> None:
    if not isinstance(held_out, float) or not 0 < held_out < 1:
        raise ConfigError(f"held_out={held_out!r}: it is a share of the documents, between 0 and 1, both excluded.")
